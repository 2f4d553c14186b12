//! The reconciler: decides which steps a LogicalVolume needs, and has its parts take them.

use std::sync::Arc;

use topolvm_api::LogicalVolume;

use super::clients::Clients;
use super::comparison::LvmComparison;
use super::creation::{CreateAttempts, Created, Creation};
use super::delete::Removal;
use super::expand::Expansion;
use super::object_writer::ObjectWriter;
use super::owner_search::OwnerSearch;
use super::{FindDeviceUses, HandleOrphans, ReconcileError};
use crate::limit_io::LimitIo;
use crate::volume_devices::VolumeDevices;

/// Reconciles the LogicalVolumes of a node.
#[derive(Debug)]
pub struct Reconciler {
    pub(super) clients: Arc<Clients>,
    pub(super) writer: Arc<ObjectWriter>,
    creation: Creation,
    expansion: Expansion,
    removal: Removal,
    pub(super) comparison: LvmComparison,
}

/// Parts of the machine that a reconciler uses.
#[derive(Debug)]
pub struct HostAccess {
    /// Finds uses of devices, so that no LV is removed whose device is in use.
    pub device_uses: FindDeviceUses,
    /// Receives the devices of volumes whenever LVs are listed.
    pub devices: VolumeDevices,
    /// Limits the I/O of the pods that use volumes.
    pub io_limiter: Arc<dyn LimitIo>,
    /// Handles the LVs whose object does not exist.
    pub orphans: Box<dyn HandleOrphans>,
}

impl Reconciler {
    /// Makes the reconciler of the objects of a node.
    pub fn new(clients: Clients, host: HostAccess) -> Self {
        let clients = Arc::new(clients);
        let HostAccess { device_uses, devices, io_limiter, orphans } = host;
        let writer = Arc::new(ObjectWriter::new(Arc::clone(&clients), io_limiter));
        let owners = Arc::new(OwnerSearch { clients: Arc::clone(&clients) });
        let attempts = Arc::new(CreateAttempts::default());
        Self {
            removal: Removal::new(
                Arc::clone(&clients),
                Arc::clone(&writer),
                Arc::clone(&owners),
                Arc::clone(&attempts),
                device_uses,
            ),
            creation: Creation { clients: Arc::clone(&clients), writer: Arc::clone(&writer), owners, attempts },
            expansion: Expansion::new(Arc::clone(&clients), Arc::clone(&writer)),
            comparison: LvmComparison { clients: Arc::clone(&clients), writer: Arc::clone(&writer), devices, orphans },
            clients,
            writer,
        }
    }

    /// Reconciles one object: adds the finalizer, creates, limits, grows, or removes its LV.
    pub async fn reconcile(&self, seen: Arc<LogicalVolume>) -> Result<(), ReconcileError> {
        let volume = self.writer.cache.newest(seen);
        if volume.spec.node_name != self.clients.node {
            return Ok(());
        }
        if self.clients.is_pending_deletion(&volume) {
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
            self.removal.delete(&volume).await?;
            self.forget(&volume);
            return Ok(());
        }
        let volume = self.writer.add_finalizer(volume).await?;
        let created = if volume.volume_id().is_some() { Created::Volume(volume) } else { self.create(&volume).await? };
        let Created::Volume(volume) = created else { return Ok(()) };
        let volume = self.writer.record_adoption(volume).await?;
        self.writer.report_lost(&volume).await?;
        let volume = self.writer.cache.last_written(volume);
        let limited = self.writer.limit_io(&volume).await;
        self.expansion.expand(&self.writer.cache.last_written(volume)).await?;
        limited
    }

    async fn create(&self, volume: &LogicalVolume) -> Result<Created, ReconcileError> {
        let created = self.creation.create(volume).await?;
        if matches!(created, Created::Gone) {
            self.forget(volume);
        }
        Ok(created)
    }

    /// Forgets all state of an object that is gone.
    fn forget(&self, volume: &LogicalVolume) {
        self.writer.forget(volume);
        self.creation.attempts.forget(volume);
        self.expansion.forget(volume);
        self.removal.forget(volume);
    }
}
