//! Compares the objects that there should be with those that there are. Pure.

use std::collections::HashMap;

use topolvm_kube::Owner;

use super::object::{CapacityObject, Segment};

/// A write that is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Create { segment: Segment, bytes: u64 },
    Update { name: String, bytes: u64 },
    Delete { name: String, uid: Option<String> },
}

/// Plans the writes. kube-scheduler accepts a node if any of its objects has enough capacity, so that of several
/// objects for one StorageClass and node only one stays. Objects about anything else are deleted, too.
pub(super) fn plan_changes(
    wanted: &HashMap<Segment, u64>,
    published: &HashMap<String, CapacityObject>,
    owner: Option<&Owner>,
) -> Vec<Change> {
    let mut changes = Vec::new();
    let mut kept: HashMap<&Segment, (&str, &CapacityObject)> = HashMap::new();
    for (name, object) in published {
        let this = (name.as_str(), object);
        let surplus = match object.segment.as_ref().filter(|segment| wanted.contains_key(*segment)) {
            None => Some(this),
            // Each leader keeps the same one
            Some(segment) if kept.get(segment).is_some_and(|(first, _)| *first < this.0) => Some(this),
            Some(segment) => kept.insert(segment, this),
        };
        changes.extend(surplus.map(|(name, object)| Change::Delete { name: name.to_owned(), uid: object.uid.clone() }));
    }
    for (segment, &bytes) in wanted {
        match kept.get(segment) {
            None => changes.push(Change::Create { segment: segment.clone(), bytes }),
            Some((_, object)) if object.matches(bytes, owner) => {}
            Some((name, _)) => changes.push(Change::Update { name: (*name).to_owned(), bytes }),
        }
    }
    changes
}
