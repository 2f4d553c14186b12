//! One span, one log line and two metrics per call, for every service.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use http::{HeaderMap, Request, Response};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use tonic::Code;
use tower::{Layer, Service};
use tracing::Instrument as _;

/// Counts and latencies of the calls that a process serves.
#[derive(Clone, Debug)]
pub struct RpcMetrics {
    handled: Family<HandledLabels, Counter>,
    seconds: Family<MethodLabels, Histogram>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct HandledLabels {
    method: String,
    code: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct MethodLabels {
    method: String,
}

impl RpcMetrics {
    /// Makes the metrics and adds them to the registry.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            handled: Family::default(),
            // 1 ms to 65 s: from an answer out of memory to a mkfs on a slow disk
            seconds: Family::new_with_constructor(|| Histogram::new(exponential_buckets(0.001, 2.0, 17))),
        };
        registry.register("topolvm_grpc_handled", "gRPC calls by method and code", metrics.handled.clone());
        registry.register("topolvm_grpc_seconds", "Time from a gRPC call to its answer", metrics.seconds.clone());
        metrics
    }

    fn record(&self, method: &str, code: Code, elapsed: std::time::Duration) {
        let method = method.to_owned();
        self.seconds.get_or_create(&MethodLabels { method: method.clone() }).observe(elapsed.as_secs_f64());
        self.handled.get_or_create(&HandledLabels { method, code: format!("{code:?}") }).inc();
    }
}

/// Adds the span, the log line and the metrics to a service.
#[derive(Clone, Debug)]
pub(crate) struct RpcLayer(pub(crate) Arc<RpcMetrics>);

impl<S> Layer<S> for RpcLayer {
    type Service = RpcService<S>;

    fn layer(&self, inner: S) -> RpcService<S> {
        RpcService { inner, metrics: Arc::clone(&self.0) }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct RpcService<S> {
    inner: S,
    metrics: Arc<RpcMetrics>,
}

impl<S, B, R> Service<Request<B>> for RpcService<S>
where
    S: Service<Request<B>, Response = Response<R>>,
    S::Future: Send + 'static,
    S::Error: Send,
    R: Send,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = futures::future::BoxFuture<'static, Result<S::Response, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // "/csi.v1.Node/NodePublishVolume" -> "NodePublishVolume"
        let method = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
        let span = tracing::info_span!("rpc", method);
        let metrics = Arc::clone(&self.metrics);
        let answer = self.inner.call(request);
        let work = async move {
            let start = Instant::now();
            let answer = answer.await;
            if let Ok(response) = &answer {
                let (code, message) = outcome(response.headers());
                metrics.record(&method, code, start.elapsed());
                log(code, &message, start);
            }
            answer
        };
        Box::pin(work.instrument(span))
    }
}

/// An error that a handler returns stands in the headers ("trailers only"); a stream that breaks later does not count.
fn outcome(headers: &HeaderMap) -> (Code, String) {
    tonic::Status::from_header_map(headers)
        .map_or((Code::Ok, String::new()), |status| (status.code(), status.message().to_owned()))
}

fn log(code: Code, message: &str, start: Instant) {
    let milliseconds = start.elapsed().as_secs_f64() * 1000.0;
    if code == Code::Ok {
        tracing::debug!(milliseconds, "answered");
    } else {
        tracing::warn!(milliseconds, ?code, message, "failed");
    }
}
