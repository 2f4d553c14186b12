//! The contents for which something is to be done, from the events of a watch. Others use no memory here.

use std::collections::{BTreeMap, HashMap, HashSet};

use kube::ResourceExt as _;
use kube::runtime::watcher::Event;
use tokio::sync::mpsc;

use crate::content::Content;
use crate::content_step::{Step, next_step};

/// The pending contents. Each is identified by its name: an attempt reads the object that has it then.
#[derive(Debug)]
pub(crate) struct PendingContents<C: Content> {
    driver: &'static str,
    tasks: mpsc::UnboundedSender<String>,
    pending: HashMap<String, Requested<C::Spec>>,
    /// The contents that a list which has not ended has named so far.
    listed: HashSet<String>,
}

/// Request of others in a content. The status and the annotation about creation are written by this controller, and
/// their changes do not end a pause after a failure.
#[derive(Debug, PartialEq)]
struct Requested<S> {
    uid: Option<String>,
    spec: S,
    annotations: BTreeMap<String, String>,
    is_deleting: bool,
}

impl<C: Content> PendingContents<C> {
    /// Makes the list of the pending contents of a driver. The names of what is new are sent to `tasks`.
    pub(crate) fn new(driver: &'static str, tasks: mpsc::UnboundedSender<String>) -> Self {
        Self { driver, tasks, pending: HashMap::new(), listed: HashSet::new() }
    }

    /// Applies an event of the watch.
    pub(crate) fn apply(&mut self, event: &Event<C>) {
        match event {
            Event::Init => self.listed.clear(),
            Event::InitApply(content) => {
                self.apply_content(content);
                self.listed.insert(content.name_any());
            }
            Event::InitDone => {
                let listed = std::mem::take(&mut self.listed);
                self.pending.retain(|name, _| listed.contains(name));
            }
            Event::Apply(content) => self.apply_content(content),
            Event::Delete(content) => drop(self.pending.remove(&content.name_any())),
        }
    }

    fn apply_content(&mut self, content: &C) {
        let name = content.name_any();
        if next_step(content, self.driver) == Step::Wait {
            self.pending.remove(&name);
            return;
        }
        let requested = Requested::from_content(content);
        if self.pending.get(&name) != Some(&requested) {
            self.pending.insert(name.clone(), requested);
            // The receiver is dropped when the term ends
            drop(self.tasks.send(name));
        }
    }
}

impl<S: Clone> Requested<S> {
    fn from_content<C: Content<Spec = S>>(content: &C) -> Self {
        let mut annotations = content.annotations().clone();
        annotations.remove(C::NAMES.being_created);
        Self {
            uid: content.uid(),
            spec: content.spec().clone(),
            annotations,
            is_deleting: content.meta().deletion_timestamp.is_some(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use topolvm_api::SnapshotContent;

    use super::*;
    use crate::snapshot_content::NAMES;
    use crate::tests::content::dynamic;

    fn contents() -> (PendingContents<SnapshotContent>, mpsc::UnboundedReceiver<String>) {
        let (sender, tasks) = mpsc::unbounded_channel();
        (PendingContents::new("topolvm.io", sender), tasks)
    }

    fn named(name: &str, changes: &Value) -> SnapshotContent {
        dynamic(&[json!({"metadata": {"name": name, "uid": name}}), changes.clone()])
    }

    fn ready() -> Value {
        json!({"status": {"readyToUse": true, "snapshotHandle": "s-1"}})
    }

    fn drain(tasks: &mut mpsc::UnboundedReceiver<String>) -> Vec<String> {
        std::iter::from_fn(|| tasks.try_recv().ok()).collect()
    }

    #[test]
    fn pending_contents_are_those_with_a_step() {
        let (mut contents, mut tasks) = contents();
        contents.apply(&Event::Init);
        contents.apply(&Event::InitApply(named("a", &ready())));
        contents.apply(&Event::InitApply(named("b", &json!({}))));
        contents.apply(&Event::InitApply(named("c", &json!({"spec": {"driver": "other"}}))));
        contents.apply(&Event::InitDone);
        assert_eq!((drain(&mut tasks), contents.pending.len()), (vec!["b".to_owned()], 1));
        contents.apply(&Event::Apply(named("b", &ready())));
        assert_eq!((drain(&mut tasks), contents.pending.len()), (vec![], 0));
    }

    #[test]
    fn own_writes_are_nothing_new() {
        let (mut contents, mut tasks) = contents();
        contents.apply(&Event::Apply(named("a", &json!({}))));
        assert_eq!(drain(&mut tasks), ["a"]);
        for own in [
            json!({"metadata": {"annotations": {NAMES.being_created: "yes"}}}),
            json!({"status": {"readyToUse": false, "error": {"message": "full"}}}),
            json!({"metadata": {"resourceVersion": "9", "labels": {"app": "shop"}}}),
        ] {
            contents.apply(&Event::Apply(named("a", &own)));
            assert_eq!(drain(&mut tasks), Vec::<String>::new(), "{own}");
        }
        for new in [
            json!({"metadata": {"annotations": {NAMES.being_deleted: "yes"}}}),
            json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}),
            json!({"spec": {"volumeSnapshotClassName": "slow"}}),
            json!({"metadata": {"uid": "another"}}),
        ] {
            contents.apply(&Event::Apply(named("a", &new)));
            assert_eq!(drain(&mut tasks), ["a"], "{new}");
        }
    }

    #[test]
    fn list_forgets_contents_that_it_does_not_name() {
        let (mut contents, mut tasks) = contents();
        for name in ["a", "b"] {
            contents.apply(&Event::Apply(named(name, &json!({}))));
        }
        contents.apply(&Event::Init);
        contents.apply(&Event::InitApply(named("b", &json!({}))));
        contents.apply(&Event::InitDone);
        assert_eq!(
            (drain(&mut tasks).len(), contents.pending.contains_key("a"), contents.pending.len()),
            (2, false, 1)
        );
        contents.apply(&Event::Delete(named("b", &json!({}))));
        assert!(contents.pending.is_empty());
    }
}
