//! Events of the disks and device classes of a node: the differences between the previously written status and the one
//! that was written now. The contents of the object count as reported, so that neither a start of the agent nor a scan
//! of lvmd repeats them.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::ObjectReference;
use topolvm_api::{DiskGroupStatus, DiskStatus, NodeStorageStatus};

use crate::events::Events;
use crate::{class_events, evacuation_events};

/// Most disks that an Event names.
const NAMED: usize = 5;

/// Publishes Events of disks.
#[derive(Debug)]
pub(crate) struct DiskEvents {
    events: Events,
    failures: ReportedFailures,
}

/// Keys of the disks whose failed addition was reported: lvmd tries again, and they are candidates for a moment
/// meanwhile.
#[derive(Debug, Default)]
struct ReportedFailures(BTreeSet<String>);

impl DiskEvents {
    pub(crate) fn new(events: Events) -> Self {
        Self { events, failures: ReportedFailures::default() }
    }

    /// Publishes what is new since the status before.
    pub(crate) async fn publish(
        &mut self,
        node: &ObjectReference,
        before: &NodeStorageStatus,
        now: &NodeStorageStatus,
    ) {
        if let Some(message) = describe_added(before, now) {
            self.events.disks_added(node, &message).await;
        }
        if let Some(message) = describe_available(before, now) {
            self.events.disks_available(node, &message).await;
        }
        if let Some(message) = self.failures.describe(before, now) {
            self.events.disk_addition_failed(node, &message).await;
        }
        for message in now.disk_groups.iter().filter_map(|group| describe_missing(group, before, now)) {
            self.events.disks_missing(node, &message).await;
        }
        class_events::publish(&self.events, node, before, now).await;
        evacuation_events::publish(&self.events, node, before, now).await;
    }
}

/// Describes the disks that groups have got. A group that has no more disks than before has got none: one of them was
/// away, or has another name.
fn describe_added(before: &NodeStorageStatus, now: &NodeStorageStatus) -> Option<String> {
    let has_grown = |disk: &&DiskStatus| {
        let (known, group) = (before.disk_group(&disk.disk_group), now.disk_group(&disk.disk_group));
        known.zip(group).is_some_and(|(known, group)| group.disks > known.disks)
    };
    let is_new = |disk: &&DiskStatus| !find(before, disk).is_some_and(DiskStatus::is_member);
    let added = now.disks.iter().filter(|disk| disk.is_member()).filter(has_grown).filter(is_new);
    let line = |disk: &DiskStatus| format!("{} to disk group {}", name(disk), disk.disk_group);
    Some(format!("disks were added to volume groups: {}", list(added.map(line))?))
}

/// Describes the disks that groups of the mode report could get.
fn describe_available(before: &NodeStorageStatus, now: &NodeStorageStatus) -> Option<String> {
    let is_reported = |disk: &&DiskStatus| now.disk_group(&disk.disk_group).is_some_and(|group| group.mode == "report");
    let is_new = |disk: &&DiskStatus| !find(before, disk).is_some_and(DiskStatus::is_candidate);
    let available = now.disks.iter().filter(|disk| disk.is_candidate()).filter(is_reported).filter(is_new);
    let line = |disk: &DiskStatus| format!("{} to disk group {}", name(disk), disk.disk_group);
    let disks = list(available.map(line))?;
    Some(format!("blank disks could be added: {disks}; `mode: auto` of the disk group in lvmd.yaml adds them"))
}

/// Describes that a group lacks more disks than before.
fn describe_missing(group: &DiskGroupStatus, before: &NodeStorageStatus, now: &NodeStorageStatus) -> Option<String> {
    let known = before.disk_group(&group.name).map_or(0, |group| group.missing_disks);
    if group.missing_disks <= known {
        return None;
    }
    let was_member = |disk: &&DiskStatus| disk.is_member() && disk.disk_group == group.name;
    let is_away = |disk: &&DiskStatus| !find(now, disk).is_some_and(DiskStatus::is_member);
    let away = list(before.disks.iter().filter(was_member).filter(is_away).map(name));
    let away = away.map_or_else(String::new, |away| format!(" ({away})"));
    let DiskGroupStatus { name, missing_disks: missing, disks, .. } = group;
    Some(format!(
        "disk group {name} lacks {missing} of its {disks} disks{away}, so LVM makes nothing in it; bring them back, or \
         give them up with `vgreduce --removemissing {name}`"
    ))
}

impl ReportedFailures {
    /// Describes the disks whose failed addition was not reported yet.
    fn describe(&mut self, before: &NodeStorageStatus, now: &NodeStorageStatus) -> Option<String> {
        let failed: Vec<_> = now.disks.iter().filter(|disk| has_failed(disk)).collect();
        let is_reported =
            |disk: &&&DiskStatus| self.0.contains(disk.key()) || find(before, disk).is_some_and(has_failed);
        let new = failed.iter().filter(|disk| !is_reported(disk));
        let message = list(new.map(|disk| format!("{}: {}", name(disk), disk.message)));
        let may_fail_again = |disk: &DiskStatus| disk.is_candidate() && self.0.contains(disk.key());
        let keys = now.disks.iter().filter(|disk| has_failed(disk) || may_fail_again(disk));
        self.0 = keys.map(|disk| disk.key().to_owned()).collect();
        Some(format!("disks could not be added to their disk groups: {}", message?))
    }
}

fn has_failed(disk: &DiskStatus) -> bool {
    disk.reasons.iter().any(|reason| reason == "failed")
}

fn find<'a>(status: &'a NodeStorageStatus, disk: &DiskStatus) -> Option<&'a DiskStatus> {
    status.disks.iter().find(|known| known.key() == disk.key())
}

fn name(disk: &DiskStatus) -> String {
    let size = disk.size.as_ref().map_or("", |size| size.0.as_str());
    let stable = disk.stable_name.rsplit('/').next().filter(|name| !name.is_empty());
    stable.map_or_else(|| format!("{} ({size})", disk.path), |stable| format!("{} ({stable}, {size})", disk.path))
}

/// Returns the first of these texts and how many more there are; `None` if there are none.
fn list(texts: impl Iterator<Item = String>) -> Option<String> {
    let texts: Vec<_> = texts.collect();
    let listed = texts.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
    let more = texts.len().saturating_sub(NAMED);
    let more = if more > 0 { format!(", and {more} more") } else { String::new() };
    (!texts.is_empty()).then(|| listed + &more)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn status(mode: &str, disks: u64, missing: u64, listed: &Value) -> NodeStorageStatus {
        let group = json!({"name": "ssd", "mode": mode, "disks": disks, "missingDisks": missing});
        serde_json::from_value(json!({"disks": listed, "diskGroups": [group]})).unwrap()
    }

    fn disk(path: &str, state: &str) -> Value {
        json!({"path": path, "size": "1Gi", "diskGroup": "ssd", "state": state})
    }

    #[test]
    fn a_disk_is_added_when_its_group_has_more_disks_than_before() {
        let before = status("auto", 1, 0, &json!([disk("/dev/sdb", "member"), disk("/dev/sdc", "candidate")]));
        let now = status("auto", 2, 0, &json!([disk("/dev/sdb", "member"), disk("/dev/sdc", "member")]));
        let message = describe_added(&before, &now).unwrap();
        assert_eq!(message, "disks were added to volume groups: /dev/sdc (1Gi) to disk group ssd");
        assert_eq!(describe_added(&now, &now), None);
        let renamed = status("auto", 2, 0, &json!([disk("/dev/sdx", "member"), disk("/dev/sdy", "member-has-grown")]));
        assert_eq!(describe_added(&now, &renamed), None);
        assert_eq!(describe_added(&NodeStorageStatus::default(), &now), None, "the time of the addition is not known");
    }

    #[test]
    fn candidate_event_names_five_disks_in_report_mode() {
        let names: Vec<_> = (0..7).map(|number| disk(&format!("/dev/nvme{number}n1"), "candidate")).collect();
        let now = status("report", 0, 0, &json!(names));
        let message = describe_available(&NodeStorageStatus::default(), &now).unwrap();
        assert!(message.contains("/dev/nvme4n1 (1Gi) to disk group ssd, and 2 more;"), "{message}");
        assert_eq!(describe_available(&now, &now), None);
        assert_eq!(describe_available(&NodeStorageStatus::default(), &status("auto", 0, 0, &json!(names))), None);
    }

    #[test]
    fn failure_is_reported_once_although_the_disk_is_retried() {
        let mut failed = disk("/dev/sdb", "refused");
        failed["reasons"] = json!(["failed"]);
        failed["message"] = json!("it could not be added: no");
        failed["stableName"] = json!("/dev/disk/by-id/ata-X");
        let mut again = failed.clone();
        (again["state"], again["reasons"]) = (json!("candidate"), json!([]));
        let (failed, again) = (status("auto", 0, 0, &json!([failed])), status("auto", 0, 0, &json!([again])));
        let mut reported = ReportedFailures::default();
        let message = reported.describe(&again, &failed).unwrap();
        assert!(message.ends_with(": /dev/sdb (ata-X, 1Gi): it could not be added: no"), "{message}");
        assert_eq!(reported.describe(&failed, &again), None);
        assert_eq!(reported.describe(&again, &failed), None);
        assert_eq!(ReportedFailures::default().describe(&failed, &failed), None, "an agent that has started again");
        assert_eq!(reported.describe(&failed, &status("auto", 0, 0, &json!([]))), None);
        assert!(reported.describe(&again, &failed).is_some(), "it was pulled out meanwhile");
    }

    #[test]
    fn missing_disk_is_named_and_reported_once() {
        let before = status("auto", 2, 0, &json!([disk("/dev/sdb", "member"), disk("/dev/sdc", "member")]));
        let now = status("auto", 2, 1, &json!([disk("/dev/sdb", "member")]));
        let message = describe_missing(&now.disk_groups[0], &before, &now).unwrap();
        assert!(message.starts_with("disk group ssd lacks 1 of its 2 disks (/dev/sdc (1Gi)), so"), "{message}");
        assert_eq!(describe_missing(&now.disk_groups[0], &now, &now), None);
        assert_eq!(describe_missing(&before.disk_groups[0], &now, &before), None);
        assert!(describe_missing(&now.disk_groups[0], &NodeStorageStatus::default(), &now).is_some());
    }
}
