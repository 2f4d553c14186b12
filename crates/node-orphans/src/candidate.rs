//! The facts in the name and tags of an LV without an object.

use lvm::LvAttr;
use lvmd_client::Lv;
use lvmd_config::tags::{MANAGED, object_uid, quarantined_at, quarantined_uid};
use topolvm_api::{ApiFlavor, tag_value};

/// An LV that may be without its object.
#[derive(Clone, Debug)]
pub(crate) struct Candidate {
    pub(crate) lv: Lv,
    /// Device class in whose list it is.
    pub(crate) class: String,
    /// UID of the object that it was made for.
    pub(crate) uid: String,
    /// True if it is in quarantine.
    pub(crate) is_quarantined: bool,
    /// Time since when it is kept, in seconds since 1970.
    pub(crate) quarantined_at: Option<i64>,
    /// Name of the object that it was made for.
    pub(crate) object: Option<String>,
    /// UID of the namespace kube-system in the cluster that it was made in.
    pub(crate) cluster: Option<String>,
    /// Time of creation of its object, in seconds since 1970.
    pub(crate) created: Option<i64>,
    /// True if lvmd made it.
    pub(crate) is_managed: bool,
    /// True if it can be written to, unlike snapshots.
    pub(crate) is_writable: bool,
}

impl Candidate {
    /// Reads an LV of a device class; `None` if its name shows that it was not created for an object.
    pub(crate) fn of(flavor: ApiFlavor, class: &str, lv: Lv) -> Option<Self> {
        let uid = object_uid(&lv.name)?.to_owned();
        let is_quarantined = quarantined_uid(&lv.name).is_some();
        let value = |key: &str| tag_value(&lv.tags, key).map(str::to_owned);
        Some(Self {
            uid,
            is_quarantined,
            quarantined_at: if is_quarantined { quarantined_at(&lv.tags) } else { None },
            object: value(flavor.logical_volume_tag()),
            cluster: value(flavor.cluster_tag()),
            created: value(flavor.created_tag()).and_then(|time| time.parse().ok()),
            is_managed: lv.tags.iter().any(|tag| tag == MANAGED),
            is_writable: lv.attr.is_some_and(LvAttr::is_writable),
            class: class.to_owned(),
            lv,
        })
    }
}
