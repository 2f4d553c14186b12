//! Contents of a Secret that a StorageClass or another object names.

use std::collections::HashMap;

use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};

use crate::ReconcileError;

/// A Secret that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum SecretReadError {
    /// It does not exist.
    #[error("Secret {0} does not exist; create it, or correct the reference to it")]
    Missing(String),
    /// The role of this service account does not allow it: which Secrets are read is up to the administrator.
    #[error("Secret {0} must not be read; allow get of it in a Role for the ServiceAccount of topolvm-controller")]
    Forbidden(String),
    /// The API server did not answer as expected.
    #[error(transparent)]
    Api(#[from] ReconcileError),
}

/// Reads the contents of a Secret as text.
pub async fn read_secret(
    client: &Client,
    namespace: &str,
    name: &str,
) -> Result<HashMap<String, String>, SecretReadError> {
    let full = format!("{namespace}/{name}");
    let secret = match Api::<Secret>::namespaced(client.clone(), namespace).get(name).await {
        Ok(secret) => secret,
        Err(kube::Error::Api(status)) if status.code == 404 => return Err(SecretReadError::Missing(full)),
        Err(kube::Error::Api(status)) if status.code == 403 => return Err(SecretReadError::Forbidden(full)),
        Err(error) => return Err(ReconcileError::api("read Secret", full)(error).into()),
    };
    let entries = secret.data.unwrap_or_default().into_iter();
    Ok(entries.map(|(key, value)| (key, String::from_utf8_lossy(&value.0).into_owned())).collect())
}
