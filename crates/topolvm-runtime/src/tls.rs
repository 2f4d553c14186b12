//! An HTTPS server whose certificate, and whose CA certificates for clients, are exchanged without a restart.
//!
//! `certificate` is the certificate that the server presents, `files` reads it from a directory, `clients` decides
//! which clients may connect; `client` is the other side. A program that creates certificates, as the controller does
//! for its webhooks, passes them to [`ServedCertificate::serve`].

mod certificate;
mod client;
mod clients;
mod files;

use std::io;
use std::sync::Arc;

use axum::Router;
use rustls::ServerConfig;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use crate::http_server::{self, Limit};
use crate::listen::Listeners;

pub use certificate::{Certificate, CertificateError, CertificateInfo, ServedCertificate};
pub use client::{TlsClient, TlsClientError};

/// An HTTPS server: its certificate, and which clients may connect. Clones share both.
#[derive(Clone, Debug)]
pub struct TlsServer {
    certificate: ServedCertificate,
    /// Settings of TLS for new connections; `None` while the authorities of clients have not been read.
    config: watch::Sender<Option<Arc<ServerConfig>>>,
}

impl TlsServer {
    /// A server for clients without a certificate.
    pub fn for_all_clients(certificate: ServedCertificate) -> Result<Self, rustls::Error> {
        let config = certificate.config(None)?;
        Ok(Self { certificate, config: watch::Sender::new(Some(Arc::new(config))) })
    }

    /// A server that closes all connections until [`Self::follow_client_authorities`] has read whose certificates to
    /// accept.
    pub fn for_known_clients(certificate: ServedCertificate) -> Self {
        Self { certificate, config: watch::Sender::new(None) }
    }

    /// The certificate.
    pub fn certificate(&self) -> &ServedCertificate {
        &self.certificate
    }

    /// Returns whether the authorities of clients are known, or none are asked for.
    pub fn knows_clients(&self) -> bool {
        self.config.borrow().is_some()
    }

    /// Serves a router over TLS until `shutdown` is cancelled.
    pub async fn serve(self, listeners: Listeners, limit: Limit, router: Router, shutdown: CancellationToken) {
        for address in listeners.addresses() {
            tracing::info!(%address, "serving {}", self.certificate.purpose());
        }
        let handshake = |stream: TcpStream| {
            let config = self.config.borrow().clone();
            async move {
                let config =
                    config.ok_or_else(|| io::Error::other("the CA certificates of clients are not loaded yet"))?;
                TlsAcceptor::from(config).accept(stream).await
            }
        };
        http_server::serve(listeners, limit, router, handshake, shutdown).await;
    }
}
