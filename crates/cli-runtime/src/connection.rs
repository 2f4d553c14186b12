//! The client for the cluster that the flags name, and which API group that cluster has.

mod args;

use std::fmt;
use std::time::Duration;

use http::{HeaderValue, header};
use kube::config::{Config, KubeConfigOptions, Kubeconfig};
use kube::{Client, Resource as _};
use topolvm_api::{ApiFlavor, LogicalVolume};

use crate::request::{self, RequestError};

pub use args::ClusterArgs;

/// Timeout for the API server to take a connection: a person waits.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout of a read: longer than a watch, which the API server ends after 290 s at most.
const READ_TIMEOUT: Duration = Duration::from_secs(330);

/// Error of connecting to the cluster of the flags.
#[derive(Debug, thiserror::Error)]
pub enum ConnectionError {
    /// No flag, variable or service account names a cluster.
    #[error(
        "cannot determine how to reach the API server; set --kubeconfig or KUBECONFIG, and --context, as for kubectl"
    )]
    Infer(#[from] kube::config::InferConfigError),
    /// The kubeconfig cannot be read, or does not have the context.
    #[error(
        "cannot use the kubeconfig; correct --kubeconfig and --context (kubectl config get-contexts lists contexts)"
    )]
    Kubeconfig(#[from] kube::config::KubeconfigError),
    /// The configuration makes no client.
    #[error("cannot create a client for the API server; check the certificates and the exec plugin of the kubeconfig")]
    Client(#[source] Box<kube::Error>),
    /// The API server serves LogicalVolumes of no API group.
    #[error("neither topolvm.io nor topolvm.cybozu.com is installed in this cluster; see `kubectl topolvm doctor`")]
    NotInstalled,
    /// The API server does not answer which API groups it serves.
    #[error(transparent)]
    Request(#[from] RequestError),
}

/// Makes the client for the cluster that the flags choose, without a request.
pub async fn client(args: &ClusterArgs) -> Result<Client, ConnectionError> {
    // Of several providers in one program rustls chooses none; a second call finds the first one's
    drop(rustls::crypto::ring::default_provider().install_default());
    let options = KubeConfigOptions { context: args.context.clone(), ..KubeConfigOptions::default() };
    let mut config = match &args.kubeconfig {
        Some(file) => Config::from_custom_kubeconfig(Kubeconfig::read_from(file)?, &options).await?,
        None if args.context.is_some() => Config::from_kubeconfig(&options).await?,
        None => Config::infer().await?,
    };
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    config.read_timeout = Some(READ_TIMEOUT);
    config.headers.push((header::USER_AGENT, HeaderValue::from_static("kubectl-topolvm")));
    Client::try_from(config).map_err(|error| ConnectionError::Client(Box::new(error)))
}

/// A cluster: its client and its API group.
#[derive(Clone)]
pub struct Cluster {
    /// Client of its API server.
    pub client: Client,
    /// API group of its LogicalVolumes.
    pub flavor: ApiFlavor,
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The client has no debug form
        f.debug_struct("Cluster").field("flavor", &self.flavor).finish_non_exhaustive()
    }
}

/// Makes the client, and finds the API group that the cluster serves.
pub async fn connect(args: &ClusterArgs) -> Result<Cluster, ConnectionError> {
    let client = client(args).await?;
    let flavor = flavor(args, &client).await?;
    Ok(Cluster { client, flavor })
}

/// Makes the client, and finds the API group: `topolvm.io` if none is installed, which doctor then reports.
pub async fn connect_or_default(args: &ClusterArgs) -> Result<Cluster, ConnectionError> {
    let client = client(args).await?;
    match flavor(args, &client).await {
        Err(ConnectionError::NotInstalled) => Ok(Cluster { client, flavor: ApiFlavor::TopoLvm }),
        found => Ok(Cluster { client, flavor: found? }),
    }
}

/// Returns the API group that the flag names, or that the cluster serves.
async fn flavor(args: &ClusterArgs, client: &Client) -> Result<ApiFlavor, ConnectionError> {
    if args.legacy {
        return Ok(ApiFlavor::Legacy);
    }
    for flavor in [ApiFlavor::TopoLvm, ApiFlavor::Legacy] {
        let version = LogicalVolume::api_version(&flavor);
        let resources = request::served_resources(client, &version).await?;
        if resources.iter().any(|resource| resource.name == "logicalvolumes") {
            return Ok(flavor);
        }
    }
    Err(ConnectionError::NotInstalled)
}
