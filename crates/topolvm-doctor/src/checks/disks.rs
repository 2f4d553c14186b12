//! Checks of disks that are emptied, and of wishes about disks, as the nodes tell of them.

use topolvm_api::{NodeStorage, NodeStorageStatus};

use crate::finding::Finding;

/// Finds evacuations that are blocked. The metrics of a node do not say why, and its problems do.
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

/// Finds wishes about disks that are refused.
pub(super) fn find_refused(object: &NodeStorage) -> Vec<Finding> {
    let node = object.name();
    let wishes = object.status.iter().flat_map(|status| &status.disk_wishes);
    let refused = wishes.filter(|wish| wish.is_refused()).map(|wish| {
        Finding::warn(
            format!("node {node}: {} of disk {} is refused: {}", wish.wish, wish.disk, wish.message),
            format!("kubectl topolvm disk list {node} shows the disks; docs/replace-a-disk.md says what can be wished"),
        )
    });
    refused.collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_cannot_go_on_is_named_with_the_command_that_ends_it() {
        let evacuation = |state: &str| json!({"state": state, "message": "1 GiB too little"});
        let object = serde_json::from_value(json!({
            "metadata": {"name": "n1"},
            "status": {
                "volumeGroups": [{"name": "data", "physicalVolumes": [
                    {"path": "/dev/sdb", "uuid": "b", "evacuation": evacuation("moving")},
                    {"path": "/dev/sdc", "uuid": "c", "evacuation": evacuation("blocked")},
                    {"path": "/dev/sdd", "uuid": "d"},
                ]}],
                "diskWishes": [
                    {"disk": "b", "wish": "evacuate", "state": "accepted"},
                    {"disk": "x", "wish": "remove", "state": "refused", "message": "no such disk"},
                ],
            },
        }));
        let object = object.unwrap();
        let found = [find_blocked(&object), find_refused(&object)].concat();
        let texts: Vec<_> = found.iter().map(|finding| finding.found.as_str()).collect();
        assert_eq!(
            texts,
            [
                "node n1: the disk /dev/sdc of volume group data cannot be emptied: 1 GiB too little",
                "node n1: remove of disk x is refused: no such disk",
            ]
        );
        let remedy = found[0].remedy.as_deref().unwrap();
        assert!(remedy.contains("kubectl topolvm disk evacuate n1 c --stop"), "{remedy}");
    }
}
