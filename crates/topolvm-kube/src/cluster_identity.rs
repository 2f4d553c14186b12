//! The identity of the cluster, as the API server returns it.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, Client, ResourceExt as _};
use tokio::sync::OnceCell;

use crate::api_server::{ApiError, DEADLINE, call};

/// Namespace that every cluster has, and whose UID identifies the cluster.
const IDENTITY: &str = "kube-system";

/// The identity of the cluster. Clones share what was read first.
#[derive(Clone, Debug)]
pub struct ClusterIdentity {
    namespaces: Api<Namespace>,
    first: Arc<OnceCell<String>>,
}

impl ClusterIdentity {
    /// Makes the identity of the cluster of this client. It is read at its first use.
    pub fn new(client: Client) -> Self {
        Self { namespaces: Api::all(client), first: Arc::default() }
    }

    /// Returns the UID that identifies the cluster, as the API server returned it first; `None` if it is not available
    /// now.
    pub async fn uid(&self) -> Option<&str> {
        let known = self.first.get_or_try_init(|| self.read_uid()).await;
        known.inspect_err(|error| tracing::debug!(%error, "cannot identify the cluster")).ok().map(String::as_str)
    }

    /// Reads the UID that identifies the cluster from the API server.
    pub async fn read_uid(&self) -> Result<String, ApiError> {
        let identity = call(DEADLINE, self.namespaces.get_metadata(IDENTITY)).await?;
        Ok(identity.uid().unwrap_or_default())
    }
}
