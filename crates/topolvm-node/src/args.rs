//! Flags and environment variables, and the configuration made of them.

use std::path::{Path, PathBuf};

use clap::{ArgAction, Parser, ValueEnum};
use lvm::SystemRunner;
use lvmd::DEFAULT_CONFIG as DEFAULT_LVMD_CONFIG;
use node_io_limits::IoLimitSettings;
use node_orphans::OrphanSettings;
use topolvm_api::{ApiFlavor, DEFAULT_CSI_SOCKET, DEFAULT_LVMD_SOCKET, NodeSelection};
use topolvm_runtime::inventory_server::{InventoryArgs, InventoryConfig};
use topolvm_runtime::listen::Listen;
use topolvm_runtime::metrics_server::{MetricsArgs, MetricsConfig};
use topolvm_runtime::{ConfigError, LogArgs, RetiredArgs};

/// Serves the CSI Node service, manages the logical volumes of a node and publishes its capacity.
#[derive(Clone, Debug, Parser)]
#[command(name = "topolvm-node", version)]
pub struct Args {
    /// Unix socket of the CSI services. Kubelet uses the same path.
    #[arg(long, default_value = DEFAULT_CSI_SOCKET, value_name = "PATH")]
    csi_socket: PathBuf,

    /// Unix socket of lvmd.
    #[arg(long, default_value = DEFAULT_LVMD_SOCKET, value_name = "PATH")]
    lvmd_socket: PathBuf,

    /// Run lvmd in this process, with the configuration file of lvmd; --lvmd-socket is then ignored.
    #[arg(long, value_name = "BOOL", default_value_t = false, num_args = 0..=1, default_missing_value = "true",
          require_equals = true, action = ArgAction::Set)]
    embed_lvmd: bool,

    /// Configuration file of lvmd; only read with --embed-lvmd.
    #[arg(long, default_value = DEFAULT_LVMD_CONFIG, value_name = "FILE")]
    config: PathBuf,

    /// Path of the lvm program on the host; only used with --embed-lvmd. Deprecated: use lvm-command-prefix in the
    /// configuration file.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "PATH")]
    lvm_path: String,

    #[command(flatten)]
    metrics: MetricsArgs,

    /// Address of /healthz and /readyz over HTTP; empty or 0 disables them.
    #[arg(long, value_name = "ADDRESS", default_value = "", hide_default_value = true)]
    health_probe_bind_address: Listen,

    #[command(flatten)]
    inventory: InventoryArgs,

    /// Name of the Node object of this node.
    #[arg(long, env = "NODE_NAME", default_value = "", hide_default_value = true, value_name = "NAME")]
    nodename: String,

    /// Sidecars that run inside this process, separated by commas. Use none if a node-driver-registrar container runs
    /// next to topolvm-node.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "registrar", value_name = "PARTS")]
    embed: Vec<Embed>,

    /// Announce STAGE_UNSTAGE_VOLUME: each volume is mounted once on the node and bind-mounted from there into each
    /// pod. Drain the node before you disable this.
    #[arg(long, value_name = "BOOL", default_value_t = false, num_args = 0..=1, default_missing_value = "true",
          require_equals = true, action = ArgAction::Set)]
    stage_volumes: bool,

    /// Root directory of kubelet; the registration socket is in plugins_registry below it.
    #[arg(long, default_value = "/var/lib/kubelet", value_name = "DIR")]
    kubelet_dir: PathBuf,

    /// Labels of the nodes that have storage, separated by commas; any one of them selects a node. Empty selects all
    /// nodes. On other nodes topolvm-node publishes no free space while the node has volumes, and nothing after that.
    #[arg(long, env = "NODE_LABELS", value_name = "KEY=VALUE", default_value = "", hide_default_value = true)]
    node_labels: NodeSelection,

    /// Publish size and free space of each device class in the status of the Node, in bytes, as extended resources
    /// size.topolvm.io/CLASS and free.topolvm.io/CLASS. For monitoring tools; pods must not request them.
    #[arg(long, value_name = "BOOL", default_value_t = false, num_args = 0..=1, default_missing_value = "true",
          require_equals = true, action = ArgAction::Set)]
    extended_resources: bool,

    #[command(flatten)]
    io_limits: IoLimitSettings,

    #[command(flatten)]
    orphans: OrphanSettings,

    /// Any value, even "false", makes the agent speak topolvm.cybozu.com instead of topolvm.io.
    #[arg(long = "use-legacy", env = "USE_LEGACY", hide = true, value_name = "ANYTHING")]
    use_legacy: Option<String>,

    #[command(flatten)]
    pub(crate) log: LogArgs,

    #[command(flatten)]
    pub(crate) retired: RetiredArgs,
}

/// A value of `--embed`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Embed {
    /// Register the driver with kubelet
    Registrar,
    /// No sidecar
    #[value(alias = "")]
    None,
}

/// Connection to lvmd. `R` runs the LVM commands of an embedded one.
#[derive(Clone, Debug)]
pub enum LvmdConfig<R = SystemRunner> {
    /// lvmd is another process behind this socket.
    Socket(PathBuf),
    /// lvmd runs in this process.
    Embedded(Box<::lvmd::Settings<R>>),
}

/// Configuration: the flags, checked.
#[derive(Clone, Debug)]
pub struct Config<R = SystemRunner> {
    /// API group of this deployment.
    pub flavor: ApiFlavor,
    /// Name of the Node object of this node; never empty.
    pub node: String,
    /// Path of the CSI socket; absolute.
    pub csi_socket: PathBuf,
    /// Connection to lvmd.
    pub lvmd: LvmdConfig<R>,
    /// Configuration of the metrics server.
    pub metrics: MetricsConfig,
    /// Address of the probes.
    pub health: Listen,
    /// Configuration of the server of lists, unless it is off.
    pub inventory: Option<InventoryConfig>,
    /// True when volumes are staged before they are published.
    pub stage_volumes: bool,
    /// True when this process registers the driver with kubelet.
    pub embeds_registrar: bool,
    /// Root directory of kubelet.
    pub kubelet_dir: PathBuf,
    /// Selection of the nodes that have storage.
    pub node_labels: NodeSelection,
    /// True when sizes are shown as extended resources of the Node.
    pub extended_resources: bool,
    /// Settings of I/O limits.
    pub io_limits: IoLimitSettings,
    /// Settings of LVs whose LogicalVolume does not exist.
    pub orphans: OrphanSettings,
}

impl TryFrom<Args> for Config {
    type Error = ConfigError;

    fn try_from(args: Args) -> Result<Self, ConfigError> {
        if args.nodename.is_empty() {
            return Err(ConfigError::new(
                "node name not set; set --nodename or the environment variable NODE_NAME to the name of the Node \
                 object",
            ));
        }
        if args.embed.contains(&Embed::None) && args.embed.len() > 1 {
            return Err(ConfigError::new("--embed=none cannot be combined with other values"));
        }
        check_absolute("--csi-socket", &args.csi_socket)?;
        check_absolute("--kubelet-dir", &args.kubelet_dir)?;
        Ok(Self {
            flavor: ApiFlavor::from_use_legacy(args.use_legacy.as_deref()),
            node: args.nodename,
            csi_socket: args.csi_socket,
            lvmd: LvmdConfig::new(args.embed_lvmd, args.lvmd_socket, args.config, &args.lvm_path)?,
            metrics: args.metrics.into(),
            health: args.health_probe_bind_address,
            inventory: args.inventory.config(),
            stage_volumes: args.stage_volumes,
            embeds_registrar: args.embed.contains(&Embed::Registrar),
            kubelet_dir: args.kubelet_dir,
            node_labels: args.node_labels,
            extended_resources: args.extended_resources,
            io_limits: args.io_limits,
            orphans: args.orphans,
        })
    }
}

/// Checks that a path by which kubelet finds something is absolute.
fn check_absolute(flag: &str, path: &Path) -> Result<(), ConfigError> {
    if path.is_absolute() {
        return Ok(());
    }
    let path = path.display().to_string();
    Err(ConfigError::new(format!("{flag} is {path:?}, which is not an absolute path; kubelet needs an absolute path")))
}

impl LvmdConfig {
    /// Reads the configuration file of an embedded lvmd, or takes the socket of another.
    fn new(is_embedded: bool, socket: PathBuf, file: PathBuf, lvm: &str) -> Result<Self, ConfigError> {
        if is_embedded {
            Ok(Self::Embedded(Box::new(::lvmd::Settings::read(file, lvm)?)))
        } else if socket.as_os_str().is_empty() {
            Err(ConfigError::new("--lvmd-socket is empty; set it to the path of the lvmd socket"))
        } else {
            Ok(Self::Socket(socket))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(flags: &[&str]) -> Result<Config, String> {
        let args = Args::try_parse_from([&["topolvm-node"], flags].concat()).map_err(|error| error.to_string())?;
        Config::try_from(args).map_err(|error| error.to_string())
    }

    #[test]
    fn the_registrar_is_embedded_unless_switched_off() {
        let is_embedded = |flags: &[&str]| config(&[&["--nodename=n1"], flags].concat()).unwrap().embeds_registrar;
        assert!(is_embedded(&[]) && is_embedded(&["--embed=registrar"]));
        assert!(!is_embedded(&["--embed=none"]) && !is_embedded(&["--embed="]));
        let error = config(&["--nodename=n1", "--embed=none,registrar"]).unwrap_err();
        assert!(error.contains("--embed=none cannot be combined"), "{error}");
    }

    #[test]
    fn volumes_are_staged_only_when_asked_for() {
        let stages = |flags: &[&str]| config(&[&["--nodename=n1"], flags].concat()).unwrap().stage_volumes;
        assert!(!stages(&[]) && !stages(&["--stage-volumes=false"]));
        assert!(stages(&["--stage-volumes"]) && stages(&["--stage-volumes=true"]));
    }

    #[test]
    fn unknown_flags_and_values_fail_with_a_hint() {
        for (flag, hint) in [
            ("--zap-encoder=xml", "must be json or console"),
            ("--embed=scheduler", "possible values: registrar, none"),
            ("--lvmd-sockets=/a", "a similar argument exists: '--lvmd-socket'"),
        ] {
            let error = config(&["--nodename=n1", flag]).unwrap_err();
            assert!(error.contains(hint), "{flag}: {error}");
        }
    }

    #[test]
    fn metrics_are_served_where_older_deployments_say() {
        let address = |flags: &[&str]| config(&[&["--nodename=n1"], flags].concat()).unwrap().metrics;
        assert_eq!(address(&["--metrics-addr=:28080"]), address(&["--metrics-bind-address=:28080"]));
        assert_ne!(address(&["--metrics-addr=:28080"]), address(&[]));
    }

    #[test]
    fn every_flag_of_topolvm_reaches_the_configuration() {
        let taken = config(&[
            "--zap-log-level=debug",
            "-v=4",
            "--logtostderr",
            "--csi-socket=/run/other/csi.sock",
            "--lvmd-socket=/run/other/lvmd.sock",
            "--metrics-bind-address=:28080",
            "--secure-metrics-server",
            "--nodename=n2",
            "--embed-lvmd=false",
            "--lvm-path=/sbin/lvm",
            "--config=/etc/topolvm/lvmd.yaml",
            "--profiling-bind-address=:6060",
        ])
        .unwrap();
        assert_eq!((taken.node.as_str(), taken.csi_socket.as_path()), ("n2", Path::new("/run/other/csi.sock")));
        let LvmdConfig::Socket(socket) = taken.lvmd else { panic!("{:?}", taken.lvmd) };
        assert_eq!(socket, Path::new("/run/other/lvmd.sock"));
        let metrics = |flags: &[&str]| config(&[&["--nodename=n1"], flags].concat()).unwrap().metrics;
        assert_eq!(taken.metrics, metrics(&["--secure-metrics-server=true", "--metrics-bind-address=:28080"]));
        assert_ne!(taken.metrics, metrics(&["--secure-metrics-server"]));
        assert_ne!(taken.metrics, metrics(&["--metrics-bind-address=:28080"]));
    }

    #[test]
    fn a_missing_node_name_is_an_error_that_names_the_flag() {
        let error = config(&["--nodename="]).unwrap_err();
        assert!(error.contains("--nodename") && error.contains("NODE_NAME"), "{error}");
    }

    #[test]
    fn embedded_lvmd_config_file_errors_are_all_reported() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("lvmd.yaml");
        std::fs::write(&file, "device-classes:\n- {name: a b, volume-group: vg}\n- {name: c}\n").unwrap();
        let flags = ["--nodename=n1", "--embed-lvmd", &format!("--config={}", file.display())];
        let error = config(&flags).unwrap_err();
        assert!(error.contains("lvmd.yaml:2: device class \"a b\"") && error.contains("lvmd.yaml:3: "), "{error}");

        std::fs::write(&file, "lvm-command-prefix: [/bin/true]\ndevice-classes: [{name: a, volume-group: vg}]")
            .unwrap();
        assert!(matches!(config(&flags).unwrap().lvmd, LvmdConfig::Embedded(_)));
        let error = config(&[&flags[..], &["--lvm-path=/sbin/lvm"]].concat()).unwrap_err();
        assert!(error.contains("--lvm-path and lvm-command-prefix"), "{error}");
    }

    #[test]
    fn without_an_embedded_lvmd_its_configuration_is_not_read() {
        for flags in [&["--config=/nonexistent"][..], &["--config=/nonexistent", "--embed-lvmd=false"]] {
            let place = config(&[&["--nodename=n1"], flags].concat()).unwrap().lvmd;
            assert!(matches!(place, LvmdConfig::Socket(_)), "{place:?}");
        }
    }

    #[test]
    fn kubelet_cannot_reach_a_relative_socket() {
        let error = config(&["--nodename=n1", "--csi-socket=csi.sock"]).unwrap_err();
        assert!(error.contains("--csi-socket"), "{error}");
    }
}
