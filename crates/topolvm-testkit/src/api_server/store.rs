//! Storage of objects: the one counter behind every resourceVersion, and the history that watches read.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::Value;
use tokio::time::Instant;

use super::json::metadata;
use super::kind::Kind;
use super::ownership::Ownership;

/// A collection of objects: API group and plural of the resource.
pub(super) type Collection = (String, String);

/// Namespace (empty for cluster-scoped objects) and name of an object.
pub(super) type ObjectName = (String, String);

/// An object and the owners of its fields.
#[derive(Clone, Debug)]
pub(super) struct Stored {
    pub(super) object: Arc<Value>,
    pub(super) ownership: Ownership,
}

/// An entry of the history: one write.
#[derive(Debug)]
pub(super) struct Revision {
    pub(super) version: u64,
    pub(super) collection: Collection,
    pub(super) name: ObjectName,
    pub(super) before: Option<Arc<Value>>,
    /// None after a deletion.
    pub(super) after: Option<Arc<Value>>,
}

#[derive(Debug)]
pub(super) struct Store {
    objects: BTreeMap<Collection, BTreeMap<ObjectName, Stored>>,
    history: Vec<Arc<Revision>>,
    version: u64,
    /// Watches cannot start before this version.
    oldest: u64,
    epoch: Timestamp,
    started: Instant,
}

impl Store {
    pub(super) fn new() -> Self {
        Self {
            objects: BTreeMap::new(),
            history: Vec::new(),
            version: 1,
            oldest: 0,
            // 2025-01-01T00:00:00Z; a fixed start keeps tests free of the real clock
            epoch: Timestamp::constant(1_735_689_600, 0),
            started: Instant::now(),
        }
    }

    pub(super) fn set_clock(&mut self, now: Timestamp) {
        self.epoch = now;
        self.started = Instant::now();
    }

    /// Returns the server's time in the format of metadata, in whole seconds.
    pub(super) fn now(&self) -> String {
        let elapsed = i64::try_from(self.started.elapsed().as_secs()).unwrap_or(i64::MAX);
        let second = self.epoch.as_second().saturating_add(elapsed);
        Timestamp::from_second(second).unwrap_or(self.epoch).to_string()
    }

    pub(super) fn version(&self) -> u64 {
        self.version
    }

    pub(super) fn oldest(&self) -> u64 {
        self.oldest
    }

    /// Forgets the history before now: watches and pages of older versions are expired.
    pub(super) fn compact(&mut self) {
        self.oldest = self.version;
    }

    pub(super) fn get(&self, kind: &Kind, name: &ObjectName) -> Option<&Stored> {
        self.objects.get(&collection(kind))?.get(name)
    }

    /// Lists the objects of a kind in the order of namespace and name, as they were at a version.
    pub(super) fn list_at(&self, kind: &Kind, version: u64) -> BTreeMap<ObjectName, Arc<Value>> {
        let wanted = collection(kind);
        let mut objects: BTreeMap<ObjectName, Arc<Value>> = self
            .objects
            .get(&wanted)
            .into_iter()
            .flatten()
            .map(|(name, stored)| (name.clone(), Arc::clone(&stored.object)))
            .collect();
        for revision in self.history.iter().rev().take_while(|revision| revision.version > version) {
            if revision.collection != wanted {
                continue;
            }
            match &revision.before {
                Some(before) => objects.insert(revision.name.clone(), Arc::clone(before)),
                None => objects.remove(&revision.name),
            };
        }
        objects
    }

    /// Stores an object as it is, with the next version, and returns it as stored.
    pub(super) fn put(&mut self, kind: &Kind, name: ObjectName, mut object: Value, ownership: Ownership) -> Arc<Value> {
        self.version += 1;
        metadata(&mut object).insert("resourceVersion".to_owned(), self.version.to_string().into());
        let object = Arc::new(object);
        let stored = Stored { object: Arc::clone(&object), ownership };
        let before = self.objects.entry(collection(kind)).or_default().insert(name.clone(), stored);
        self.record(kind, name, before.map(|stored| stored.object), Some(Arc::clone(&object)));
        object
    }

    /// Removes an object, if it exists, which is a write with the next version too.
    pub(super) fn remove(&mut self, kind: &Kind, name: &ObjectName) {
        let removed = self.objects.get_mut(&collection(kind)).and_then(|objects| objects.remove(name));
        if let Some(Stored { object, .. }) = removed {
            self.version += 1;
            self.record(kind, name.clone(), Some(object), None);
        }
    }

    fn record(&mut self, kind: &Kind, name: ObjectName, before: Option<Arc<Value>>, after: Option<Arc<Value>>) {
        self.history.push(Arc::new(Revision {
            version: self.version,
            collection: collection(kind),
            name,
            before,
            after,
        }));
    }

    /// Returns the place in the history after the last write.
    pub(super) fn end_of_history(&self) -> usize {
        self.history.len()
    }

    /// Returns the place in the history after the write with this version.
    pub(super) fn place_after(&self, version: u64) -> usize {
        self.history.partition_point(|revision| revision.version <= version)
    }

    /// Returns the writes from a place in the history on.
    pub(super) fn history_from(&self, place: usize) -> &[Arc<Revision>] {
        self.history.get(place..).unwrap_or_default()
    }

    /// Returns the UID of the next object: the same in every run of a test.
    pub(super) fn next_uid(&self) -> String {
        let number = self.version + 1;
        format!("{:08x}-0000-4000-8000-{number:012x}", number.wrapping_mul(0x9e37_79b1) & 0xffff_ffff)
    }

    /// Returns the five characters that complete the next `generateName`.
    pub(super) fn next_suffix(&self) -> String {
        const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
        let mut number = usize::try_from(self.version).unwrap_or_default();
        let mut suffix = String::new();
        for _ in 0..5 {
            suffix.push(ALPHABET.get(number % ALPHABET.len()).map_or('x', |&byte| char::from(byte)));
            number /= ALPHABET.len();
        }
        suffix
    }
}

pub(super) fn collection(kind: &Kind) -> Collection {
    (kind.group.clone(), kind.plural.clone())
}
