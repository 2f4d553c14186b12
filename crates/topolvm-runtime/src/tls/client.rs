//! The client's side of TLS: whose certificate a server must have.

use std::io;
use std::sync::Arc;

use rustls::client::ClientConfig;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, InvalidDnsNameError, ServerName, UnixTime};
use rustls::{DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Error of making a client.
#[derive(Debug, thiserror::Error)]
pub enum TlsClientError {
    /// A text that is not PEM.
    #[error("the CA certificates are not in PEM format")]
    Pem(#[source] rustls::pki_types::pem::Error),
    /// A text without a certificate.
    #[error("no CA certificate found")]
    NoAuthority,
    /// A certificate, or what this process has of TLS, cannot be used.
    #[error("a CA certificate is invalid")]
    Tls(#[from] Error),
    /// A name that no certificate can have.
    #[error("invalid server name")]
    Name(#[from] InvalidDnsNameError),
}

/// A client of servers that all have the same name in their certificates, whatever their addresses are.
#[derive(Clone)]
pub struct TlsClient {
    connector: TlsConnector,
    name: ServerName<'static>,
}

impl TlsClient {
    /// Connects to servers with a certificate for `name` of one of these authorities, in PEM form.
    pub fn verifying(name: &'static str, authorities: &[u8]) -> Result<Self, TlsClientError> {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(authorities) {
            roots.add(certificate.map_err(TlsClientError::Pem)?)?;
        }
        if roots.is_empty() {
            return Err(TlsClientError::NoAuthority);
        }
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let config = builder.with_safe_default_protocol_versions()?.with_root_certificates(roots).with_no_client_auth();
        Self::with_config(name, config)
    }

    /// Connects to servers with any certificate. Data sent to one must be worthless to others, and the sender of its
    /// answers is unproven.
    pub fn verifying_nothing(name: &'static str) -> Result<Self, TlsClientError> {
        let provider = Arc::new(ring::default_provider());
        let verifier = Arc::new(AnyCertificate(Arc::clone(&provider)));
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
        let config = builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth();
        Self::with_config(name, config)
    }

    fn with_config(name: &'static str, config: ClientConfig) -> Result<Self, TlsClientError> {
        Ok(Self { connector: TlsConnector::from(Arc::new(config)), name: ServerName::try_from(name)? })
    }

    /// Speaks TLS over a connection.
    pub async fn connect(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        self.connector.connect(self.name.clone(), stream).await
    }
}

impl std::fmt::Debug for TlsClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TlsClient").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Takes every certificate whose private key the server has.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
