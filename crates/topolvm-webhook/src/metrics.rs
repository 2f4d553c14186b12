//! The metrics of the webhooks.

use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use topolvm_runtime::doubling_buckets;
use topolvm_runtime::http_server::ConnectionMetrics;

/// The outcome of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Outcome {
    Patched,
    Unchanged,
    Denied,
    Failed,
    Malformed,
}

impl Outcome {
    fn label(self) -> &'static str {
        match self {
            Self::Patched => "patched",
            Self::Unchanged => "unchanged",
            Self::Denied => "denied",
            Self::Failed => "failed",
            Self::Malformed => "malformed",
        }
    }
}

/// Counters of calls. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct WebhookMetrics {
    calls: Family<[(&'static str, &'static str); 2], Counter>,
    seconds: Family<[(&'static str, &'static str); 1], Histogram>,
    /// Expiry of the certificate that is served, in seconds of Unix time; 0 without one.
    pub(crate) expiry: Gauge,
    pub(crate) connections: ConnectionMetrics,
}

impl WebhookMetrics {
    /// Makes the metrics and adds them to the registry.
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            calls: Family::default(),
            seconds: Family::new_with_constructor(|| Histogram::new(doubling_buckets(0.001, 14))),
            expiry: Gauge::default(),
            connections: ConnectionMetrics::default(),
        };
        registry.register("topolvm_webhook_calls", "Calls of the admission webhooks", metrics.calls.clone());
        let help = "Time from an admission call to its answer";
        registry.register("topolvm_webhook_seconds", help, metrics.seconds.clone());
        let help = "Unix time at which the served certificate expires";
        registry.register("topolvm_webhook_certificate_expiry_timestamp_seconds", help, metrics.expiry.clone());
        let ConnectionMetrics { open, evicted } = metrics.connections.clone();
        registry.register("topolvm_webhook_connections", "Open connections to the admission webhooks", open);
        let help = "Idle connections to the admission webhooks that were closed in favour of other clients";
        registry.register("topolvm_webhook_connections_evicted", help, evicted);
        metrics
    }

    /// Counts a call with its outcome and duration.
    pub(crate) fn count(&self, webhook: &'static str, outcome: Outcome, took: Duration) {
        self.calls.get_or_create(&[("webhook", webhook), ("outcome", outcome.label())]).inc();
        self.seconds.get_or_create(&[("webhook", webhook)]).observe(took.as_secs_f64());
    }
}
