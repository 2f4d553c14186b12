//! The clients that all parts of the reconciler use, and whose node it is.

use jiff::Timestamp;
use kube::Api;
use lvmd_client::LvmdClient;
use topolvm_api::{ApiFlavor, LogicalVolume, lvm_tags};
use topolvm_kube::{ClusterIdentity, EventRecorder, VolumeReferences};

use crate::events::Events;

/// Clients of the API server and of lvmd, and the identity of the node.
#[derive(Debug)]
pub struct Clients {
    pub(super) flavor: ApiFlavor,
    pub(super) node: String,
    pub(super) api: Api<LogicalVolume>,
    pub(super) lvmd: LvmdClient,
    /// The objects that refer to volumes.
    pub(super) references: VolumeReferences,
    /// Identity of the cluster, for the tags of LVs.
    pub(super) cluster: ClusterIdentity,
    pub(super) events: Events,
    /// Clock of the conditions.
    pub(super) now: fn() -> Timestamp,
}

impl Clients {
    /// Makes the clients of the reconciler of `node`. `now` is the clock of the conditions that it writes.
    pub fn new(
        flavor: ApiFlavor,
        node: String,
        client: kube::Client,
        lvmd: LvmdClient,
        now: fn() -> Timestamp,
    ) -> Self {
        Self {
            flavor,
            events: Events::new(flavor, &node, client.clone()),
            references: VolumeReferences::new(flavor, client.clone()),
            cluster: ClusterIdentity::new(client.clone()),
            node,
            api: Api::all_with(client, &flavor),
            lvmd,
            now,
        }
    }

    /// Returns the identity of the cluster that is in the tags of the LVs.
    pub fn cluster(&self) -> ClusterIdentity {
        self.cluster.clone()
    }

    /// Returns the recorder of its Events.
    pub fn event_recorder(&self) -> EventRecorder {
        self.events.recorder.clone()
    }

    /// Returns the tags of the LV of an object.
    pub(super) async fn lvm_tags(&self, volume: &LogicalVolume) -> Vec<String> {
        lvm_tags(self.flavor, volume, self.cluster.uid().await)
    }

    /// Returns whether the object has the annotation that leaves its deletion to another actor.
    pub(super) fn is_pending_deletion(&self, volume: &LogicalVolume) -> bool {
        let annotations = volume.metadata.annotations.as_ref();
        annotations.is_some_and(|annotations| annotations.contains_key(self.flavor.pending_deletion()))
    }
}
