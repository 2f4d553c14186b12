//! The reconciler: decides which steps a LogicalVolume needs, and runs them.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use jiff::Timestamp;
use kube::Api;
use parking_lot::Mutex;
use topolvm_api::{ApiFlavor, LogicalVolume};

use super::failed_removals::FailedRemovals;
use super::write_cache::WriteCache;
use super::{FindDeviceUses, ReconcileError};
use crate::events::Events;
use crate::io_limits::{IoLimiter, IoReport};
use crate::lvmd_client::LvmdClient;
use crate::orphans::{OrphanSettings, OrphanState, Server};
use crate::volume_devices::VolumeDevices;

/// Reconciles the LogicalVolumes of a node.
#[derive(Debug)]
pub struct Reconciler {
    pub(super) flavor: ApiFlavor,
    pub(super) node: String,
    pub(super) api: Api<LogicalVolume>,
    pub(super) lvmd: LvmdClient,
    pub(super) write_cache: WriteCache,
    pub(super) events: Events,
    pub(super) now: fn() -> Timestamp,
    /// UIDs of objects for which an LV may have been created, whatever lvmd answered.
    pub(super) create_attempted: Mutex<HashSet<String>>,
    /// The request for growth that the failure in the status answers, by UID.
    pub(super) answered_requests: Mutex<HashMap<String, String>>,
    /// True or false by UID for LVs that are lost or not, where the objects may not report it yet.
    pub(super) lost: Mutex<HashMap<String, bool>>,
    pub(super) device_uses: Option<FindDeviceUses>,
    pub(super) failed_removals: FailedRemovals,
    /// Devices of the volumes, for their metrics.
    pub(super) devices: VolumeDevices,
    /// The API server, for questions whose answers are proofs.
    pub(super) server: Server,
    pub(super) orphan_settings: OrphanSettings,
    pub(super) orphan_state: Mutex<OrphanState>,
    pub(super) io_limiter: Option<IoLimiter>,
    /// Reports of limits of I/O, by UID.
    pub(super) io_reports: Mutex<HashMap<String, IoReport>>,
}

impl Reconciler {
    /// Makes the reconciler of the objects of `node`. `now` is the clock of the conditions that it writes.
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
            server: Server::new(flavor, &node, client.clone()),
            orphan_settings: OrphanSettings::default(),
            orphan_state: Mutex::default(),
            node,
            api: Api::all_with(client, &flavor),
            lvmd,
            now,
            write_cache: WriteCache::default(),
            create_attempted: Mutex::default(),
            answered_requests: Mutex::default(),
            lost: Mutex::default(),
            device_uses: None,
            failed_removals: FailedRemovals::default(),
            devices: VolumeDevices::default(),
            io_limiter: None,
            io_reports: Mutex::default(),
        }
    }

    /// Has the reconciler remove no LV whose device is in use.
    #[must_use]
    pub(crate) fn finding_uses(self, device_uses: FindDeviceUses) -> Self {
        Self { device_uses: Some(device_uses), ..self }
    }

    /// Has the reconciler store the devices of volumes there whenever it lists LVs.
    #[must_use]
    pub(crate) fn storing_devices(self, devices: VolumeDevices) -> Self {
        Self { devices, ..self }
    }

    /// Sets the handling of LVs whose object does not exist.
    #[must_use]
    pub fn handling_orphans(self, orphan_settings: OrphanSettings) -> Self {
        Self { orphan_settings, ..self }
    }

    /// Has the reconciler limit the I/O of the pods that have volumes.
    #[must_use]
    pub(crate) fn limiting_io(self, limiter: IoLimiter) -> Self {
        Self { io_limiter: Some(limiter), ..self }
    }

    /// Reconciles one object: adds the finalizer, creates, limits, grows, or removes its LV.
    pub async fn reconcile(&self, seen: Arc<LogicalVolume>) -> Result<(), ReconcileError> {
        let volume = self.write_cache.newest(seen);
        if volume.spec.node_name != self.node {
            return Ok(());
        }
        if self.is_pending_deletion(&volume) {
            if volume.is_deleting() {
                tracing::warn!(
                    volume = volume.name(),
                    "the object is being deleted but is marked as pending; remove the annotation to let the deletion \
                     finish"
                );
            }
            return Ok(());
        }
        if volume.is_deleting() {
            return self.delete(&volume).await;
        }
        let volume = self.add_finalizer(volume).await?;
        let made = if volume.volume_id().is_some() { Some(volume) } else { self.create(&volume).await? };
        match made {
            Some(volume) => {
                let volume = self.record_adoption(volume).await?;
                self.report_lost(&volume).await?;
                let volume = self.write_cache.last_written(volume);
                let limited = self.limit_io(&volume).await;
                self.expand(&self.write_cache.last_written(volume)).await?;
                limited
            }
            None => Ok(()),
        }
    }

    /// Forgets all state of an object that is gone.
    pub(super) fn forget(&self, volume: &LogicalVolume) {
        self.write_cache.remove(volume);
        self.answered_requests.lock().remove(volume.uid());
        self.create_attempted.lock().remove(volume.uid());
        self.lost.lock().remove(volume.uid());
        self.failed_removals.forget(volume.uid());
        self.forget_io_limits(volume);
    }

    /// Returns whether the object has the annotation that leaves its deletion to another actor.
    pub(super) fn is_pending_deletion(&self, volume: &LogicalVolume) -> bool {
        let annotations = volume.metadata.annotations.as_ref();
        annotations.is_some_and(|annotations| annotations.contains_key(self.flavor.pending_deletion()))
    }
}
