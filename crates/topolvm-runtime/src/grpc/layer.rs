//! One span, one log line and two metrics per call, for every service.

use std::task::{Context, Poll};
use std::time::Instant;

use http::{HeaderMap, Request, Response};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use tonic::Code;
use tower::Service;
use tracing::Instrument as _;
use tracing::field::Empty;

use crate::doubling_buckets;

/// Counts and latencies of the calls that a process serves.
#[derive(Clone, Debug)]
pub struct RpcMetrics {
    /// By method and code.
    handled: Family<[(&'static str, String); 2], Counter>,
    /// By method.
    seconds: Family<[(&'static str, String); 1], Histogram>,
}

impl RpcMetrics {
    /// Makes the metrics and adds them to the registry.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            handled: Family::default(),
            // 1 ms to 65 s: from an answer out of memory to a mkfs on a slow disk
            seconds: Family::new_with_constructor(|| Histogram::new(doubling_buckets(0.001, 17))),
        };
        registry.register("topolvm_grpc_handled", "gRPC calls by method and code", metrics.handled.clone());
        registry.register("topolvm_grpc_seconds", "Time from a gRPC call to its answer", metrics.seconds.clone());
        metrics
    }

    /// Records a call that is answered.
    pub fn record(&self, method: &str, code: Code, elapsed: std::time::Duration) {
        let method = ("method", method.to_owned());
        self.seconds.get_or_create(std::array::from_ref(&method)).observe(elapsed.as_secs_f64());
        self.handled.get_or_create(&[method, ("code", format!("{code:?}"))]).inc();
    }
}

/// Adds the span, the log line and the metrics to a service. Handlers that know them fill the fields `device_class`,
/// `volume_group`, `volume` and `lvm_processes` of the span.
pub fn observed<S>(inner: S, metrics: &RpcMetrics) -> RpcService<S> {
    RpcService { inner, metrics: metrics.clone() }
}

/// A service with the span, the log line and the metrics.
#[derive(Clone, Debug)]
pub struct RpcService<S> {
    inner: S,
    metrics: RpcMetrics,
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
        // An error span, because what happens in it has to be logged with these fields at any log level
        let span = tracing::error_span!(
            "rpc",
            method,
            device_class = Empty,
            volume_group = Empty,
            volume = Empty,
            lvm_processes = Empty
        );
        let call = Call { metrics: self.metrics.clone(), method, start: Instant::now(), is_answered: false };
        let answer = span.in_scope(|| self.inner.call(request));
        let work = async move {
            let mut call = call;
            let answer = answer.await;
            if let Ok(response) = &answer {
                let (code, message) = outcome(response.headers());
                call.answered(code, &message);
            }
            answer
        };
        Box::pin(work.instrument(span))
    }
}

/// A call whose end has to be logged and counted.
struct Call {
    metrics: RpcMetrics,
    method: String,
    start: Instant,
    is_answered: bool,
}

impl Call {
    fn answered(&mut self, code: Code, message: &str) {
        self.is_answered = true;
        self.metrics.record(&self.method, code, self.start.elapsed());
        let milliseconds = self.start.elapsed().as_secs_f64() * 1000.0;
        if code != Code::Ok {
            tracing::warn!(milliseconds, ?code, error = message, "failed");
        } else if is_read_only(&self.method) {
            tracing::debug!(milliseconds, "answered");
        } else {
            tracing::info!(milliseconds, "done");
        }
    }
}

impl Drop for Call {
    /// The caller hung up, or the process ends.
    fn drop(&mut self) {
        if !self.is_answered {
            self.answered(Code::Cancelled, "the caller no longer waits; the operation continues");
        }
    }
}

/// Returns whether a method changes nothing, by its name: those of the services that we serve follow this convention.
fn is_read_only(method: &str) -> bool {
    const BEGINNINGS: [&str; 9] =
        ["Get", "List", "NodeGet", "ControllerGet", "ControllerList", "Validate", "Probe", "Check", "Watch"];
    BEGINNINGS.iter().any(|beginning| method.starts_with(beginning))
}

/// Reads code and message of an answer. An error that a handler returns is in the headers ("trailers only"); a stream
/// that breaks later does not count.
fn outcome(headers: &HeaderMap) -> (Code, String) {
    tonic::Status::from_header_map(headers)
        .map_or((Code::Ok, String::new()), |status| (status.code(), status.message().to_owned()))
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use topolvm_testkit::Log;
    use tower::{ServiceExt as _, service_fn};

    use super::*;

    /// The log, without what differs from run to run.
    fn lines(log: &Log) -> Vec<String> {
        let without_time = |line: &str| line.split("milliseconds=").next().unwrap_or_default().trim().to_owned();
        log.take().lines().map(without_time).collect()
    }

    fn capture() -> (Log, tracing::subscriber::DefaultGuard) {
        let log = Log::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt().with_ansi(false).without_time().with_target(false);
        let subscriber = subscriber.with_max_level(tracing::Level::DEBUG).with_writer(move || writer.clone());
        (log, tracing::subscriber::set_default(subscriber.finish()))
    }

    async fn answer(method: &str, status: Option<tonic::Status>) -> Vec<String> {
        let (log, _guard) = capture();
        let service = service_fn(move |_: Request<()>| {
            tracing::Span::current().record("volume", "u1");
            let answer = status.clone().map_or_else(Response::default, tonic::Status::into_http::<()>);
            async { Ok::<_, Infallible>(answer) }
        });
        let metrics = RpcMetrics::register(&mut Registry::default());
        let request = Request::get(format!("/proto.LVService/{method}")).body(()).unwrap();
        observed(service, &metrics).oneshot(request).await.unwrap();
        lines(&log)
    }

    #[tokio::test]
    async fn change_is_logged_in_one_line_with_its_object() {
        let expected = "INFO rpc{method=\"CreateLV\" volume=\"u1\"}: done";
        assert_eq!(answer("CreateLV", None).await, [expected]);
    }

    #[tokio::test]
    async fn query_is_logged_at_debug_level() {
        for method in ["GetLVList", "NodeGetVolumeStats", "Probe", "ControllerListVolumeHealth"] {
            let lines = answer(method, None).await;
            assert_eq!(lines.len(), 1, "{lines:?}");
            assert!(lines[0].starts_with("DEBUG"), "{lines:?}");
        }
    }

    #[tokio::test]
    async fn a_failure_is_a_warning_with_code_and_cause() {
        let lines = answer("RemoveLV", Some(tonic::Status::not_found("no such volume"))).await;
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(lines[0].starts_with("WARN rpc{method=\"RemoveLV\" volume=\"u1\"}: failed"), "{lines:?}");
    }

    #[tokio::test]
    async fn a_caller_who_hangs_up_leaves_a_line_too() {
        let (log, _guard) = capture();
        let service = service_fn(|_: Request<()>| std::future::pending::<Result<Response<()>, Infallible>>());
        let metrics = RpcMetrics::register(&mut Registry::default());
        let request = Request::get("/proto.LVService/CreateLV").body(()).unwrap();
        let mut call = Box::pin(observed(service, &metrics).oneshot(request));
        assert!(futures::poll!(&mut call).is_pending());
        drop(call);
        assert_eq!(lines(&log), ["WARN rpc{method=\"CreateLV\"}: failed"]);
    }
}
