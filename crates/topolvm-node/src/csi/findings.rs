//! What is wrong with a volume or with what it is made of. Nothing here starts a process.

use lvm::{LvAttr, Problem, State};
use topolvm_proto::csi::{StorageHealthErrorType, VolumeHealthErrorType};

use crate::capacity::{ClassState, Pools};
use crate::lvmd::Lv;

/// From here on a thin pool is about to stop all its volumes, in percent.
const ALMOST_FULL: f64 = 95.0;
const FULL: f64 = 100.0;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Severity {
    /// It works, but something must be done.
    Degraded,
    /// It cannot be used.
    Inaccessible,
    /// Data is gone.
    DataLoss,
}

/// Something that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Finding {
    /// How bad.
    pub(super) severity: Severity,
    /// In one word, for programs.
    pub(super) reason: String,
    /// In words, for people.
    pub(super) message: String,
}

impl Finding {
    pub(super) fn new(severity: Severity, reason: &str, message: impl Into<String>) -> Self {
        Self { severity, reason: reason.to_owned(), message: message.into() }
    }
}

impl Severity {
    /// For a volume.
    pub(super) const fn of_volume(self) -> VolumeHealthErrorType {
        match self {
            Self::Degraded => VolumeHealthErrorType::Degraded,
            Self::Inaccessible => VolumeHealthErrorType::Inaccessible,
            Self::DataLoss => VolumeHealthErrorType::DataLoss,
        }
    }

    /// For what volumes are made of.
    pub(super) const fn of_storage(self) -> StorageHealthErrorType {
        match self {
            Self::Degraded => StorageHealthErrorType::StorageDegraded,
            Self::Inaccessible | Self::DataLoss => StorageHealthErrorType::StorageUnreachable,
        }
    }
}

/// What LVM says of the LV.
pub(super) fn of_lv(lv: &Lv) -> Option<Finding> {
    let attr = lv.attr?;
    attr.problem().map(of_problem).or_else(|| inactive(attr, lv))
}

fn of_problem(problem: Problem) -> Finding {
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
    Finding::new(severity, &format!("{problem:?}"), problem.to_string())
}

fn inactive(attr: LvAttr, lv: &Lv) -> Option<Finding> {
    (attr.state() == State::Inactive).then(|| {
        let message = format!("the volume is not active; activate it with lvchange --activate y {}", lv.path.display());
        Finding::new(Severity::Inaccessible, "Inactive", message)
    })
}

/// What a thin pool does to all its volumes.
pub(super) fn of_class(class: &ClassState) -> Option<Finding> {
    let name = &class.name;
    if class.group_bytes == 0 && class.thin_pool.is_none_or(|pool| pool.bytes == 0) {
        let message = format!("the volume group of device class {name} is not there");
        return Some(Finding::new(Severity::Inaccessible, "VolumeGroupMissing", message));
    }
    let pool = class.thin_pool?;
    if pool.bytes == 0 {
        let message = format!("the thin pool of device class {name} is not there");
        return Some(Finding::new(Severity::Inaccessible, "ThinPoolMissing", message));
    }
    if let Some(problem) = pool.problem {
        let message = format!("{problem} (device class {name}); lvs and dmesg on the node say more");
        return Some(Finding { message, ..of_problem(problem) });
    }
    let (data, metadata) = (pool.data_percent, pool.metadata_percent);
    let filled = data.max(metadata);
    if filled < ALMOST_FULL {
        return None;
    }
    let what = if data >= metadata { "data" } else { "metadata" };
    let message = format!(
        "the thin pool of device class {name} is {filled:.1} % full ({what}); when it is full, writes to its volumes fail; extend it with lvextend"
    );
    let (severity, reason) = if filled >= FULL {
        (Severity::Inaccessible, "ThinPoolFull")
    } else {
        (Severity::Degraded, "ThinPoolAlmostFull")
    };
    Some(Finding::new(severity, reason, message))
}

/// What is wrong with everything that volumes are made of.
pub(super) fn of_pools(pools: &Pools) -> Vec<Finding> {
    if !pools.is_connected {
        return vec![Finding::new(Severity::Inaccessible, "LvmdUnreachable", "lvmd does not answer on this node")];
    }
    pools.classes.iter().filter_map(of_class).collect()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use topolvm_proto::lvmd::{ThinPoolItem, WatchItem};

    use crate::capacity::ThinPool;

    fn lv(attr: &str) -> Lv {
        Lv { name: "v".to_owned(), path: "/dev/vg/v".into(), size_bytes: 1, number: None, attr: attr.parse().ok() }
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
    fn attributes_of_lvm_are_findings(#[case] attr: &str, #[case] expected: Option<(Severity, &str)>) {
        let finding = of_lv(&lv(attr));
        assert_eq!(finding.as_ref().map(|finding| (finding.severity, finding.reason.as_str())), expected);
    }

    fn class(group_bytes: u64, thin_pool: Option<(u64, f64, f64)>) -> ClassState {
        let thin_pool = thin_pool.map(|(bytes, data_percent, metadata_percent)| ThinPool {
            bytes,
            data_percent,
            metadata_percent,
            problem: None,
        });
        ClassState { name: "ssd".to_owned(), group_bytes, thin_pool, free: 0 }
    }

    #[rstest]
    #[case::thick(class(100, None), None)]
    #[case::group_gone(class(0, None), Some("VolumeGroupMissing"))]
    #[case::roomy(class(100, Some((50, 94.9, 10.0))), None)]
    #[case::data(class(100, Some((50, 95.0, 10.0))), Some("ThinPoolAlmostFull"))]
    #[case::metadata(class(100, Some((50, 10.0, 99.0))), Some("ThinPoolAlmostFull"))]
    #[case::full(class(100, Some((50, 100.0, 10.0))), Some("ThinPoolFull"))]
    #[case::pool_gone(class(100, Some((0, 0.0, 0.0))), Some("ThinPoolMissing"))]
    fn pools_that_run_full_or_vanish_are_findings(#[case] class: ClassState, #[case] reason: Option<&str>) {
        assert_eq!(of_class(&class).map(|finding| finding.reason).as_deref(), reason);
    }

    #[rstest]
    #[case("twi-aotz--", None)]
    #[case("twi-aotzM-", Some((Severity::Inaccessible, "ThinPoolMetadataReadOnly")))]
    #[case("twi-aotzD-", Some((Severity::Inaccessible, "ThinPoolOutOfDataSpace")))]
    #[case("twi-aotzF-", Some((Severity::Inaccessible, "ThinPoolFailed")))]
    #[case("twi-cotz--", Some((Severity::Degraded, "CheckNeeded")))]
    #[case("", None)]
    fn what_lvm_says_of_a_pool_is_a_finding(#[case] attr: &str, #[case] expected: Option<(Severity, &str)>) {
        let thin_pool = ThinPoolItem { size_bytes: 50, attr: attr.to_owned(), ..ThinPoolItem::default() };
        let item = WatchItem { size_bytes: 100, thin_pool: Some(thin_pool), ..WatchItem::default() };
        let finding = of_class(&ClassState::from(&item));
        assert_eq!(finding.as_ref().map(|finding| (finding.severity, finding.reason.as_str())), expected);
    }

    #[test]
    fn an_lvmd_that_does_not_answer_is_a_finding() {
        let [finding] = of_pools(&Pools::default()).try_into().unwrap();
        assert_eq!(finding.reason, "LvmdUnreachable");
    }
}
