//! Checks of disks that are evacuated, and of disk operations.

use jiff::{SignedDuration, Timestamp};
use topolvm_api::{DiskOperation, NodeStorage, NodeStorageStatus, Phase};

use crate::finding::Finding;

/// Time for which a failed operation is reported.
const RECENT: SignedDuration = SignedDuration::from_hours(24);

/// Finds evacuations that are blocked. The metrics of a node do not contain the reason, but its problems do.
pub(super) fn find_blocked(object: &NodeStorage) -> Vec<Finding> {
    let node = object.name();
    let disks = object.status.iter().flat_map(NodeStorageStatus::physical_volumes);
    let blocked = disks.filter_map(|(group, pv)| {
        let evacuation = pv.evacuation.as_ref().filter(|evacuation| evacuation.is_blocked())?;
        let disk = if pv.path.is_empty() { &pv.uuid } else { &pv.path };
        let (group, message) = (&group.name, &evacuation.message);
        Some(Finding::warn(
            format!("node {node}: the disk {disk} of volume group {group} cannot be emptied: {message}"),
            format!("do what it says, and it goes on; kubectl topolvm disk evacuate {node} {} --stop ends it", pv.uuid),
        ))
    });
    blocked.collect()
}

/// Finds an operation that has failed within the last day.
pub(super) fn find_failed(operation: &DiskOperation, now: Timestamp) -> Option<Finding> {
    let status = &operation.status.as_ref()?.operation;
    let end = status.completion_time.as_ref().filter(|_| status.phase == Phase::Failed)?;
    if now.duration_since(end.0) > RECENT {
        return None;
    }
    let (name, node) = (operation.name(), &operation.spec.node_name);
    let (type_, disk) = (operation.spec.type_.as_str(), &operation.spec.disk);
    Some(Finding::warn(
        format!("node {node}: DiskOperation {name} ({type_} of disk {disk}) has failed: {}", status.message),
        format!(
            "kubectl topolvm disk list {node} shows the disks; do what it says and create the operation again, or \
             kubectl delete diskoperations {name}"
        ),
    ))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    const NOW: Timestamp = Timestamp::constant(1_767_225_600, 0);

    #[test]
    fn blocked_evacuation_is_named_with_the_command_that_ends_it() {
        let evacuation = |state: &str| json!({"state": state, "message": "1 GiB too little"});
        let object = serde_json::from_value(json!({
            "metadata": {"name": "n1"},
            "status": {
                "volumeGroups": [{"name": "data", "physicalVolumes": [
                    {"path": "/dev/sdb", "uuid": "b", "evacuation": evacuation("moving")},
                    {"path": "/dev/sdc", "uuid": "c", "evacuation": evacuation("blocked")},
                    {"path": "/dev/sdd", "uuid": "d"},
                ]}],
            },
        }));
        let found = find_blocked(&object.unwrap());
        let texts: Vec<_> = found.iter().map(|finding| finding.found.as_str()).collect();
        assert_eq!(texts, ["node n1: the disk /dev/sdc of volume group data cannot be emptied: 1 GiB too little"]);
        let remedy = found[0].remedy.as_deref().unwrap();
        assert!(remedy.contains("kubectl topolvm disk evacuate n1 c --stop"), "{remedy}");
    }

    #[rstest]
    #[case::today("Failed", "2025-12-31T23:00:00Z", true)]
    #[case::last_week("Failed", "2025-12-25T00:00:00Z", false)]
    #[case::done("Succeeded", "2025-12-31T23:00:00Z", false)]
    fn failed_operation_is_reported_for_a_day(#[case] phase: &str, #[case] end: &str, #[case] is_found: bool) {
        let operation = serde_json::from_value(json!({
            "metadata": {"name": "n1-remove-x"}, "spec": {"nodeName": "n1", "disk": "u", "type": "Remove"},
            "status": {"phase": phase, "message": "no such disk", "completionTime": end},
        }));
        let found = find_failed(&operation.unwrap(), NOW).map(|finding| finding.found);
        let expected = "node n1: DiskOperation n1-remove-x (Remove of disk u) has failed: no such disk";
        assert_eq!(found.as_deref(), is_found.then_some(expected));
    }
}
