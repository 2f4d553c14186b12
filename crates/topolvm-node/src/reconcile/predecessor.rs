//! Finds the LV of an earlier object of the same name. The object was restored without its status: a new LV would be
//! empty, and its PersistentVolume refers to the earlier one.

use lvmd_client::Lv;
use lvmd_config::tags::object_uid;
use topolvm_api::{ApiFlavor, LogicalVolume, tag_value};
use topolvm_kube::VolumeReference;

use super::ReconcileError;
use super::owner_search::OwnerSearch;

/// An LV that may be the one of an earlier object.
struct Candidate<'a> {
    /// Name of the LV.
    lv: &'a str,
    /// UID of the object that it was made for.
    uid: &'a str,
    /// Name of the object that it was made for.
    object: Option<&'a str>,
}

impl<'a> Candidate<'a> {
    /// Reads an LV; `None` if its name shows that it was not made for an object.
    fn of(flavor: ApiFlavor, lv: &'a Lv) -> Option<Self> {
        let object = tag_value(&lv.tags, flavor.logical_volume_tag());
        Some(Self { lv: &lv.name, uid: object_uid(&lv.name)?, object })
    }
}

/// The LV of an earlier object of the same name.
#[derive(Debug)]
pub(super) struct Predecessor {
    lv: String,
    /// The object that refers to the volume, whose data is needed then.
    reference: Option<VolumeReference>,
}

impl Predecessor {
    /// Returns the message for the status of the object, with the commands that go on.
    pub(super) fn message(&self, flavor: ApiFlavor, volume: &LogicalVolume) -> String {
        let Self { lv, reference } = self;
        let (resource, name) = (format!("logicalvolumes.{}", flavor.group()), volume.name());
        let other = match reference {
            Some(reference) => format!("{reference} refers to its data"),
            None => format!(
                "to start with an empty volume, remove it: kubectl topolvm orphans delete {} {lv} --yes",
                volume.spec.node_name
            ),
        };
        format!(
            "LV {lv} was created for an earlier LogicalVolume {name}, so no second LV is created; to assign it to this \
             LogicalVolume: kubectl annotate {resource} {name} {}={lv}; {other}",
            flavor.adopt()
        )
    }
}

impl OwnerSearch {
    /// Finds the LV of an earlier object of the same name: by its LVM tags or, where it has none, by the
    /// PersistentVolume of that name. An LV that another object has is none.
    pub(super) async fn find_predecessor(&self, volume: &LogicalVolume) -> Result<Option<Predecessor>, ReconcileError> {
        let class = &volume.spec.device_class;
        let listed = match self.clients.lvmd.list(class).await {
            Ok(listed) => listed,
            Err(error) if error.is_transient() => return Err(ReconcileError::LvmdAway(error)),
            // The creation fails for the same reason, and its message counts
            Err(_) => return Ok(None),
        };
        let has_this_name = |candidate: &Candidate<'_>| candidate.object.is_none_or(|name| name == volume.name());
        let made_for_objects = listed.iter().filter_map(|lv| Candidate::of(self.clients.flavor, lv));
        let candidates: Vec<_> = made_for_objects.filter(has_this_name).collect();
        // An LV of this very object is one whose creation was interrupted, or one in quarantine that comes back
        if candidates.is_empty() || candidates.iter().any(|candidate| candidate.uid == volume.uid()) {
            return Ok(None);
        }
        let handle = self.find_volume_handle(volume).await?;
        let is_predecessor = |candidate: &&Candidate<'_>| match &handle {
            Some(handle) => candidate.uid == *handle,
            None => candidate.object.is_some(),
        };
        let Some(candidate) = candidates.iter().find(is_predecessor) else { return Ok(None) };
        if self.find_owner(volume, candidate.lv, |_| true).await?.is_some() {
            return Ok(None);
        }
        let reference = self.find_reference(candidate.uid).await?;
        Ok(Some(Predecessor { lv: candidate.lv.to_owned(), reference }))
    }
}
