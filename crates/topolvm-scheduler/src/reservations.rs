//! The bytes that are reserved on the nodes and not used yet: for claims with a selected node, for LogicalVolumes, and
//! for pods about which kube-scheduler was answered a moment ago.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::runtime::watcher::Event;
use kube::{Api, Client};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;
use topolvm_api::{ApiFlavor, DEFAULT_DEVICE_CLASS_KEY};
use topolvm_capacity::{Capacity as Ledger, Exemption, MinimumAllocation, VolumeClasses, watch_classes, watch_volumes};
use topolvm_kube::watch_all;
use topolvm_runtime::{CancellationToken, Tasks};

use crate::binding_pods::{BindingPods, PodIdentity};
use crate::capacity::{Capacity, Free, Requested};
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
    /// It fits unless another pod comes to the node, or kube-scheduler knows less of the node than is known here. It
    /// will be known in a moment.
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
        let own = reservations.clone();
        let nodes = watch_all("Nodes", Api::all(client()), end(), move |event| {
            own.ledger.apply_node(&event);
            own.changed.send_replace(());
        });
        tasks.spawn("watch of published capacity", nodes);
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

    /// Subscribes to changes of the reservations of pods, and of the capacity of nodes.
    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// Returns the reservations of all others than a pod.
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
    /// Returns the bytes of a device class that are reserved for others, of the free bytes in a node's Node object. The
    /// object of kube-scheduler may be older than the state here. Then it may count bytes as free that are on the disk
    /// by now and so not reserved any more.
    pub(crate) fn bytes(&self, node: &str, class: &str, capacity: &Capacity) -> u64 {
        let published = if let Some(Free::Bytes(free)) = capacity.free(class) { *free } else { 0 };
        let known = self.reservations.ledger.free_bytes(node, &classes(class), &self.own);
        self.reserved_bytes(node, class).max(known.map_or(0, |known| published.saturating_sub(known)))
    }

    /// Checks that a node has the requested bytes in addition to the reserved bytes.
    pub(crate) fn check_node(&self, node: &str, capacity: &Capacity, requested: &Requested) -> Fit {
        if let Err(reason) = check_node(capacity, requested, |class| self.reserved_bytes(node, class)) {
            return Fit::Fails(reason);
        }
        let (pods, now) = (self.reservations.pods.lock(), Instant::now());
        let with_pods = |class: &str| {
            let pods = pods.requested_bytes(self.pod, node, class, now);
            self.bytes(node, class, capacity).saturating_add(pods)
        };
        if check_node(capacity, requested, with_pods).is_ok() { Fit::Fits } else { Fit::Depends }
    }

    fn reserved_bytes(&self, node: &str, class: &str) -> u64 {
        self.reservations.ledger.reserved_bytes(node, &classes(class), &self.own)
    }
}

fn classes(class: &str) -> VolumeClasses {
    (if class == DEFAULT_DEVICE_CLASS_KEY { "" } else { class }).into()
}

impl Fit {
    /// Returns the result when no more can be known.
    pub(crate) fn into_result(self) -> Result<(), FilterReason> {
        match self {
            Self::Fits => Ok(()),
            Self::Depends => Err(FilterReason::Full),
            Self::Fails(reason) => Err(reason),
        }
    }
}
