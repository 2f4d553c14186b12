//! Client certificates of an HTTPS server: the CA certificates in a file decide which clients may connect.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use tokio_util::sync::CancellationToken;

use super::TlsServer;
use crate::files::Files;

/// Authorities of clients that cannot be used.
#[derive(Debug, thiserror::Error)]
enum AuthoritiesError {
    #[error("cannot read the file")]
    Read(#[source] std::io::Error),
    #[error("the file is not in PEM format")]
    Pem(#[source] rustls::pki_types::pem::Error),
    #[error("a certificate in the file is invalid")]
    Certificate(#[source] rustls::Error),
    #[error("the file contains no CA certificate")]
    Verifier(#[source] VerifierBuilderError),
}

impl TlsServer {
    /// Accepts only clients with a certificate of an authority in this file and its later versions, until `shutdown` is
    /// cancelled. A file that is missing or cannot be used changes nothing and is logged. Open connections continue;
    /// TLS sessions are not resumed across a change.
    pub async fn follow_client_authorities(self, path: PathBuf, shutdown: CancellationToken) -> anyhow::Result<()> {
        let mut files = Files::watch([path.clone()]);
        loop {
            let (file, served) = (path.display(), self.certificate.purpose());
            match self.load_client_authorities(&path).await {
                Ok(()) => tracing::info!(%file, "{served} require a client certificate of these CAs"),
                Err(error) => tracing::warn!(
                    %file, error = crate::error_chain(&error),
                    "cannot load new CA certificates for clients of the {served}; the file is reloaded when it changes"
                ),
            }
            if shutdown.run_until_cancelled(files.changed()).await.is_none() {
                return Ok(());
            }
        }
    }

    async fn load_client_authorities(&self, path: &Path) -> Result<(), AuthoritiesError> {
        let pem = tokio::fs::read(path).await.map_err(AuthoritiesError::Read)?;
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(&pem) {
            roots.add(certificate.map_err(AuthoritiesError::Pem)?).map_err(AuthoritiesError::Certificate)?;
        }
        let provider = Arc::new(ring::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
        let config = self.certificate.config(Some(verifier.map_err(AuthoritiesError::Verifier)?));
        self.config.send_replace(Some(Arc::new(config.map_err(AuthoritiesError::Certificate)?)));
        Ok(())
    }
}
