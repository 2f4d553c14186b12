//! Flags and environment.

use clap::Parser;
use topolvm_runtime::LogArgs;
use topolvm_runtime::listen::Listen;

/// Tells kube-scheduler which nodes have room for a pod's volumes, and how much.
#[derive(Clone, Debug, Parser)]
#[command(name = "topolvm-scheduler", version)]
pub struct Args {
    /// Configuration file; without one every setting has its default.
    #[arg(long, value_name = "FILE", default_value = "", hide_default_value = true)]
    pub(crate) config: String,

    /// Where to serve /metrics over plain HTTP; :8080 means on every interface, empty or 0 means nowhere.
    #[arg(long, value_name = "ADDRESS", default_value = "", hide_default_value = true)]
    pub(crate) metrics_bind_address: Listen,

    /// Any value that is not empty, even "false", selects the API group topolvm.cybozu.com instead of topolvm.io.
    #[arg(long, env = "USE_LEGACY", value_name = "ANY", default_value = "", hide_default_value = true)]
    pub(crate) use_legacy: String,

    #[command(flatten)]
    pub(crate) log: LogArgs,
}
