//! The client for the cluster that the flags name, and which API group that cluster has.

use std::time::Duration;

use http::{HeaderValue, header};
use kube::config::{Config, KubeConfigOptions, Kubeconfig};
use kube::{Client, Resource as _};
use topolvm_api::{ApiFlavor, LogicalVolume};

use crate::args::ClusterArgs;
use crate::error::Error;
use crate::reading::{Gap, is_absent};

/// A person waits: the API server has so long to take a connection.
const CONNECT: Duration = Duration::from_secs(10);
/// Longer than a watch, which the API server ends after 290 s at most.
const SILENCE: Duration = Duration::from_secs(330);

/// Nothing is sent yet.
pub(crate) async fn client(args: &ClusterArgs) -> Result<Client, Error> {
    // Of several providers in one program rustls chooses none; a second call finds the first one's
    drop(rustls::crypto::ring::default_provider().install_default());
    let options = KubeConfigOptions { context: args.context.clone(), ..KubeConfigOptions::default() };
    let mut config = match &args.kubeconfig {
        Some(file) => Config::from_custom_kubeconfig(Kubeconfig::read_from(file)?, &options).await?,
        None if args.context.is_some() => Config::from_kubeconfig(&options).await?,
        None => Config::infer().await?,
    };
    config.connect_timeout = Some(CONNECT);
    config.read_timeout = Some(SILENCE);
    config.headers.push((header::USER_AGENT, HeaderValue::from_static("kubectl-topolvm")));
    Client::try_from(config).map_err(|error| Error::Client(Box::new(error)))
}

/// The API group that the flag names, or that the cluster serves.
pub(crate) async fn flavor(args: &ClusterArgs, client: &Client) -> Result<ApiFlavor, Error> {
    if args.legacy {
        return Ok(ApiFlavor::Legacy);
    }
    for flavor in [ApiFlavor::TopoLvm, ApiFlavor::Legacy] {
        let version = LogicalVolume::api_version(&flavor);
        match client.list_api_group_resources(&version).await {
            Ok(resources) if resources.resources.iter().any(|resource| resource.name == "logicalvolumes") => {
                return Ok(flavor);
            }
            Ok(_) => {}
            Err(kube::Error::Api(status)) if is_absent(&status) => {}
            Err(error) => return Err(Gap::new("get", version.into_owned(), error).into()),
        }
    }
    Err(Error::NotInstalled)
}
