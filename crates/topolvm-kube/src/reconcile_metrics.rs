//! The metric of reconciles: latency by controller and result.

use std::future::Future;
use std::time::Duration;

use futures::FutureExt as _;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use tokio::time::Instant;
use topolvm_runtime::doubling_buckets;

/// Histograms of the seconds that the controllers of a process take to reconcile an object. Clones share them.
#[derive(Clone, Debug)]
pub struct ReconcileMetrics {
    seconds: Family<Labels, Histogram>,
}

/// Fixed keywords of the program and never names of objects, so that the page does not grow with the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    controller: &'static str,
    result: &'static str,
}

impl ReconcileMetrics {
    /// Makes the metric and adds it to the registry.
    pub fn register(registry: &mut Registry) -> Self {
        // 1 ms to 65 s, as for the calls that a reconcile makes
        let metrics = Self { seconds: Family::new_with_constructor(|| Histogram::new(doubling_buckets(0.001, 17))) };
        let help = "Duration of the reconciliation of one object, by controller and result";
        registry.register("topolvm_reconcile_seconds", help, metrics.seconds.clone());
        metrics
    }

    /// Measures a reconcile of a controller, which counts when it has ended. One that is dropped before does not: it
    /// neither succeeded nor failed.
    pub fn observe<E>(
        &self,
        controller: &'static str,
        reconcile: impl Future<Output = Result<(), E>>,
    ) -> impl Future<Output = Result<(), E>> {
        let start = Instant::now();
        reconcile.inspect(move |end| self.record(controller, end.is_ok(), start.elapsed()))
    }

    fn record(&self, controller: &'static str, is_ok: bool, took: Duration) {
        let result = if is_ok { "ok" } else { "error" };
        self.seconds.get_or_create(&Labels { controller, result }).observe(took.as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use tokio::time::sleep;

    use super::*;

    /// The samples of the page that are no buckets.
    fn sums_and_counts(registry: &Registry) -> Vec<String> {
        let mut page = String::new();
        prometheus_client::encoding::text::encode(&mut page, registry).unwrap();
        let is_wanted = |line: &&str| !line.starts_with('#') && !line.contains("_bucket{");
        let mut lines: Vec<_> = page.lines().filter(is_wanted).map(str::to_owned).collect();
        lines.sort();
        lines
    }

    #[tokio::test(start_paused = true)]
    async fn each_end_counts_with_the_time_it_took() {
        let mut registry = Registry::default();
        let metrics = ReconcileMetrics::register(&mut registry);
        for seconds in [1, 3] {
            let succeeds = sleep(Duration::from_secs(seconds)).map(Ok::<(), &str>);
            metrics.observe("node", succeeds).await.unwrap();
        }
        let end = metrics.observe("node", ready(Err("not yet"))).await;
        assert_eq!(end, Err("not yet"));
        let expected = [
            "topolvm_reconcile_seconds_count{controller=\"node\",result=\"error\"} 1",
            "topolvm_reconcile_seconds_count{controller=\"node\",result=\"ok\"} 2",
            "topolvm_reconcile_seconds_sum{controller=\"node\",result=\"error\"} 0.0",
            "topolvm_reconcile_seconds_sum{controller=\"node\",result=\"ok\"} 4.0",
        ];
        assert_eq!(sums_and_counts(&registry), expected);
    }

    #[tokio::test]
    async fn one_that_is_broken_off_does_not_count() {
        let mut registry = Registry::default();
        let metrics = ReconcileMetrics::register(&mut registry);
        let mut reconcile = Box::pin(metrics.observe("node", pending::<Result<(), ()>>()));
        assert!(futures::poll!(&mut reconcile).is_pending());
        drop(reconcile);
        assert_eq!(sums_and_counts(&registry), <[String; 0]>::default());
    }
}
