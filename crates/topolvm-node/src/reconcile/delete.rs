//! Removes the LV of an object that is being deleted, unless something refers to the volume, and then removes the
//! finalizer.

use std::sync::Arc;

use json_patch::PatchOperation;
use kube::api::PatchParams;
use lvmd_client::{Absence, LvmdError};
use tonic::Code;
use topolvm_api::{LogicalVolume, RemovalFailure, removal_condition};
use topolvm_kube::{json_patch, remove_finalizers};
use topolvm_runtime::error_chain;
use topolvm_runtime::grpc::GrpcCode as _;

use super::clients::Clients;
use super::create::is_refused_before_creation;
use super::creation::CreateAttempts;
use super::failed_removals::FailedRemovals;
use super::object_writer::{ObjectWriter, with_deadline};
use super::owner_search::{OwnerSearch, SEARCH_REFERENCES};
use super::{FindDeviceUses, ReconcileError};

/// Removes LVs.
#[derive(Debug)]
pub(super) struct Removal {
    clients: Arc<Clients>,
    writer: Arc<ObjectWriter>,
    owners: Arc<OwnerSearch>,
    attempts: Arc<CreateAttempts>,
    device_uses: FindDeviceUses,
    failed_removals: FailedRemovals,
}

impl Removal {
    /// Makes the part that removes LVs.
    pub(super) fn new(
        clients: Arc<Clients>,
        writer: Arc<ObjectWriter>,
        owners: Arc<OwnerSearch>,
        attempts: Arc<CreateAttempts>,
        device_uses: FindDeviceUses,
    ) -> Self {
        Self { clients, writer, owners, attempts, device_uses, failed_removals: FailedRemovals::default() }
    }

    /// Forgets an object that is gone.
    pub(super) fn forget(&self, volume: &LogicalVolume) {
        self.failed_removals.forget(volume.uid());
    }

    /// Removes the LVs of the object, and the finalizer when it is certain that there is none.
    pub(super) async fn delete(&self, volume: &LogicalVolume) -> Result<(), ReconcileError> {
        let remove_finalizer = remove_finalizers(&volume.metadata, &[self.clients.flavor.logical_volume_finalizer()]);
        if !remove_finalizer.is_empty() {
            let removed = match self.check_unreferenced(volume).await {
                Ok(()) => self.remove_unused_lvs(volume).await,
                Err(error) => Err(error),
            };
            self.publish_failed_removal(volume, &removed).await;
            self.remove_finalizer(volume, remove_finalizer, removed?).await?;
        }
        Ok(())
    }

    /// Checks that no PersistentVolume and no VolumeSnapshotContent needs the volume. CSI has it deleted when that is
    /// on its way out; everybody else who deletes the object, or its definition, deletes a record of the data and not
    /// the data.
    async fn check_unreferenced(&self, volume: &LogicalVolume) -> Result<(), ReconcileError> {
        // snapshot-controller keeps the VolumeSnapshots of a group until csi-snapshotter has had the group deleted
        if volume.annotation(self.clients.flavor.snapshot_group_deleted()).is_some() {
            return Ok(());
        }
        let found = self.clients.references.find_user(volume).await;
        let found = found.map_err(|source| ReconcileError::Api { action: SEARCH_REFERENCES, source })?;
        let Some(user) = found else { return Ok(()) };
        let (name, lv) = (volume.name(), volume.lv_name());
        let message = format!(
            "{user} refers to the volume, so LV {lv} is kept and pods can still use it; to revert the deletion: \
             kubectl topolvm undelete {name}; to remove the volume with its data: delete the {}",
            user.owner()
        );
        if volume.removal_blocked() != Some(&message) {
            let blocked = removal_condition(volume, user.removal_failure(), &message, (self.clients.now)());
            let status = volume.status.clone().unwrap_or_default();
            let written = self.writer.write_status_with(volume, status, Some(blocked)).await?;
            self.clients.events.removal_blocked(&written, &message).await;
        }
        Err(ReconcileError::Referenced(message))
    }

    /// Removes the LVs of the object whose devices are not in use; returns whether there was one.
    async fn remove_unused_lvs(&self, volume: &LogicalVolume) -> Result<bool, ReconcileError> {
        if volume.volume_id().is_none() && volume.annotation(self.clients.flavor.adopt()).is_some() {
            // It was to get an LV with data and did not: whatever has its name by now stays
            return Ok(false);
        }
        let restored = self.restored_lv(volume).await?;
        let mut existed = false;
        for lv in restored.into_iter().chain([volume.uid()]) {
            self.check_device_unused(volume, lv).await?;
            existed |= self.remove_lv(volume, lv).await?;
        }
        Ok(existed)
    }

    /// Returns the LV that the status of an object names, if it has the UID of an earlier object: a backup tool has
    /// restored the object with its status. An LV that another object has stays, and so does one that was not created
    /// for an object, as its name shows.
    async fn restored_lv<'a>(&self, volume: &'a LogicalVolume) -> Result<Option<&'a str>, ReconcileError> {
        let Some(lv) = volume.volume_id().filter(|id| *id != volume.uid()) else { return Ok(None) };
        if !lvm::is_uuid(lv) {
            tracing::warn!(volume = volume.name(), lv, "the LV was not created for a LogicalVolume and is not removed");
            return Ok(None);
        }
        // Of two objects that only name the LV, and are both deleted, each would leave it to the other
        let has_it = |other: &LogicalVolume| other.uid() == lv || !other.is_deleting();
        if let Some(owner) = self.owners.find_owner(volume, lv, has_it).await? {
            tracing::warn!(
                volume = volume.name(),
                lv,
                owner,
                "the LV belongs to another LogicalVolume and is not removed"
            );
            return Ok(None);
        }
        Ok(Some(lv))
    }

    /// Publishes an Event, and writes a condition, of a removal that was refused, and of one that waits for others who
    /// use the device, once it has waited for some time.
    async fn publish_failed_removal(&self, volume: &LogicalVolume, removed: &Result<bool, ReconcileError>) {
        let (may_end_soon, message) = match removed {
            Err(ReconcileError::Remove(refusal)) => (refusal.code() == Code::FailedPrecondition, refusal.detail()),
            Err(error @ (ReconcileError::InUse(_) | ReconcileError::Held { .. })) => (true, error.to_string()),
            // No retry changes what the agent may read
            Err(error @ ReconcileError::Api { .. }) if error.status() == Some(403) => (false, error_chain(error)),
            Ok(_) | Err(_) => return,
        };
        if may_end_soon && !self.failed_removals.have_lasted(volume.uid(), (self.clients.now)()) {
            return;
        }
        self.clients.events.remove_failed(volume, &message).await;
        if volume.removal_failure() != Some(&message)
            && self.failed_removals.may_write(volume.uid(), (self.clients.now)())
        {
            let failed = removal_condition(volume, RemovalFailure::RemoveFailed, &message, (self.clients.now)());
            let status = volume.status.clone().unwrap_or_default();
            if let Err(error) = self.writer.write_status_with(volume, status, Some(failed)).await {
                let error = error_chain(&error);
                tracing::debug!(volume = volume.name(), error, "cannot publish why the volume is not removed");
            }
        }
    }

    /// Removes the finalizer. Fails, and is retried, if another client has moved it to another position in the list, or
    /// if the object is gone and the controller has created a new one of the same name, which has its own volume.
    async fn remove_finalizer(
        &self,
        volume: &LogicalVolume,
        operations: Vec<PatchOperation>,
        existed: bool,
    ) -> Result<(), ReconcileError> {
        let (params, patch) = (PatchParams::default(), json_patch(operations));
        match with_deadline("remove the finalizer", self.clients.api.patch(volume.name(), &params, &patch)).await {
            Ok(_) if existed => {
                tracing::info!(volume = volume.name(), lv = volume.lv_name(), "removed the logical volume");
            }
            Ok(_) => {
                let lv = volume.lv_name();
                tracing::info!(
                    volume = volume.name(),
                    lv,
                    "the logical volume does not exist; the object can be deleted"
                );
            }
            // An earlier try took the finalizer off, and the object went with it
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Checks that the node of the LV's device is nowhere but where LVM has made it. An LV that cannot be listed has
    /// no known device; its removal then fails with what is wrong.
    async fn check_device_unused(&self, volume: &LogicalVolume, lv: &str) -> Result<(), ReconcileError> {
        let lv = match self.clients.lvmd.find(lv, &volume.spec.device_class).await {
            Ok(Some(lv)) => lv,
            Err(error) if error.is_transient() => return Err(ReconcileError::LvmdAway(error)),
            Ok(None) | Err(_) => return Ok(()),
        };
        let Some(number) = lv.number else { return Ok(()) };
        let uses = self.device_uses.find(number, lv.path).await.map_err(ReconcileError::DeviceUses)?;
        if uses.is_empty() { Ok(()) } else { Err(ReconcileError::InUse(uses)) }
    }

    /// Makes the error of an LV that lvmd does not remove: with what holds its device, if that can be found out.
    async fn explain_refusal(&self, volume: &LogicalVolume, lv: &str, refusal: LvmdError) -> ReconcileError {
        let Ok(Some(lv)) = self.clients.lvmd.find(lv, &volume.spec.device_class).await else {
            return ReconcileError::Remove(refusal);
        };
        let Some(number) = lv.number else { return ReconcileError::Remove(refusal) };
        match self.device_uses.find_holders(number, lv.path).await {
            Ok(holders) if !holders.is_empty() => ReconcileError::Held { holders, refusal },
            Ok(_) => ReconcileError::Remove(refusal),
            Err(error) => {
                let error = error_chain(&error);
                tracing::debug!(volume = volume.name(), error, "cannot determine what holds the device");
                ReconcileError::Remove(refusal)
            }
        }
    }

    /// Removes the LV. Returns only when it is certain that there is none, and then whether there was one.
    async fn remove_lv(&self, volume: &LogicalVolume, lv: &str) -> Result<bool, ReconcileError> {
        let class = volume.spec.device_class.as_str();
        let refusal = match self.clients.lvmd.remove(lv, class).await {
            Ok(()) => return Ok(true),
            Err(error) if error.is_transient() => return Err(ReconcileError::LvmdAway(error)),
            Err(error) => error,
        };
        let is_absent = match refusal.absence() {
            Absence::Proven => return Ok(false),
            Absence::Claimed => true,
            Absence::Unknown => false,
        };
        if !is_absent && !matches!(refusal.code(), Code::FailedPrecondition | Code::NotFound) {
            return Err(self.explain_refusal(volume, lv, refusal).await);
        }
        // Other lvmds return "not found" also for a device class or a volume group, which proves nothing about the LV:
        // it is gone only if a list of its volume group lacks it
        match self.clients.lvmd.find(lv, class).await {
            Ok(None) if is_absent => Ok(false),
            Ok(Some(_)) if is_absent => Err(ReconcileError::StillListed(lv.to_owned())),
            Err(error) if error.is_transient() => Err(ReconcileError::LvmdAway(error)),
            Err(error) if self.was_never_created(volume, &error) => {
                tracing::warn!(
                    volume = volume.name(),
                    device_class = class,
                    error = error.detail(),
                    "releasing an object whose volume could not be created, although its volume group cannot be read"
                );
                Ok(false)
            }
            Ok(Some(_)) => Err(self.explain_refusal(volume, lv, refusal).await),
            Ok(None) | Err(_) => Err(ReconcileError::Remove(refusal)),
        }
    }

    /// Returns whether no LV can have been created for an object. A request for an unknown device class or a missing
    /// volume group fails before anything is created. Its object must be deletable although lvmd cannot list the class,
    /// or every retry of the same claim would wait for it forever. An earlier attempt whose answer was lost may still
    /// have created the LV, in a class that was removed since.
    fn was_never_created(&self, volume: &LogicalVolume, listing: &LvmdError) -> bool {
        let refused = volume.failure().is_some_and(|(code, _)| is_refused_before_creation(Code::from_i32(code)));
        volume.volume_id().is_none()
            && refused
            && !self.attempts.contains(volume)
            && matches!(listing.code(), Code::FailedPrecondition | Code::NotFound)
    }
}
