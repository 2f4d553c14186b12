//! Conditions of a claim about expansion and modification. Pure.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, PersistentVolumeClaimCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

/// Conditions about expansion.
pub(crate) const RESIZE_CONDITIONS: [&str; 4] = [RESIZING, FILESYSTEM_PENDING, CONTROLLER_ERROR, "NodeResizeError"];
/// Conditions about modification.
pub(crate) const MODIFY_CONDITIONS: [&str; 2] = [MODIFYING, MODIFY_ERROR];

/// An expansion has begun.
pub(crate) const RESIZING: &str = "Resizing";
/// The kubelet has to grow the filesystem.
pub(crate) const FILESYSTEM_PENDING: &str = "FileSystemResizePending";
/// The driver did not expand the volume.
pub(crate) const CONTROLLER_ERROR: &str = "ControllerResizeError";
/// A modification has begun.
pub(crate) const MODIFYING: &str = "ModifyingVolume";
/// The driver did not modify the volume.
pub(crate) const MODIFY_ERROR: &str = "ModifyVolumeError";

/// A condition that holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NewCondition {
    pub(crate) kind: &'static str,
    pub(crate) reason: Option<String>,
    pub(crate) message: Option<String>,
}

impl NewCondition {
    /// Makes a condition without reason and message.
    pub(crate) const fn new(kind: &'static str) -> Self {
        Self { kind, reason: None, message: None }
    }

    /// Sets the message.
    pub(crate) fn message(self, message: impl Into<String>) -> Self {
        Self { message: Some(message.into()), ..self }
    }

    /// Returns whether a condition of the claim says the same.
    fn is_same(&self, old: &PersistentVolumeClaimCondition) -> bool {
        old.type_ == self.kind && old.status == "True" && old.reason == self.reason && old.message == self.message
    }
}

/// Returns whether the claim has this condition, and it is true.
pub(crate) fn has_condition(claim: &PersistentVolumeClaim, kind: &str) -> bool {
    conditions(claim).any(|condition| condition.type_ == kind && condition.status == "True")
}

/// Returns the conditions of a claim without those in `removed` and with the new ones; `None` if they are the same.
pub(crate) fn merge_conditions(
    claim: &PersistentVolumeClaim,
    removed: &[&str],
    new: &[NewCondition],
    now: Timestamp,
) -> Option<Vec<PersistentVolumeClaimCondition>> {
    let is_new = |kind: &str| new.iter().any(|new| new.kind == kind);
    let stays = |old: &&PersistentVolumeClaimCondition| {
        !is_new(&old.type_) && !removed.contains(&old.type_.as_str()) || new.iter().any(|new| new.is_same(old))
    };
    let mut merged: Vec<_> = conditions(claim).filter(stays).cloned().collect();
    let kept = merged.len();
    for new in new.iter().filter(|new| !conditions(claim).any(|old| new.is_same(old))) {
        merged.push(PersistentVolumeClaimCondition {
            type_: new.kind.to_owned(),
            status: "True".to_owned(),
            reason: new.reason.clone(),
            message: new.message.clone(),
            last_probe_time: Some(Time(now)),
            last_transition_time: Some(Time(now)),
        });
    }
    (merged.len() > kept || kept < conditions(claim).count()).then_some(merged)
}

fn conditions(claim: &PersistentVolumeClaim) -> impl Iterator<Item = &PersistentVolumeClaimCondition> {
    claim.status.iter().flat_map(|status| status.conditions.iter().flatten())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn claim(kinds: &[&str]) -> PersistentVolumeClaim {
        let conditions: Vec<_> = kinds.iter().map(|kind| json!({"type": kind, "status": "True"})).collect();
        serde_json::from_value(json!({"status": {"conditions": conditions}})).unwrap()
    }

    fn merge(kinds: &[&str], removed: &[&str], new: &[NewCondition]) -> Option<Vec<String>> {
        let merged = merge_conditions(&claim(kinds), removed, new, Timestamp::UNIX_EPOCH)?;
        Some(merged.into_iter().map(|condition| condition.type_).collect())
    }

    #[test]
    fn new_conditions_replace_only_their_kinds() {
        let kinds = [CONTROLLER_ERROR, MODIFYING, "Other"];
        let merged = merge(&kinds, &RESIZE_CONDITIONS, &[NewCondition::new(RESIZING)]);
        assert_eq!(merged.unwrap(), [MODIFYING, "Other", RESIZING]);
        let merged = merge(&kinds, &[], &[NewCondition::new(CONTROLLER_ERROR).message("full")]);
        assert_eq!(merged.unwrap(), [MODIFYING, "Other", CONTROLLER_ERROR]);
    }

    #[test]
    fn same_conditions_are_no_change() {
        assert_eq!(merge(&[RESIZING, "Other"], &RESIZE_CONDITIONS, &[NewCondition::new(RESIZING)]), None);
        assert_eq!(merge(&["Other"], &MODIFY_CONDITIONS, &[]), None);
        assert_eq!(merge(&[MODIFY_ERROR], &MODIFY_CONDITIONS, &[]), Some(vec![]));
    }
}
