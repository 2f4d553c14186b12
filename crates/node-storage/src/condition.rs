//! The condition `Ready` of a `NodeStorage`.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use topolvm_api::{NodeStorageStatus, VolumeGroupStatus};

/// Most characters of a message (apimachinery, `metav1.Condition`).
const LONGEST_MESSAGE: usize = 32768;

/// Returns the condition for a status that is about to be written. Its time is that of the condition before, if both
/// have the same truth, and otherwise `now`.
pub(crate) fn ready_condition(
    status: &NodeStorageStatus,
    is_connected: bool,
    before: &[Condition],
    now: Timestamp,
) -> Condition {
    let (truth, reason, message) = if !is_connected {
        ("Unknown", "LvmdUnavailable", "lvmd does not report its state; this is its last report".to_owned())
    } else if status.problems.is_empty() {
        ("True", "StorageHealthy", String::new())
    } else {
        ("False", reason(status), summarize(&status.problems))
    };
    new_condition(truth, reason, &message, before, now)
}

/// Returns the condition of an object whose agent stops.
pub(crate) fn stopped_condition(before: &[Condition], now: Timestamp) -> Condition {
    let message = "topolvm-node has stopped on this node; this is its last report";
    new_condition("Unknown", "AgentStopped", message, before, now)
}

fn new_condition(truth: &str, reason: &str, message: &str, before: &[Condition], now: Timestamp) -> Condition {
    let unchanged = before.iter().find(|before| before.type_ == "Ready" && before.status == truth);
    Condition {
        type_: "Ready".to_owned(),
        status: truth.to_owned(),
        reason: reason.to_owned(),
        message: message.chars().take(LONGEST_MESSAGE).collect(),
        observed_generation: None,
        last_transition_time: unchanged.map_or(Time(now), |before| before.last_transition_time.clone()),
    }
}

/// Returns the worst problem as a CamelCase reason.
fn reason(status: &NodeStorageStatus) -> &'static str {
    let any_group = |is_so: fn(&VolumeGroupStatus) -> bool| status.volume_groups.iter().any(is_so);
    if any_group(|group| group.uuid.is_empty()) {
        "VolumeGroupMissing"
    } else if any_group(|group| group.missing_physical_volumes > 0) {
        "PhysicalVolumeMissing"
    } else if any_group(|group| !group.stale_reason.is_empty()) {
        "VolumeGroupStale"
    } else {
        "StorageProblem"
    }
}

fn summarize(problems: &[String]) -> String {
    match problems {
        [] => String::new(),
        [problem] => problem.clone(),
        [first, others @ ..] => format!("{first}; and {} more in status.problems", others.len()),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const THEN: Timestamp = Timestamp::constant(1_767_225_600, 0);
    const NOW: Timestamp = Timestamp::constant(1_767_229_200, 0);

    fn group(uuid: &str, missing_physical_volumes: u32, stale_reason: &str) -> VolumeGroupStatus {
        let (uuid, stale_reason) = (uuid.to_owned(), stale_reason.to_owned());
        VolumeGroupStatus { uuid, missing_physical_volumes, stale_reason, ..VolumeGroupStatus::default() }
    }

    #[rstest]
    #[case::gone(&[group("", 0, ""), group("u", 1, "")], "VolumeGroupMissing")]
    #[case::disk_gone(&[group("u", 0, "slow"), group("v", 1, "")], "PhysicalVolumeMissing")]
    #[case::not_read(&[group("u", 0, "slow")], "VolumeGroupStale")]
    #[case::other(&[group("u", 0, "")], "StorageProblem")]
    fn the_reason_is_the_worst(#[case] groups: &[VolumeGroupStatus], #[case] expected: &str) {
        let problems = vec!["one".to_owned(), "two".to_owned(), "three".to_owned()];
        let status = NodeStorageStatus { volume_groups: groups.to_vec(), problems, ..NodeStorageStatus::default() };
        let condition = ready_condition(&status, true, &[], NOW);
        assert_eq!((condition.status.as_str(), condition.reason.as_str()), ("False", expected));
        assert_eq!(condition.message, "one; and 2 more in status.problems");
    }

    #[test]
    fn the_time_is_that_of_the_last_change_of_the_truth() {
        let status = NodeStorageStatus::default();
        let good = ready_condition(&status, true, &[], THEN);
        assert_eq!((good.status.as_str(), good.reason.as_str()), ("True", "StorageHealthy"));
        assert_eq!(ready_condition(&status, true, std::slice::from_ref(&good), NOW), good);
        let away = ready_condition(&status, false, &[good], NOW);
        assert_eq!((away.status.as_str(), away.last_transition_time), ("Unknown", Time(NOW)));
    }

    #[test]
    fn a_message_is_no_longer_than_the_api_server_takes() {
        let problems = vec!["ä".repeat(LONGEST_MESSAGE + 1)];
        let condition = ready_condition(&NodeStorageStatus { problems, ..Default::default() }, true, &[], NOW);
        assert_eq!(condition.message.chars().count(), LONGEST_MESSAGE);
    }
}
