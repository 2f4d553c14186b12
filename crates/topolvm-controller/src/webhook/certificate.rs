//! The certificate that TLS connections get: where it comes from may exchange it at any time, for the next connection.

pub(crate) mod files;

use std::sync::Arc;

use jiff::Timestamp;
use prometheus_client::metrics::gauge::Gauge;
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio::sync::watch;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer as _, X509Certificate};

/// Why a certificate cannot be served.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CertificateError {
    #[error("cannot read {path}")]
    Read { path: String, source: std::io::Error },
    #[error("there is no certificate in PEM form")]
    NoCertificate,
    #[error("the certificate is not in PEM form")]
    CertificatePem(#[source] rustls::pki_types::pem::Error),
    #[error("there is no private key in PEM form")]
    KeyPem(#[source] rustls::pki_types::pem::Error),
    #[error("the certificate cannot be read: {0}")]
    X509(String),
    #[error("the private key cannot be used, or is not that of the certificate")]
    Key(#[source] rustls::Error),
}

/// What is said in a certificate, as far as we ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Facts {
    pub(crate) not_before: Timestamp,
    pub(crate) not_after: Timestamp,
    pub(crate) dns_names: Vec<String>,
}

impl Facts {
    /// Reads the first certificate of a PEM text.
    pub(crate) fn of_pem(pem: &str) -> Result<Self, CertificateError> {
        let der = CertificateDer::pem_slice_iter(pem.as_bytes()).next();
        Self::of(&der.ok_or(CertificateError::NoCertificate)?.map_err(CertificateError::CertificatePem)?)
    }

    fn of(der: &CertificateDer<'_>) -> Result<Self, CertificateError> {
        let x509 = |error: &dyn std::fmt::Display| CertificateError::X509(error.to_string());
        let (_, certificate) = X509Certificate::from_der(der).map_err(|error| x509(&error))?;
        let validity = certificate.validity();
        let time = |at: i64| Timestamp::from_second(at).map_err(|error| x509(&error));
        let names = certificate.subject_alternative_name().map_err(|error| x509(&error))?;
        let names = names.into_iter().flat_map(|extension| &extension.value.general_names);
        let dns_names = names
            .filter_map(|name| if let GeneralName::DNSName(name) = name { Some((*name).to_owned()) } else { None });
        Ok(Self {
            not_before: time(validity.not_before.timestamp())?,
            not_after: time(validity.not_after.timestamp())?,
            dns_names: dns_names.collect(),
        })
    }
}

/// A certificate chain with the private key of its first certificate.
#[derive(Clone, Debug)]
pub(crate) struct KeyedCertificate {
    key: Arc<CertifiedKey>,
    pub(crate) facts: Facts,
}

impl KeyedCertificate {
    /// Reads PEM texts, and checks that the one belongs to the other.
    pub(crate) fn from_pem(certificates: &[u8], key: &[u8]) -> Result<Self, CertificateError> {
        let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(certificates)
            .collect::<Result<_, _>>()
            .map_err(CertificateError::CertificatePem)?;
        let facts = Facts::of(chain.first().ok_or(CertificateError::NoCertificate)?)?;
        let key = PrivateKeyDer::from_pem_slice(key).map_err(CertificateError::KeyPem)?;
        let key = CertifiedKey::from_der(chain, key, &ring::default_provider()).map_err(CertificateError::Key)?;
        Ok(Self { key: Arc::new(key), facts })
    }
}

/// The certificate that is served. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Served {
    pub(super) current: watch::Sender<Option<KeyedCertificate>>,
    expiry: Gauge,
}

impl Served {
    /// None yet: connections are refused until there is one. `expiry` tells the metrics when it ends.
    pub(crate) fn new(expiry: Gauge) -> Self {
        Self { current: watch::Sender::new(None), expiry }
    }

    /// Serves this one to new connections; those that are open go on.
    pub(crate) fn serve(&self, certificate: KeyedCertificate) {
        let changed = self.current.send_if_modified(|current| {
            let is_new = current.as_ref().is_none_or(|current| current.key.cert != certificate.key.cert);
            if is_new {
                self.expiry.set(certificate.facts.not_after.as_second());
                *current = Some(certificate);
            }
            is_new
        });
        if changed && let Some(certificate) = &*self.current.borrow() {
            let Facts { not_after, dns_names, .. } = &certificate.facts;
            tracing::info!(expires = %not_after, names = dns_names.join(","), "serving webhooks with this certificate");
        }
    }

    /// Whether there is one.
    pub(crate) fn is_there(&self) -> bool {
        self.current.borrow().is_some()
    }

    /// How TLS is spoken with it, with clients that this verifier lets in.
    pub(crate) fn config(&self, clients: Option<Arc<dyn ClientCertVerifier>>) -> Result<ServerConfig, rustls::Error> {
        let provider = Arc::new(ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
        let builder = match clients {
            Some(clients) => builder.with_client_cert_verifier(clients),
            None => builder.with_no_client_auth(),
        };
        let mut config = builder.with_cert_resolver(Arc::new(self.clone()));
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(config)
    }
}

impl ResolvesServerCert for Served {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.current.borrow().as_ref().map(|certificate| certificate.key.clone())
    }
}
