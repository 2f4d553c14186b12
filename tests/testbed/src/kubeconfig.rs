//! kubeconfig files without references to other files, so that they work from any directory and in a guest.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use k8s_openapi::ByteString;
use serde_json::json;

use crate::pki::Identity;

/// Credential of a client of the API server.
#[derive(Debug)]
pub enum Credential<'a> {
    /// A client certificate.
    Certificate(&'a Identity),
    /// A service-account token.
    Token(&'a str),
}

/// Writes a kubeconfig for `server` (`https://ADDRESS:PORT`), trusted by the PEM certificate `authority`.
pub fn write(path: &Path, server: &str, authority: &str, credential: &Credential<'_>) -> Result<()> {
    let user = match credential {
        Credential::Certificate(identity) => json!({
            "client-certificate-data": base64(&identity.certificate),
            "client-key-data": base64(&identity.key),
        }),
        Credential::Token(token) => json!({ "token": token }),
    };
    // JSON is YAML.
    let text = serde_json::to_string_pretty(&json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{ "name": "c", "cluster": { "server": server, "certificate-authority-data": base64(authority) } }],
        "users": [{ "name": "u", "user": user }],
        "contexts": [{ "name": "x", "context": { "cluster": "c", "user": "u" } }],
        "current-context": "x",
    }))
    .context("write a kubeconfig as JSON")?;
    fs::write(path, text).with_context(|| format!("write {}", path.display()))
}

/// Returns Kubernetes' own type for bytes in JSON, which is serialized as base64.
fn base64(text: &str) -> ByteString {
    ByteString(text.as_bytes().to_vec())
}
