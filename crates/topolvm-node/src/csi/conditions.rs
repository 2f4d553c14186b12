//! Volume conditions: what is wrong with an LV, its thin pool or its volume group. They come from what lvmd has
//! reported; nothing here starts a process.

use lvm::{LvAttr, Problem, State};
use lvmd_client::{DeviceClass, DeviceClasses, Lv};
use topolvm_proto::csi::{StorageHealthErrorType, VolumeHealthErrorType};

/// Usage of a thin pool, in percent, from which on it is reported as almost full. A full pool stops all its volumes.
const ALMOST_FULL: f64 = 95.0;
const FULL: f64 = 100.0;

/// Most conditions of a volume, and of a node, in the status of a pod and of a CSINode.
const MOST_CONDITIONS: usize = 16;
/// Longest message of a condition there, in bytes.
const LONGEST_MESSAGE: usize = 1024;

/// Severity of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Severity {
    /// It works, but something must be done.
    Degraded,
    /// It cannot be used.
    Inaccessible,
    /// Data is gone.
    DataLoss,
}

/// A condition of a volume or of the storage below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Condition {
    /// Its severity.
    pub(super) severity: Severity,
    /// Reason in CamelCase, for programs.
    pub(super) reason: String,
    /// Message for people.
    pub(super) message: String,
}

impl Condition {
    pub(super) fn new(severity: Severity, reason: &str, message: impl Into<String>) -> Self {
        Self { severity, reason: reason.to_owned(), message: message.into() }
    }
}

impl Severity {
    /// Returns CSI's value for a volume.
    pub(super) const fn of_volume(self) -> VolumeHealthErrorType {
        match self {
            Self::Degraded => VolumeHealthErrorType::Degraded,
            Self::Inaccessible => VolumeHealthErrorType::Inaccessible,
            Self::DataLoss => VolumeHealthErrorType::DataLoss,
        }
    }

    /// Returns CSI's value for a storage backend.
    pub(super) const fn of_storage(self) -> StorageHealthErrorType {
        match self {
            Self::Degraded => StorageHealthErrorType::StorageDegraded,
            Self::Inaccessible | Self::DataLoss => StorageHealthErrorType::StorageUnreachable,
        }
    }
}

/// Returns the condition of an LV, from its `lv_attr`; `None` if it is healthy.
pub(super) fn lv_condition(lv: &Lv) -> Option<Condition> {
    let attr = lv.attr?;
    attr.problem().map(problem_condition).or_else(|| inactive_condition(attr, lv))
}

/// Makes the condition of a problem that `lv_attr` shows.
fn problem_condition(problem: Problem) -> Condition {
    let severity = match problem {
        Problem::RaidRefreshNeeded
        | Problem::RaidMismatches
        | Problem::RaidReshaping
        | Problem::RaidReshapeRemoved
        | Problem::RaidWriteMostly
        | Problem::CheckNeeded
        | Problem::UnknownHealth
        | Problem::UnknownState
        | Problem::UnknownDevice => Severity::Degraded,
        Problem::InvalidSnapshot => Severity::DataLoss,
        Problem::Partial
        | Problem::WriteCacheError
        | Problem::ThinPoolFailed
        | Problem::ThinPoolOutOfDataSpace
        | Problem::ThinPoolMetadataReadOnly
        | Problem::ThinVolumeFailed
        | Problem::Suspended
        | Problem::MergeFailed
        | Problem::InactiveTables
        | Problem::WithoutTables
        | Problem::Historical => Severity::Inaccessible,
    };
    Condition::new(severity, &format!("{problem:?}"), problem.to_string())
}

/// Returns the condition of an LV that is not active.
fn inactive_condition(attr: LvAttr, lv: &Lv) -> Option<Condition> {
    (attr.state() == State::Inactive).then(|| {
        let message =
            format!("the logical volume is not active; activate it with lvchange --activate y {}", lv.path.display());
        Condition::new(Severity::Inaccessible, "Inactive", message)
    })
}

/// Returns the condition of a device class, which all its volumes share: its volume group, and its thin pool.
pub(super) fn device_class_condition(class: &DeviceClass) -> Option<Condition> {
    let name = &class.name;
    if class.group_bytes == 0 && class.thin_pool.is_none_or(|pool| pool.bytes == 0) {
        let message = format!("the volume group of device class {name} does not exist");
        return Some(Condition::new(Severity::Inaccessible, "VolumeGroupMissing", message));
    }
    let pool = class.thin_pool?;
    if pool.bytes == 0 {
        let message = format!("the thin pool of device class {name} does not exist");
        return Some(Condition::new(Severity::Inaccessible, "ThinPoolMissing", message));
    }
    if let Some(problem) = pool.problem {
        let message = format!("{problem} (device class {name}); for details, run lvs and dmesg on the node");
        return Some(Condition { message, ..problem_condition(problem) });
    }
    let (data, metadata) = (pool.data_percent, pool.metadata_percent);
    let filled = data.max(metadata);
    if filled < ALMOST_FULL {
        return None;
    }
    let what = if data >= metadata { "data" } else { "metadata" };
    let message = format!(
        "the thin pool of device class {name} is {filled:.1} % full ({what}); writes to its volumes fail when it is \
         full; extend it with lvextend"
    );
    let (severity, reason) = if filled >= FULL {
        (Severity::Inaccessible, "ThinPoolFull")
    } else {
        (Severity::Degraded, "ThinPoolAlmostFull")
    };
    Some(Condition::new(severity, reason, message))
}

/// Returns the conditions of all device classes of the node.
pub(super) fn storage_conditions(device_classes: &DeviceClasses) -> Vec<Condition> {
    if !device_classes.is_connected {
        return vec![Condition::new(Severity::Inaccessible, "LvmdUnreachable", "lvmd does not answer on this node")];
    }
    device_classes.classes.iter().filter_map(device_class_condition).collect()
}

/// Merges conditions with the same severity and reason, and shortens messages, as the API server requires: it refuses
/// the whole status of a pod or CSINode with duplicate, too many or too long conditions (PodVolumeHealth and
/// StorageHealth in the API of Kubernetes 1.37), and with it everything else that kubelet reports of the pod.
pub(super) fn merge_duplicates(conditions: impl IntoIterator<Item = Condition>) -> Vec<Condition> {
    let mut merged: Vec<Condition> = Vec::new();
    for condition in conditions {
        let same = |other: &&mut Condition| other.severity == condition.severity && other.reason == condition.reason;
        match merged.iter_mut().find(same) {
            Some(first) if first.message == condition.message => {}
            Some(first) => first.message = format!("{}; {}", first.message, condition.message),
            None => merged.push(condition),
        }
    }
    merged.truncate(MOST_CONDITIONS);
    for condition in &mut merged {
        condition.message.truncate(condition.message.floor_char_boundary(LONGEST_MESSAGE));
    }
    merged
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use lvmd_client::ThinPool;
    use topolvm_proto::lvmd::{ThinPoolItem, WatchItem};

    fn lv(attr: &str) -> Lv {
        let (name, attr) = ("v".to_owned(), attr.parse().ok());
        Lv {
            name,
            path: "/dev/vg/v".into(),
            size_bytes: 1,
            number: None,
            tags: Vec::new(),
            attr,
            thin_used_bytes: None,
        }
    }

    #[rstest]
    #[case("-wi-ao----", None)]
    #[case("Vwi-aotz--", None)]
    #[case("garbage", None)]
    #[case("-wi-----p-", Some((Severity::Inaccessible, "Partial")))]
    #[case("Vwi-aotzF-", Some((Severity::Inaccessible, "ThinVolumeFailed")))]
    #[case("rwi-aor-r-", Some((Severity::Degraded, "RaidRefreshNeeded")))]
    #[case("swi-I-s---", Some((Severity::DataLoss, "InvalidSnapshot")))]
    #[case("-wi-------", Some((Severity::Inaccessible, "Inactive")))]
    fn lv_attr_gives_the_condition_of_an_lv(#[case] attr: &str, #[case] expected: Option<(Severity, &str)>) {
        let condition = lv_condition(&lv(attr));
        assert_eq!(condition.as_ref().map(|condition| (condition.severity, condition.reason.as_str())), expected);
    }

    fn class(group_bytes: u64, thin_pool: Option<(u64, f64, f64)>) -> DeviceClass {
        let thin_pool = thin_pool.map(|(bytes, data_percent, metadata_percent)| ThinPool {
            bytes,
            data_percent,
            metadata_percent,
            problem: None,
        });
        DeviceClass { name: "ssd".to_owned(), group_bytes, thin_pool, free_bytes: 0 }
    }

    #[rstest]
    #[case::thick(class(100, None), None)]
    #[case::group_gone(class(0, None), Some("VolumeGroupMissing"))]
    #[case::roomy(class(100, Some((50, 94.9, 10.0))), None)]
    #[case::data(class(100, Some((50, 95.0, 10.0))), Some("ThinPoolAlmostFull"))]
    #[case::metadata(class(100, Some((50, 10.0, 99.0))), Some("ThinPoolAlmostFull"))]
    #[case::full(class(100, Some((50, 100.0, 10.0))), Some("ThinPoolFull"))]
    #[case::pool_gone(class(100, Some((0, 0.0, 0.0))), Some("ThinPoolMissing"))]
    fn full_and_missing_thin_pools_are_conditions(#[case] class: DeviceClass, #[case] reason: Option<&str>) {
        assert_eq!(device_class_condition(&class).map(|condition| condition.reason).as_deref(), reason);
    }

    #[rstest]
    #[case("twi-aotz--", None)]
    #[case("twi-aotzM-", Some((Severity::Inaccessible, "ThinPoolMetadataReadOnly")))]
    #[case("twi-aotzD-", Some((Severity::Inaccessible, "ThinPoolOutOfDataSpace")))]
    #[case("twi-aotzF-", Some((Severity::Inaccessible, "ThinPoolFailed")))]
    #[case("twi-cotz--", Some((Severity::Degraded, "CheckNeeded")))]
    #[case("", None)]
    fn lv_attr_gives_the_condition_of_a_thin_pool(#[case] attr: &str, #[case] expected: Option<(Severity, &str)>) {
        let thin_pool = ThinPoolItem { size_bytes: 50, attr: attr.to_owned(), ..ThinPoolItem::default() };
        let item = WatchItem { size_bytes: 100, thin_pool: Some(thin_pool), ..WatchItem::default() };
        let condition = device_class_condition(&DeviceClass::from(&item));
        assert_eq!(condition.as_ref().map(|condition| (condition.severity, condition.reason.as_str())), expected);
    }

    #[test]
    fn an_lvmd_that_does_not_answer_is_a_condition() {
        let [condition] = storage_conditions(&DeviceClasses::default()).try_into().unwrap();
        assert_eq!(condition.reason, "LvmdUnreachable");
    }

    #[test]
    fn conditions_with_the_same_reason_are_merged() {
        let condition = |severity, reason: &str, message: &str| Condition::new(severity, reason, message);
        let full = |message| condition(Severity::Inaccessible, "ThinPoolFull", message);
        let soon = condition(Severity::Degraded, "ThinPoolAlmostFull", "c");
        let merged = merge_duplicates([full("a"), soon.clone(), full("b"), full("a; b")]);
        assert_eq!(merged, [full("a; b"), soon]);
        let same_reason = [Severity::Degraded, Severity::DataLoss].map(|severity| condition(severity, "Partial", "p"));
        assert_eq!(merge_duplicates(same_reason.clone()), same_reason);
    }

    #[test]
    fn conditions_fit_the_status_of_a_pod() {
        let long = "é".repeat(600);
        let many = (0..20).map(|number| Condition::new(Severity::Degraded, &format!("Reason{number}"), &*long));
        let merged = merge_duplicates(many);
        assert_eq!(merged.len(), MOST_CONDITIONS);
        assert!(merged.iter().all(|condition| condition.message == "é".repeat(512)));
    }
}
