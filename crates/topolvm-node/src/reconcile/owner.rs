//! Finds the object that has an LV.

use futures::TryStreamExt as _;
use kube::api::ListParams;
use topolvm_api::LogicalVolume;

use super::status::with_deadline;
use super::{ReconcileError, Reconciler};

impl Reconciler {
    /// Asks the API server for another object that has this LV and meets the condition, on whatever node, and returns
    /// its name.
    pub(super) async fn find_owner(
        &self,
        volume: &LogicalVolume,
        lv: &str,
        condition: impl Fn(&LogicalVolume) -> bool,
    ) -> Result<Option<String>, ReconcileError> {
        let uid = lvmd::quarantined_uid(lv).unwrap_or(lv);
        let is_owner = |other: &LogicalVolume| {
            let names_it = other.volume_id().is_some_and(|id| id == lv || id == uid);
            other.uid() != volume.uid() && (other.uid() == uid || names_it) && condition(other)
        };
        let search = async {
            let mut all = std::pin::pin!(topolvm_kube::list_in_pages(&self.api, ListParams::default()));
            while let Some(other) = all.try_next().await? {
                if is_owner(&other) {
                    return Ok(Some(other.name().to_owned()));
                }
            }
            Ok(None)
        };
        with_deadline("search for another object of the LV", search).await
    }
}
