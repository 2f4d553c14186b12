//! The claims that may grow automatically, from the events of the watch of claims. Other claims use no memory here.

use std::collections::HashMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::runtime::watcher::Event;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::growing_claim::GrowingClaim;

/// The claims that may grow automatically. Clones share them.
#[derive(Clone, Debug)]
pub(super) struct GrowingClaims {
    state: Arc<Mutex<State>>,
    changed: watch::Sender<()>,
}

#[derive(Debug, Default)]
struct State {
    /// By the name of their PersistentVolume.
    claims: HashMap<String, GrowingClaim>,
    /// The claims that a list which has not ended has named so far.
    listed: Option<HashMap<String, GrowingClaim>>,
    is_listed: bool,
}

impl Default for GrowingClaims {
    fn default() -> Self {
        Self { state: Arc::default(), changed: watch::Sender::new(()) }
    }
}

impl GrowingClaims {
    /// Applies an event of the watch of claims.
    pub(super) fn apply(&self, event: &Event<PersistentVolumeClaim>) {
        let is_changed = self.state.lock().apply(event);
        if is_changed {
            self.changed.send_replace(());
        }
    }

    /// Subscribes to changes from now on.
    pub(super) fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// Returns the claims by the names of their PersistentVolumes; `None` before they have been listed.
    pub(super) fn state(&self) -> Option<HashMap<String, GrowingClaim>> {
        let state = self.state.lock();
        state.is_listed.then(|| state.claims.clone())
    }

    /// Records a size that was just requested, which the watch has yet to show.
    pub(super) fn note_request(&self, volume: &str, asked: &GrowingClaim, bytes: u64) {
        let mut state = self.state.lock();
        if let Some(claim) = state.claims.get_mut(volume).filter(|claim| claim.version == asked.version) {
            claim.size.requested = bytes;
        }
    }
}

impl State {
    /// Applies an event, and returns whether a claim is another one.
    fn apply(&mut self, event: &Event<PersistentVolumeClaim>) -> bool {
        match event {
            Event::Init => {
                self.listed = Some(HashMap::new());
                false
            }
            Event::InitApply(claim) => {
                self.listed.get_or_insert_default().extend(GrowingClaim::from_claim(claim));
                false
            }
            Event::InitDone => {
                self.claims = self.listed.take().unwrap_or_default();
                self.is_listed = true;
                true
            }
            Event::Apply(claim) => match GrowingClaim::from_claim(claim) {
                Some((volume, claim)) => self.claims.insert(volume, claim.clone()).as_ref() != Some(&claim),
                None => self.remove(claim),
            },
            Event::Delete(claim) => self.remove(claim),
        }
    }

    fn remove(&mut self, claim: &PersistentVolumeClaim) -> bool {
        let volume = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_ref());
        let is_this = |known: &GrowingClaim| known.reference.uid == claim.metadata.uid;
        match volume.filter(|volume| self.claims.get(*volume).is_some_and(is_this)) {
            Some(volume) => self.claims.remove(volume).is_some(),
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use topolvm_api::GROWTH_LIMIT;

    use super::*;

    fn claim(name: &str, uid: &str, limit: Option<&str>) -> PersistentVolumeClaim {
        let object = json!({
            "metadata": {"name": name, "uid": uid, "resourceVersion": "1",
                         "annotations": {GROWTH_LIMIT: limit.unwrap_or_default()}},
            "spec": {"storageClassName": "fast", "volumeName": format!("pv-{name}"),
                     "resources": {"requests": {"storage": "1Gi"}}},
            "status": {"phase": "Bound", "capacity": {"storage": "1Gi"}},
        });
        serde_json::from_value(object).unwrap()
    }

    fn volumes(claims: &GrowingClaims) -> Option<Vec<String>> {
        let mut volumes: Vec<_> = claims.state()?.into_keys().collect();
        volumes.sort();
        Some(volumes)
    }

    #[test]
    fn growing_claims_are_those_with_a_limit_after_the_first_list() {
        let claims = GrowingClaims::default();
        let mut changes = claims.changes();
        claims.apply(&Event::Init);
        claims.apply(&Event::InitApply(claim("a", "1", Some("2Gi"))));
        claims.apply(&Event::InitApply(claim("b", "2", None)));
        assert_eq!((volumes(&claims), changes.has_changed().unwrap()), (None, false));
        claims.apply(&Event::InitDone);
        assert_eq!(volumes(&claims), Some(vec!["pv-a".to_owned()]));
        changes.mark_unchanged();
        // The same again, and another claim
        claims.apply(&Event::Apply(claim("a", "1", Some("2Gi"))));
        claims.apply(&Event::Apply(claim("b", "2", None)));
        assert!(!changes.has_changed().unwrap());
        claims.apply(&Event::Apply(claim("b", "2", Some("3Gi"))));
        assert!(changes.has_changed().unwrap());
        assert_eq!(volumes(&claims).unwrap().len(), 2);
        // One of another claim on the same volume
        claims.apply(&Event::Delete(claim("a", "0", Some("2Gi"))));
        claims.apply(&Event::Apply(claim("b", "2", None)));
        assert_eq!(volumes(&claims), Some(vec!["pv-a".to_owned()]));
        claims.apply(&Event::Init);
        claims.apply(&Event::InitDone);
        assert_eq!(volumes(&claims), Some(vec![]));
    }

    #[test]
    fn requested_size_counts_before_the_watch_reports_it() {
        let claims = GrowingClaims::default();
        claims.apply(&Event::InitApply(claim("a", "1", Some("2Gi"))));
        claims.apply(&Event::InitDone);
        let (volume, known) = claims.state().unwrap().into_iter().next().unwrap();
        claims.note_request(&volume, &known, 2 << 30);
        assert_eq!(claims.state().unwrap()[&volume].size.requested, 2 << 30);
        claims.apply(&Event::Apply(claim("a", "1", Some("2Gi"))));
        assert_eq!(claims.state().unwrap()[&volume].size.requested, 1 << 30);
    }
}
