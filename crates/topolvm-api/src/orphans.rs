//! The annotation in which an agent reports the LVs of its node without a LogicalVolume.

use serde::{Deserialize, Serialize};

/// Most LVs in the annotation: all annotations of an object have 256 KiB together.
const MOST: usize = 100;

/// Prefix of the name of an LV in quarantine, before its former name.
const QUARANTINE_PREFIX: &str = "topolvm.quarantine.";

/// Returns whether two names are of one LV, in quarantine or not.
pub fn same_lv(one: &str, other: &str) -> bool {
    let former = |name| str::strip_prefix(name, QUARANTINE_PREFIX).unwrap_or(name);
    former(one) == former(other)
}

/// An LV whose LogicalVolume does not exist.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OrphanedVolume {
    /// Name in LVM.
    pub lv: String,
    /// Name of the LogicalVolume that it was created for; empty if its tags do not name it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub logical_volume: String,
    /// Device class that it is in.
    pub device_class: String,
    /// Size in bytes.
    pub bytes: u64,
    /// Time at which it was put into quarantine, in seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quarantined_at: Option<i64>,
    /// Seconds, in whole hours, for which agents have seen it in quarantine, regardless of the clock of the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept_seconds: Option<u64>,
    /// Its fate, for people.
    pub note: String,
}

/// The LVs of a node whose LogicalVolumes do not exist.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeOrphans {
    /// The LVs.
    pub volumes: Vec<OrphanedVolume>,
    /// Number of LVs that are left out.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub more: usize,
}

impl NodeOrphans {
    /// Makes the value of all LVs of a node, of many the first.
    #[must_use]
    pub fn of(mut volumes: Vec<OrphanedVolume>) -> Self {
        let more = volumes.len().saturating_sub(MOST);
        volumes.truncate(MOST);
        Self { volumes, more }
    }

    /// Parses the annotation; a Node without it has none.
    pub fn parse(annotation: Option<&str>) -> Result<Self, serde_json::Error> {
        annotation.map_or_else(|| Ok(Self::default()), serde_json::from_str)
    }

    /// Returns the annotation; `None` if there is nothing to report.
    pub fn to_annotation(&self) -> Option<String> {
        if self.volumes.is_empty() { None } else { serde_json::to_string(self).ok() }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &usize) -> bool {
    *number == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn orphan(lv: &str) -> OrphanedVolume {
        OrphanedVolume {
            lv: lv.to_owned(),
            logical_volume: "pvc-1".to_owned(),
            device_class: "ssd".to_owned(),
            bytes: 1 << 30,
            quarantined_at: None,
            kept_seconds: None,
            note: "left alone".to_owned(),
        }
    }

    #[test]
    fn orphans_annotation_round_trips_and_is_absent_without_orphans() {
        let orphans = NodeOrphans::of(vec![
            orphan("u1"),
            OrphanedVolume { quarantined_at: Some(7), kept_seconds: Some(3600), ..orphan("u2") },
        ]);
        let annotation = orphans.to_annotation().unwrap();
        assert_eq!(NodeOrphans::parse(Some(&annotation)).unwrap(), orphans);
        assert_eq!(NodeOrphans::default().to_annotation(), None);
        assert_eq!(NodeOrphans::parse(None).unwrap(), NodeOrphans::default());
        assert!(NodeOrphans::parse(Some("7")).is_err());
    }

    #[test]
    fn lv_in_quarantine_is_the_same_lv() {
        assert!(
            same_lv("u1", "u1") && same_lv("topolvm.quarantine.u1", "u1") && same_lv("u1", "topolvm.quarantine.u1")
        );
        assert!(!same_lv("topolvm.quarantine.u1", "u2"));
    }

    #[test]
    fn first_of_many_orphans_are_listed_and_the_others_counted() {
        let orphans = NodeOrphans::of((0..120).map(|number| orphan(&format!("u{number}"))).collect());
        assert_eq!((orphans.volumes.len(), orphans.more), (100, 20));
    }
}
