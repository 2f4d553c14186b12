//! The command line of lvmd.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};
use lvmd_config::{NodeLabels, parse_node_labels};
use topolvm_runtime::listen::Listen;
use topolvm_runtime::systemd::NotifyArgs;
use topolvm_runtime::{LogArgs, RetiredArgs};

/// The default of `--config`.
pub const DEFAULT_CONFIG: &str = "/etc/topolvm/lvmd.yaml";

/// Manages the logical volumes of a node for TopoLVM, behind a gRPC unix socket.
#[derive(Debug, Parser)]
#[command(name = "lvmd", version)]
pub struct Args {
    /// Configuration file.
    #[arg(long, global = true, default_value = DEFAULT_CONFIG, value_name = "FILE")]
    pub(crate) config: PathBuf,

    /// Path of the lvm program on the host. Deprecated: use lvm-command-prefix in the configuration file.
    #[arg(long, default_value = "", value_name = "PATH", hide_default_value = true)]
    pub(crate) lvm_path: String,

    /// Address of Prometheus metrics over HTTP, such as :8080 or 127.0.0.1:8080; empty or 0 disables them.
    #[arg(long, default_value = ":8080", value_name = "ADDRESS")]
    pub(crate) metrics_bind_address: Listen,

    /// Address of /healthz and /readyz over HTTP, such as :8081; ready when `lvmd health` succeeds. Empty or 0 disables
    /// them.
    #[arg(long, default_value = "", value_name = "ADDRESS", hide_default_value = true)]
    pub(crate) health_probe_bind_address: Listen,

    #[command(flatten)]
    pub(crate) log: LogArgs,

    #[command(flatten)]
    pub(crate) systemd: NotifyArgs,

    #[command(flatten)]
    pub(crate) retired: RetiredArgs,

    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

/// Returns the environment of the process.
pub(crate) fn environment() -> impl Iterator<Item = (OsString, OsString)> {
    std::env::vars_os()
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Checks that LVM works for the lvmd of this configuration; exits with status 0 if it does.
    Health,
    /// Validates a configuration file and describes it, without running LVM.
    CheckConfig {
        /// Configuration file; the file of --config by default.
        #[arg(value_name = "FILE")]
        file: Option<PathBuf>,
    },
    /// Prints disk groups for the disks that a config.json of Carina selects.
    ConvertConfig {
        /// Path of config.json.
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
    /// Lists the disks of this machine, the action of lvmd for each, and its reason. Changes nothing.
    Disks {
        /// Output format.
        #[arg(long, short, value_enum, default_value_t, value_name = "FORMAT")]
        output: DiskOutput,

        /// Labels of this node, KEY=VALUE separated by commas, for disk groups with node-labels. By default, the labels
        /// known to the lvmd that runs with this configuration.
        #[arg(long, value_name = "LABELS", value_parser = parse_node_labels)]
        node_labels: Option<NodeLabels>,
    },
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum DiskOutput {
    /// A table.
    #[default]
    Text,
    /// One JSON object.
    Json,
}
