//! Flags that choose a cluster.

use std::path::PathBuf;

/// Flags that choose a cluster, and a namespace and an API group in it.
#[derive(Clone, Debug, clap::Args)]
pub struct ClusterArgs {
    /// Kubeconfig file. Default: $KUBECONFIG, ~/.kube/config or the pod's service account.
    #[arg(long, global = true, value_name = "FILE")]
    pub(super) kubeconfig: Option<PathBuf>,

    /// Context of the kubeconfig. Default: the current context.
    #[arg(long, global = true, value_name = "NAME")]
    pub(super) context: Option<String>,

    /// Namespace of claims and Events (default: the context's). For commands about the installation, the namespace of
    /// the components (default: topolvm-system).
    #[arg(long, short, global = true, value_name = "NAMESPACE")]
    pub namespace: Option<String>,

    /// Use the API group topolvm.cybozu.com. Default: the installed API group, or topolvm.io if both are installed.
    #[arg(long, global = true)]
    pub legacy: bool,
}
