//! The certificate of the metrics: in files that somebody else renews, or our own.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::files::Files;

const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";

/// Why a certificate cannot be served.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("cannot read {path}")]
    Read { path: String, source: std::io::Error },
    #[error("it is not in PEM form")]
    Pem(#[from] rustls::pki_types::pem::Error),
    #[error("the private key cannot be used, or is not that of the certificate")]
    Key(#[from] rustls::Error),
    #[error("it cannot be made")]
    Make(#[from] rcgen::Error),
}

/// The certificate that new connections get. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct Served(watch::Sender<Option<Arc<CertifiedKey>>>);

impl Served {
    /// Makes a certificate that nobody has signed. It is as old as the process and never expires in its life.
    pub(super) fn make_own(&self) -> Result<(), Error> {
        let own = rcgen::generate_simple_self_signed(["localhost".to_owned(), "127.0.0.1".to_owned()])?;
        self.take(own.cert.pem().as_bytes(), own.signing_key.serialize_pem().as_bytes())
    }

    fn take(&self, certificates: &[u8], key: &[u8]) -> Result<(), Error> {
        let chain = CertificateDer::pem_slice_iter(certificates).collect::<Result<_, _>>()?;
        let key = PrivateKeyDer::from_pem_slice(key)?;
        self.0.send_replace(Some(Arc::new(CertifiedKey::from_der(chain, key, &ring::default_provider())?)));
        Ok(())
    }

    /// How TLS is spoken with it.
    pub(super) fn config(&self) -> Result<ServerConfig, rustls::Error> {
        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(self.clone()));
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(config)
    }
}

impl ResolvesServerCert for Served {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.borrow().clone()
    }
}

/// Serves `tls.crt` and `tls.key` of a directory, and what they are changed to, until `shutdown` is cancelled. Files that are
/// not there yet, or that do not fit together, change nothing.
pub(super) async fn follow(directory: PathBuf, served: Served, shutdown: CancellationToken) -> anyhow::Result<()> {
    let mut files = Files::watch([CERTIFICATE, KEY].map(|name| directory.join(name)));
    loop {
        match load(&directory, &served).await {
            Ok(()) => tracing::info!(directory = %directory.display(), "serving metrics with this certificate"),
            Err(error) => tracing::warn!(
                directory = %directory.display(), error = format!("{:#}", anyhow::Error::from(error)),
                "no new certificate for the metrics; tls.crt and tls.key are read again when they change"
            ),
        }
        if shutdown.run_until_cancelled(files.changed()).await.is_none() {
            return Ok(());
        }
    }
}

async fn load(directory: &Path, served: &Served) -> Result<(), Error> {
    let read = async |name: &str| {
        let path = directory.join(name);
        let content = tokio::fs::read(&path).await;
        content.map_err(|source| Error::Read { path: path.display().to_string(), source })
    };
    served.take(&read(CERTIFICATE).await?, &read(KEY).await?)
}
