//! Flags and environment, and the configuration that they make.

use std::collections::BTreeSet;
use std::path::PathBuf;

use clap::{Parser, ValueEnum};
use topolvm_api::{ApiFlavor, DEFAULT_CSI_SOCKET, DEFAULT_LVMD_SOCKET};
use topolvm_runtime::{CancellationToken, ConfigError, LogArgs, Program, Tasks};

/// Serves CSI on a node, makes its volumes and publishes its capacity.
#[derive(Clone, Debug, Parser)]
#[command(name = "topolvm-node", version)]
pub struct Args {
    /// Socket of the CSI services. It is also the path under which kubelet finds it.
    #[arg(long, default_value = DEFAULT_CSI_SOCKET, value_name = "PATH")]
    csi_socket: PathBuf,

    /// Socket of lvmd.
    #[arg(long, default_value = DEFAULT_LVMD_SOCKET, value_name = "PATH")]
    lvmd_socket: PathBuf,

    /// Where to serve /metrics; :8080 means on every interface, empty means nowhere.
    #[arg(long, default_value = ":8080", value_name = "ADDRESS")]
    metrics_bind_address: String,

    /// Name of the Node object that this agent works for.
    #[arg(long, env = "NODE_NAME", default_value = "", hide_default_value = true, value_name = "NAME")]
    nodename: String,

    /// What runs inside this process, separated by commas. Say none where a node-driver-registrar container stands beside
    /// the agent.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "registrar", value_name = "PARTS")]
    embed: Vec<Embed>,

    /// Root directory of kubelet; the registrar's socket goes to plugins_registry in it.
    #[arg(long, default_value = "/var/lib/kubelet", value_name = "DIR")]
    kubelet_dir: PathBuf,

    /// Any value, even "false", makes the agent speak topolvm.cybozu.com instead of topolvm.io.
    #[arg(long = "use-legacy", env = "USE_LEGACY", hide = true, value_name = "ANYTHING")]
    use_legacy: Option<String>,

    #[command(flatten)]
    log: LogArgs,
}

/// A value of `--embed`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Embed {
    /// Tell kubelet about the driver
    Registrar,
    /// Nothing
    #[value(alias = "")]
    None,
}

/// A part that runs inside the agent instead of in a program of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Embedded {
    /// Kubelet's plugin registration.
    Registrar,
}

/// The flags, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Which API group this deployment uses.
    pub flavor: ApiFlavor,
    /// Name of the own Node object; never empty.
    pub node: String,
    /// Socket of the CSI services; absolute.
    pub csi_socket: PathBuf,
    /// Socket of lvmd.
    pub lvmd_socket: PathBuf,
    /// Address of `/metrics`; empty means not served.
    pub metrics_bind_address: String,
    /// What runs inside the process.
    pub embedded: BTreeSet<Embedded>,
    /// Root directory of kubelet.
    pub kubelet_dir: PathBuf,
}

impl TryFrom<Args> for Config {
    type Error = ConfigError;

    fn try_from(args: Args) -> Result<Self, ConfigError> {
        if args.nodename.is_empty() {
            return Err(ConfigError::new(
                "the node's name is not given; set --nodename or the environment variable NODE_NAME to the name of the Node object",
            ));
        }
        if args.embed.contains(&Embed::None) && args.embed.len() > 1 {
            return Err(ConfigError::new("--embed=none cannot stand beside other values"));
        }
        let embedded = args
            .embed
            .iter()
            .filter_map(|part| match part {
                Embed::Registrar => Some(Embedded::Registrar),
                Embed::None => None,
            })
            .collect();
        for (flag, path) in [("--csi-socket", &args.csi_socket), ("--kubelet-dir", &args.kubelet_dir)] {
            if !path.is_absolute() {
                return Err(ConfigError::new(format!(
                    "{flag} is {:?}; kubelet needs an absolute path",
                    path.display().to_string()
                )));
            }
        }
        if args.lvmd_socket.as_os_str().is_empty() {
            return Err(ConfigError::new("--lvmd-socket is empty; give the path of lvmd's socket"));
        }
        Ok(Self {
            flavor: ApiFlavor::from_use_legacy(args.use_legacy.as_deref()),
            node: args.nodename,
            csi_socket: args.csi_socket,
            lvmd_socket: args.lvmd_socket,
            metrics_bind_address: args.metrics_bind_address,
            embedded,
            kubelet_dir: args.kubelet_dir,
        })
    }
}

impl Program for Args {
    const NAME: &'static str = "topolvm-node";
    type Config = Config;

    fn log(&self) -> &LogArgs {
        &self.log
    }

    fn config(self) -> Result<Config, ConfigError> {
        self.try_into()
    }

    async fn run(config: Config, tasks: Tasks, shutdown: CancellationToken) -> anyhow::Result<()> {
        crate::run::run(config, tasks, shutdown).await
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
        let embedded = |flags: &[&str]| config(&[&["--nodename=n1"], flags].concat()).unwrap().embedded;
        let registrar = BTreeSet::from([Embedded::Registrar]);
        assert_eq!(embedded(&[]), registrar);
        assert_eq!(embedded(&["--embed=registrar"]), registrar);
        assert_eq!(embedded(&["--embed=none"]), BTreeSet::new());
        assert_eq!(embedded(&["--embed="]), BTreeSet::new());
        assert!(config(&["--nodename=n1", "--embed=none,registrar"]).is_err());
    }

    #[test]
    fn unknown_flags_and_values_fail() {
        assert!(config(&["--nodename=n1", "--zap-devel"]).is_err());
        assert!(config(&["--nodename=n1", "--embed=scheduler"]).is_err());
    }

    #[test]
    fn a_missing_node_name_is_an_error_that_names_the_flag() {
        let error = config(&["--nodename="]).unwrap_err();
        assert!(error.contains("--nodename") && error.contains("NODE_NAME"), "{error}");
    }

    #[test]
    fn kubelet_cannot_reach_a_relative_socket() {
        let error = config(&["--nodename=n1", "--csi-socket=csi.sock"]).unwrap_err();
        assert!(error.contains("--csi-socket"), "{error}");
    }
}
