//! Certificates in PEM form, and the one that a server presents to new connections.

use std::fmt::Display;
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

/// A certificate that cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// A file cannot be read.
    #[error("cannot read {path}")]
    Read {
        /// The file.
        path: String,
        /// The error.
        source: std::io::Error,
    },
    /// A text without a certificate.
    #[error("no certificate in PEM format found")]
    NoCertificate,
    /// A text that is not PEM.
    #[error("the certificate is not in PEM format")]
    CertificatePem(#[source] rustls::pki_types::pem::Error),
    /// A text without a private key.
    #[error("no private key in PEM format found")]
    KeyPem(#[source] rustls::pki_types::pem::Error),
    /// A certificate that does not follow X.509.
    #[error("cannot parse the certificate: {0}")]
    X509(String),
    /// The key of another certificate, or of an algorithm that TLS does not use.
    #[error("the private key is invalid, or does not belong to the certificate")]
    Key(#[source] rustls::Error),
}

/// Validity and names of a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateInfo {
    /// Begin of its validity.
    pub not_before: Timestamp,
    /// End of its validity.
    pub not_after: Timestamp,
    /// Names of the servers that may present it.
    pub dns_names: Vec<String>,
    /// Distinguished name of its owner.
    pub subject: String,
    /// Distinguished name of the authority that signed it.
    pub issuer: String,
}

impl CertificateInfo {
    /// Reads the first certificate of a PEM text.
    pub fn from_pem(pem: &str) -> Result<Self, CertificateError> {
        let der = CertificateDer::pem_slice_iter(pem.as_bytes()).next();
        Self::from_der(&der.ok_or(CertificateError::NoCertificate)?.map_err(CertificateError::CertificatePem)?)
    }

    fn from_der(der: &CertificateDer<'_>) -> Result<Self, CertificateError> {
        let x509 = |error: &dyn Display| CertificateError::X509(error.to_string());
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
            subject: certificate.subject().to_string(),
            issuer: certificate.issuer().to_string(),
        })
    }
}

/// A certificate chain with the private key of its first certificate.
#[derive(Clone, Debug)]
pub struct Certificate {
    key: Arc<CertifiedKey>,
    info: CertificateInfo,
}

impl Certificate {
    /// Reads PEM texts; refuses a private key that is not that of the first certificate.
    pub fn from_pem(certificates: &[u8], key: &[u8]) -> Result<Self, CertificateError> {
        let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(certificates)
            .collect::<Result<_, _>>()
            .map_err(CertificateError::CertificatePem)?;
        let info = CertificateInfo::from_der(chain.first().ok_or(CertificateError::NoCertificate)?)?;
        let key = PrivateKeyDer::from_pem_slice(key).map_err(CertificateError::KeyPem)?;
        let key = CertifiedKey::from_der(chain, key, &ring::default_provider()).map_err(CertificateError::Key)?;
        Ok(Self { key: Arc::new(key), info })
    }

    /// Validity and names of the first certificate.
    pub fn info(&self) -> &CertificateInfo {
        &self.info
    }
}

/// The certificate that a server presents to new connections; without one they are refused. Clones share it.
#[derive(Clone, Debug)]
pub struct ServedCertificate {
    purpose: &'static str,
    current: watch::Sender<Option<Certificate>>,
    expiry: Gauge,
}

impl ServedCertificate {
    /// No certificate yet. `purpose` names the server in the log; `expiry` is set to the Unix time at which the
    /// certificate expires.
    pub fn new(purpose: &'static str, expiry: Gauge) -> Self {
        Self { purpose, current: watch::Sender::new(None), expiry }
    }

    /// The purpose of the server, for the log.
    pub(super) fn purpose(&self) -> &'static str {
        self.purpose
    }

    /// Presents this certificate to new connections; those that are open go on.
    pub fn serve(&self, certificate: Certificate) {
        let CertificateInfo { not_after, dns_names, .. } = certificate.info.clone();
        let is_new = self.current.send_if_modified(|current| {
            let is_new = current.as_ref().is_none_or(|current| current.key.cert != certificate.key.cert);
            if is_new {
                *current = Some(certificate);
            }
            is_new
        });
        if is_new {
            self.expiry.set(not_after.as_second());
            let names = dns_names.join(",");
            tracing::info!(expires = %not_after, names, "serving {} with this certificate", self.purpose);
        }
    }

    /// The certificate that is served now.
    pub fn current(&self) -> Option<Certificate> {
        self.current.borrow().clone()
    }

    /// Returns settings of TLS with this certificate. `clients` verifies those of the clients; without it clients need
    /// none.
    pub fn config(&self, clients: Option<Arc<dyn ClientCertVerifier>>) -> Result<ServerConfig, rustls::Error> {
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

impl ResolvesServerCert for ServedCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.current.borrow().as_ref().map(|certificate| Arc::clone(&certificate.key))
    }
}
