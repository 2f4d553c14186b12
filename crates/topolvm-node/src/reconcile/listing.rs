//! The part of a comparison that is about LVs without objects.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use lvmd_client::Lv;
use topolvm_api::{ApiFlavor, LogicalVolume};

use crate::orphans::Candidate;

/// The lists of all device classes, as far as orphans need them.
#[derive(Debug, Default)]
pub(super) struct Listing {
    /// LVs without an object in the cache, and all that are in quarantine, by name.
    pub(super) candidates: BTreeMap<String, Candidate>,
    /// Number of LVs that were made for objects.
    pub(super) volumes: usize,
    /// Times of creation of the objects whose LV was listed, in seconds since 1970.
    pub(super) made: Vec<i64>,
    /// True if a device class could not be listed.
    pub(super) is_incomplete: bool,
}

impl Listing {
    /// Adds the LVs of a device class; `None` if it cannot be listed. `has_object` returns whether the cache has an
    /// object of this UID.
    pub(super) fn add(
        &mut self,
        flavor: ApiFlavor,
        class: &str,
        listed: Option<&HashMap<String, Lv>>,
        has_object: impl Fn(&str) -> bool,
    ) {
        self.is_incomplete |= listed.is_none();
        for lv in listed.into_iter().flat_map(HashMap::values) {
            let Some(candidate) = Candidate::of(flavor, class, lv.clone()) else { continue };
            self.volumes = self.volumes.saturating_add(1);
            if candidate.is_quarantined || !has_object(&candidate.uid) {
                // The default class is listed under its name, too
                self.candidates.insert(lv.name.clone(), candidate);
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
