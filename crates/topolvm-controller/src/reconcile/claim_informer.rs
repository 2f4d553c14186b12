//! The claims of the cluster: one watch feeds all controllers that care.
//!
//! Whole objects are watched, because what waits for kubelet is said in their status, and one watch is less traffic than two. Kept in
//! memory is only what is ours, and of that only what is read here.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, PersistentVolumeClaimSpec};
use kube::runtime::reflector::{ObjectRef, Store, store};
use kube::runtime::watcher::Event;
use kube::{Api, Client, ResourceExt as _};
use tokio::sync::mpsc;
use topolvm_api::{ApiFlavor, SELECTED_NODE};
use topolvm_kube::watch_all;
use topolvm_runtime::CancellationToken;

use super::claim_finalizer::{PVC_FINALIZERS, is_finalizable};
use super::filesystem_resize::Growth;
use super::finalizers;

/// Annotations with which kube-controller-manager names the driver of a claim.
const PROVISIONER: [&str; 2] =
    ["volume.kubernetes.io/storage-provisioner", "volume.beta.kubernetes.io/storage-provisioner"];

/// Reads the watched claims that are ours or may be. Clones share them.
#[derive(Clone)]
pub(super) struct Claims {
    store: Store<PersistentVolumeClaim>,
}

/// What the watch gives to the controllers.
pub(super) struct Sources {
    /// Keeps the claims current until the process, or this replica's term, ends.
    pub(super) watch: Pin<Box<dyn Future<Output = anyhow::Result<()>> + Send>>,
    /// What changes of claims say about the growth of filesystems.
    pub(super) growths: mpsc::UnboundedReceiver<Growth>,
    /// Claims with a finalizer to take off.
    pub(super) finalizable: mpsc::UnboundedReceiver<ObjectRef<PersistentVolumeClaim>>,
}

impl Claims {
    /// The claims, and what they are watched for. `is_kept` says whether claims carry our finalizer on purpose.
    pub(super) fn new(client: Client, flavor: ApiFlavor, is_kept: bool, end: CancellationToken) -> (Self, Sources) {
        let mut writer = store::Writer::default();
        let claims = Self { store: writer.as_reader() };
        let store = claims.store();
        let (found, growths) = mpsc::unbounded_channel();
        let (to_finalize, finalizable) = mpsc::unbounded_channel();
        let watch = watch_all("PersistentVolumeClaims", Api::all(client), end, move |event| {
            if let Some(growth) = Growth::of(flavor, &event) {
                // Nobody listens only when everything ends
                drop(found.send(growth));
            }
            let Some(event) = kept(flavor, event) else { return };
            writer.apply_watcher_event(&event);
            // The work begins with what the store has, which shows a list only when it is complete
            let may_be_finalizable = match event {
                Event::Apply(claim) => vec![Arc::new(claim)],
                Event::InitDone => store.state(),
                Event::InitApply(_) | Event::Delete(_) | Event::Init => Vec::new(),
            };
            for claim in may_be_finalizable.iter().filter(|claim| is_finalizable(flavor, is_kept, claim)) {
                drop(to_finalize.send(ObjectRef::from_obj(&**claim)));
            }
        });
        (claims, Sources { watch: Box::pin(watch), growths, finalizable })
    }

    /// The claims themselves.
    pub(super) fn store(&self) -> Store<PersistentVolumeClaim> {
        self.store.clone()
    }

    /// Waits until all claims have been listed once; `false` when the watch ends before.
    pub(super) async fn synced(&self) -> bool {
        self.store.wait_until_ready().await.is_ok()
    }

    /// The claims for which `look` is true.
    pub(super) fn all(&self, look: impl Fn(&PersistentVolumeClaim) -> bool) -> Vec<Arc<PersistentVolumeClaim>> {
        let mut found = self.store.state();
        found.retain(|claim| look(claim));
        found
    }
}

/// The driver that kube-controller-manager has written on the claim.
pub(super) fn provisioner(claim: &PersistentVolumeClaim) -> Option<&str> {
    PROVISIONER.iter().find_map(|name| claim.annotations().get(*name)).map(String::as_str)
}

/// The node that the scheduler chose.
pub(super) fn selected_node(claim: &PersistentVolumeClaim) -> Option<&str> {
    claim.annotations().get(SELECTED_NODE).map(String::as_str)
}

/// The name of the volume that the claim is bound to.
pub(super) fn volume_name(claim: &PersistentVolumeClaim) -> Option<&str> {
    claim.spec.as_ref()?.volume_name.as_deref().filter(|name| !name.is_empty())
}

/// The event for the store. A claim that we need not know, or no longer, is one that is not there.
fn kept(flavor: ApiFlavor, event: Event<PersistentVolumeClaim>) -> Option<Event<PersistentVolumeClaim>> {
    match event {
        Event::Apply(claim) if !is_of_interest(flavor, &claim) => Some(Event::Delete(claim)),
        Event::InitApply(claim) if !is_of_interest(flavor, &claim) => None,
        Event::Apply(claim) => Some(Event::Apply(pruned(claim))),
        Event::InitApply(claim) => Some(Event::InitApply(pruned(claim))),
        other @ (Event::Delete(_) | Event::Init | Event::InitDone) => Some(other),
    }
}

fn is_of_interest(flavor: ApiFlavor, claim: &PersistentVolumeClaim) -> bool {
    let may_be_ours = match provisioner(claim) {
        Some(driver) => driver == flavor.driver_name(),
        // Its StorageClass decides, which is asked for when it matters
        None => selected_node(claim).is_some(),
    };
    may_be_ours || PVC_FINALIZERS.iter().any(|name| finalizers::has(&claim.metadata, name))
}

fn pruned(mut claim: PersistentVolumeClaim) -> PersistentVolumeClaim {
    claim.metadata.managed_fields = None;
    claim.metadata.labels = None;
    claim.metadata.owner_references = None;
    if let Some(annotations) = &mut claim.metadata.annotations {
        annotations.retain(|key, _| key == SELECTED_NODE || PROVISIONER.contains(&key.as_str()));
    }
    claim.spec = claim.spec.map(|spec| PersistentVolumeClaimSpec {
        storage_class_name: spec.storage_class_name,
        volume_name: spec.volume_name,
        ..PersistentVolumeClaimSpec::default()
    });
    claim.status = None;
    claim
}

#[cfg(test)]
mod tests {
    use topolvm_testkit::fixtures::claim;

    use super::*;

    #[test]
    fn only_claims_that_may_be_ours_are_kept_and_of_them_only_what_is_read() {
        let ours = claim("a").class("fast").selected_node("n1").bound_to("pvc-1").build();
        let Some(Event::Apply(kept_claim)) = kept(ApiFlavor::TopoLvm, Event::Apply(ours)) else { panic!("dropped") };
        assert_eq!(selected_node(&kept_claim), Some("n1"));
        assert_eq!(volume_name(&kept_claim), Some("pvc-1"));
        assert_eq!(kept_claim.status, None);

        let mut foreign = claim("b").selected_node("n1").build();
        foreign.annotations_mut().insert(PROVISIONER[0].to_owned(), "ebs.example".to_owned());
        // It may have been ours a moment ago
        assert!(matches!(kept(ApiFlavor::TopoLvm, Event::Apply(foreign.clone())), Some(Event::Delete(_))));
        assert!(kept(ApiFlavor::TopoLvm, Event::InitApply(foreign)).is_none());
    }
}
