//! The ways in which kube-scheduler learns of free space, and the programs that each of them needs.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::ValueEnum;
use serde_json::{Value, json};
use testbed::cluster::Cluster;
use testbed::sidecars::{NAMESPACE, Sidecar};
use testbed::topolvm::{CONTROLLER, TopolvmSpec, controller_socket, start_controller};
use topolvm_api::ApiFlavor::TopoLvm;

use super::extender::{options_of_overlays, options_without_reservations, start_extender, stop_extender};

/// Time for the controller to exit after SIGTERM.
const GRACE: Duration = Duration::from_secs(10);

/// A way in which kube-scheduler learns of free space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// CSIStorageCapacity objects that csi-provisioner publishes.
    Capacity,
    /// The same objects, published by topolvm-controller when something changes.
    EmbeddedCapacity,
    /// topolvm-scheduler, an extender of kube-scheduler, for pods with the marker resource.
    Extender,
    /// The same without reservations, to show their effect.
    ExtenderWithoutReservations,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Capacity => "capacity",
            Self::EmbeddedCapacity => "embedded-capacity",
            Self::Extender => "extender",
            Self::ExtenderWithoutReservations => "extender-without-reservations",
        })
    }
}

impl Mode {
    /// Runs `body` with the programs of this mode in a cluster that has the controller and no sidecars. csi-provisioner
    /// publishes free space once in the interval.
    pub fn run<T>(
        self,
        cluster: &Cluster,
        spec: &TopolvmSpec,
        interval: Duration,
        body: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let outcome = self.start(cluster, spec, interval).and_then(|()| body());
        self.stop(cluster, spec)?;
        outcome
    }

    /// Returns true if kube-scheduler calls the extender for pods.
    #[must_use]
    pub fn asks_extender(self) -> bool {
        matches!(self, Self::Extender | Self::ExtenderWithoutReservations)
    }

    /// Returns the number of volumes that may be refused in a burst. The extender filters nodes for each pod and
    /// reserves the space of earlier pods. In the other modes kube-scheduler reads objects that are updated only after
    /// its decisions, so it selects full nodes in a burst, and again after the refusal.
    pub(super) fn most_refused(self) -> Option<u64> {
        (self == Self::Extender).then_some(0)
    }

    /// Adds to a pod what the pod webhook adds in this mode, given the bytes that it requests of each device class.
    pub fn mark_pod(self, pod: &mut Value, wanted: &BTreeMap<&str, u64>) {
        if self.asks_extender()
            && !wanted.is_empty()
            && let Some(metadata) = pod.get_mut("metadata").and_then(Value::as_object_mut)
        {
            let annotations: BTreeMap<_, _> =
                wanted.iter().map(|(class, bytes)| (TopoLvm.capacity_annotation(class), bytes.to_string())).collect();
            metadata.insert("annotations".to_owned(), json!(annotations));
            let marker = json!({TopoLvm.capacity_resource(): "1"});
            if let Some(container) = pod.pointer_mut("/spec/containers/0").and_then(Value::as_object_mut) {
                container.insert("resources".to_owned(), json!({"requests": marker, "limits": marker}));
            }
        }
    }

    fn extender_options(self) -> PathBuf {
        if self == Self::ExtenderWithoutReservations { options_without_reservations() } else { options_of_overlays() }
    }

    fn start(self, cluster: &Cluster, spec: &TopolvmSpec, interval: Duration) -> Result<()> {
        let socket = controller_socket(cluster);
        let mut provisioner = Sidecar::UpstreamProvisioner.command(cluster, &socket);
        // The last one counts
        provisioner.arg(format!("--capacity-poll-interval={}s", interval.as_secs()));
        match self {
            Self::Capacity => {}
            Self::EmbeddedCapacity => {
                provisioner.arg("--enable-capacity=false");
                publish_by_controller(cluster, spec)?;
            }
            Self::Extender | Self::ExtenderWithoutReservations => {
                provisioner.arg("--enable-capacity=false");
                set_tracking(cluster, false)?;
                start_extender(cluster, &spec.programs, &self.extender_options(), &cluster.inner_kubeconfig())?;
            }
        }
        cluster.spawn(Sidecar::UpstreamProvisioner.name(), &provisioner)
    }

    fn stop(self, cluster: &Cluster, spec: &TopolvmSpec) -> Result<()> {
        Sidecar::UpstreamProvisioner.stop(cluster)?;
        match self {
            Self::Capacity => Ok(()),
            Self::EmbeddedCapacity => {
                cluster.stop(CONTROLLER, GRACE)?;
                cluster.kubectl_ok(["delete", "csistoragecapacities", "--all", "--namespace", NAMESPACE])?;
                start_controller(cluster, spec)
            }
            Self::Extender | Self::ExtenderWithoutReservations => {
                stop_extender(cluster)?;
                set_tracking(cluster, true)
            }
        }
    }
}

/// Turns storage capacity tracking on or off.
fn set_tracking(cluster: &Cluster, on: bool) -> Result<()> {
    let patch = json!({"spec": {"storageCapacity": on}}).to_string();
    cluster.kubectl_ok(["patch", "csidriver", TopoLvm.driver_name(), "-p", &patch]).map(drop)
}

/// Starts the controller again as one that publishes free space.
fn publish_by_controller(cluster: &Cluster, spec: &TopolvmSpec) -> Result<()> {
    cluster.stop(CONTROLLER, GRACE)?;
    let mut spec = spec.clone();
    spec.controller_arguments.extend(["--controllers=capacity".to_owned(), format!("--pod-namespace={NAMESPACE}")]);
    start_controller(cluster, &spec)
}
