//! The scheduling mode, which defines how pods find a node with enough free space.
//!
//! A pod with the resource `topolvm.io/capacity` can only be scheduled by a kube-scheduler that has an extender which
//! manages that resource. In the mode `extender` the leader probes whether kube-scheduler calls the extender, see
//! `reconcile/extender_probe`, and keeps the outcome in a ConfigMap. All replicas watch it: [`ExtenderInformer`]. The
//! pod webhook injects the resource only while the outcome is good.

mod args;

use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use topolvm_kube::ExtenderInformer;

pub(crate) use args::{ProbeSettings, SchedulingArgs, SchedulingMode};

/// The configuration of scheduling.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SchedulingConfig {
    /// The mode; `None` where no flag chooses one.
    pub(crate) mode: Option<SchedulingMode>,
    /// The settings of the extender probe; `None` where nothing has to be proven.
    pub(crate) probe: Option<ProbeSettings>,
}

/// The dependencies of the controllers that have to do with scheduling.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scheduling {
    pub(crate) config: SchedulingConfig,
    /// The informer of the probe's outcome, if there is a probe.
    pub(crate) extender: Option<ExtenderInformer>,
    /// Number of Nodes without a default device class, though a StorageClass wants one.
    pub(crate) nodes_without_default_class: Gauge,
}

impl Scheduling {
    /// Makes the dependencies and adds the metric to the registry.
    pub(crate) fn register(
        config: SchedulingConfig,
        extender: Option<ExtenderInformer>,
        registry: &mut Registry,
    ) -> Self {
        let scheduling = Self { config, extender, nodes_without_default_class: Gauge::default() };
        let help = "Nodes without a default device class, while a StorageClass names no device class";
        let gauge = scheduling.nodes_without_default_class.clone();
        registry.register("topolvm_nodes_without_default_device_class", help, gauge);
        scheduling
    }
}
