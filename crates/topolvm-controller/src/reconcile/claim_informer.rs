//! The PersistentVolumeClaim informer: the cache and the work queues of all controllers, fed by the one watch of
//! claims.
//!
//! Cached are only the claims of this driver, and of them only the fields that the controllers read.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher::Event;
use tokio::sync::mpsc;
use topolvm_api::claim::{provisioner, selected_node, volume_name};
use topolvm_api::{ApiFlavor, REBUILDING_FINALIZERS};
use topolvm_kube::{Cache, CacheWriter, CachedClaim, has_finalizer};

use super::leader_task::ClaimSubscriber;
use super::pending_resize::ResizeEvent;
use super::pvc_finalizer::{FinalizerPolicy, PVC_FINALIZERS};
use crate::claim_watch::{ClaimWatch, Subscription};

/// The cache and the work queues that the watch of claims feeds.
pub(super) struct ClaimInformer {
    /// Keeps the cache current until it is dropped, when this replica's term as leader ends.
    pub(super) subscription: Subscription,
    /// The claims that are of this driver or may be.
    pub(super) cache: Cache<CachedClaim>,
    /// The events of claims, as far as they are about the size of filesystems.
    pub(super) resizes: mpsc::UnboundedReceiver<ResizeEvent>,
    /// Claims with a finalizer to remove.
    pub(super) finalizer_removals: mpsc::UnboundedReceiver<ObjectRef<PersistentVolumeClaim>>,
}

impl ClaimInformer {
    /// Creates the informer, which writes to the cache of `writer` and sends all events to the subscribers.
    pub(super) fn new(
        claims: &ClaimWatch,
        policy: FinalizerPolicy,
        mut writer: CacheWriter<CachedClaim>,
        mut subscribers: Vec<ClaimSubscriber>,
    ) -> Self {
        let flavor = policy.flavor;
        let (cache, store) = (writer.as_reader(), writer.as_reader());
        let (resize_sender, resizes) = mpsc::unbounded_channel();
        let (removal_sender, finalizer_removals) = mpsc::unbounded_channel();
        let subscription = claims.subscribe(move |event| {
            if let Some(resize) = ResizeEvent::from_event(flavor, &event) {
                // The receiver is dropped only when the process ends
                drop(resize_sender.send(resize));
            }
            for subscriber in &mut subscribers {
                subscriber(&event);
            }
            let Some(event) = to_cached(flavor, &event) else { return };
            writer.apply(&event);
            let send_if_due = |claim: &CachedClaim| {
                if policy.is_removal_due(claim) {
                    drop(removal_sender.send(ObjectRef::new(claim.name()).within(claim.namespace())));
                }
            };
            // Reconciles begin with what the store has, which shows a list only when it is complete
            match &event {
                Event::Apply(claim) => send_if_due(claim),
                Event::InitDone => store.state().iter().for_each(|claim| send_if_due(claim)),
                Event::InitApply(_) | Event::Delete(_) | Event::Init => {}
            }
        });
        Self { subscription, cache, resizes, finalizer_removals }
    }
}

/// Turns an event of the watch into one for the cache. A claim that is not, or no longer, of interest is a deleted one.
fn to_cached(flavor: ApiFlavor, event: &Event<PersistentVolumeClaim>) -> Option<Event<CachedClaim>> {
    if let Event::Apply(claim) | Event::InitApply(claim) = event
        && !is_of_interest(flavor, claim)
    {
        return matches!(event, Event::Apply(_)).then(|| Event::Delete(CachedClaim::new(flavor, claim)));
    }
    Some(CachedClaim::from_event(flavor, event))
}

fn is_of_interest(flavor: ApiFlavor, claim: &PersistentVolumeClaim) -> bool {
    let may_be_ours = match provisioner(claim) {
        Some(driver) => driver == flavor.driver_name(),
        // Its StorageClass decides, which is read when it matters, or, where it was bound by hand, its PersistentVolume
        None => selected_node(claim).is_some() || volume_name(claim).is_some(),
    };
    let mut ours = PVC_FINALIZERS.iter().chain(&REBUILDING_FINALIZERS);
    may_be_ours || ours.any(|name| has_finalizer(&claim.metadata, name))
}

#[cfg(test)]
mod tests {
    use kube::ResourceExt as _;
    use topolvm_api::claim::PROVISIONER;
    use topolvm_testkit::fixtures::claim;

    use super::*;

    #[test]
    fn claim_cache_holds_only_own_claims() {
        let ours = claim("a").class("fast").selected_node("n1").bound_to("pvc-1").build();
        let Some(Event::Apply(cached)) = to_cached(ApiFlavor::TopoLvm, &Event::Apply(ours)) else { panic!("dropped") };
        assert_eq!((cached.selected_node(), cached.volume_name()), (Some("n1"), Some("pvc-1")));

        let mut foreign = claim("b").selected_node("n1").build();
        foreign.annotations_mut().insert(PROVISIONER[0].to_owned(), "ebs.example".to_owned());
        // It may have been ours a moment ago
        assert!(matches!(to_cached(ApiFlavor::TopoLvm, &Event::Apply(foreign.clone())), Some(Event::Delete(_))));
        assert!(to_cached(ApiFlavor::TopoLvm, &Event::InitApply(foreign)).is_none());
    }
}
