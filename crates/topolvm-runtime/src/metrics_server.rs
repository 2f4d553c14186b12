//! `/metrics` for Prometheus: in plain text, or over TLS to those whom an [`Authorizer`] lets in.

mod access;

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use axum::Router;
use axum::extract::{Request, State};
use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use clap::ArgAction;
use prometheus_client::metrics::gauge::Gauge;
use tokio_util::sync::CancellationToken;

use crate::http_server::Limit;
use crate::listen::Listen;
use crate::tls::{Certificate, ServedCertificate, TlsServer};
use crate::{MetricsPage, Tasks, admin, error_chain};

pub use access::{Authorization, Authorizer};

/// The flags.
#[derive(Clone, Debug, clap::Args)]
pub struct MetricsArgs {
    // TopoLVM called it --metrics-addr before it had --metrics-bind-address
    /// Where to serve /metrics; :8080 means on every interface, empty or 0 means nowhere.
    #[arg(long, alias = "metrics-addr", default_value = ":8080", value_name = "ADDRESS")]
    metrics_bind_address: Listen,

    /// Serve /metrics over HTTPS, and only to those whose token the API server knows (TokenReview) and lets get
    /// /metrics (SubjectAccessReview).
    #[arg(long, value_name = "BOOL", default_value_t = false, num_args = 0..=1, default_missing_value = "true",
          require_equals = true, action = ArgAction::Set)]
    secure_metrics_server: bool,

    /// Directory with tls.crt and tls.key for --secure-metrics-server, which are read again when they change. Empty:
    /// each start makes a certificate that nobody has signed.
    #[arg(long, value_name = "DIR", default_value = "", hide_default_value = true)]
    metrics_cert_dir: String,
}

/// Address and certificate of the metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetricsConfig {
    /// Address on which they are served.
    address: Listen,
    /// The certificate; none is plain text for everybody.
    secure: Option<CertificateSource>,
}

/// The source of the certificate of secure metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
enum CertificateSource {
    /// One that is made at each start.
    Own,
    /// `tls.crt` and `tls.key` of this directory.
    Files(PathBuf),
}

impl From<MetricsArgs> for MetricsConfig {
    fn from(args: MetricsArgs) -> Self {
        let certificate = match args.metrics_cert_dir {
            none if none.is_empty() => CertificateSource::Own,
            directory => CertificateSource::Files(directory.into()),
        };
        Self { address: args.metrics_bind_address, secure: args.secure_metrics_server.then_some(certificate) }
    }
}

impl MetricsConfig {
    /// In plain text on this address.
    pub fn plain(address: Listen) -> Self {
        Self { address, secure: None }
    }

    /// Starts to serve until `shutdown` is cancelled. `authorizer` decides about requests over TLS.
    pub fn start(
        self,
        page: impl Into<MetricsPage>,
        authorizer: impl Authorizer,
        tasks: &Tasks,
        shutdown: &CancellationToken,
    ) {
        let (page, end) = (page.into(), shutdown.clone());
        let (address, source) = match (self.address, self.secure) {
            (Listen::On(address), Some(source)) => (address, source),
            (address, _) => {
                tasks.spawn("metrics", async move { Ok(admin::serve_metrics(address, page, end).await?) });
                return;
            }
        };
        let router = require_authorization(admin::metrics_router(page), authorizer);
        let certificate = ServedCertificate::new("metrics", Gauge::default());
        if let CertificateSource::Files(directory) = &source {
            let following = certificate.clone().follow_files(directory.clone(), shutdown.clone());
            tasks.spawn("metrics certificate", following);
        }
        tasks.spawn("metrics", async move {
            if source == CertificateSource::Own {
                certificate.serve(self_signed().context("cannot make a certificate for the metrics")?);
            }
            let server = TlsServer::for_everybody(certificate).context("cannot speak TLS")?;
            server.serve(address.listen().await?, Limit::of(admin::MOST_CONNECTIONS), router, end).await;
            Ok(())
        });
    }
}

/// Makes a certificate that nobody has signed. It is as old as the process and does not expire in its life.
fn self_signed() -> anyhow::Result<Certificate> {
    let own = rcgen::generate_simple_self_signed(["localhost".to_owned(), "127.0.0.1".to_owned()])?;
    Ok(Certificate::from_pem(own.cert.pem().as_bytes(), own.signing_key.serialize_pem().as_bytes())?)
}

/// Lets only those requests through to a router that `authorizer` allows.
fn require_authorization<A: Authorizer>(router: Router, authorizer: A) -> Router {
    router.layer(from_fn_with_state(Arc::new(authorizer), authorize::<A>))
}

async fn authorize<A: Authorizer>(State(authorizer): State<Arc<A>>, request: Request, next: Next) -> Response {
    let Some(token) = bearer(request.headers()) else {
        return (StatusCode::UNAUTHORIZED, "no token; send one as Authorization: Bearer\n").into_response();
    };
    let verb = request.method().as_str().to_ascii_lowercase();
    match authorizer.authorize(token, &verb, request.uri().path()).await {
        Ok(Authorization::Allowed) => next.run(request).await,
        Ok(Authorization::Unauthenticated) => {
            (StatusCode::UNAUTHORIZED, "the API server does not know this token\n").into_response()
        }
        Ok(Authorization::Forbidden(user)) => {
            let path = request.uri().path();
            let help = format!("{user} may not {verb} {path}; bind a ClusterRole with this nonResourceURL\n");
            (StatusCode::FORBIDDEN, help).into_response()
        }
        Err(error) => {
            tracing::warn!(error = error_chain(&error), "cannot find out who asks for metrics");
            (StatusCode::SERVICE_UNAVAILABLE, "the API server cannot be asked; try again\n").into_response()
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
mod tests;
