//! The LVs of the node that the reconciler has found to be without an object.

use std::collections::BTreeMap;

use lvmd_client::Lv;
use topolvm_api::ApiFlavor;

use crate::candidate::Candidate;

/// The LVs of the node without an object, as a comparison of all device classes has found them.
#[derive(Debug)]
pub struct LvsWithoutObject {
    /// LVs that were made for an object which is not in the cache, and all that are in quarantine, each with the device
    /// class in whose list it is.
    pub lvs: Vec<(String, Lv)>,
    /// Number of LVs that were made for objects.
    pub volumes: usize,
    /// Times of creation of the objects whose LV was listed, in seconds since 1970.
    pub made: Vec<i64>,
    /// True if a device class could not be listed.
    pub is_incomplete: bool,
}

/// The same, with the facts about each LV.
#[derive(Debug)]
pub(crate) struct Listing {
    /// The LVs, by name.
    pub(crate) candidates: BTreeMap<String, Candidate>,
    /// Number of LVs that were made for objects.
    pub(crate) volumes: usize,
    /// Times of creation of the objects whose LV was listed, in seconds since 1970.
    pub(crate) made: Vec<i64>,
    /// True if a device class could not be listed.
    pub(crate) is_incomplete: bool,
}

impl Listing {
    /// Reads the facts about each LV from its name and tags.
    pub(crate) fn of(flavor: ApiFlavor, found: LvsWithoutObject) -> Self {
        let LvsWithoutObject { lvs, volumes, made, is_incomplete } = found;
        let candidates = lvs.into_iter().filter_map(|(class, lv)| Candidate::of(flavor, &class, lv));
        let candidates = candidates.map(|candidate| (candidate.lv.name.clone(), candidate)).collect();
        Self { candidates, volumes, made, is_incomplete }
    }
}
