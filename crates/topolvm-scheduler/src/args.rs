//! Flags and environment.

use clap::Parser;
use topolvm_runtime::LogArgs;
use topolvm_runtime::listen::Listen;

/// Extends kube-scheduler: filters and scores nodes by free space for a pod's volumes.
#[derive(Clone, Debug, Parser)]
#[command(name = "topolvm-scheduler", version)]
pub struct Args {
    /// Configuration file. Default: all settings have their default values.
    #[arg(long, value_name = "FILE", default_value = "", hide_default_value = true)]
    pub(crate) config: String,

    /// Address of /metrics over plain HTTP; :8080 means all interfaces, empty or 0 disables it.
    #[arg(long, value_name = "ADDRESS", default_value = "", hide_default_value = true)]
    pub(crate) metrics_bind_address: Listen,

    /// Any non-empty value, even "false", selects the API group topolvm.cybozu.com instead of topolvm.io.
    #[arg(long, env = "USE_LEGACY", value_name = "ANY", default_value = "", hide_default_value = true)]
    pub(crate) use_legacy: String,

    #[command(flatten)]
    pub(crate) log: LogArgs,
}
