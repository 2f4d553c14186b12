//! A certificate in files that another actor renews: cert-manager, a Secret, an administrator.

use std::path::{Path, PathBuf};

use tokio_util::sync::CancellationToken;

use super::{Certificate, CertificateError, ServedCertificate};
use crate::files::Files;

const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";

impl ServedCertificate {
    /// Serves `tls.crt` and `tls.key` of a directory, like [`Self::follow_key_pair`].
    pub async fn follow_files(self, directory: PathBuf, shutdown: CancellationToken) -> anyhow::Result<()> {
        self.follow_key_pair(directory.join(CERTIFICATE), directory.join(KEY), shutdown).await
    }

    /// Serves a certificate and its private key, and later versions of the files, until `shutdown` is cancelled. Files
    /// that do not exist yet, or that do not fit together, change nothing and are logged.
    pub async fn follow_key_pair(
        self,
        certificate: PathBuf,
        key: PathBuf,
        shutdown: CancellationToken,
    ) -> anyhow::Result<()> {
        let mut files = Files::watch([certificate.clone(), key.clone()]);
        loop {
            match load(&certificate, &key).await {
                Ok(certificate) => self.serve(certificate),
                Err(error) => tracing::warn!(
                    certificate = %certificate.display(), key = %key.display(), error = crate::error_chain(&error),
                    "cannot load a new certificate for the {}; both files are reloaded when they change", self.purpose()
                ),
            }
            if shutdown.run_until_cancelled(files.changed()).await.is_none() {
                return Ok(());
            }
        }
    }
}

async fn load(certificate: &Path, key: &Path) -> Result<Certificate, CertificateError> {
    let read = async |path: &Path| {
        let content = tokio::fs::read(path).await;
        content.map_err(|source| CertificateError::Read { path: path.display().to_string(), source })
    };
    Certificate::from_pem(&read(certificate).await?, &read(key).await?)
}
