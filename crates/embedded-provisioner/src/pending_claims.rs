//! The claims that wait for a volume of this driver, from the events of a watch of all claims. Other claims use no
//! memory here, but for sources and targets of clones.

use std::collections::HashMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::runtime::watcher::Event;
use kube::{Resource as _, ResourceExt as _};
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};
use topolvm_api::claim::{provisioner, selected_node, storage_class, volume_name};
use topolvm_kube::has_finalizer;

use crate::held_claims::is_held;
use crate::source_protection::CLONING_FINALIZER;

/// The queue of claims, by UID.
pub(crate) type ClaimQueue = mpsc::UnboundedSender<String>;

/// The claims that wait. Clones share them.
#[derive(Clone)]
pub(crate) struct PendingClaims {
    driver: String,
    state: Arc<Mutex<State>>,
    listed: Arc<watch::Sender<bool>>,
    /// Changes whenever a source of clones may be released.
    releases: Arc<watch::Sender<()>>,
}

/// A claim that waits for a volume.
#[derive(Clone, Debug)]
pub(crate) struct PendingClaim {
    /// The claim, without managed fields.
    pub(crate) object: Arc<PersistentVolumeClaim>,
    /// True if its PersistentVolume was deleted: the watch of claims may have yet to show that the claim was bound
    /// before, and is gone.
    pub(crate) has_lost_volume: bool,
}

/// A claim that clones another claim of its namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
struct CloneOf {
    namespace: String,
    source: String,
}

#[derive(Default)]
struct State {
    claims: Claims,
    /// The objects that a list which has not ended has named so far.
    listing: Option<Claims>,
    queue: Option<ClaimQueue>,
}

/// Claims by UID.
#[derive(Default)]
struct Claims {
    waiting: HashMap<String, PendingClaim>,
    clones: HashMap<String, CloneOf>,
    /// Claims that are being deleted and have the finalizer of a source.
    deleted_sources: HashMap<String, Arc<PersistentVolumeClaim>>,
}

/// Effects of a claim that was inserted.
#[derive(Clone, Copy, Default)]
struct Inserted {
    /// True if it was not known as it is.
    is_new: bool,
    /// True if a source of clones may be released.
    may_release: bool,
}

impl PendingClaims {
    /// Makes an empty set of claims of this driver.
    pub(crate) fn new(driver: String) -> Self {
        Self { driver, state: Arc::default(), listed: Arc::default(), releases: Arc::new(watch::Sender::new(())) }
    }

    /// Queues all claims that wait, and from now on those that change.
    pub(crate) fn connect(&self, queue: ClaimQueue) {
        let mut state = self.state.lock();
        state.queue = Some(queue);
        state.claims.waiting.keys().for_each(|uid| state.enqueue(uid));
    }

    /// Waits until all claims have been listed once.
    pub(crate) async fn wait_until_listed(&self) -> bool {
        self.listed.subscribe().wait_for(|listed| *listed).await.is_ok()
    }

    /// Returns a claim that waits.
    pub(crate) fn get(&self, uid: &str) -> Option<PendingClaim> {
        self.state.lock().claims.waiting.get(uid).cloned()
    }

    /// Keeps a claim as the API server has returned it after a write.
    pub(crate) fn note_written(&self, claim: &PersistentVolumeClaim) {
        let mut state = self.state.lock();
        if let Some(known) = claim.meta().uid.as_ref().and_then(|uid| state.claims.waiting.get_mut(uid)) {
            known.object = pruned(claim);
        }
    }

    /// Keeps a claim that was read because it has lost its volume.
    pub(crate) fn note_read(&self, claim: &PersistentVolumeClaim) {
        let mut state = self.state.lock();
        if let Some(known) = claim.meta().uid.as_ref().and_then(|uid| state.claims.waiting.get_mut(uid)) {
            *known = PendingClaim { object: pruned(claim), has_lost_volume: false };
        }
    }

    /// Notes that the PersistentVolume of a claim was deleted, and queues the claim if it waits.
    pub(crate) fn note_lost_volume(&self, uid: &str) {
        let mut state = self.state.lock();
        if let Some(known) = state.claims.waiting.get_mut(uid) {
            known.has_lost_volume = true;
            state.enqueue(uid);
        }
    }

    /// Queues a claim if it waits.
    pub(crate) fn enqueue(&self, uid: &str) {
        let state = self.state.lock();
        if state.claims.waiting.contains_key(uid) {
            state.enqueue(uid);
        }
    }

    /// Queues the claims of a StorageClass.
    pub(crate) fn enqueue_class(&self, class: &str) {
        self.enqueue_if(|claim| storage_class(claim) == Some(class));
    }

    /// Queues the claims for which the scheduler has selected this node.
    pub(crate) fn enqueue_node(&self, node: &str) {
        self.enqueue_if(|claim| selected_node(claim) == Some(node));
    }

    fn enqueue_if(&self, is_wanted: impl Fn(&PersistentVolumeClaim) -> bool) {
        let state = self.state.lock();
        let wanted = state.claims.waiting.iter().filter(|(_, claim)| is_wanted(&claim.object));
        wanted.for_each(|(uid, _)| state.enqueue(uid));
    }

    /// Returns whether a claim for which this is true waits.
    pub(crate) fn any(&self, is_wanted: impl Fn(&PersistentVolumeClaim) -> bool) -> bool {
        self.state.lock().claims.waiting.values().any(|claim| is_wanted(&claim.object))
    }

    /// Subscribes to changes after which a source of clones may be released.
    pub(crate) fn releases(&self) -> watch::Receiver<()> {
        self.releases.subscribe()
    }

    /// Returns the sources that are being deleted and that no claim waits to clone.
    pub(crate) fn releasable_sources(&self) -> Vec<Arc<PersistentVolumeClaim>> {
        let state = self.state.lock();
        let is_cloned = |source: &PersistentVolumeClaim| {
            let wanted = CloneOf { namespace: source.namespace().unwrap_or_default(), source: source.name_any() };
            state.claims.clones.values().any(|clone| *clone == wanted)
        };
        let sources = state.claims.deleted_sources.values();
        sources.filter(|source| !is_cloned(source)).cloned().collect()
    }

    /// Applies an event of the watch of claims.
    pub(crate) fn apply(&self, event: &Event<PersistentVolumeClaim>) {
        let mut state = self.state.lock();
        match event {
            Event::Init => state.listing = Some(Claims::default()),
            Event::InitApply(claim) => {
                state.listing.get_or_insert_default().insert(&self.driver, claim);
            }
            Event::InitDone => {
                state.finish_listing();
                self.listed.send_replace(true);
                self.releases.send_replace(());
            }
            Event::Apply(claim) => {
                let inserted = state.claims.insert(&self.driver, claim);
                if let (true, Some(uid)) = (inserted.is_new, claim.meta().uid.as_ref()) {
                    state.enqueue(uid);
                }
                if inserted.may_release {
                    self.releases.send_replace(());
                }
            }
            Event::Delete(claim) => {
                let uid = claim.meta().uid.as_deref().unwrap_or_default();
                if state.claims.waiting.contains_key(uid) {
                    state.enqueue(uid);
                }
                if state.claims.remove(uid) {
                    self.releases.send_replace(());
                }
            }
        }
    }
}

impl State {
    fn enqueue(&self, uid: &str) {
        // The receiver is dropped only when the term of the provisioner ends
        if let Some(queue) = &self.queue {
            drop(queue.send(uid.to_owned()));
        }
    }

    /// Replaces the claims by those of the list.
    fn finish_listing(&mut self) {
        let listed = self.listing.take().unwrap_or_default();
        let before = std::mem::replace(&mut self.claims, listed);
        let gone = before.waiting.keys().filter(|uid| !self.claims.waiting.contains_key(*uid));
        // Those that are gone are forgotten elsewhere, too
        gone.chain(self.claims.waiting.keys()).for_each(|uid| self.enqueue(uid));
    }
}

impl Claims {
    /// Keeps what is needed of a claim.
    fn insert(&mut self, driver: &str, claim: &PersistentVolumeClaim) -> Inserted {
        let Some(uid) = claim.meta().uid.as_deref() else { return Inserted::default() };
        // A held claim is to be released
        let is_waiting = provisioner(claim) == Some(driver) && (volume_name(claim).is_none() || is_held(claim));
        let clone = clone_of(claim).filter(|_| provisioner(claim).is_none_or(|of| of == driver));
        let is_source = claim.metadata.deletion_timestamp.is_some() && has_finalizer(claim.meta(), CLONING_FINALIZER);
        let may_release = (clone.is_none() && self.clones.remove(uid).is_some()) || is_source;
        if let Some(clone) = clone {
            self.clones.insert(uid.to_owned(), clone);
        }
        if is_source {
            self.deleted_sources.insert(uid.to_owned(), pruned(claim));
        } else {
            self.deleted_sources.remove(uid);
        }
        if !is_waiting {
            // It is forgotten elsewhere, too
            return Inserted { is_new: self.waiting.remove(uid).is_some(), may_release };
        }
        let known = self.waiting.get(uid);
        let is_new = known.is_none_or(|known| is_changed(&known.object, claim));
        let has_lost_volume = known.is_some_and(|known| known.has_lost_volume);
        self.waiting.insert(uid.to_owned(), PendingClaim { object: pruned(claim), has_lost_volume });
        Inserted { is_new, may_release }
    }

    /// Forgets a claim. Returns whether a source of clones may be released.
    fn remove(&mut self, uid: &str) -> bool {
        self.waiting.remove(uid);
        self.deleted_sources.remove(uid);
        self.clones.remove(uid).is_some()
    }
}

/// Returns whether a change of a claim ends a pause. Those of the provisioner itself do not.
fn is_changed(before: &PersistentVolumeClaim, after: &PersistentVolumeClaim) -> bool {
    before.spec != after.spec
        || before.metadata.annotations != after.metadata.annotations
        || before.metadata.deletion_timestamp != after.metadata.deletion_timestamp
}

/// Returns the claim that this one clones, as long as it is not bound.
fn clone_of(claim: &PersistentVolumeClaim) -> Option<CloneOf> {
    let spec = claim.spec.as_ref()?;
    let source = spec.data_source.as_ref().filter(|source| source.kind == "PersistentVolumeClaim")?;
    volume_name(claim)
        .is_none()
        .then(|| CloneOf { namespace: claim.namespace().unwrap_or_default(), source: source.name.clone() })
}

fn pruned(claim: &PersistentVolumeClaim) -> Arc<PersistentVolumeClaim> {
    let mut claim = claim.clone();
    claim.metadata.managed_fields = None;
    Arc::new(claim)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const DRIVER: &str = "topolvm.io";

    fn claim(uid: &str, driver: &str, changes: &[(&str, Value)]) -> PersistentVolumeClaim {
        let mut object = json!({
            "metadata": {"name": uid, "namespace": "default", "uid": uid,
                         "annotations": {"volume.kubernetes.io/storage-provisioner": driver}},
            "spec": {"storageClassName": "fast"},
        });
        for (pointer, value) in changes {
            let (parent, key) = pointer.rsplit_once('/').unwrap();
            object.pointer_mut(parent).unwrap()[key] = value.clone();
        }
        serde_json::from_value(object).unwrap()
    }

    fn clone_of_source(uid: &str) -> PersistentVolumeClaim {
        claim(uid, DRIVER, &[("/spec/dataSource", json!({"kind": "PersistentVolumeClaim", "name": "source"}))])
    }

    fn deleted_source() -> PersistentVolumeClaim {
        let changes = [
            ("/metadata/deletionTimestamp", json!("2026-01-01T00:00:00Z")),
            ("/metadata/finalizers", json!([CLONING_FINALIZER])),
            ("/spec/volumeName", json!("pvc-0")),
        ];
        claim("source", DRIVER, &changes)
    }

    fn queued(queue: &mut mpsc::UnboundedReceiver<String>) -> Vec<String> {
        let mut uids: Vec<_> = std::iter::from_fn(|| queue.try_recv().ok()).collect();
        uids.sort();
        uids
    }

    #[test]
    fn pending_claims_are_unbound_claims_of_the_driver() {
        let claims = PendingClaims::new(DRIVER.to_owned());
        let (sender, mut queue) = mpsc::unbounded_channel();
        claims.connect(sender);
        claims.apply(&Event::Init);
        for one in [
            claim("a", DRIVER, &[]),
            claim("b", "ebs.example", &[]),
            claim("c", DRIVER, &[("/spec/volumeName", json!("pvc-c"))]),
        ] {
            claims.apply(&Event::InitApply(one));
        }
        assert!(claims.get("a").is_none());
        claims.apply(&Event::InitDone);
        assert_eq!(queued(&mut queue), ["a"]);
        claims.apply(&Event::Apply(claim("d", DRIVER, &[])));
        claims.apply(&Event::Apply(claim("b", "ebs.example", &[])));
        assert_eq!(queued(&mut queue), ["d"]);
        claims.apply(&Event::Apply(claim("a", DRIVER, &[("/spec/volumeName", json!("pvc-a"))])));
        claims.apply(&Event::Delete(claim("d", DRIVER, &[])));
        assert!(claims.get("a").is_none() && claims.get("d").is_none());
        assert_eq!(claims.state.lock().claims.waiting.len(), 0);
    }

    #[test]
    fn pending_claims_are_queued_by_uid_class_and_node() {
        let claims = PendingClaims::new(DRIVER.to_owned());
        let (sender, mut queue) = mpsc::unbounded_channel();
        claims.connect(sender);
        let annotations = json!({"volume.kubernetes.io/storage-provisioner": DRIVER,
                                 "volume.kubernetes.io/selected-node": "n1"});
        claims.apply(&Event::Apply(claim("a", DRIVER, &[("/metadata/annotations", annotations)])));
        claims.apply(&Event::Apply(claim("b", DRIVER, &[("/spec/storageClassName", json!("slow"))])));
        assert_eq!(queued(&mut queue), ["a", "b"]);
        claims.enqueue("b");
        claims.enqueue("other");
        assert_eq!(queued(&mut queue), ["b"]);
        claims.enqueue_class("slow");
        assert_eq!(queued(&mut queue), ["b"]);
        claims.enqueue_node("n1");
        assert_eq!(queued(&mut queue), ["a"]);
        // Also those that a list lacks
        for event in [Event::Init, Event::InitApply(claim("b", DRIVER, &[])), Event::InitDone] {
            claims.apply(&event);
        }
        assert_eq!(queued(&mut queue), ["a", "b"]);
        assert!(claims.get("a").is_none() && claims.get("b").is_some());
    }

    #[test]
    fn clone_source_is_released_when_no_clone_waits() {
        let claims = PendingClaims::new(DRIVER.to_owned());
        claims.apply(&Event::Apply(clone_of_source("a")));
        claims.apply(&Event::Apply(clone_of_source("b")));
        claims.apply(&Event::Apply(deleted_source()));
        let mut releases = claims.releases();
        assert_eq!(claims.releasable_sources().len(), 0);
        claims.apply(&Event::Delete(clone_of_source("a")));
        assert_eq!(claims.releasable_sources().len(), 0);
        let mut bound = clone_of_source("b");
        bound.spec.as_mut().unwrap().volume_name = Some("pvc-b".to_owned());
        claims.apply(&Event::Apply(bound));
        assert!(releases.has_changed().unwrap());
        releases.mark_unchanged();
        assert_eq!(claims.releasable_sources()[0].name_any(), "source");
        claims.apply(&Event::Delete(deleted_source()));
        assert_eq!(claims.releasable_sources().len(), 0);
    }
}
