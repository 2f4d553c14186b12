//! Flags that choose a cluster.

use std::path::PathBuf;

/// Flags that choose a cluster, and a namespace and an API group in it.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ClusterArgs {
    /// Kubeconfig file; without it $KUBECONFIG, ~/.kube/config or the pod's service account.
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,

    /// Context of the kubeconfig; without it the current one.
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) context: Option<String>,

    /// Namespace of claims and Events (default: the context's), or of the programs for commands about the
    /// installation (default: topolvm-system).
    #[arg(long, short, global = true, value_name = "NAMESPACE")]
    pub(crate) namespace: Option<String>,

    /// The API group topolvm.cybozu.com; without it the one that the cluster has, topolvm.io where it has both.
    #[arg(long, global = true)]
    pub(crate) legacy: bool,
}
