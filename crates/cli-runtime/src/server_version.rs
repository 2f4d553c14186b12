//! The version of the API server.

use kube::Client;
use topolvm_doctor::Version;

use crate::request::{RequestError, RequestResult};

/// Asks the API server for its version.
pub async fn read(client: &Client) -> RequestResult<Version> {
    let failed = |error| RequestError::new("get", "/version".to_owned(), error);
    let info = client.apiserver_version().await.map_err(failed)?;
    // Some providers write 33+
    let number = |text: &str| text.trim_end_matches(|c: char| !c.is_ascii_digit()).parse().unwrap_or_default();
    Ok((number(&info.major), number(&info.minor), info.git_version))
}
