//! Finds the LV of an earlier object of the same name. The object was restored without its status: a new LV would be
//! empty, and its PersistentVolume refers to the earlier one.

use topolvm_api::{ApiFlavor, LogicalVolume};

use super::{ReconcileError, Reconciler};
use crate::orphans::Suspect;

/// The LV of an earlier object of the same name.
#[derive(Debug)]
pub(super) struct Predecessor {
    lv: String,
    /// UID of the earlier object.
    uid: String,
    /// True if the LV keeps its name: something refers to the volume by it.
    keeps_name: bool,
}

impl Predecessor {
    /// Returns the message for the status of the object, with the commands that go on.
    pub(super) fn message(&self, flavor: ApiFlavor, volume: &LogicalVolume) -> String {
        let Self { lv, uid, keeps_name } = self;
        let (resource, name) = (format!("logicalvolumes.{}", flavor.group()), volume.name());
        let adopt = if *keeps_name {
            let status = format!(r#"{{"status":{{"volumeID":"{uid}","code":0,"message":""}}}}"#);
            format!("kubectl patch {resource} {name} --subresource=status --type=merge -p '{status}'")
        } else {
            format!("kubectl annotate {resource} {name} {}={lv}", flavor.adopt())
        };
        format!(
            "LV {lv} was created for an earlier LogicalVolume {name}, and no second one is created; to give it to this \
             LogicalVolume: {adopt}; to start with an empty volume, remove it: kubectl topolvm orphans delete {} {lv}",
            volume.spec.node_name
        )
    }
}

impl Reconciler {
    /// Finds the LV of an earlier object of the same name: by its LVM tags or, where it has none, by the
    /// PersistentVolume of that name. An LV that another object has is none.
    pub(super) async fn find_predecessor(&self, volume: &LogicalVolume) -> Result<Option<Predecessor>, ReconcileError> {
        let class = &volume.spec.device_class;
        let listed = match self.lvmd.list(class).await {
            Ok(listed) => listed,
            Err(error) if error.is_transient() => return Err(ReconcileError::LvmdAway(error)),
            // The creation fails for the same reason, and its message counts
            Err(_) => return Ok(None),
        };
        let has_this_name = |suspect: &Suspect| suspect.object.as_deref().is_none_or(|name| name == volume.name());
        let suspects = listed.into_iter().filter_map(|lv| Suspect::of(self.flavor, class, lv));
        let candidates: Vec<_> = suspects.filter(has_this_name).collect();
        // An LV of this very object is one whose creation was interrupted, or one in quarantine that comes back
        if candidates.is_empty() || candidates.iter().any(|suspect| suspect.uid == volume.uid()) {
            return Ok(None);
        }
        let handle = self.find_volume_handle(volume).await?;
        let is_predecessor = |suspect: &&Suspect| match &handle {
            Some(handle) => suspect.uid == *handle,
            None => suspect.object.is_some(),
        };
        let Some(suspect) = candidates.iter().find(is_predecessor) else { return Ok(None) };
        if self.find_owner(volume, &suspect.lv.name, |_| true).await?.is_some() {
            return Ok(None);
        }
        Ok(Some(Predecessor {
            lv: suspect.lv.name.clone(),
            uid: suspect.uid.clone(),
            // A VolumeSnapshotContent may refer to a snapshot
            keeps_name: handle.is_some() || !suspect.is_writable,
        }))
    }

    /// Returns an LV as the predecessor of an object whose PersistentVolume refers to it: with another name it could
    /// not be published any more.
    pub(super) async fn find_referenced(
        &self,
        volume: &LogicalVolume,
        lv: &str,
    ) -> Result<Option<Predecessor>, ReconcileError> {
        let uid = lvmd::quarantined_uid(lv).unwrap_or(lv);
        let handle = self.find_volume_handle(volume).await?;
        let referenced = handle.filter(|handle| handle == uid && handle != volume.uid());
        Ok(referenced.map(|uid| Predecessor { lv: lv.to_owned(), uid, keeps_name: true }))
    }

    /// Finds the volume handle in the PersistentVolume of the object.
    async fn find_volume_handle(&self, volume: &LogicalVolume) -> Result<Option<String>, ReconcileError> {
        let found = self.server.find_volume_handle(volume.name()).await;
        found.map_err(|source| ReconcileError::Api { action: "read the PersistentVolume of the object", source })
    }
}
