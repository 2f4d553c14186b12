//! The `LogicalVolume`s that a watch has shown. Thousands lie here for hours until one is asked for, so that each is kept as compressed
//! JSON, which is about a tenth of what the object takes in memory.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use kube::runtime::watcher::Event;
use lz4_flex::block::{compress_prepend_size_with_dict, decompress_size_prepended_with_dict};
use tokio::sync::watch;
use topolvm_api::LogicalVolume;

/// What the JSON of most objects consists of, so that it costs next to nothing in each. It lives no longer than the process, and any text
/// would do: one that is more alike makes smaller objects.
const TYPICAL: &[u8] = br#""annotations":{"topolvm.io/resize-requested-at":"topolvm.io/source-volume-id":"},"accessType":"rw","source":"pvc-"code":8,"message":"{"metadata":{"creationTimestamp":"20","finalizers":["topolvm.io/logicalvolume"],"generation":1,"labels":{"app.kubernetes.io/created-by":"topolvm-controller"},"name":"pvc-","resourceVersion":"","uid":""},"spec":{"deviceClass":"","name":"pvc-","nodeName":"","size":"Gi"},"status":{"conditions":[{"lastTransitionTime":"20","message":"","observedGeneration":1,"reason":"VolumeReady","status":"True","type":"Ready"}],"currentSize":"Gi","volumeID":""}}"#;

/// The objects that are there. Clones share them.
#[derive(Clone, Debug)]
pub struct LogicalVolumes {
    objects: Arc<RwLock<Objects>>,
    /// Whether all have been listed once.
    listed: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct Objects {
    shown: Known,
    /// What has come of a list that is not complete. It replaces what is shown, in which a deleted object may be left.
    arriving: Known,
}

#[derive(Debug, Default)]
struct Known {
    by_name: HashMap<Arc<str>, Packed>,
    /// Names by UID, and by the volume id of the status where that is another one that nobody has as UID.
    names: HashMap<Box<str>, Arc<str>>,
}

/// An object as it is kept. Two that are equal are the same object in the same state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packed(Arc<[u8]>);

impl Default for LogicalVolumes {
    fn default() -> Self {
        Self { objects: Arc::default(), listed: watch::Sender::new(false) }
    }
}

impl LogicalVolumes {
    /// Brings them up to date, and returns the names of those of which there is something new: all of them when a list is complete.
    pub fn apply(&self, event: Event<LogicalVolume>) -> Vec<String> {
        let mut objects = self.write();
        match event {
            Event::Apply(volume) => {
                let name = volume.name().to_owned();
                objects.shown.insert(volume);
                return vec![name];
            }
            Event::Delete(volume) => {
                objects.shown.remove(&volume);
                return vec![volume.name().to_owned()];
            }
            Event::Init => objects.arriving = Known::default(),
            Event::InitApply(volume) => objects.arriving.insert(volume),
            Event::InitDone => {
                objects.shown = std::mem::take(&mut objects.arriving);
                objects.shown.shrink_to_fit();
                drop(objects);
                self.listed.send_replace(true);
                return self.names();
            }
        }
        Vec::new()
    }

    /// Waits until all have been listed once.
    pub async fn wait_until_listed(&self) {
        // It ends with the last sender only, which is this one
        drop(self.listed.subscribe().wait_for(|listed| *listed).await);
    }

    /// Whether they have.
    #[must_use]
    pub fn is_listed(&self) -> bool {
        *self.listed.borrow()
    }

    /// The object of this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<LogicalVolume> {
        self.packed(name)?.unpack()
    }

    /// The object of this name as it is kept.
    #[must_use]
    pub fn packed(&self, name: &str) -> Option<Packed> {
        self.read().shown.by_name.get(name).cloned()
    }

    /// The name of the object with this UID or CSI volume id.
    #[must_use]
    pub fn name_of(&self, id: &str) -> Option<String> {
        self.read().shown.names.get(id).map(ToString::to_string)
    }

    /// The names of all, in no order.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.read().shown.by_name.keys().map(ToString::to_string).collect()
    }

    fn read(&self) -> RwLockReadGuard<'_, Objects> {
        self.objects.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Objects> {
        self.objects.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    fn insert(&mut self, volume: LogicalVolume) {
        let name: Arc<str> = volume.name().into();
        self.names.insert(volume.uid().into(), Arc::clone(&name));
        // The UID of one object is not what another calls itself
        if let Some(id) = other_id(&volume).filter(|id| !self.names.contains_key(*id)) {
            self.names.insert(id.into(), Arc::clone(&name));
        }
        self.by_name.extend(Packed::new(volume).map(|packed| (name, packed)));
    }

    fn remove(&mut self, volume: &LogicalVolume) {
        self.by_name.remove(volume.name());
        for id in std::iter::once(volume.uid()).chain(other_id(volume)) {
            if self.names.get(id).is_some_and(|name| **name == *volume.name()) {
                self.names.remove(id);
            }
        }
    }

    fn shrink_to_fit(&mut self) {
        self.by_name.shrink_to_fit();
        self.names.shrink_to_fit();
    }
}

impl Packed {
    /// Keeps all of an object but what nobody reads.
    fn new(mut volume: LogicalVolume) -> Option<Self> {
        volume.types = None;
        volume.metadata.managed_fields = None;
        serde_json::to_vec(&volume)
            .inspect_err(|error| tracing::error!(name = volume.name(), %error, "cannot keep a LogicalVolume"))
            .ok()
            .map(|json| Self(compress_prepend_size_with_dict(&json, TYPICAL).into()))
    }

    /// The object.
    #[must_use]
    pub fn unpack(&self) -> Option<LogicalVolume> {
        let json = decompress_size_prepended_with_dict(&self.0, TYPICAL);
        json.map_err(anyhow::Error::from)
            .and_then(|json| Ok(serde_json::from_slice(&json)?))
            .inspect_err(|error| tracing::error!(%error, "cannot read a LogicalVolume that was kept"))
            .ok()
    }
}

/// The volume id of the status where that is not the object's UID.
fn other_id(volume: &LogicalVolume) -> Option<&str> {
    volume.volume_id().filter(|id| *id != volume.uid())
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
    use topolvm_testkit::fixtures::logical_volume;

    use super::*;

    fn sized(name: &str, size: &str) -> LogicalVolume {
        logical_volume(name).uid(&format!("uid-{name}")).sized(size).build()
    }

    /// Feeds one event. Returns what is told about, and then everything that is shown.
    fn feed(volumes: &LogicalVolumes, event: Event<LogicalVolume>) -> (Vec<String>, Vec<String>) {
        let mut told = volumes.apply(event);
        told.sort();
        let mut all: Vec<String> =
            volumes.names().iter().map(|name| format!("{name} {}", volumes.get(name).unwrap().spec.size.0)).collect();
        all.sort();
        (told, all)
    }

    fn expect(told: &[&str], all: &[&str]) -> (Vec<String>, Vec<String>) {
        let owned = |names: &[&str]| names.iter().map(ToString::to_string).collect();
        (owned(told), owned(all))
    }

    #[test]
    fn a_list_is_shown_when_it_is_complete_and_replaces_what_was_there() {
        let volumes = LogicalVolumes::default();
        for event in [Event::Init, Event::InitApply(sized("a", "1Gi")), Event::InitApply(sized("b", "1Gi"))] {
            assert_eq!(feed(&volumes, event), expect(&[], &[]));
            assert!(!volumes.is_listed());
        }
        assert_eq!(feed(&volumes, Event::InitDone), expect(&["a", "b"], &["a 1Gi", "b 1Gi"]));
        assert!(volumes.is_listed());
        for event in [Event::Init, Event::InitApply(sized("a", "2Gi"))] {
            assert_eq!(feed(&volumes, event), expect(&[], &["a 1Gi", "b 1Gi"]));
        }
        assert_eq!(feed(&volumes, Event::InitDone), expect(&["a"], &["a 2Gi"]));
        assert_eq!((volumes.name_of("uid-a"), volumes.name_of("uid-b")), (Some("a".to_owned()), None));
    }

    #[test]
    fn changes_are_shown_at_once() {
        let volumes = LogicalVolumes::default();
        assert_eq!(feed(&volumes, Event::Apply(sized("a", "1Gi"))), expect(&["a"], &["a 1Gi"]));
        assert_eq!(feed(&volumes, Event::Apply(sized("a", "2Gi"))), expect(&["a"], &["a 2Gi"]));
        assert_eq!(feed(&volumes, Event::Apply(sized("b", "1Gi"))), expect(&["b"], &["a 2Gi", "b 1Gi"]));
        assert_eq!(feed(&volumes, Event::Delete(sized("a", "2Gi"))), expect(&["a"], &["b 1Gi"]));
        assert_eq!((volumes.get("a"), volumes.name_of("uid-a")), (None, None));
    }

    #[test]
    fn an_object_comes_back_as_it_was_but_for_what_nobody_reads() {
        let volumes = LogicalVolumes::default();
        let mut volume = logical_volume("pvc-1").uid("u").ready("u", "1Gi").build();
        volume.metadata.managed_fields = Some(vec![ManagedFieldsEntry::default()]);
        volumes.apply(Event::Apply(volume.clone()));
        volume.types = None;
        volume.metadata.managed_fields = None;
        assert_eq!(volumes.get("pvc-1"), Some(volume));
    }

    #[test]
    fn a_volume_with_an_id_of_its_own_is_found_by_either() {
        let volumes = LogicalVolumes::default();
        let volume = logical_volume("pvc-1").uid("u").ready("other", "1Gi").build();
        volumes.apply(Event::Apply(volume.clone()));
        for id in ["u", "other"] {
            assert_eq!(volumes.name_of(id).as_deref(), Some("pvc-1"));
        }
        volumes.apply(Event::Delete(volume));
        for id in ["u", "other"] {
            assert_eq!(volumes.name_of(id), None);
        }
    }

    #[test]
    fn no_object_passes_for_another_by_a_volume_id_that_is_the_uid_of_that() {
        let volumes = LogicalVolumes::default();
        let victim = logical_volume("victim").uid("v").ready("v", "1Gi").build();
        let thief = logical_volume("thief").uid("t").ready("v", "1Gi").build();
        for events in [[&victim, &thief], [&thief, &victim]] {
            for volume in events {
                volumes.apply(Event::Apply(volume.clone()));
            }
            assert_eq!(volumes.name_of("v").as_deref(), Some("victim"));
        }
        volumes.apply(Event::Delete(thief));
        assert_eq!(volumes.name_of("v").as_deref(), Some("victim"));
    }

    #[test]
    fn the_usual_object_is_kept_in_half_of_its_json() {
        let uid = "f83d5c43-18ac-4b31-ac12-a8744d369451";
        let volume = logical_volume("pvc-028521be-a6ff-4e05-9a31-8a53ae382bca").uid(uid).ready(uid, "1Gi").build();
        let json = serde_json::to_string(&volume).unwrap().len();
        let packed = Packed::new(volume).unwrap().0.len();
        assert!(packed * 2 <= json, "{packed} of {json} bytes");
    }
}
