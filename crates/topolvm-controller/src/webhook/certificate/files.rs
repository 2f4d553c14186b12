//! A certificate in files that somebody else renews: cert-manager, a Secret, an administrator.

use std::path::{Path, PathBuf};

use topolvm_runtime::CancellationToken;
use topolvm_runtime::files::Files;

use super::{CertificateError, KeyedCertificate, Served};

const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";

/// Serves `tls.crt` and `tls.key` of a directory, and what they are changed to, until `shutdown` is cancelled. Files that are
/// not there yet, or that do not fit together, change nothing.
pub(crate) async fn follow(directory: PathBuf, served: Served, shutdown: CancellationToken) -> anyhow::Result<()> {
    let mut files = Files::watch([CERTIFICATE, KEY].map(|name| directory.join(name)));
    loop {
        match load(&directory).await {
            Ok(certificate) => served.serve(certificate),
            Err(error) => tracing::warn!(
                directory = %directory.display(), error = format!("{:#}", anyhow::Error::from(error)),
                "no new certificate for the webhooks; tls.crt and tls.key are read again when they change"
            ),
        }
        if shutdown.run_until_cancelled(files.changed()).await.is_none() {
            return Ok(());
        }
    }
}

async fn load(directory: &Path) -> Result<KeyedCertificate, CertificateError> {
    let read = async |name: &str| {
        let path = directory.join(name);
        let content = tokio::fs::read(&path).await;
        content.map_err(|source| CertificateError::Read { path: path.display().to_string(), source })
    };
    KeyedCertificate::from_pem(&read(CERTIFICATE).await?, &read(KEY).await?)
}
