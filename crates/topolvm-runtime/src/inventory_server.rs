//! `GET /devicegroup` and `GET /volume` over HTTPS: the lists of an inventory in JSON, for users whom an [`Authorizer`]
//! permits to get the path. It refuses all other requests with a JSON object that contains the fix.

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue, WWW_AUTHENTICATE};
use axum::http::{Method, StatusCode};
use axum::response::IntoResponse as _;
use axum::{Json, Router};
use tokio_util::sync::CancellationToken;

use crate::Tasks;
use crate::authorized_server::{Authorizer, CertificateSource, authorize};
use crate::listen::{Listen, ListenAddress};

pub use axum::response::Response;

/// Connections at most: an answer may take megabytes, and those who ask are few.
const MOST_CONNECTIONS: usize = 8;

/// The flags.
#[derive(Clone, Debug, clap::Args)]
pub struct InventoryArgs {
    /// Address of the lists /devicegroup and /volume over HTTPS, such as :8443. Clients need a token that the API
    /// server accepts (TokenReview) and that may get the path (SubjectAccessReview). Empty or 0 disables the lists.
    #[arg(long, env = "INVENTORY_BIND_ADDRESS", default_value = "", hide_default_value = true, value_name = "ADDRESS")]
    inventory_bind_address: Listen,

    /// Directory with tls.crt and tls.key for --inventory-bind-address, which are reloaded when they change. Empty: a
    /// self-signed certificate is created at each start.
    #[arg(long, value_name = "DIR", default_value = "", hide_default_value = true)]
    inventory_cert_dir: String,
}

/// Address and certificate of the lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InventoryConfig {
    address: ListenAddress,
    certificate: CertificateSource,
}

impl InventoryArgs {
    /// Returns the configuration; `None` where the lists are served nowhere.
    #[must_use]
    pub fn config(self) -> Option<InventoryConfig> {
        match self.inventory_bind_address {
            Listen::Off => None,
            Listen::On(address) => {
                let certificate = CertificateSource::of_directory(self.inventory_cert_dir);
                Some(InventoryConfig { address, certificate })
            }
        }
    }
}

/// A list of an inventory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InventoryList {
    /// Volume groups with their physical volumes.
    DeviceGroups,
    /// Volumes.
    Volumes,
}

impl InventoryList {
    /// Returns the path under which it is served.
    pub const fn path(self) -> &'static str {
        match self {
            Self::DeviceGroups => "/devicegroup",
            Self::Volumes => "/volume",
        }
    }

    fn of_path(path: &str) -> Option<Self> {
        [Self::DeviceGroups, Self::Volumes].into_iter().find(|list| list.path() == path)
    }
}

/// Makes the lists.
pub trait InventorySource: Send + Sync + 'static {
    /// Makes the answer to a request that is allowed.
    fn answer(&self, list: InventoryList) -> impl Future<Output = Response> + Send;
}

impl InventoryConfig {
    /// Starts to serve until `shutdown` is cancelled.
    pub fn start(
        self,
        source: impl InventorySource,
        authorizer: impl Authorizer,
        tasks: &Tasks,
        shutdown: &CancellationToken,
    ) {
        self.certificate.serve(
            "inventory",
            self.address,
            MOST_CONNECTIONS,
            router(source, authorizer),
            tasks,
            shutdown,
        );
    }
}

/// Returns an answer of this JSON text.
pub fn json(body: impl Into<Body>) -> Response {
    let mut response = Response::new(body.into());
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Returns a refusal, whose JSON object has the reason as `error`.
pub fn refusal(status: StatusCode, reason: &str) -> Response {
    (status, Json(HashMap::from([("error", reason)]))).into_response()
}

fn router<S: InventorySource, A: Authorizer>(source: S, authorizer: A) -> Router {
    Router::new().fallback(answer::<S, A>).with_state(Arc::new((source, authorizer)))
}

async fn answer<S: InventorySource, A: Authorizer>(State(server): State<Arc<(S, A)>>, request: Request) -> Response {
    let (source, authorizer) = &*server;
    let path = request.uri().path();
    let Some(list) = InventoryList::of_path(path) else {
        return refusal(StatusCode::NOT_FOUND, "not found; use /devicegroup or /volume");
    };
    if request.method() != Method::GET {
        let mut refused = refusal(StatusCode::METHOD_NOT_ALLOWED, "this list is read-only; use GET");
        refused.headers_mut().insert(ALLOW, HeaderValue::from_static("GET"));
        return refused;
    }
    match authorize(authorizer, request.method(), path, request.headers()).await {
        Ok(()) => source.answer(list).await,
        Err((status, reason)) => {
            let mut refused = refusal(status, &reason);
            if status == StatusCode::UNAUTHORIZED {
                refused.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            refused
        }
    }
}

#[cfg(test)]
mod tests;
