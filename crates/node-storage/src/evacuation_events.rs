//! Events of evacuations: what differs between the status that was written before and the one that was written now.

use k8s_openapi::api::core::v1::ObjectReference;
use topolvm_api::{EvacuationStatus, NodeStorageStatus, PhysicalVolumeStatus, VolumeGroupStatus};

use crate::events::Events;

/// A step of an evacuation that people hear of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Started,
    Blocked,
    Stopped,
    Emptied,
}

/// Publishes what is new since the status before.
pub(crate) async fn publish(
    events: &Events,
    node: &ObjectReference,
    before: &NodeStorageStatus,
    now: &NodeStorageStatus,
) {
    for (group, pv) in now.physical_volumes() {
        let known = before.physical_volume(&pv.uuid).and_then(|(_, pv)| pv.evacuation.as_ref());
        let Some(step) = find_step(known, pv.evacuation.as_ref()) else { continue };
        let message = describe(step, group, pv);
        match step {
            Step::Started => events.evacuation_started(node, &message).await,
            Step::Blocked => events.evacuation_blocked(node, &message).await,
            Step::Stopped => events.evacuation_stopped(node, &message).await,
            Step::Emptied => events.disk_evacuated(node, &message).await,
        }
    }
}

/// Finds the change of an evacuation. If the disk leaves its group when it is empty, the change is reported after it
/// has left.
fn find_step(before: Option<&EvacuationStatus>, now: Option<&EvacuationStatus>) -> Option<Step> {
    let was = |is_so: fn(&EvacuationStatus) -> bool| before.is_some_and(is_so);
    match (before, now) {
        (Some(_), None) => Some(Step::Stopped),
        (_, Some(now)) if now.is_blocked() => (!was(EvacuationStatus::is_blocked)).then_some(Step::Blocked),
        (_, Some(now)) if now.is_empty() && !now.remove => {
            (!was(|before| before.is_empty() && !before.remove)).then_some(Step::Emptied)
        }
        (None, Some(_)) => Some(Step::Started),
        (_, _) => None,
    }
}

fn describe(step: Step, group: &VolumeGroupStatus, pv: &PhysicalVolumeStatus) -> String {
    let path = if pv.path.is_empty() { "a disk without a device" } else { &pv.path };
    let disk = format!("{path} (UUID {}) of volume group {}", pv.uuid, group.name);
    let evacuation = pv.evacuation.clone().unwrap_or_default();
    match step {
        Step::Started if evacuation.remove => {
            format!("{disk}: its volumes are moved to the other disks of the group; then it leaves the group")
        }
        Step::Started => format!("{disk}: its volumes are moved to the other disks of the group"),
        Step::Blocked => format!("{disk}: its volumes cannot be moved: {}", evacuation.message),
        Step::Stopped => format!("{disk}: its volumes are not moved any more; it gets new volumes again"),
        Step::Emptied => format!("{disk}: no volume is on it any more, and it gets none"),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn evacuation(state: &str, remove: bool) -> Option<EvacuationStatus> {
        (!state.is_empty()).then(|| EvacuationStatus { state: state.to_owned(), remove, ..EvacuationStatus::default() })
    }

    #[rstest]
    #[case::begins("", "moving", false, Some(Step::Started))]
    #[case::goes_on("moving", "moving", false, None)]
    #[case::cannot_begin("", "blocked", true, Some(Step::Blocked))]
    #[case::cannot_go_on("moving", "blocked", true, Some(Step::Blocked))]
    #[case::still_cannot("blocked", "blocked", false, None)]
    #[case::goes_on_again("blocked", "moving", false, None)]
    #[case::is_done("moving", "empty", false, Some(Step::Emptied))]
    #[case::had_nothing("", "empty", false, Some(Step::Emptied))]
    #[case::is_reported("empty", "empty", false, None)]
    #[case::is_about_to_leave("moving", "empty", true, None)]
    #[case::was_stopped("moving", "", false, Some(Step::Stopped))]
    #[case::was_never("", "", false, None)]
    fn steps_are_reported_once(
        #[case] before: &str,
        #[case] now: &str,
        #[case] remove: bool,
        #[case] expected: Option<Step>,
    ) {
        let found = find_step(evacuation(before, remove).as_ref(), evacuation(now, remove).as_ref());
        assert_eq!(found, expected);
    }

    #[test]
    fn evacuation_with_a_cancelled_removal_reports_an_empty_disk() {
        let found = find_step(evacuation("empty", true).as_ref(), evacuation("empty", false).as_ref());
        assert_eq!(found, Some(Step::Emptied));
    }

    #[test]
    fn a_message_names_the_disk_and_says_why() {
        let status: NodeStorageStatus = serde_json::from_value(json!({"volumeGroups": [{
            "name": "data",
            "physicalVolumes": [
                {"path": "/dev/sdb", "uuid": "u", "evacuation": {"state": "blocked", "message": "full"}},
            ],
        }]}))
        .unwrap();
        let (group, pv) = status.physical_volume("u").unwrap();
        let expected = "/dev/sdb (UUID u) of volume group data: its volumes cannot be moved: full";
        assert_eq!(describe(Step::Blocked, group, pv), expected);
    }
}
