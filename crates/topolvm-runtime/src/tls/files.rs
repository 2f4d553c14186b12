//! A certificate in files that somebody else renews: cert-manager, a Secret, an administrator.

use std::path::{Path, PathBuf};

use tokio_util::sync::CancellationToken;

use super::{Certificate, CertificateError, ServedCertificate};
use crate::files::Files;

const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";

impl ServedCertificate {
    /// Serves `tls.crt` and `tls.key` of a directory, and what they are changed to, until `shutdown` is cancelled.
    /// Files that are not there yet, or that do not fit together, change nothing and are logged.
    pub async fn follow_files(self, directory: PathBuf, shutdown: CancellationToken) -> anyhow::Result<()> {
        let mut files = Files::watch([CERTIFICATE, KEY].map(|name| directory.join(name)));
        loop {
            match load(&directory).await {
                Ok(certificate) => self.serve(certificate),
                Err(error) => tracing::warn!(
                    directory = %directory.display(), error = crate::error_chain(&error),
                    "no new certificate for the {}; tls.crt and tls.key are read again when they change", self.purpose()
                ),
            }
            if shutdown.run_until_cancelled(files.changed()).await.is_none() {
                return Ok(());
            }
        }
    }
}

async fn load(directory: &Path) -> Result<Certificate, CertificateError> {
    let read = async |name: &str| {
        let path = directory.join(name);
        let content = tokio::fs::read(&path).await;
        content.map_err(|source| CertificateError::Read { path: path.display().to_string(), source })
    };
    Certificate::from_pem(&read(CERTIFICATE).await?, &read(KEY).await?)
}
