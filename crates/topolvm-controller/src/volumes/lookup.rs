//! From a volume id to its object.
//!
//! An id that the watch does not know may still exist: the watch can lag behind another replica that has just answered
//! `CreateVolume`. "Unknown" makes `DeleteVolume` succeed, and would then leak the volume, so that it is said on the API
//! server's word only. That costs one LIST with a selector, whose answer has at most one object.

use kube::Api;
use kube::api::{ListParams, PartialObjectMeta};
use topolvm_api::LogicalVolume;

use super::{Error, Kind, Volume, Volumes, failed};

/// The field that our CustomResourceDefinition makes selectable.
const VOLUME_ID_FIELD: &str = "status.volumeID";

/// Objects per answer where all have to be listed.
const PAGE: u32 = 500;

impl Volumes {
    /// The volume or snapshot with this id as the API server has it now, or `None` if there is none.
    pub(super) async fn find(&self, kind: Kind, id: &str) -> Result<Option<LogicalVolume>, Error> {
        Ok(self.find_any(id).await?.filter(|object| Kind::of(object) == kind))
    }

    /// What there is to tell about the volume or snapshot with this id.
    pub(crate) async fn look_up(&self, kind: Kind, id: &str) -> Result<Volume, Error> {
        let found = self.find(kind, id).await?.filter(|object| !object.is_deleting());
        found
            .and_then(|object| Volume::of(self.flavor, &object, &self.watch))
            .ok_or_else(|| Error::Unknown { kind, id: id.to_owned() })
    }

    async fn find_any(&self, id: &str) -> Result<Option<LogicalVolume>, Error> {
        let has_id = |volume: &LogicalVolume| volume.volume_id() == Some(id);
        if let Some(name) = self.watch.name_of(id) {
            // A UID is never used twice: if this object is another one by now, the volume is gone
            return Ok(self.get(&name).await?.filter(has_id));
        }
        let selected = ListParams::default().fields(&format!("{VOLUME_ID_FIELD}={id}"));
        match self.api().list(&selected).await {
            // Of several that claim it, the one whose UID it is
            Ok(list) => Ok(list.items.into_iter().filter(has_id).max_by_key(|volume| volume.uid() == id)),
            // "field label not supported": the definition is that of TopoLVM, or the server is older than 1.32
            Err(kube::Error::Api(status)) if status.code == 400 => self.scan(id).await,
            Err(error) => Err(failed("find the", id)(error)),
        }
    }

    /// Looks through the metadata of all objects. The volume id is the object's UID, so that no status is needed.
    async fn scan(&self, id: &str) -> Result<Option<LogicalVolume>, Error> {
        let api: Api<PartialObjectMeta<LogicalVolume>> = Api::all_with(self.client.clone(), &self.flavor);
        let mut page = ListParams::default().limit(PAGE);
        loop {
            let list = api.list(&page).await.map_err(failed("find the", id))?;
            let found = list.items.into_iter().find(|volume| volume.metadata.uid.as_deref() == Some(id));
            if let Some(name) = found.and_then(|volume| volume.metadata.name) {
                let volume = self.get(&name).await?;
                return Ok(volume.filter(|volume| volume.volume_id() == Some(id)));
            }
            match list.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => page = page.continue_token(&token),
                None => return Ok(None),
            }
        }
    }
}
