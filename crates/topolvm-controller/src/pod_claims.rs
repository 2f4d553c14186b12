//! The claims of pods that have several and are not scheduled: the volumes of a pod have to be on one node.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, ResourceExt as _};
use parking_lot::Mutex;
use tokio::time::Instant;
use topolvm_api::claim_names;
use topolvm_capacity::NotEnoughSpace;
use topolvm_kube::watch_selected;
use topolvm_runtime::CancellationToken;

/// Time for which all volumes of a pod are refused on a node after one was. external-provisioner asks for them at the
/// same time, and the scheduler may have selected another node soon after.
const REFUSAL: Duration = Duration::from_secs(2);

/// Namespace and name.
type ObjectKey = (Box<str>, Box<str>);

/// A pod that is not scheduled and has several claims.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PodWithClaims {
    pub(crate) namespace: Box<str>,
    pub(crate) name: Box<str>,
    /// Names of its claims, those of its generic ephemeral volumes too.
    pub(crate) claims: Arc<[String]>,
}

/// The pods that are not scheduled and have several claims. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct PodClaims {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    pods: HashMap<ObjectKey, Arc<[String]>>,
    by_claim: HashMap<ObjectKey, ObjectKey>,
    /// The pods of the list that goes on.
    listed: HashSet<ObjectKey>,
    /// The last refusal of each pod.
    refused: HashMap<ObjectKey, Refusal>,
}

/// A volume of a pod was refused.
#[derive(Clone, Debug)]
struct Refusal {
    node: String,
    reason: NotEnoughSpace,
    until: Instant,
}

impl PodClaims {
    /// Watches until `shutdown` is cancelled.
    pub(crate) async fn run(self, client: Client, shutdown: CancellationToken) -> anyhow::Result<()> {
        // With this selector a pod that has been scheduled is then reported as deleted
        let unscheduled = watcher::Config::default().fields("spec.nodeName=");
        watch_selected("Pods", Api::all(client), unscheduled, shutdown, move |event| self.apply(&event)).await
    }

    fn apply(&self, event: &Event<Pod>) {
        let key = |pod: &Pod| object_key(&pod.namespace().unwrap_or_default(), &pod.name_any());
        let mut state = self.state.lock();
        match event {
            Event::Init => state.listed.clear(),
            Event::InitDone => {
                let listed = std::mem::take(&mut state.listed);
                let gone: Vec<_> = state.pods.keys().filter(|key| !listed.contains(*key)).cloned().collect();
                for key in &gone {
                    state.remove(key);
                }
            }
            Event::Delete(pod) => state.remove(&key(pod)),
            Event::Apply(pod) | Event::InitApply(pod) => {
                state.set(key(pod), claim_names(pod));
                if matches!(event, Event::InitApply(_)) {
                    state.listed.insert(key(pod));
                }
            }
        }
    }

    /// Returns the pod that has this claim and other claims.
    pub(crate) fn pod_of(&self, namespace: &str, claim: &str) -> Option<PodWithClaims> {
        let state = self.state.lock();
        let key = state.by_claim.get(&object_key(namespace, claim))?;
        let claims = Arc::clone(state.pods.get(key)?);
        Some(PodWithClaims { namespace: key.0.clone(), name: key.1.clone(), claims })
    }

    /// Refuses the other volumes of the pod on the node, too.
    pub(crate) fn refuse(&self, pod: &PodWithClaims, node: &str, reason: NotEnoughSpace) {
        let now = Instant::now();
        let refused = &mut self.state.lock().refused;
        refused.retain(|_, refusal| now < refusal.until);
        let refusal = Refusal { node: node.to_owned(), reason, until: now + REFUSAL };
        refused.insert((pod.namespace.clone(), pod.name.clone()), refusal);
    }

    /// Returns why a volume of the pod has just been refused on the node.
    pub(crate) fn refusal(&self, pod: &PodWithClaims, node: &str) -> Option<NotEnoughSpace> {
        let now = Instant::now();
        let state = self.state.lock();
        let refusal = state.refused.get(&(pod.namespace.clone(), pod.name.clone()))?;
        (refusal.node == node && now < refusal.until).then(|| refusal.reason.clone())
    }
}

impl State {
    fn set(&mut self, key: ObjectKey, claims: BTreeSet<String>) {
        self.remove(&key);
        // A pod with one claim is either scheduled with it or without it
        if claims.len() > 1 {
            for claim in &claims {
                self.by_claim.insert(object_key(&key.0, claim), key.clone());
            }
            self.pods.insert(key, claims.into_iter().collect());
        }
    }

    fn remove(&mut self, key: &ObjectKey) {
        let claims = self.pods.remove(key);
        for claim in claims.iter().flat_map(|claims| claims.iter()) {
            self.by_claim.remove(&object_key(&key.0, claim));
        }
    }
}

fn object_key(namespace: &str, name: &str) -> ObjectKey {
    (namespace.into(), name.into())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(name: &str, claims: &[&str]) -> Pod {
        let claim = |claim: &&str| json!({"name": claim, "persistentVolumeClaim": {"claimName": claim}});
        let mut volumes: Vec<_> = claims.iter().map(claim).collect();
        volumes.push(json!({"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}}));
        volumes.push(json!({"name": "empty", "emptyDir": {}}));
        let pod =
            json!({"metadata": {"name": name, "namespace": "ns"}, "spec": {"containers": [], "volumes": volumes}});
        serde_json::from_value(pod).unwrap()
    }

    fn claims(pods: &PodClaims, claim: &str) -> Vec<String> {
        pods.pod_of("ns", claim).map(|pod| pod.claims.to_vec()).unwrap_or_default()
    }

    #[test]
    fn a_pod_is_found_by_each_of_its_claims_until_it_is_scheduled() {
        let pods = PodClaims::default();
        pods.apply(&Event::Apply(pod("db", &["data", "log", "data"])));
        pods.apply(&Event::Apply(pod("web", &[])));
        for claim in ["data", "log", "db-scratch"] {
            assert_eq!(claims(&pods, claim), ["data", "db-scratch", "log"]);
        }
        assert_eq!(claims(&pods, "web-scratch"), [""; 0], "it has no other");
        assert_eq!(pods.pod_of("other", "data"), None);
        pods.apply(&Event::Delete(pod("db", &["data", "log"])));
        assert_eq!(claims(&pods, "log"), [""; 0]);
    }

    #[test]
    fn what_a_new_list_lacks_is_forgotten() {
        let pods = PodClaims::default();
        pods.apply(&Event::Apply(pod("gone", &["a"])));
        pods.apply(&Event::Init);
        pods.apply(&Event::InitApply(pod("here", &["b"])));
        assert_eq!(claims(&pods, "a"), ["a", "gone-scratch"], "until the list is complete");
        pods.apply(&Event::InitDone);
        assert_eq!(claims(&pods, "a"), [""; 0]);
        assert_eq!(claims(&pods, "b"), ["b", "here-scratch"]);
    }

    #[tokio::test(start_paused = true)]
    async fn all_volumes_of_a_pod_are_refused_for_a_moment_after_one_was() {
        let pods = PodClaims::default();
        pods.apply(&Event::Apply(pod("db", &["data", "log"])));
        let db = pods.pod_of("ns", "data").unwrap();
        assert_eq!(pods.refusal(&db, "n1"), None);
        let reason = NotEnoughSpace { device_class: "ssd".to_owned(), wanted: 2, free: 1 };
        pods.refuse(&db, "n1", reason.clone());
        assert_eq!(pods.refusal(&pods.pod_of("ns", "log").unwrap(), "n1"), Some(reason));
        assert_eq!(pods.refusal(&db, "n2"), None, "the scheduler has selected another node");
        tokio::time::advance(REFUSAL).await;
        assert_eq!(pods.refusal(&db, "n1"), None);
    }
}
