//! `/metrics` for Prometheus: in plain text, or over TLS to those whom an [`Authorizer`] lets in.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use clap::ArgAction;
use tokio_util::sync::CancellationToken;

use crate::authorized_server::{Authorizer, CertificateSource, authorize};
use crate::listen::Listen;
use crate::{MetricsPage, Tasks, admin};

/// The flags.
#[derive(Clone, Debug, clap::Args)]
pub struct MetricsArgs {
    // TopoLVM called it --metrics-addr before it had --metrics-bind-address
    /// Address of /metrics; :8080 means all interfaces, empty or 0 disables it.
    #[arg(long, alias = "metrics-addr", default_value = ":8080", value_name = "ADDRESS")]
    metrics_bind_address: Listen,

    /// Serve /metrics over HTTPS. Clients need a token that the API server accepts (TokenReview) and that may get
    /// /metrics (SubjectAccessReview).
    #[arg(long, value_name = "BOOL", default_value_t = false, num_args = 0..=1, default_missing_value = "true",
          require_equals = true, action = ArgAction::Set)]
    secure_metrics_server: bool,

    /// Directory with tls.crt and tls.key for --secure-metrics-server, which are reloaded when they change. Empty: a
    /// self-signed certificate is created at each start.
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

impl From<MetricsArgs> for MetricsConfig {
    fn from(args: MetricsArgs) -> Self {
        let certificate = CertificateSource::of_directory(args.metrics_cert_dir);
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
        source.serve("metrics", address, admin::MOST_CONNECTIONS, router, tasks, shutdown);
    }
}

/// Lets only those requests through to a router that `authorizer` allows.
fn require_authorization<A: Authorizer>(router: Router, authorizer: A) -> Router {
    router.layer(from_fn_with_state(Arc::new(authorizer), check::<A>))
}

async fn check<A: Authorizer>(State(authorizer): State<Arc<A>>, request: Request, next: Next) -> Response {
    match authorize(&*authorizer, request.method(), request.uri().path(), request.headers()).await {
        Ok(()) => next.run(request).await,
        Err((status, reason)) => (status, format!("{reason}\n")).into_response(),
    }
}

#[cfg(test)]
mod tests;
