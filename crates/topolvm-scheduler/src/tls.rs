//! HTTPS for kube-scheduler, with files that are read again when they change.

use anyhow::Context as _;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use topolvm_runtime::tls::{ServedCertificate, TlsServer};
use topolvm_runtime::{CancellationToken, Tasks};

use crate::config::TlsFiles;

/// Starts to follow the files, until `shutdown` is cancelled, and returns the server that uses them. It closes all
/// connections as long as a file is missing.
pub(crate) fn start(
    files: TlsFiles,
    registry: &mut Registry,
    tasks: &Tasks,
    shutdown: &CancellationToken,
) -> anyhow::Result<TlsServer> {
    let TlsFiles { certificate: chain, key, client_authorities } = files;
    let expiry = Gauge::default();
    let help = "Unix time at which the certificate for kube-scheduler expires";
    registry.register("topolvm_scheduler_certificate_expiry_timestamp_seconds", help, expiry.clone());
    let certificate = ServedCertificate::new("answers to kube-scheduler", expiry);
    tasks.spawn("certificate", certificate.clone().follow_key_pair(chain, key, shutdown.clone()));
    let Some(path) = client_authorities else {
        return TlsServer::for_all_clients(certificate).context("cannot configure TLS");
    };
    let server = TlsServer::for_known_clients(certificate);
    tasks.spawn("authorities of clients", server.clone().follow_client_authorities(path, shutdown.clone()));
    Ok(server)
}
