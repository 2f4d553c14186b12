//! Metrics of the extender.

use std::collections::BTreeMap;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use crate::predicate::FilterReason;

/// The extender's metrics. Clones count together.
#[derive(Clone, Debug)]
pub struct Metrics {
    /// By path and status code.
    duration: Family<RequestLabels, Histogram, fn() -> Histogram>,
    results: Family<[(&'static str, &'static str); 1], Counter>,
}

type RequestLabels = [(&'static str, String); 2];

impl Metrics {
    /// Metrics that a registry shows.
    pub fn register(registry: &mut Registry) -> Self {
        let seconds: fn() -> Histogram = || Histogram::new([0.001, 0.005, 0.02, 0.1, 0.5, 2.0, 10.0]);
        let metrics = Self { duration: Family::new_with_constructor(seconds), results: Family::default() };
        let registry = registry.sub_registry_with_prefix("topolvm_scheduler");
        registry.register_with_unit(
            "request_duration",
            "Time to answer a request of kube-scheduler",
            Unit::Seconds,
            metrics.duration.clone(),
        );
        registry.register("node_results", "Filtered nodes, by result", metrics.results.clone());
        metrics
    }

    pub(crate) fn observe_request(&self, path: &str, code: u16, seconds: f64) {
        // One series for all that is asked by mistake
        let known =
            ["/predicate", "/preempt", "/prioritize", "/readyz", "/status"].into_iter().find(|known| *known == path);
        let path = known.unwrap_or("other");
        self.duration.get_or_create(&[("path", path.to_owned()), ("code", code.to_string())]).observe(seconds);
    }

    /// Counts the results about the nodes of a request.
    pub(crate) fn count_results(&self, results: &[Result<(), FilterReason>]) {
        let mut counts = BTreeMap::<_, u64>::new();
        for result in results {
            let label = match result {
                Ok(()) => "fits",
                Err(FilterReason::NoAnnotation) => "no_capacity_annotation",
                Err(FilterReason::BadAnnotation(_)) => "bad_capacity_annotation",
                Err(FilterReason::Full) => "out_of_space",
                Err(FilterReason::UnknownNode) => "unknown_node",
            };
            *counts.entry(label).or_default() += 1;
        }
        for (label, count) in counts {
            self.results.get_or_create(&[("result", label)]).inc_by(count);
        }
    }
}
