//! The cache of watched `LogicalVolume`s, which agent and controller share, without unused fields.

use std::sync::Arc;

use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher::Event;
use topolvm_api::LogicalVolume;

use crate::{Cache, CacheWriter};

/// Annotation in which `kubectl apply` keeps a copy of the whole object.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Reads the cached objects. Clones share them.
#[derive(Clone, Debug)]
pub struct LogicalVolumes(Cache<LogicalVolume>);

/// Keeps the cache up to date. Each watch has its own writer.
#[derive(Debug, Default)]
pub struct LogicalVolumeWriter(CacheWriter<LogicalVolume>);

impl LogicalVolumeWriter {
    /// Returns a reader of the cache.
    #[must_use]
    pub fn as_reader(&self) -> LogicalVolumes {
        LogicalVolumes(self.0.as_reader())
    }

    /// Applies an event of the watch, and returns the names of the objects of which there is something new: all of them
    /// when a list is complete.
    pub fn apply(&mut self, mut event: Event<LogicalVolume>) -> Vec<String> {
        if let Event::Apply(volume) | Event::InitApply(volume) = &mut event {
            prune(volume);
        }
        self.0.apply(&event);
        match event {
            Event::Apply(volume) | Event::Delete(volume) => vec![volume.name().to_owned()],
            Event::InitDone => self.as_reader().names(),
            Event::Init | Event::InitApply(_) => Vec::new(),
        }
    }
}

impl LogicalVolumes {
    /// Waits until all objects have been listed once; `false` when the watch ends before.
    pub async fn wait_until_listed(&self) -> bool {
        self.0.wait_until_listed().await
    }

    /// Returns whether all objects have been listed once.
    #[must_use]
    pub fn is_listed(&self) -> bool {
        self.0.is_listed()
    }

    /// Returns the object of this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<Arc<LogicalVolume>> {
        self.0.get(&ObjectRef::new(name))
    }

    /// Returns the object with this UID or, where there is none, one with this CSI volume id: no object passes for
    /// another by a volume id that is the UID of that.
    #[must_use]
    pub fn find(&self, id: &str) -> Option<Arc<LogicalVolume>> {
        self.0.find(|volume| volume.uid() == id).or_else(|| self.0.find(|volume| volume.volume_id() == Some(id)))
    }

    /// Returns all objects, in no order.
    #[must_use]
    pub fn state(&self) -> Vec<Arc<LogicalVolume>> {
        self.0.state()
    }

    /// Returns the names of all objects, in no order.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.0.state().iter().map(|volume| volume.name().to_owned()).collect()
    }
}

/// Drops unused fields, which are most of an object.
fn prune(volume: &mut LogicalVolume) {
    volume.types = None;
    volume.metadata.managed_fields = None;
    if let Some(annotations) = &mut volume.metadata.annotations {
        annotations.remove(LAST_APPLIED);
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
    use topolvm_testkit::fixtures::logical_volume;

    use super::*;

    fn sized(name: &str, size: &str) -> LogicalVolume {
        logical_volume(name).uid(&format!("uid-{name}")).sized(size).build()
    }

    /// Applies one event. Returns the names of what is new, and then everything that is cached.
    fn apply(writer: &mut LogicalVolumeWriter, event: Event<LogicalVolume>) -> (Vec<String>, Vec<String>) {
        let mut new = writer.apply(event);
        new.sort();
        let volumes = writer.as_reader();
        let mut all: Vec<String> =
            volumes.names().iter().map(|name| format!("{name} {}", volumes.get(name).unwrap().spec.size.0)).collect();
        all.sort();
        (new, all)
    }

    fn expect(new: &[&str], all: &[&str]) -> (Vec<String>, Vec<String>) {
        let owned = |names: &[&str]| names.iter().map(ToString::to_string).collect();
        (owned(new), owned(all))
    }

    fn name_of(volumes: &LogicalVolumes, id: &str) -> Option<String> {
        volumes.find(id).map(|volume| volume.name().to_owned())
    }

    #[test]
    fn volume_list_is_visible_when_complete_and_replaces_the_old() {
        let mut writer = LogicalVolumeWriter::default();
        let volumes = writer.as_reader();
        for event in [Event::Init, Event::InitApply(sized("a", "1Gi")), Event::InitApply(sized("b", "1Gi"))] {
            assert_eq!(apply(&mut writer, event), expect(&[], &[]));
            assert!(!volumes.is_listed());
        }
        assert_eq!(apply(&mut writer, Event::InitDone), expect(&["a", "b"], &["a 1Gi", "b 1Gi"]));
        assert!(volumes.is_listed());
        for event in [Event::Init, Event::InitApply(sized("a", "2Gi"))] {
            assert_eq!(apply(&mut writer, event), expect(&[], &["a 1Gi", "b 1Gi"]));
        }
        assert_eq!(apply(&mut writer, Event::InitDone), expect(&["a"], &["a 2Gi"]));
        assert_eq!((name_of(&volumes, "uid-a"), name_of(&volumes, "uid-b")), (Some("a".to_owned()), None));
    }

    #[test]
    fn changes_are_shown_at_once() {
        let mut writer = LogicalVolumeWriter::default();
        assert_eq!(apply(&mut writer, Event::Apply(sized("a", "1Gi"))), expect(&["a"], &["a 1Gi"]));
        assert_eq!(apply(&mut writer, Event::Apply(sized("a", "2Gi"))), expect(&["a"], &["a 2Gi"]));
        assert_eq!(apply(&mut writer, Event::Apply(sized("b", "1Gi"))), expect(&["b"], &["a 2Gi", "b 1Gi"]));
        assert_eq!(apply(&mut writer, Event::Delete(sized("a", "2Gi"))), expect(&["a"], &["b 1Gi"]));
        let volumes = writer.as_reader();
        assert_eq!((volumes.get("a"), name_of(&volumes, "uid-a")), (None, None));
    }

    #[test]
    fn object_is_stored_without_its_unused_fields() {
        let mut writer = LogicalVolumeWriter::default();
        let builder = logical_volume("pvc-1").uid("u").annotation("topolvm.io/filesystem", "ext4").ready("u", "1Gi");
        let mut volume = builder.clone().annotation(LAST_APPLIED, "{}").build();
        volume.metadata.managed_fields = Some(vec![ManagedFieldsEntry::default()]);
        writer.apply(Event::Apply(volume));
        let mut kept = builder.build();
        kept.types = None;
        assert_eq!(writer.as_reader().get("pvc-1").as_deref(), Some(&kept));
    }

    #[test]
    fn a_volume_with_an_id_of_its_own_is_found_by_either() {
        let mut writer = LogicalVolumeWriter::default();
        let volumes = writer.as_reader();
        let volume = logical_volume("pvc-1").uid("u").ready("other", "1Gi").build();
        writer.apply(Event::Apply(volume.clone()));
        for id in ["u", "other"] {
            assert_eq!(name_of(&volumes, id).as_deref(), Some("pvc-1"));
        }
        writer.apply(Event::Delete(volume));
        for id in ["u", "other"] {
            assert_eq!(name_of(&volumes, id), None);
        }
    }

    #[test]
    fn volume_cache_prefers_the_uid_to_a_copied_volume_id() {
        let mut writer = LogicalVolumeWriter::default();
        let volumes = writer.as_reader();
        let victim = logical_volume("victim").uid("v").ready("v", "1Gi").build();
        let thief = logical_volume("thief").uid("t").ready("v", "1Gi").build();
        for events in [[&victim, &thief], [&thief, &victim]] {
            for volume in events {
                writer.apply(Event::Apply(volume.clone()));
            }
            assert_eq!(name_of(&volumes, "v").as_deref(), Some("victim"));
        }
        writer.apply(Event::Delete(thief));
        assert_eq!(name_of(&volumes, "v").as_deref(), Some("victim"));
    }
}
