//! The cache of watched `LogicalVolume`s, which agent and controller share, without unused fields.

use std::sync::Arc;

use kube::runtime::watcher::Event;
use tokio::sync::watch;
use topolvm_api::LogicalVolume;

use crate::{Cache, CacheWriter};

/// Annotation in which `kubectl apply` keeps a copy of the whole object.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Reads the cached objects. Clones share them.
#[derive(Clone, Debug)]
pub struct LogicalVolumes(Cache<LogicalVolume>);

/// Keeps the cache up to date. Each watch has its own writer.
#[derive(Debug, Default)]
pub struct LogicalVolumeWriter {
    cache: CacheWriter<LogicalVolume>,
    /// Drops what only the agent of the volume's node reads, too.
    is_of_cluster: bool,
}

impl LogicalVolumeWriter {
    /// Makes the writer of a cache of the objects of all nodes. It also drops labels, `spec.name` and the condition of
    /// a healthy volume, which only the agent of the volume's node reads, and packs the annotations: half of what would
    /// be left.
    #[must_use]
    pub fn of_cluster() -> Self {
        Self { cache: CacheWriter::default(), is_of_cluster: true }
    }

    /// Returns a reader of the cache.
    #[must_use]
    pub fn as_reader(&self) -> LogicalVolumes {
        LogicalVolumes(self.cache.as_reader())
    }

    /// Stores an event of the watch.
    pub fn store(&mut self, event: &mut Event<LogicalVolume>) {
        if let Event::Apply(volume) | Event::InitApply(volume) = event {
            prune(volume);
            if self.is_of_cluster {
                prune_for_cluster(volume);
            }
        }
        self.cache.apply(event);
    }

    /// Stores an event of the watch, and returns the names of the objects of which there is something new: all of them
    /// when a list is complete.
    pub fn apply(&mut self, mut event: Event<LogicalVolume>) -> Vec<String> {
        self.store(&mut event);
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

    /// Returns what becomes true when all objects have been listed once.
    #[must_use]
    pub fn listed(&self) -> watch::Receiver<bool> {
        self.0.listed()
    }

    /// Returns whether all objects have been listed once.
    #[must_use]
    pub fn is_listed(&self) -> bool {
        self.0.is_listed()
    }

    /// Returns the object of this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<Arc<LogicalVolume>> {
        self.0.get_by_name("", name)
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

/// Drops fields that only the agent of the volume's node reads. The status shows without the condition that a volume is
/// ready.
fn prune_for_cluster(volume: &mut LogicalVolume) {
    volume.metadata.labels = None;
    volume.pack_annotations();
    volume.spec.name = String::new();
    if let Some(status) = &mut volume.status {
        status.conditions.retain(|condition| condition.type_ != "Ready" || condition.status != "True");
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
    use topolvm_api::{ApiFlavor, Readiness, ready_condition};
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
    fn cluster_cache_lacks_what_only_the_agent_reads() {
        let mut volume =
            logical_volume("pvc-1").uid("u").annotation("topolvm.io/claim", "a/b").ready("u", "1Gi").build();
        volume.metadata.labels = Some([("app".to_owned(), "x".to_owned())].into());
        let now = k8s_openapi::jiff::Timestamp::UNIX_EPOCH;
        let cached = |volume: &LogicalVolume, is_lost: bool| {
            let mut volume = volume.clone();
            let mut status = volume.status.take().unwrap();
            status.conditions = vec![ready_condition(&volume, &status, is_lost, now)];
            volume.status = Some(status);
            let mut writer = LogicalVolumeWriter::of_cluster();
            writer.store(&mut Event::Apply(volume));
            LogicalVolume::clone(&writer.as_reader().get("pvc-1").unwrap())
        };
        let healthy = cached(&volume, false);
        assert_eq!((healthy.readiness(), healthy.volume_id()), (Readiness::VolumeReady, Some("u")));
        assert_eq!(healthy.claim(ApiFlavor::TopoLvm), Some(("a", "b")));
        assert_eq!((healthy.metadata.labels, healthy.spec.name.as_str()), (None, ""));
        assert_eq!(healthy.status.unwrap().conditions, []);
        assert_eq!(cached(&volume, true).readiness(), Readiness::VolumeLost);
    }

    #[test]
    fn cluster_cache_takes_1300_bytes_for_a_volume() {
        let uid = "0c54f5f8-52f1-4f38-9a27-3e5a1d7f6f10";
        let name = format!("pvc-{uid}");
        let mut volume = logical_volume(&name).uid(uid).on("node-0123").class("ssd").ready(uid, "1Gi").build();
        let annotations = [("topolvm.io/claim", "default/data-db-0"), ("topolvm.io/filesystem", "ext4")];
        let annotations = annotations.map(|(key, value)| (key.to_owned(), value.to_owned()));
        volume.metadata.annotations = Some(annotations.into());
        volume.metadata.finalizers = Some(vec!["topolvm.io/logicalvolume".to_owned()]);
        volume.metadata.resource_version = Some("123456789".to_owned());
        let mut writer = LogicalVolumeWriter::of_cluster();
        writer.store(&mut Event::Apply(volume));
        let cached = writer.as_reader().get(&name).unwrap();
        let (metadata, spec, status) = (&cached.metadata, &cached.spec, cached.status.as_ref().unwrap());
        let version = metadata.resource_version.as_ref().unwrap();
        let mut texts: Vec<&str> = vec![&name, uid, version, &spec.node_name, &spec.device_class, &spec.size.0];
        texts.extend([&status.volume_id, &status.current_size.as_ref().unwrap().0].map(String::as_str));
        texts.extend(metadata.finalizers.iter().flatten().map(String::as_str));
        texts.extend(cached.packed_annotations.iter().flat_map(|(key, value)| [&**key, &**value]));
        // As malloc(3) rounds the pieces, and the two counts of an Arc
        let heap = |bytes: usize| (bytes + 8).next_multiple_of(16).max(32);
        let lists = heap(size_of::<String>()) + heap(size_of_val(&*cached.packed_annotations));
        let bytes =
            heap(size_of::<LogicalVolume>() + 16) + lists + texts.iter().map(|text| heap(text.len())).sum::<usize>();
        assert!(bytes <= 1300, "{bytes}");
        assert_eq!((metadata.labels.as_ref(), spec.name.as_str(), status.conditions.len()), (None, "", 0));
        assert_eq!(texts.len(), 13);
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
