//! The LogicalVolumes of this node as the watch has shown them. Thousands lie here for hours until one is asked for, so that each is kept
//! as its JSON, which is a third of what the object takes in memory.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use kube::runtime::watcher::Event;
use tokio::sync::watch;
use topolvm_api::LogicalVolume;

/// The objects of this node. Clones share them.
#[derive(Clone, Debug)]
pub struct Own {
    objects: Arc<RwLock<Objects>>,
    /// Whether all have been listed once.
    listed: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct Objects {
    /// By name.
    shown: HashMap<Box<str>, Kept>,
    /// What has come of a list that is not complete. It replaces what is shown, in which a deleted object may be left.
    arriving: HashMap<Box<str>, Kept>,
}

/// An object.
#[derive(Debug)]
struct Kept {
    uid: Box<str>,
    /// Where the status names another volume than that of the UID.
    volume_id: Option<Box<str>>,
    json: Box<str>,
}

impl Default for Own {
    fn default() -> Self {
        Self { objects: Arc::default(), listed: watch::Sender::new(false) }
    }
}

impl Own {
    /// Brings them up to date.
    pub fn apply(&self, event: &Event<LogicalVolume>) {
        let mut objects = self.write();
        match event {
            Event::Apply(volume) => objects.shown.extend(keep(volume)),
            Event::Delete(volume) => {
                objects.shown.remove(name(volume));
            }
            Event::Init => objects.arriving = HashMap::new(),
            Event::InitApply(volume) => objects.arriving.extend(keep(volume)),
            Event::InitDone => {
                objects.shown = std::mem::take(&mut objects.arriving);
                objects.shown.shrink_to_fit();
                drop(objects);
                self.listed.send_replace(true);
            }
        }
    }

    /// Waits until all have been listed once.
    pub async fn wait_until_listed(&self) {
        // It ends with the last sender only, which is this one
        drop(self.listed.subscribe().wait_for(|listed| *listed).await);
    }

    /// Whether they have.
    pub(crate) fn is_listed(&self) -> bool {
        *self.listed.borrow()
    }

    /// The object of this name.
    pub(crate) fn get(&self, name: &str) -> Option<LogicalVolume> {
        self.read().shown.get(name)?.unpack()
    }

    /// The object of a CSI volume id.
    pub(crate) fn find(&self, id: &str) -> Option<LogicalVolume> {
        self.read().shown.values().find(|kept| kept.is(id))?.unpack()
    }

    /// The names of all.
    pub(crate) fn names(&self) -> Vec<String> {
        self.read().shown.keys().map(ToString::to_string).collect()
    }

    fn read(&self) -> RwLockReadGuard<'_, Objects> {
        self.objects.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Objects> {
        self.objects.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    fn is(&self, id: &str) -> bool {
        &*self.uid == id || self.volume_id.as_deref() == Some(id)
    }

    fn unpack(&self) -> Option<LogicalVolume> {
        serde_json::from_str(&self.json)
            .inspect_err(|error| tracing::error!(uid = %self.uid, %error, "cannot read a LogicalVolume that was kept"))
            .ok()
    }
}

/// The entry of an object, without what is most of it and nothing here reads.
fn keep(volume: &LogicalVolume) -> Option<(Box<str>, Kept)> {
    let mut kept = volume.clone();
    kept.types = None;
    kept.metadata.managed_fields = None;
    let json = serde_json::to_string(&kept)
        .inspect_err(|error| tracing::error!(name = name(volume), %error, "cannot keep a LogicalVolume"))
        .ok()?;
    let uid = volume.uid();
    let volume_id = volume.volume_id().filter(|id| *id != uid).map(Into::into);
    Some((name(volume).into(), Kept { uid: uid.into(), volume_id, json: json.into() }))
}

/// The object's name; objects that an API server has seen have one.
pub(crate) fn name(volume: &LogicalVolume) -> &str {
    volume.metadata.name.as_deref().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
    use topolvm_testkit::fixtures::logical_volume;

    use super::*;

    fn sized(name: &str, size: &str) -> LogicalVolume {
        logical_volume(name).uid(&format!("uid-{name}")).sized(size).build()
    }

    fn sizes(own: &Own) -> Vec<String> {
        let mut all: Vec<String> =
            own.names().iter().map(|name| format!("{name} {}", own.get(name).unwrap().spec.size.0)).collect();
        all.sort();
        all
    }

    #[test]
    fn a_list_is_shown_when_it_is_complete_and_replaces_what_was_there() {
        let own = Own::default();
        for event in [Event::Init, Event::InitApply(sized("a", "1Gi")), Event::InitApply(sized("b", "1Gi"))] {
            own.apply(&event);
            assert!(sizes(&own).is_empty() && !own.is_listed());
        }
        own.apply(&Event::InitDone);
        assert!(own.is_listed());
        assert_eq!(sizes(&own), ["a 1Gi", "b 1Gi"]);
        for event in [Event::Init, Event::InitApply(sized("a", "2Gi"))] {
            own.apply(&event);
            assert_eq!(sizes(&own), ["a 1Gi", "b 1Gi"]);
        }
        own.apply(&Event::InitDone);
        assert_eq!(sizes(&own), ["a 2Gi"]);
    }

    #[test]
    fn changes_are_shown_at_once() {
        let own = Own::default();
        own.apply(&Event::Apply(sized("a", "1Gi")));
        own.apply(&Event::Apply(sized("a", "2Gi")));
        own.apply(&Event::Apply(sized("b", "1Gi")));
        own.apply(&Event::Delete(sized("b", "1Gi")));
        assert_eq!(sizes(&own), ["a 2Gi"]);
    }

    #[test]
    fn an_object_comes_back_as_it_was_but_for_what_nobody_reads() {
        let own = Own::default();
        let mut volume = logical_volume("pvc-1").uid("u").ready("u", "1Gi").build();
        volume.metadata.managed_fields = Some(vec![ManagedFieldsEntry::default()]);
        own.apply(&Event::Apply(volume.clone()));
        volume.types = None;
        volume.metadata.managed_fields = None;
        assert_eq!(own.get("pvc-1"), Some(volume.clone()));
        assert_eq!(own.find("u"), Some(volume));
        assert_eq!((own.get("u"), own.find("pvc-1")), (None, None));
    }

    #[test]
    fn a_volume_with_an_id_of_its_own_is_found_by_either() {
        let own = Own::default();
        own.apply(&Event::Apply(logical_volume("pvc-1").uid("u").ready("other", "1Gi").build()));
        assert!(own.find("u").is_some() && own.find("other").is_some());
    }
}
