//! The version of the API server, and the oldest with which the product works.

use kube::Client;

use crate::request::{RequestError, RequestResult};

/// The oldest minor version of Kubernetes: since then the token of a pod says which node the pod is on, on which the
/// admission policy of the manifests relies, and definitions have selectable fields.
pub(crate) const OLDEST: (u32, u32) = (1, 32);

/// A version: major, minor, and as the server spells it.
pub(crate) type Version = (u32, u32, String);

/// Asks the API server for its version.
pub(crate) async fn read(client: &Client) -> RequestResult<Version> {
    let failed = |error| RequestError::new("get", "/version".to_owned(), error);
    let info = client.apiserver_version().await.map_err(failed)?;
    // Some providers write 33+
    let number = |text: &str| text.trim_end_matches(|c: char| !c.is_ascii_digit()).parse().unwrap_or_default();
    Ok((number(&info.major), number(&info.minor), info.git_version))
}

/// Returns true if this version is older than [`OLDEST`].
pub(crate) fn is_too_old((major, minor, _): &Version) -> bool {
    (*major, *minor) < OLDEST
}
