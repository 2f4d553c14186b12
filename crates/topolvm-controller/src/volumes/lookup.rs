//! From a volume id to its object.
//!
//! An id that the watch does not know may still exist: the watch can lag behind another replica that has just answered
//! `CreateVolume`. "Unknown" makes `DeleteVolume` succeed, and would then leak the volume, so that it is said on the API
//! server's word only. That costs one LIST with a selector, whose answer has at most one object.

use kube::Api;
use kube::api::{ListParams, PartialObjectMeta};
use topolvm_api::LogicalVolume;

use super::{Error, Volumes, failed};

/// The field that our CustomResourceDefinition makes selectable.
const VOLUME_ID_FIELD: &str = "status.volumeID";

/// Objects per answer where all have to be listed.
const PAGE: u32 = 500;

impl Volumes {
    /// The object with this volume id as the API server has it now, or `None` if there is none.
    pub(crate) async fn find(&self, id: &str) -> Result<Option<LogicalVolume>, Error> {
        let has_id = |volume: &LogicalVolume| volume.volume_id() == Some(id);
        if let Some(name) = self.watch.name_of(id) {
            // A UID is never used twice: if this object is another one by now, the volume is gone
            return Ok(self.get(&name).await?.filter(has_id));
        }
        let selected = ListParams::default().fields(&format!("{VOLUME_ID_FIELD}={id}"));
        match self.api().list(&selected).await {
            Ok(list) => Ok(list.items.into_iter().find(has_id)),
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
