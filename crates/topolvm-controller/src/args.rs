//! Flags and environment of `topolvm-controller`, and the configuration they become.

use std::path::PathBuf;

use clap::Parser;
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

    /// Any value that is not empty selects the API group topolvm.cybozu.com instead of topolvm.io.
    #[arg(long, env = "USE_LEGACY", value_name = "ANY", default_value = "", hide_default_value = true)]
    pub use_legacy: String,

    /// How to log.
    #[command(flatten)]
    pub log: LogArgs,
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

    #[test]
    fn flags_of_features_that_are_not_there_are_refused() {
        assert!(Args::try_parse_from(["topolvm-controller", "--enable-webhooks=false"]).is_err());
    }
}
