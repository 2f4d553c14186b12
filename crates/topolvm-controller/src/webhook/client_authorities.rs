//! How TLS is spoken with the API server, and who has to sign its certificate (`--webhook-client-ca`).

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};
use tokio::sync::watch;
use topolvm_runtime::CancellationToken;
use topolvm_runtime::files::Files;

use super::certificate::Served;

/// Why authorities cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum AuthoritiesError {
    #[error("cannot read the file")]
    Read(#[source] std::io::Error),
    #[error("it is not in PEM form")]
    Pem(#[source] rustls::pki_types::pem::Error),
    #[error("a certificate in it cannot be used")]
    Certificate(#[source] rustls::Error),
    #[error("there is no certificate of an authority in it")]
    Verifier(#[source] VerifierBuilderError),
}

/// How TLS is spoken on new connections. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct TlsConfig {
    served: Served,
    current: watch::Sender<Option<Arc<ServerConfig>>>,
}

impl TlsConfig {
    /// For clients without a certificate.
    pub(super) fn for_everybody(served: Served) -> Result<Self, rustls::Error> {
        let config = served.config(None)?;
        Ok(Self { served, current: watch::Sender::new(Some(Arc::new(config))) })
    }

    /// For nobody until [`Self::follow`] has read the authorities of clients.
    pub(super) fn for_nobody(served: Served) -> Self {
        Self { served, current: watch::Sender::new(None) }
    }

    /// `None` until it is known whom to trust.
    pub(super) fn current(&self) -> Option<Arc<ServerConfig>> {
        self.current.borrow().clone()
    }

    /// Lets in only those clients whose certificate is signed by an authority in this file, and by one in what it is changed to, until
    /// `shutdown` is cancelled. A file that is not there or cannot be used changes nothing. Connections that are open go on; TLS sessions are
    /// not resumed across a change.
    pub(super) async fn follow(self, path: PathBuf, shutdown: CancellationToken) -> anyhow::Result<()> {
        let mut files = Files::watch([path.clone()]);
        loop {
            let file = path.display();
            match self.load(&path).await {
                Ok(()) => tracing::info!(%file, "webhooks are for clients with a certificate of these authorities"),
                Err(error) => tracing::warn!(
                    %file, error = format!("{:#}", anyhow::Error::from(error)),
                    "no new authorities of clients of the webhooks; the file is read again when it changes"
                ),
            }
            if shutdown.run_until_cancelled(files.changed()).await.is_none() {
                return Ok(());
            }
        }
    }

    async fn load(&self, path: &Path) -> Result<(), AuthoritiesError> {
        let pem = tokio::fs::read(path).await.map_err(AuthoritiesError::Read)?;
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(&pem) {
            roots.add(certificate.map_err(AuthoritiesError::Pem)?).map_err(AuthoritiesError::Certificate)?;
        }
        let provider = Arc::new(ring::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
        let config = self.served.config(Some(verifier.map_err(AuthoritiesError::Verifier)?));
        self.current.send_replace(Some(Arc::new(config.map_err(AuthoritiesError::Certificate)?)));
        Ok(())
    }
}
