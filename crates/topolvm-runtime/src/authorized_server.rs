//! HTTPS for those alone whom an [`Authorizer`] lets in: the certificate, and the bearer token of each request.

mod access;

use std::path::PathBuf;

use anyhow::Context as _;
use axum::Router;
use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, Method, StatusCode};
use prometheus_client::metrics::gauge::Gauge;
use tokio_util::sync::CancellationToken;

use crate::http_server::Limit;
use crate::listen::ListenAddress;
use crate::tls::{Certificate, ServedCertificate, TlsServer};
use crate::{Tasks, error_chain};

pub use access::{Authorization, Authorizer};

/// The source of the certificate of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CertificateSource {
    /// One that is made at each start.
    Own,
    /// `tls.crt` and `tls.key` of this directory.
    Files(PathBuf),
}

impl CertificateSource {
    /// The files of a directory; of none a certificate of our own.
    pub(crate) fn of_directory(directory: String) -> Self {
        if directory.is_empty() { Self::Own } else { Self::Files(directory.into()) }
    }

    /// Starts to serve a router over TLS until `shutdown` is cancelled. `purpose` is what it serves, for the log.
    pub(crate) fn serve(
        self,
        purpose: &'static str,
        address: ListenAddress,
        connections: usize,
        router: Router,
        tasks: &Tasks,
        shutdown: &CancellationToken,
    ) {
        let certificate = ServedCertificate::new(purpose, Gauge::default());
        let (is_own, end) = (self == Self::Own, shutdown.clone());
        if let Self::Files(directory) = self {
            tasks.spawn(purpose, certificate.clone().follow_files(directory, shutdown.clone()));
        }
        tasks.spawn(purpose, async move {
            if is_own {
                let own = self_signed().with_context(|| format!("cannot create a certificate for the {purpose}"))?;
                certificate.serve(own);
            }
            let server = TlsServer::for_all_clients(certificate).context("cannot configure TLS")?;
            server.serve(address.listen().await?, Limit::of(connections), router, end).await;
            Ok(())
        });
    }
}

/// Creates a self-signed certificate. It is as old as the process and does not expire in its life.
fn self_signed() -> anyhow::Result<Certificate> {
    let own = rcgen::generate_simple_self_signed(["localhost".to_owned(), "127.0.0.1".to_owned()])?;
    Ok(Certificate::from_pem(own.cert.pem().as_bytes(), own.signing_key.serialize_pem().as_bytes())?)
}

/// Checks a request with `authorizer`. Returns status and message of a refusal.
pub(crate) async fn authorize(
    authorizer: &impl Authorizer,
    method: &Method,
    path: &str,
    headers: &HeaderMap,
) -> Result<(), (StatusCode, String)> {
    let Some(token) = bearer(headers) else {
        return Err((StatusCode::UNAUTHORIZED, "no token; send one with Authorization: Bearer".to_owned()));
    };
    let verb = method.as_str().to_ascii_lowercase();
    match authorizer.authorize(token, &verb, path).await {
        Ok(Authorization::Allowed) => Ok(()),
        Ok(Authorization::Unauthenticated) => {
            Err((StatusCode::UNAUTHORIZED, "the API server rejected this token".to_owned()))
        }
        Ok(Authorization::Forbidden(user)) => {
            let help = format!("{user} may not {verb} {path}; bind a ClusterRole with this nonResourceURL");
            Err((StatusCode::FORBIDDEN, help))
        }
        Err(error) => {
            tracing::warn!(error = error_chain(&error), path, "cannot authorize a request");
            Err((StatusCode::SERVICE_UNAVAILABLE, "the API server is not available; try again".to_owned()))
        }
    }
}

/// The token of `Authorization: Bearer TOKEN`, whose scheme may be written in any case (RFC 9110, section 11.1).
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(AUTHORIZATION)?.to_str().ok()?.trim().split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    #[test]
    fn own_certificate_outlives_the_process() {
        let certificate = super::self_signed().unwrap();
        let info = certificate.info();
        let time = |text: &str| text.parse::<Timestamp>().unwrap();
        assert!(info.not_before < time("2020-01-01T00:00:00Z"), "{info:?}");
        assert!(info.not_after > time("2200-01-01T00:00:00Z"), "{info:?}");
        assert_eq!(info.dns_names, ["localhost"]);
    }
}
