//! Removes the LV of an object that is being deleted, and only then lets the object go.

use kube::api::PatchParams;
use tonic::Code;
use topolvm_api::LogicalVolume;
use topolvm_kube::{json_patch, remove_finalizers};
use topolvm_runtime::grpc::GrpcCode as _;

use super::create::is_refusal;
use super::status::within;
use super::{Error, Reconciler};
use crate::lvmd::{self, Absence};

impl Reconciler {
    pub(super) async fn delete(&self, volume: &LogicalVolume) -> Result<(), Error> {
        let operations = remove_finalizers(&volume.metadata, &[self.flavor.logical_volume_finalizer()]);
        if operations.is_empty() {
            self.forget(volume);
            return Ok(());
        }
        let removed = async {
            self.check_unused(volume).await?;
            self.remove_lv(volume).await
        };
        let was_there = match removed.await {
            Ok(was_there) => was_there,
            Err(error) => {
                if let Error::Remove(refusal) = &error {
                    self.events.stays(volume, &refusal.detail()).await;
                } else if let Error::InUse(_) = &error {
                    self.events.stays(volume, &error.to_string()).await;
                }
                return Err(error);
            }
        };
        // Fails, and is tried again, when somebody has moved the finalizer to another place in the list, or when the object
        // is gone and the controller has made a new one of the same name, which has a volume of its own
        let (params, patch) = (PatchParams::default(), json_patch(operations));
        let patched = within("remove the finalizer", self.api.patch(volume.name(), &params, &patch)).await;
        match patched {
            Ok(_) if was_there => {
                tracing::info!(volume = volume.name(), lv = volume.uid(), "removed the logical volume");
            }
            Ok(_) => tracing::info!(
                volume = volume.name(),
                lv = volume.uid(),
                "there is no logical volume; the object may go"
            ),
            // An earlier try took the finalizer off, and the object went with it
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error),
        }
        self.forget(volume);
        Ok(())
    }

    /// Returns only when there surely is no LV, and then whether there was one.
    async fn remove_lv(&self, volume: &LogicalVolume) -> Result<bool, Error> {
        let (uid, class) = (volume.uid(), volume.spec.device_class.as_str());
        let refusal = match self.lvmd.remove(uid, class).await {
            Ok(()) => return Ok(true),
            Err(error) if error.is_transient() => return Err(Error::LvmdAway(error)),
            Err(error) => error,
        };
        let is_absent = match refusal.absence() {
            Absence::Proven => return Ok(false),
            Absence::Claimed => true,
            Absence::Unknown => false,
        };
        if !is_absent && !matches!(refusal.code(), Code::FailedPrecondition | Code::NotFound) {
            return Err(Error::Remove(refusal));
        }
        // Other lvmds say "not found" also of a device class or a volume group, which says nothing about the LV: it is gone
        // when a list of its volume group lacks it
        match self.lvmd.find(uid, class).await {
            Ok(None) if is_absent => Ok(false),
            Ok(Some(_)) if is_absent => Err(Error::StillListed(uid.to_owned())),
            Err(error) if error.is_transient() => Err(Error::LvmdAway(error)),
            Err(error) if self.was_never_made(volume, &error) => {
                tracing::warn!(
                    volume = volume.name(),
                    device_class = class,
                    error = error.detail(),
                    "lets an object go whose volume could not be made, though its volume group cannot be looked at"
                );
                Ok(false)
            }
            Ok(_) | Err(_) => Err(Error::Remove(refusal)),
        }
    }

    /// A wish for an unknown device class or a missing volume group fails before anything is made. Its object must be able
    /// to go although lvmd cannot look into the class, or every new try of the same claim would wait for it for ever. An
    /// earlier try whose answer was lost may have made the LV all the same, in a class that was removed since.
    fn was_never_made(&self, volume: &LogicalVolume, listing: &lvmd::Error) -> bool {
        let refused = volume.failure().is_some_and(|(code, _)| is_refusal(Code::from_i32(code)));
        volume.volume_id().is_none()
            && refused
            && !self.lock_attempted().contains(volume.uid())
            && matches!(listing.code(), Code::FailedPrecondition | Code::NotFound)
    }
}
