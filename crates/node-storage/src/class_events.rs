//! Events of device classes in which LVM creates no volumes: what differs between the status that was written before
//! and the one that was written now.

use k8s_openapi::api::core::v1::ObjectReference;
use topolvm_api::NodeStorageStatus;

use crate::events::Events;

/// Publishes what is new since the status before.
pub(crate) async fn publish(
    events: &Events,
    node: &ObjectReference,
    before: &NodeStorageStatus,
    now: &NodeStorageStatus,
) {
    for message in describe_refused(before, now) {
        events.device_class_refused(node, message).await;
    }
}

/// Returns the reasons of the classes that were not refused before. Classes of one volume group may have the same.
fn describe_refused<'a>(before: &NodeStorageStatus, now: &'a NodeStorageStatus) -> Vec<&'a str> {
    let was_refused =
        |name: &str| before.device_classes.iter().any(|class| class.name == name && !class.refusal.is_empty());
    let new = now.device_classes.iter().filter(|class| !class.refusal.is_empty() && !was_refused(&class.name));
    let mut messages: Vec<_> = new.map(|class| class.refusal.as_str()).collect();
    messages.dedup();
    messages
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn status(refusals: [&str; 2]) -> NodeStorageStatus {
        let [a, b] = refusals.map(|refusal| json!({"name": refusal.len().to_string(), "refusal": refusal}));
        serde_json::from_value(json!({"deviceClasses": [a, b]})).unwrap()
    }

    #[test]
    fn class_refusal_is_described_once() {
        let (well, refused) = (status(["", ""]), status(["full of volumes", ""]));
        assert_eq!(describe_refused(&well, &refused), ["full of volumes"]);
        assert!(describe_refused(&refused, &refused).is_empty() && describe_refused(&refused, &well).is_empty());
        assert_eq!(describe_refused(&NodeStorageStatus::default(), &status(["same", "same"])), ["same"]);
    }
}
