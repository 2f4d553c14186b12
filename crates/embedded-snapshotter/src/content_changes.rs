//! Changes of a content, as merge patches. Pure.
//!
//! A patch names only the fields that change, so that fields of a later Kubernetes stay.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Map, Value, json};

use crate::content::Content;

/// A change of annotations or of the status.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ContentChange {
    part: Part,
    fields: Map<String, Value>,
}

/// The part of an object that a patch changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Annotations,
    Status,
}

impl ContentChange {
    /// Returns whether nothing changes.
    pub(crate) fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }

    /// Returns the patch, which fails if the content is another version by now, and the part that it is for; `None` if
    /// nothing changes.
    pub(crate) fn into_patch<C: Content>(self, content: &C) -> Option<(Part, Value)> {
        if self.is_empty() {
            return None;
        }
        let (uid, version) = (&content.meta().uid, &content.meta().resource_version);
        let patch = match self.part {
            Part::Annotations => {
                json!({"metadata": {"uid": uid, "resourceVersion": version, "annotations": self.fields}})
            }
            Part::Status => json!({"metadata": {"uid": uid, "resourceVersion": version}, "status": self.fields}),
        };
        Some((self.part, patch))
    }

    fn of_creation<C: Content>(content: &C, value: Option<&str>) -> Self {
        let is_new = content.is_being_created() != value.is_some();
        let fields = is_new.then(|| (C::NAMES.being_created.to_owned(), json!(value))).into_iter().collect();
        Self { part: Part::Annotations, fields }
    }

    const fn of_status(fields: Map<String, Value>) -> Self {
        Self { part: Part::Status, fields }
    }
}

/// The driver is asked to create the snapshots.
pub(crate) fn creation_begins<C: Content>(content: &C) -> ContentChange {
    ContentChange::of_creation(content, Some("yes"))
}

/// The outcome of the creation is known.
pub(crate) fn creation_ends<C: Content>(content: &C) -> ContentChange {
    ContentChange::of_creation(content, None)
}

/// The driver has shown this, at this moment. What the status has stays: it is about the same.
pub(crate) fn found<C: Content>(content: &C, shown: &C::Shown, now: Timestamp) -> ContentChange {
    let is_ready = C::is_ready_in(shown);
    let mut status = content.found_fields(shown, now);
    if content.ready_to_use() != Some(is_ready) {
        status.insert("readyToUse".to_owned(), json!(is_ready));
    }
    if is_ready && content.has_error() {
        status.insert("error".to_owned(), Value::Null);
    }
    ContentChange::of_status(status)
}

/// An attempt has failed. The same failure again is no change.
pub(crate) fn failed<C: Content>(content: &C, message: &str, now: Timestamp) -> ContentChange {
    if content.error() == Some(message) {
        return ContentChange::of_status(Map::new());
    }
    let error = json!({"time": Time(now), "message": message});
    let mut status = Map::from_iter([("error".to_owned(), error)]);
    if content.ready_to_use() != Some(false) {
        status.insert("readyToUse".to_owned(), json!(false));
    }
    ContentChange::of_status(status)
}

/// The driver has deleted the snapshots.
pub(crate) fn deleted<C: Content>(content: &C) -> ContentChange {
    let fields = content.made_fields().into_iter();
    ContentChange::of_status(fields.map(|field| (field.to_owned(), Value::Null)).collect())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::driver_snapshot::DriverSnapshot;
    use crate::snapshot_content::NAMES;
    use crate::tests::content::dynamic;

    const NOW: Timestamp = Timestamp::constant(7, 0);

    fn snapshot(is_ready: bool) -> DriverSnapshot {
        let created = Some(Timestamp::constant(0, 5));
        DriverSnapshot { id: "s-1".to_owned(), is_ready, created, bytes: 1 << 30, ..DriverSnapshot::default() }
    }

    fn status(change: ContentChange) -> Value {
        assert_eq!(change.part, Part::Status);
        change.fields.into()
    }

    #[test]
    fn found_snapshot_fills_an_empty_status() {
        let change = found(&dynamic(&[]), &snapshot(true), NOW);
        let expected = json!({"snapshotHandle": "s-1", "readyToUse": true, "creationTime": 5, "restoreSize": 1 << 30});
        assert_eq!(status(change), expected);
        // A driver need not know time and size
        let unknown = DriverSnapshot { created: None, bytes: 0, ..snapshot(false) };
        let change = found(&dynamic(&[]), &unknown, NOW);
        let expected = json!({"snapshotHandle": "s-1", "readyToUse": false, "creationTime": 7_000_000_000_i64});
        assert_eq!(status(change), expected);
    }

    #[rstest]
    #[case::after_a_failure(
        json!({"readyToUse": false, "error": {"message": "full"}}), true,
        json!({"snapshotHandle": "s-1", "readyToUse": true, "error": null, "creationTime": 5, "restoreSize": 1 << 30}),
    )]
    #[case::error_stays_until_it_is_ready(
        json!({"readyToUse": false, "error": {"message": "full"}, "restoreSize": 1}), false,
        json!({"snapshotHandle": "s-1", "creationTime": 5}),
    )]
    #[case::ready_later(
        json!({"snapshotHandle": "s-1", "readyToUse": false, "creationTime": 4, "restoreSize": 3}), true,
        json!({"readyToUse": true}),
    )]
    #[case::still_not_ready(
        json!({"snapshotHandle": "s-1", "readyToUse": false, "creationTime": 4, "restoreSize": 3}), false, json!({}),
    )]
    fn found_snapshot_keeps_known_fields(#[case] old: Value, #[case] is_ready: bool, #[case] expected: Value) {
        let content = dynamic(&[json!({"status": old})]);
        assert_eq!(status(found(&content, &snapshot(is_ready), NOW)), expected);
    }

    #[test]
    fn failure_is_written_once() {
        let change = failed(&dynamic(&[]), "full", NOW);
        let expected = json!({"readyToUse": false, "error": {"time": "1970-01-01T00:00:07Z", "message": "full"}});
        assert_eq!(status(change), expected);
        let content = dynamic(&[json!({"status": {"readyToUse": false, "error": {"message": "full"}}})]);
        assert!(failed(&content, "full", NOW).is_empty());
        let change = failed(&content, "broken", NOW);
        assert_eq!(status(change), json!({"error": {"time": "1970-01-01T00:00:07Z", "message": "broken"}}));
    }

    #[test]
    fn deleted_snapshot_leaves_only_the_error() {
        let fields = json!({"status": {
            "snapshotHandle": "s-1", "readyToUse": true, "creationTime": 1, "restoreSize": 1, "error": {"message": "x"},
        }});
        let expected = json!({"snapshotHandle": null, "readyToUse": null, "creationTime": null, "restoreSize": null});
        assert_eq!(status(deleted(&dynamic(&[fields]))), expected);
        assert!(deleted(&dynamic(&[])).is_empty());
    }

    #[test]
    fn patch_is_for_one_version_and_one_part() {
        let content = dynamic(&[json!({"metadata": {"resourceVersion": "7"}})]);
        let identity = json!({"uid": "c-1", "resourceVersion": "7"});
        let patch = found(&content, &snapshot(true), NOW).into_patch(&content);
        let Some((Part::Status, patch)) = patch else { panic!("{patch:?}") };
        assert_eq!((&patch["metadata"], &patch["status"]["readyToUse"]), (&identity, &json!(true)));

        let begun = dynamic(&[json!({"metadata": {"annotations": {NAMES.being_created: "yes"}}})]);
        assert!(creation_begins(&begun).is_empty() && creation_ends(&content).is_empty());
        for (change, value) in [(creation_begins(&content), json!("yes")), (creation_ends(&begun), Value::Null)] {
            let Some((Part::Annotations, patch)) = change.into_patch(&content) else { panic!() };
            let metadata = json!({"uid": "c-1", "resourceVersion": "7", "annotations": {NAMES.being_created: value}});
            assert_eq!(patch, json!({"metadata": metadata}));
        }
        assert_eq!(creation_begins(&begun).into_patch(&begun), None);
    }
}
