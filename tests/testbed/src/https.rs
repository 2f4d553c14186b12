//! A client of single HTTPS requests from inside a network namespace: health and objects.

use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::netns::NetNs;
use crate::pki::Identity;

/// Timeout of a request; callers repeat it.
const TIMEOUT: Duration = Duration::from_secs(5);

/// An HTTPS client with a certificate, in one network namespace.
#[derive(Debug, Clone)]
pub(crate) struct Https {
    netns: NetNs,
    config: Arc<ClientConfig>,
}

impl Https {
    /// Creates a client. `authority` is the PEM certificate that servers must be signed by.
    pub(crate) fn new(netns: NetNs, authority: &str, identity: &Identity) -> Result<Self> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(authority.as_bytes()).context("read the authority's certificate")?)?;
        let certificate =
            CertificateDer::from_pem_slice(identity.certificate.as_bytes()).context("read a certificate")?;
        let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes()).context("read a private key")?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_client_auth_cert(vec![certificate], key)?;
        Ok(Self { netns, config: Arc::new(config) })
    }

    /// Sends a GET and returns the body of a response with status 200; every other one is an error.
    pub(crate) fn get(&self, address: SocketAddr, path: &str) -> Result<Vec<u8>> {
        let socket = self.netns.connect(address, TIMEOUT)?.with_context(|| format!("connect to {address}"))?;
        socket.set_read_timeout(Some(TIMEOUT))?;
        socket.set_write_timeout(Some(TIMEOUT))?;
        let session = ClientConnection::new(Arc::clone(&self.config), ServerName::IpAddress(address.ip().into()))?;
        let mut stream = StreamOwned::new(session, socket);
        // 1.0: the answer then ends with the connection and is never in chunks.
        write!(stream, "GET {path} HTTP/1.0\r\nHost: {address}\r\nAccept: application/json\r\n\r\n")?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).with_context(|| format!("read https://{address}{path}"))?;
        let Some(split) = answer.windows(4).position(|window| window == b"\r\n\r\n") else {
            bail!("https://{address}{path} answered something that is not HTTP");
        };
        let body = answer.split_off(split + 4);
        let head = String::from_utf8_lossy(&answer);
        let status = head.lines().next().unwrap_or_default();
        if status.split(' ').nth(1) != Some("200") {
            bail!("https://{address}{path}: {status}: {}", String::from_utf8_lossy(&body).trim());
        }
        Ok(body)
    }
}
