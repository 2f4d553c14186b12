//! Flags and environment of `topolvm-controller`, and the configuration they become.

use std::path::PathBuf;

use clap::{ArgAction, Parser};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use topolvm_api::{ApiFlavor, DEFAULT_CSI_SOCKET, ParseQuantityError, parse_bytes};
use topolvm_runtime::LogArgs;

use crate::MinimumAllocation;

/// Serves the CSI controller service of TopoLVM.
#[derive(Clone, Debug, Parser)]
#[command(name = "topolvm-controller", version)]
pub struct Args {
    /// Unix socket of the CSI services; the sidecars of this pod connect to it.
    #[arg(long, value_name = "PATH", default_value = DEFAULT_CSI_SOCKET)]
    pub csi_socket: PathBuf,

    /// Where to serve /metrics over HTTP; empty turns it off.
    #[arg(long, value_name = "ADDRESS", default_value = ":8080")]
    pub metrics_bind_address: String,

    /// Where to serve /healthz and /readyz over HTTP; empty turns it off.
    #[arg(long, value_name = "ADDRESS", default_value = ":8081")]
    pub health_probe_bind_address: String,

    /// Smallest raw block volume; smaller requests are raised to it.
    #[arg(long, value_name = "QUANTITY", default_value = "8Mi", value_parser = parse_minimum)]
    pub minimum_allocation_block: u64,

    /// Smallest volume with ext4, or with no filesystem named; smaller requests are raised to it.
    #[arg(long, value_name = "QUANTITY", default_value = "32Mi", value_parser = parse_minimum)]
    pub minimum_allocation_ext4: u64,

    /// Smallest volume with XFS; smaller requests are raised to it.
    #[arg(long, value_name = "QUANTITY", default_value = "300Mi", value_parser = parse_minimum)]
    pub minimum_allocation_xfs: u64,

    /// Smallest volume with Btrfs; smaller requests are raised to it.
    #[arg(long, value_name = "QUANTITY", default_value = "200Mi", value_parser = parse_minimum)]
    pub minimum_allocation_btrfs: u64,

    /// Take snapshots, restore them and clone volumes. Turn it off where no node has a thin device class.
    #[arg(long, value_name = "BOOL", default_value_t = true, num_args = 0..=1, default_missing_value = "true",
          require_equals = true, action = ArgAction::Set)]
    pub enable_snapshots: bool,

    /// Any value that is not empty selects the API group topolvm.cybozu.com instead of topolvm.io.
    #[arg(long, env = "USE_LEGACY", value_name = "ANY", default_value = "", hide_default_value = true)]
    pub use_legacy: String,

    /// How to log.
    #[command(flatten)]
    pub log: LogArgs,

    #[command(flatten)]
    retired: RetiredFlags,
}

/// Flags of TopoLVM's controller that deployments may still carry. They are refused with a sentence that says what to use,
/// unless they ask for nothing: `=false` and an empty address are taken.
#[derive(Clone, Debug, clap::Args)]
struct RetiredFlags {
    #[arg(long, hide = true, num_args = 0..=1, default_missing_value = "true", value_parser = no_secure_metrics)]
    secure_metrics_server: Option<String>,

    #[arg(long, hide = true, value_parser = no_profiling)]
    profiling_bind_address: Option<String>,

    #[arg(
        long,
        hide = true,
        num_args = 0..=1,
        default_missing_value = "",
        value_parser = other_log_flags,
        short = 'v',
        aliases = [
            "zap-log-level", "zap-encoder", "zap-devel", "zap-stacktrace-level", "zap-time-encoding", "logtostderr",
            "alsologtostderr", "stderrthreshold", "vmodule",
        ],
    )]
    v: Option<String>,
}

fn no_secure_metrics(value: &str) -> Result<String, String> {
    match value {
        "false" => Ok(value.to_owned()),
        // Never served in plain text instead: who sets the flag relies on it
        _ => {
            Err("metrics are not served over HTTPS; use --metrics-bind-address=127.0.0.1:8080 and a proxy in the pod \
                  that asks for credentials, or remove this flag"
                .to_owned())
        }
    }
}

fn no_profiling(value: &str) -> Result<String, String> {
    if value.is_empty() { Ok(String::new()) } else { Err("profiles are not served; remove this flag".to_owned()) }
}

fn other_log_flags(_: &str) -> Result<String, String> {
    Err("logs are controlled by --log-level and --log-format; use these".to_owned())
}

/// What the controller is told; nothing in it can be wrong.
#[derive(Clone, Debug)]
pub struct Config {
    /// Unix socket of the CSI services.
    pub csi_socket: PathBuf,
    /// Where to serve metrics; empty is nowhere.
    pub metrics_bind_address: String,
    /// Where to serve health; empty is nowhere.
    pub health_probe_bind_address: String,
    /// The smallest volumes.
    pub minimums: MinimumAllocation,
    /// Whether to take snapshots and make copies.
    pub snapshots: bool,
    /// The API group.
    pub flavor: ApiFlavor,
}

impl From<Args> for Config {
    fn from(args: Args) -> Self {
        Self {
            csi_socket: args.csi_socket,
            metrics_bind_address: args.metrics_bind_address,
            health_probe_bind_address: args.health_probe_bind_address,
            minimums: MinimumAllocation {
                block: args.minimum_allocation_block,
                ext4: args.minimum_allocation_ext4,
                xfs: args.minimum_allocation_xfs,
                btrfs: args.minimum_allocation_btrfs,
            },
            snapshots: args.enable_snapshots,
            flavor: ApiFlavor::from_use_legacy(Some(&args.use_legacy)),
        }
    }
}

/// A quantity in bytes. A negative minimum means none, as it does in TopoLVM.
fn parse_minimum(text: &str) -> Result<u64, ParseQuantityError> {
    match parse_bytes(&Quantity(text.to_owned())) {
        Err(ParseQuantityError::Negative(_)) => Ok(0),
        parsed => parsed,
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    fn config(args: &[&str]) -> Config {
        Args::try_parse_from(std::iter::once(&"topolvm-controller").chain(args)).unwrap().into()
    }

    #[test]
    fn help_is_what_deployments_rely_on() {
        insta::assert_snapshot!(
            Args::command().term_width(100).mut_args(|arg| arg.hide_env_values(true)).render_long_help()
        );
    }

    #[test]
    fn minimum_allocations_of_every_filesystem_reach_the_configuration() {
        let minimums = config(&[
            "--minimum-allocation-block=1Mi",
            "--minimum-allocation-ext4",
            "2Mi",
            "--minimum-allocation-xfs=3Mi",
            "--minimum-allocation-btrfs=-1",
        ])
        .minimums;
        assert_eq!(minimums, MinimumAllocation { block: 1 << 20, ext4: 2 << 20, xfs: 3 << 20, btrfs: 0 });
    }

    #[test]
    fn a_minimum_that_is_no_quantity_is_refused_with_an_example() {
        let error = Args::try_parse_from(["topolvm-controller", "--minimum-allocation-xfs=lots"]).unwrap_err();
        assert!(error.to_string().contains("such as 1Gi"), "{error}");
    }

    #[rstest::rstest]
    #[case("--secure-metrics-server", "a proxy in the pod")]
    #[case("--secure-metrics-server=true", "a proxy in the pod")]
    #[case("--profiling-bind-address=:6060", "profiles are not served; remove this flag")]
    #[case("--zap-log-level=debug", "use these")]
    #[case("-v=4", "--log-level and --log-format")]
    #[case("--minimum-allocation-ext3=1Mi", "a similar argument exists")]
    fn a_flag_that_is_not_served_is_refused_with_a_hint(#[case] flag: &str, #[case] hint: &str) {
        let error = Args::try_parse_from(["topolvm-controller", flag]).unwrap_err();
        assert!(error.to_string().contains(hint), "{error}");
    }

    #[test]
    fn flags_that_ask_for_nothing_are_taken() {
        config(&["--secure-metrics-server=false", "--profiling-bind-address="]);
    }

    #[rstest::rstest]
    #[case(&[], true)]
    #[case(&["--enable-snapshots=false"], false)]
    #[case(&["--enable-snapshots"], true)]
    fn snapshots_can_be_turned_off(#[case] args: &[&str], #[case] snapshots: bool) {
        assert_eq!(config(args).snapshots, snapshots);
    }

    #[test]
    fn flags_of_features_that_are_not_there_are_refused() {
        assert!(Args::try_parse_from(["topolvm-controller", "--enable-webhooks=false"]).is_err());
    }
}
