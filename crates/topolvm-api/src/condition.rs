//! The conditions of a LogicalVolume: `Ready`, computed from spec and status, for people and for `kubectl wait`, and
//! `Removed`, of a deleted one whose LV still exists.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;

use crate::schema::LONGEST_MESSAGE;
use crate::{LogicalVolume, LogicalVolumeStatus, parse_bytes};

/// Type of the condition.
const READY: &str = "Ready";
/// Type of the condition of a deleted object whose LV still exists.
const REMOVED: &str = "Removed";

/// Type of the condition of an object that says whether the limits of its I/O are in force.
pub const IO_LIMITED: &str = "IOLimited";

/// Readiness of a LogicalVolume: the `reason` of its condition `Ready`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// The volume exists and has its size. The only one with which the condition is `True`.
    VolumeReady,
    /// The volume could not be made.
    CreateFailed,
    /// The volume exists and could not be grown to the requested size.
    ExpandFailed,
    /// The volume existed, and LVM on the node has lost it. Code and message of the status do not show that.
    VolumeLost,
    /// The volume is being made.
    Creating,
    /// The volume exists and is being grown to its size.
    Expanding,
}

impl Readiness {
    /// Returns the readiness of an object with this status.
    pub fn of(volume: &LogicalVolume, status: &LogicalVolumeStatus) -> Self {
        let is_made = !status.volume_id.is_empty();
        if status.code != 0 {
            return if is_made { Self::ExpandFailed } else { Self::CreateFailed };
        }
        let current = status.current_size.as_ref().and_then(|size| parse_bytes(size).ok());
        let wanted = parse_bytes(&volume.spec.size).ok();
        match (is_made, current) {
            (false, _) => Self::Creating,
            (true, Some(current)) if wanted.is_some_and(|wanted| wanted <= current) => Self::VolumeReady,
            (true, _) => Self::Expanding,
        }
    }

    /// Returns the `reason` of the condition.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::VolumeReady => "VolumeReady",
            Self::CreateFailed => "CreateFailed",
            Self::ExpandFailed => "ExpandFailed",
            Self::VolumeLost => "VolumeLost",
            Self::Creating => "Creating",
            Self::Expanding => "Expanding",
        }
    }
}

/// Returns the condition for a status that is about to be written to `volume`. Its time is that of the condition of
/// `volume`, if both have the same status, and otherwise `now`. No other field of the status reports a lost volume.
pub fn ready_condition(
    volume: &LogicalVolume,
    status: &LogicalVolumeStatus,
    is_lost: bool,
    now: Timestamp,
) -> Condition {
    let is_lost = is_lost && !status.volume_id.is_empty();
    let readiness = if is_lost { Readiness::VolumeLost } else { Readiness::of(volume, status) };
    let message = if is_lost { lost_message(volume) } else { status.message.clone() };
    let truth = if readiness == Readiness::VolumeReady { "True" } else { "False" };
    let mut before = volume.status.iter().flat_map(|status| &status.conditions);
    let unchanged = before.find(|before| before.type_ == READY && before.status == truth);
    Condition {
        type_: READY.to_owned(),
        status: truth.to_owned(),
        reason: readiness.as_str().to_owned(),
        message: message.chars().take(LONGEST_MESSAGE).collect(),
        observed_generation: volume.metadata.generation,
        last_transition_time: unchanged.map_or(Time(now), |before| before.last_transition_time.clone()),
    }
}

/// Reason for which the LV of a deleted object still exists: the `reason` of its condition `Removed`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemovalFailure {
    /// It cannot be removed.
    RemoveFailed,
    /// A PersistentVolume refers to the volume.
    PersistentVolumeExists,
    /// A VolumeSnapshotContent refers to the snapshot.
    VolumeSnapshotContentExists,
}

impl RemovalFailure {
    /// Returns the `reason` of the condition.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::RemoveFailed => "RemoveFailed",
            Self::PersistentVolumeExists => "PersistentVolumeExists",
            Self::VolumeSnapshotContentExists => "VolumeSnapshotContentExists",
        }
    }
}

/// Returns the condition of a deleted object whose LV still exists, with the message for people. Its time is that of
/// the condition in `volume`, and otherwise `now`.
pub fn removal_condition(volume: &LogicalVolume, failure: RemovalFailure, message: &str, now: Timestamp) -> Condition {
    let before = find_removal_condition(volume);
    Condition {
        type_: REMOVED.to_owned(),
        status: "False".to_owned(),
        reason: failure.as_str().to_owned(),
        message: message.chars().take(LONGEST_MESSAGE).collect(),
        observed_generation: volume.metadata.generation,
        last_transition_time: before.map_or(Time(now), |before| before.last_transition_time.clone()),
    }
}

fn find_removal_condition(volume: &LogicalVolume) -> Option<&Condition> {
    let mut conditions = volume.status.iter().flat_map(|status| &status.conditions);
    conditions.find(|condition| condition.type_ == REMOVED && condition.status == "False")
}

/// Returns the message about a volume that LVM on the node no longer has, with the remedy.
pub fn lost_message(volume: &LogicalVolume) -> String {
    format!(
        "LVM on node {} no longer has logical volume {}; if it was renamed, rename it back with lvrename; if it was \
         removed, restore the metadata of its volume group with vgcfgrestore, or delete the claim",
        volume.spec.node_name,
        volume.lv_name(),
    )
}

impl LogicalVolume {
    /// Returns the readiness by the status, or [`Readiness::VolumeLost`] by the condition.
    pub fn readiness(&self) -> Readiness {
        if self.is_lost() {
            return Readiness::VolumeLost;
        }
        let none = LogicalVolumeStatus::default();
        Readiness::of(self, self.status.as_ref().unwrap_or(&none))
    }

    /// Returns why the LV of a deleted object stays, if that is because something refers to the volume.
    pub fn removal_blocked(&self) -> Option<&str> {
        let condition = find_removal_condition(self);
        let blocked = condition.filter(|condition| condition.reason != RemovalFailure::RemoveFailed.as_str());
        blocked.map(|condition| condition.message.as_str())
    }

    /// Returns why the LV of a deleted object still exists, if the condition reports it.
    pub fn removal_failure(&self) -> Option<&str> {
        find_removal_condition(self).map(|condition| condition.message.as_str())
    }

    /// Returns true if the condition reports that LVM no longer has the volume.
    pub fn is_lost(&self) -> bool {
        let mut conditions = self.status.iter().flat_map(|status| &status.conditions);
        conditions.any(|condition| condition.type_ == READY && condition.reason == Readiness::VolumeLost.as_str())
    }
}

/// Returns the condition about limits of I/O that an object has.
pub fn io_limited_condition(volume: &LogicalVolume) -> Option<&Condition> {
    volume.status.iter().flat_map(|status| &status.conditions).find(|condition| condition.type_ == IO_LIMITED)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::{LogicalVolumeSpec, format_bytes};

    const THEN: Timestamp = Timestamp::constant(1_767_225_600, 0);
    const NOW: Timestamp = Timestamp::constant(1_767_229_200, 0);

    fn status(volume_id: &str, code: i32, message: &str, current: Option<u64>) -> LogicalVolumeStatus {
        LogicalVolumeStatus {
            volume_id: volume_id.to_owned(),
            code,
            message: message.to_owned(),
            current_size: current.map(format_bytes),
            conditions: Vec::new(),
        }
    }

    /// An object that wants 1 GiB, after `status` was written to it.
    fn after(status: LogicalVolumeStatus) -> LogicalVolume {
        let spec = LogicalVolumeSpec { size: format_bytes(1 << 30), ..LogicalVolumeSpec::default() };
        let mut volume = LogicalVolume { spec, ..LogicalVolume::default() };
        volume.metadata.generation = Some(3);
        let conditions = vec![ready_condition(&volume, &status, false, THEN)];
        volume.status = Some(LogicalVolumeStatus { conditions, ..status });
        volume
    }

    #[rstest]
    #[case::made("u", 0, Some(1 << 30), "True", "VolumeReady")]
    #[case::larger_than_asked_for("u", 0, Some(2 << 30), "True", "VolumeReady")]
    #[case::not_made("", 8, None, "False", "CreateFailed")]
    #[case::not_grown("u", 8, Some(1 << 20), "False", "ExpandFailed")]
    #[case::large_enough_and_failed("u", 3, Some(2 << 30), "False", "ExpandFailed")]
    #[case::about_to_be_made("", 0, None, "False", "Creating")]
    #[case::about_to_grow("u", 0, Some(1 << 20), "False", "Expanding")]
    #[case::size_not_known("u", 0, None, "False", "Expanding")]
    fn the_reason_says_how_far_it_is(
        #[case] id: &str,
        #[case] code: i32,
        #[case] current: Option<u64>,
        #[case] truth: &str,
        #[case] reason: &str,
    ) {
        let volume = after(status(id, code, "full", current));
        let condition = &volume.status.unwrap().conditions[0];
        assert_eq!((condition.status.as_str(), condition.reason.as_str()), (truth, reason));
    }

    #[test]
    fn ready_condition_has_the_message_and_observed_generation() {
        let written = after(status("", 8, "full", None));
        let json = serde_json::to_value(&written.status.unwrap().conditions).unwrap();
        let expected = serde_json::json!([{
            "type": "Ready", "status": "False", "reason": "CreateFailed", "message": "full", "observedGeneration": 3,
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }]);
        assert_eq!(json, expected);
    }

    #[test]
    fn the_time_is_kept_while_the_condition_is_as_true_as_before() {
        let volume = after(status("u", 8, "full", Some(1 << 20)));
        let again = ready_condition(&volume, &status("u", 13, "broken", Some(1 << 20)), false, NOW);
        assert_eq!((again.last_transition_time, again.message.as_str()), (Time(THEN), "broken"));
    }

    #[test]
    fn the_time_is_new_when_the_condition_becomes_true_or_false() {
        let (good, bad) = (status("u", 0, "", Some(1 << 30)), status("u", 8, "full", Some(1 << 20)));
        assert_eq!(ready_condition(&after(bad.clone()), &good, false, NOW).last_transition_time, Time(NOW));
        assert_eq!(ready_condition(&after(good), &bad, false, NOW).last_transition_time, Time(NOW));
    }

    #[test]
    fn an_object_without_conditions_gets_its_first_now() {
        let good = status("u", 0, "", Some(1 << 30));
        let mut volume = after(good.clone());
        volume.status = Some(good.clone());
        assert_eq!(ready_condition(&volume, &good, false, NOW).last_transition_time, Time(NOW));
    }

    #[test]
    fn a_message_is_no_longer_than_the_api_server_takes() {
        let long = "ä".repeat(LONGEST_MESSAGE + 1);
        let condition = ready_condition(&after(status("", 8, "", None)), &status("", 8, &long, None), false, NOW);
        assert_eq!(condition.message.chars().count(), LONGEST_MESSAGE);
    }

    #[test]
    fn lost_volume_is_not_ready_and_the_message_names_the_fix() {
        let good = status("u", 0, "", Some(1 << 30));
        let mut volume = after(good.clone());
        assert!(!volume.is_lost());
        let lost = ready_condition(&volume, &good, true, NOW);
        assert_eq!(
            (lost.status.as_str(), lost.reason.as_str(), lost.last_transition_time.0),
            ("False", "VolumeLost", NOW)
        );
        assert!(
            lost.message.contains("no longer has logical volume u;") && lost.message.contains("lvrename"),
            "{}",
            lost.message
        );
        volume.status.as_mut().unwrap().conditions = vec![lost];
        assert!(volume.is_lost());
        assert_eq!(ready_condition(&volume, &good, false, THEN).reason, "VolumeReady");
        assert_eq!(ready_condition(&volume, &status("", 0, "", None), true, NOW).reason, "Creating", "never made");
    }
}
