//! The PersistentVolumes of this driver, from one watch of all of them, and the names of others that a volume of this
//! provisioner could have. Of most PersistentVolumes nothing is due: of these only what identifies them is kept.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::PersistentVolume;
use kube::ResourceExt as _;
use kube::runtime::watcher::Event;
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};

use crate::known_volume::KnownVolume;
use crate::volume_request::claim_uid;
use crate::volume_step::is_settled;

/// The PersistentVolumes of this driver. Clones share them.
#[derive(Clone)]
pub(crate) struct KnownVolumes {
    driver: String,
    /// The prefix of the names of this provisioner's volumes.
    prefix: String,
    state: Arc<Mutex<State>>,
    listed: Arc<watch::Sender<bool>>,
}

#[derive(Default)]
struct State {
    known: Known,
    /// The objects that a list which has not ended has named so far.
    listing: Option<Known>,
    queue: Option<mpsc::UnboundedSender<String>>,
    /// Takes the names of those that were deleted.
    deletions: Option<mpsc::UnboundedSender<String>>,
}

/// PersistentVolumes, by name.
#[derive(Default)]
struct Known {
    /// Those of which something is due, or was done that the watch has yet to show.
    due: HashMap<String, Arc<KnownVolume>>,
    settled: HashMap<Box<str>, SettledVolume>,
    /// Names of others that begin as those of this provisioner's volumes.
    others: HashSet<String>,
}

/// A PersistentVolume of which nothing is due, with what identifies it.
#[derive(Debug)]
struct SettledVolume {
    /// The CSI id of its volume.
    handle: Box<str>,
    /// The UID of its claim; empty without a claim.
    claim_uid: Box<str>,
}

/// The owner of the name of a claim's PersistentVolume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NameOwner {
    /// No PersistentVolume has the name.
    None,
    /// The PersistentVolume of this driver that has it is for the claim, or for none yet.
    Claim,
    /// A PersistentVolume of another driver or claim has it.
    Other,
}

impl KnownVolumes {
    /// Makes an empty set of PersistentVolumes of this driver. The names of volumes that the provisioner creates begin
    /// with the prefix.
    pub(crate) fn new(driver: String, prefix: String) -> Self {
        Self { driver, prefix, state: Arc::default(), listed: Arc::default() }
    }

    /// Queues the names of PersistentVolumes that change from now on, and those of deleted ones.
    pub(crate) fn connect(&self, queue: mpsc::UnboundedSender<String>, deletions: mpsc::UnboundedSender<String>) {
        let mut state = self.state.lock();
        (state.queue, state.deletions) = (Some(queue), Some(deletions));
        state.known.due.keys().for_each(|name| state.enqueue(name));
    }

    /// Forgets that the PersistentVolumes have been listed: another watch of them begins, and an earlier one may have
    /// missed what another process did.
    pub(crate) fn await_list(&self) {
        self.listed.send_replace(false);
    }

    /// Waits until all PersistentVolumes have been listed.
    pub(crate) async fn wait_until_listed(&self) -> bool {
        self.listed.subscribe().wait_for(|listed| *listed).await.is_ok()
    }

    /// Returns the PersistentVolume of this name, if something is due.
    pub(crate) fn get(&self, name: &str) -> Option<Arc<KnownVolume>> {
        self.state.lock().known.due.get(name).cloned()
    }

    /// Returns the owner of the name of the PersistentVolume of the claim with this UID.
    pub(crate) fn name_owner(&self, name: &str, claim_uid: &str) -> NameOwner {
        let state = self.state.lock();
        match state.known.claim_uid(name) {
            Some(uid) if uid.is_empty() || uid == claim_uid => NameOwner::Claim,
            Some(_) => NameOwner::Other,
            None if state.known.others.contains(name) => NameOwner::Other,
            None => NameOwner::None,
        }
    }

    /// Returns the name of a PersistentVolume that refers to the volume with this CSI id.
    pub(crate) fn name_of_handle(&self, handle: &str) -> Option<String> {
        let state = self.state.lock();
        let due = state.known.due.values().map(|volume| (volume.name.as_str(), volume.handle.as_str()));
        let settled = state.known.settled.iter().map(|(name, volume)| (&**name, &*volume.handle));
        due.chain(settled).find(|(_, of_volume)| *of_volume == handle).map(|(name, _)| name.to_owned())
    }

    /// Keeps a PersistentVolume as the API server has returned it, which the watch has yet to show.
    pub(crate) fn note_written(&self, volume: &PersistentVolume) {
        let mut state = self.state.lock();
        if let Some(read) = state.read(&self.driver, volume)
            && state.known.claim_uid(&read.name).is_none()
        {
            state.known.insert(read);
        }
    }

    /// Notes that the volume of this PersistentVolume is deleted.
    pub(crate) fn set_finished(&self, volume: &KnownVolume) {
        let mut state = self.state.lock();
        if let Some(known) = state.known.due.get_mut(&volume.name).filter(|known| known.uid == volume.uid) {
            Arc::make_mut(known).is_finished = true;
        }
    }

    /// Applies an event of the watch.
    pub(crate) fn apply(&self, event: Event<PersistentVolume>) {
        let mut state = self.state.lock();
        match event {
            Event::Init => state.listing = Some(Known::default()),
            Event::InitApply(volume) => {
                let read = state.read(&self.driver, &volume);
                let is_other = read.is_none() && self.may_name(&volume);
                let listing = state.listing.get_or_insert_default();
                if let Some(read) = read {
                    listing.insert(read);
                }
                listing.others.extend(is_other.then(|| volume.name_any()));
            }
            Event::InitDone => {
                let listed = state.listing.take().unwrap_or_default();
                let before = std::mem::replace(&mut state.known, listed);
                let gone = before.names().filter(|name| !state.known.has(name));
                gone.for_each(|name| state.note_deleted(name));
                state.known.due.keys().for_each(|name| state.enqueue(name));
                drop(state);
                self.listed.send_replace(true);
            }
            Event::Apply(volume) => {
                if let Some(read) = state.read(&self.driver, &volume) {
                    if state.known.insert(read) {
                        state.enqueue(&volume.name_any());
                    }
                } else if self.may_name(&volume) {
                    state.known.others.insert(volume.name_any());
                }
            }
            Event::Delete(volume) => {
                let name = volume.name_any();
                if state.known.remove(&name) {
                    state.note_deleted(&name);
                }
            }
        }
    }

    /// Returns whether a volume of this provisioner could have the name of this PersistentVolume.
    fn may_name(&self, volume: &PersistentVolume) -> bool {
        volume.metadata.name.as_deref().is_some_and(|name| claim_uid(&self.prefix, name).is_some())
    }
}

impl Known {
    /// Keeps what is needed of a PersistentVolume. Returns whether something is due.
    fn insert(&mut self, volume: KnownVolume) -> bool {
        if volume.is_finished || !is_settled(&volume) {
            self.settled.remove(volume.name.as_str());
            self.due.insert(volume.name.clone(), Arc::new(volume));
            return true;
        }
        self.due.remove(&volume.name);
        let claim_uid = volume.claim.map(|claim| claim.uid.into_boxed_str()).unwrap_or_default();
        let settled = SettledVolume { handle: volume.handle.into_boxed_str(), claim_uid };
        self.settled.insert(volume.name.into_boxed_str(), settled);
        false
    }

    /// Forgets a PersistentVolume. Returns whether it was known.
    fn remove(&mut self, name: &str) -> bool {
        self.due.remove(name).is_some() || self.settled.remove(name).is_some() || self.others.remove(name)
    }

    /// Returns the UID of the claim of the PersistentVolume of this driver with this name, empty if it has none.
    fn claim_uid(&self, name: &str) -> Option<&str> {
        let due = self.due.get(name).map(|volume| volume.claim.as_ref().map_or("", |claim| claim.uid.as_str()));
        due.or_else(|| self.settled.get(name).map(|volume| &*volume.claim_uid))
    }

    fn has(&self, name: &str) -> bool {
        self.claim_uid(name).is_some() || self.others.contains(name)
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        let (due, others) = (self.due.keys().map(String::as_str), self.others.iter().map(String::as_str));
        due.chain(self.settled.keys().map(|name| &**name)).chain(others)
    }
}

impl State {
    /// Reads a PersistentVolume; `None` if it is of another driver.
    fn read(&self, driver: &str, volume: &PersistentVolume) -> Option<KnownVolume> {
        let mut read = KnownVolume::from_object(driver, volume)?;
        read.is_finished =
            self.known.due.get(&read.name).is_some_and(|known| known.uid == read.uid && known.is_finished);
        Some(read)
    }

    fn enqueue(&self, name: &str) {
        // The receivers are dropped only when the term of the provisioner ends
        if let Some(queue) = &self.queue {
            drop(queue.send(name.to_owned()));
        }
    }

    fn note_deleted(&self, name: &str) {
        if let Some(deletions) = &self.deletions {
            drop(deletions.send(name.to_owned()));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::known_volume::{PROVISIONED_BY, VOLUME_FINALIZER};

    /// Returns a PersistentVolume whose finalizer is due.
    #[expect(clippy::needless_pass_by_value, reason = "callers write the JSON in the call")]
    fn volume(name: &str, driver: &str, annotations: Value) -> PersistentVolume {
        let object = json!({
            "metadata": {"name": name, "uid": format!("uid-{name}"), "annotations": annotations},
            "spec": {"csi": {"driver": driver, "volumeHandle": format!("id-{name}")},
                     "persistentVolumeReclaimPolicy": "Delete"},
            "status": {"phase": "Bound"},
        });
        serde_json::from_value(object).unwrap()
    }

    /// Returns the PersistentVolume of a claim of which nothing is due.
    fn settled(name: &str, claim_uid: &str) -> PersistentVolume {
        let mut settled = volume(name, "topolvm.io", json!({}));
        settled.metadata.finalizers = Some(vec![VOLUME_FINALIZER.to_owned()]);
        let claim = json!({"namespace": "default", "name": "data", "uid": claim_uid});
        settled.spec.as_mut().unwrap().claim_ref = Some(serde_json::from_value(claim).unwrap());
        settled
    }

    #[test]
    fn known_volumes_are_those_of_the_driver() {
        let volumes = KnownVolumes::new("topolvm.io".to_owned(), "pvc".to_owned());
        let ((queue, mut queued), (deletions, mut deleted)) = (mpsc::unbounded_channel(), mpsc::unbounded_channel());
        volumes.connect(queue, deletions);
        volumes.apply(Event::Init);
        volumes.apply(Event::InitApply(volume("a", "topolvm.io", json!({PROVISIONED_BY: "topolvm.io"}))));
        volumes.apply(Event::InitApply(volume("b", "ebs.example", json!({}))));
        volumes.apply(Event::InitDone);
        volumes.apply(Event::Apply(volume("c", "topolvm.io", json!({}))));
        volumes.apply(Event::Apply(volume("d", "topolvm.io", json!({PROVISIONED_BY: "other.example"}))));
        let names: Vec<_> = std::iter::from_fn(|| queued.try_recv().ok()).collect();
        assert_eq!(names, ["a", "c"]);
        assert_eq!(volumes.get("a").unwrap().handle, "id-a");
        assert!(volumes.get("b").is_none() && volumes.get("d").is_none());
        volumes.apply(Event::Delete(volume("c", "topolvm.io", json!({}))));
        // A list that lacks one
        volumes.apply(Event::Init);
        volumes.apply(Event::InitDone);
        let names: Vec<_> = std::iter::from_fn(|| deleted.try_recv().ok()).collect();
        assert_eq!(names, ["c", "a"]);
    }

    #[test]
    fn name_owner_is_the_claim_or_another() {
        let volumes = KnownVolumes::new("topolvm.io".to_owned(), "pvc".to_owned());
        let (deletions, mut deleted) = mpsc::unbounded_channel();
        volumes.connect(mpsc::unbounded_channel().0, deletions);
        let reserved = |uid: &str| {
            let mut reserved = volume("pvc-1", "topolvm.io", json!({}));
            let claim = json!({"namespace": "default", "name": "data", "uid": uid});
            reserved.spec.as_mut().unwrap().claim_ref = Some(serde_json::from_value(claim).unwrap());
            reserved
        };
        let owner = || volumes.name_owner("pvc-1", "1");
        assert_eq!(owner(), NameOwner::None);
        volumes.note_written(&reserved("1"));
        assert_eq!(owner(), NameOwner::Claim);
        for (uid, expected) in [("2", NameOwner::Other), ("", NameOwner::Claim)] {
            volumes.apply(Event::Apply(reserved(uid)));
            assert_eq!(owner(), expected, "{uid:?}");
        }
        assert_eq!(volumes.name_of_handle("id-pvc-1").as_deref(), Some("pvc-1"));
        volumes.apply(Event::Delete(reserved("2")));
        assert_eq!((owner(), volumes.name_of_handle("id-pvc-1")), (NameOwner::None, None));
        let foreign = || volume("pvc-1", "ebs.example", json!({}));
        volumes.apply(Event::Apply(foreign()));
        // Of other names nothing is kept
        volumes.apply(Event::Apply(volume("data-1", "ebs.example", json!({}))));
        assert_eq!((owner(), volumes.state.lock().known.others.len()), (NameOwner::Other, 1));
        // A list that has it, and one that lacks it
        volumes.apply(Event::Init);
        volumes.apply(Event::InitApply(foreign()));
        volumes.apply(Event::InitDone);
        assert_eq!(owner(), NameOwner::Other);
        volumes.apply(Event::Init);
        volumes.apply(Event::InitDone);
        assert_eq!(owner(), NameOwner::None);
        volumes.apply(Event::Apply(foreign()));
        volumes.apply(Event::Delete(foreign()));
        assert_eq!(owner(), NameOwner::None);
        let names: Vec<_> = std::iter::from_fn(|| deleted.try_recv().ok()).collect();
        assert_eq!(names, ["pvc-1", "pvc-1", "pvc-1"]);
    }

    #[test]
    fn settled_volume_is_known_by_name_handle_and_claim() {
        let volumes = KnownVolumes::new("topolvm.io".to_owned(), "pvc".to_owned());
        let ((queue, mut queued), (deletions, mut deleted)) = (mpsc::unbounded_channel(), mpsc::unbounded_channel());
        volumes.connect(queue, deletions);
        for event in [Event::Init, Event::InitApply(settled("pvc-1", "1")), Event::InitDone] {
            volumes.apply(event);
        }
        volumes.apply(Event::Apply(settled("pvc-2", "2")));
        let owners = || ["1", "2"].map(|uid| volumes.name_owner("pvc-1", uid));
        assert_eq!(owners(), [NameOwner::Claim, NameOwner::Other]);
        assert_eq!(volumes.name_of_handle("id-pvc-2").as_deref(), Some("pvc-2"));
        assert!(volumes.get("pvc-1").is_none() && queued.try_recv().is_err());
        // It is released, and then bound again
        let changed = |phase: &str, policy: &str| {
            let mut changed = settled("pvc-1", "1");
            changed.status.as_mut().unwrap().phase = Some(phase.to_owned());
            changed.spec.as_mut().unwrap().persistent_volume_reclaim_policy = Some(policy.to_owned());
            changed
        };
        volumes.apply(Event::Apply(changed("Released", "Delete")));
        assert_eq!(
            (queued.try_recv().as_deref(), volumes.get("pvc-1").unwrap().phase.as_str()),
            (Ok("pvc-1"), "Released")
        );
        assert_eq!(owners(), [NameOwner::Claim, NameOwner::Other]);
        volumes.apply(Event::Apply(settled("pvc-1", "1")));
        assert!(volumes.get("pvc-1").is_none() && queued.try_recv().is_err());
        volumes.note_written(&changed("Released", "Delete"));
        assert!(volumes.get("pvc-1").is_none(), "the watch knows more");
        volumes.apply(Event::Delete(settled("pvc-1", "1")));
        for event in [Event::Init, Event::InitDone] {
            volumes.apply(event);
        }
        assert_eq!(owners(), [NameOwner::None, NameOwner::None]);
        let names: Vec<_> = std::iter::from_fn(|| deleted.try_recv().ok()).collect();
        assert_eq!(names, ["pvc-1", "pvc-2"]);
    }

    #[test]
    fn settled_volume_takes_less_than_200_bytes() {
        // The name, the handle and the UID of a claim have up to 40 bytes, for which malloc(3) takes 48
        let bytes = size_of::<(Box<str>, SettledVolume)>() + 3 * 48;
        assert!(bytes <= 192, "{bytes}");
    }

    #[test]
    fn finished_volume_stays_finished_until_it_is_deleted() {
        let volumes = KnownVolumes::new("topolvm.io".to_owned(), "pvc".to_owned());
        volumes.apply(Event::Apply(volume("a", "topolvm.io", json!({}))));
        volumes.set_finished(&volumes.get("a").unwrap());
        volumes.apply(Event::Apply(volume("a", "topolvm.io", json!({}))));
        assert!(volumes.get("a").unwrap().is_finished);
        let mut other = volume("a", "topolvm.io", json!({}));
        other.metadata.uid = Some("other".to_owned());
        volumes.apply(Event::Apply(other));
        assert!(!volumes.get("a").unwrap().is_finished);
    }
}
