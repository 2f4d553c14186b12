//! The part of a comparison that is about LVs without objects.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use lvmd_client::Lv;
use lvmd_config::tags::{object_uid, quarantined_uid};
use topolvm_api::LogicalVolume;

/// The lists of all device classes, as far as orphans need them.
#[derive(Debug, Default)]
pub struct Listing {
    /// LVs that were made for an object which is not in the cache, and all that are in quarantine, by name, each with
    /// the device class in whose list it is.
    pub(crate) without_object: BTreeMap<String, (String, Lv)>,
    /// Number of LVs that were made for objects.
    pub(crate) volumes: usize,
    /// Times of creation of the objects whose LV was listed, in seconds since 1970.
    pub(crate) made: Vec<i64>,
    /// True if a device class could not be listed.
    pub(crate) is_incomplete: bool,
}

impl Listing {
    /// Adds the LVs of a device class; `None` if it cannot be listed. `has_object` returns whether the cache has an
    /// object of this UID.
    pub(super) fn add(&mut self, class: &str, listed: Option<&HashMap<String, Lv>>, has_object: impl Fn(&str) -> bool) {
        self.is_incomplete |= listed.is_none();
        for lv in listed.into_iter().flat_map(HashMap::values) {
            let Some(uid) = object_uid(&lv.name) else { continue };
            self.volumes = self.volumes.saturating_add(1);
            if is_quarantined(&lv.name) || !has_object(uid) {
                // The default class is listed under its name, too
                self.without_object.insert(lv.name.clone(), (class.to_owned(), lv.clone()));
            }
        }
    }

    /// Adds the objects of a device class whose LV was listed.
    pub(super) fn remember(
        &mut self,
        objects: impl Iterator<Item = Arc<LogicalVolume>>,
        listed: Option<&HashMap<String, Lv>>,
    ) {
        let Some(listed) = listed else { return };
        let is_made = |volume: &Arc<LogicalVolume>| volume.volume_id().is_some_and(|id| listed.contains_key(id));
        let created = |volume: Arc<LogicalVolume>| Some(volume.metadata.creation_timestamp.as_ref()?.0.as_second());
        self.made.extend(objects.filter(is_made).filter_map(created));
    }
}

/// Returns whether an LV of this name is in quarantine.
pub(super) fn is_quarantined(name: &str) -> bool {
    quarantined_uid(name).is_some()
}
