//! The bytes that are promised on the nodes and not used yet: to claims with a selected node, to LogicalVolumes, and to
//! pods about which kube-scheduler was answered a moment ago.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::runtime::watcher::Event;
use kube::{Api, Client};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;
use topolvm_api::{ApiFlavor, DEFAULT_DEVICE_CLASS_KEY};
use topolvm_capacity::{Capacity as Ledger, Exemption, MinimumAllocation, watch_classes, watch_nodes, watch_volumes};
use topolvm_kube::watch_all;
use topolvm_runtime::{CancellationToken, Tasks};

use crate::binding_pods::{BindingPods, PodIdentity};
use crate::capacity::{Capacity, Requested};
use crate::predicate::{FilterReason, check_node};

/// Smallest volumes of the controller with its default flags.
const MINIMUMS: MinimumAllocation =
    MinimumAllocation { block: 8 << 20, ext4: 32 << 20, xfs: 300 << 20, btrfs: 200 << 20 };

/// The reservations. Clones share them.
#[derive(Clone, Debug)]
pub struct Reservations {
    /// Claims with a selected node, and LogicalVolumes.
    ledger: Ledger,
    pods: Arc<Mutex<BindingPods>>,
    changed: watch::Sender<()>,
}

/// The reservations in a question about a pod, whose own do not count.
#[derive(Debug)]
pub(crate) struct OthersReservations<'a> {
    reservations: &'a Reservations,
    pod: &'a PodIdentity,
    own: Exemption,
}

/// The answer about a pod and a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fit {
    Fits,
    /// It fits unless another pod comes to the node, which will be known in a moment.
    Depends,
    Fails(FilterReason),
}

impl Reservations {
    /// Starts the watches from which the reservations follow; they end when `shutdown` is cancelled. `now` is the wall
    /// clock.
    pub fn start(
        client: &Client,
        flavor: ApiFlavor,
        now: fn() -> Timestamp,
        tasks: &Tasks,
        shutdown: &CancellationToken,
    ) -> Self {
        let ledger = Ledger::new(flavor, MINIMUMS, now);
        let reservations = Self { ledger: ledger.clone(), pods: Arc::default(), changed: watch::Sender::new(()) };
        let (client, end) = (|| client.clone(), || shutdown.clone());
        tasks.spawn("watch of published capacity", watch_nodes(ledger.clone(), client(), end()));
        tasks.spawn("watch of LogicalVolumes", watch_volumes(ledger.clone(), flavor, client(), end()));
        tasks.spawn("watch of StorageClasses", watch_classes(ledger, client(), end()));
        let own = reservations.clone();
        let claims =
            watch_all("PersistentVolumeClaims", Api::all(client()), end(), move |event| own.apply_claim(&event));
        tasks.spawn("watch of claims", claims);
        reservations
    }

    fn apply_claim(&self, event: &Event<PersistentVolumeClaim>) {
        // In this order: between the two a claim counts twice, and never not at all
        self.ledger.apply_claim(event);
        self.pods.lock().apply_claim(event);
        self.changed.send_replace(());
    }

    /// Returns whether all that reserves has been listed once.
    pub fn is_listed(&self) -> bool {
        self.ledger.is_listed()
    }

    /// Subscribes to changes of what pods have been promised.
    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// Returns what others than a pod have been promised.
    pub(crate) fn of_others<'a>(&'a self, pod: &'a PodIdentity) -> OthersReservations<'a> {
        let claims: Vec<&str> = pod.claims.iter().map(|claim| &**claim).collect();
        OthersReservations { reservations: self, pod, own: self.ledger.exempt_claims(&pod.namespace, &claims) }
    }

    /// Notes that kube-scheduler may choose one of these nodes for a pod.
    pub(crate) fn allow<'a>(&self, pod: &PodIdentity, requested: &Requested, nodes: impl Iterator<Item = &'a str>) {
        self.pods.lock().allow(pod, requested, nodes, Instant::now());
    }
}

impl OthersReservations<'_> {
    /// Returns the promised bytes of a device class on a node.
    pub(crate) fn bytes(&self, node: &str, class: &str) -> u64 {
        let class = if class == DEFAULT_DEVICE_CLASS_KEY { "" } else { class };
        self.reservations.ledger.reserved_bytes(node, &class.into(), &self.own)
    }

    /// Checks that a node has the requested bytes beside those that are promised.
    pub(crate) fn check_node(&self, node: &str, capacity: &Capacity, requested: &Requested) -> Fit {
        if let Err(reason) = check_node(capacity, requested, |class| self.bytes(node, class)) {
            return Fit::Fails(reason);
        }
        let (pods, now) = (self.reservations.pods.lock(), Instant::now());
        let with_pods =
            |class: &str| self.bytes(node, class).saturating_add(pods.requested_bytes(self.pod, node, class, now));
        if check_node(capacity, requested, with_pods).is_ok() { Fit::Fits } else { Fit::Depends }
    }
}

impl Fit {
    /// Returns the verdict when no more can be known.
    pub(crate) fn into_verdict(self) -> Result<(), FilterReason> {
        match self {
            Self::Fits => Ok(()),
            Self::Depends => Err(FilterReason::Full),
            Self::Fails(reason) => Err(reason),
        }
    }
}
