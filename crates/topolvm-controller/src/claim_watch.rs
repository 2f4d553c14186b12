//! The one watch of PersistentVolumeClaims: it feeds the reservations in every replica, and in the leader the
//! controllers.
//!
//! A replica that refuses a pod on a node knows that the pod has to avoid the node. The replica that publishes free
//! space may be another: it learns of the refusal from the claim, which external-provisioner returns to the scheduler.
//!
//! Whole objects are watched, because their status shows which claims wait for the kubelet, and one watch is less
//! traffic than two.

use std::sync::Arc;

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::runtime::watcher::Event;
use kube::{Api, Client, ResourceExt as _};
use parking_lot::Mutex;
use tokio::sync::Notify;
use topolvm_capacity::Capacity;
use topolvm_kube::watch_all;
use topolvm_runtime::CancellationToken;

use crate::pod_claims::PodClaims;

/// A function that takes the events of the watch.
type Subscriber = Box<dyn FnMut(Event<PersistentVolumeClaim>) + Send>;

/// The watch of claims. Clones are the same watch.
#[derive(Clone, Default)]
pub(crate) struct ClaimWatch {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    subscriber: Mutex<Option<Subscriber>>,
    /// Wakes the watch when there is a new subscriber, which has to begin with a list.
    subscribed: Notify,
}

/// The events go to the subscriber until this is dropped.
#[must_use]
pub(crate) struct Subscription(ClaimWatch);

impl Drop for Subscription {
    fn drop(&mut self) {
        *self.0.shared.subscriber.lock() = None;
    }
}

impl ClaimWatch {
    /// Watches until `shutdown` is cancelled.
    pub(crate) async fn run(
        self,
        client: Client,
        capacity: Capacity,
        pods: PodClaims,
        shutdown: CancellationToken,
    ) -> anyhow::Result<()> {
        loop {
            let apply = |event: Event<PersistentVolumeClaim>| {
                let refused_by = capacity.apply_claim(&event);
                if let (Some(node), Event::Apply(claim) | Event::InitApply(claim)) = (refused_by, &event)
                    && let Some(pod) = pods.pod_of(&claim.namespace().unwrap_or_default(), &claim.name_any())
                {
                    capacity.avoid(&node, &pod.namespace, &pod.claims);
                }
                if let Some(subscriber) = &mut *self.shared.subscriber.lock() {
                    subscriber(event);
                }
            };
            let watch = watch_all("PersistentVolumeClaims", Api::all(client.clone()), shutdown.clone(), apply);
            tokio::select! {
                biased;
                // Reservations stay until the new list has arrived
                () = self.shared.subscribed.notified() => {}
                ended = watch => return ended,
            }
        }
    }

    /// Sends the events to `subscriber` from now on, and lists all claims again for it. There is one subscriber at a
    /// time.
    pub(crate) fn subscribe(
        &self,
        subscriber: impl FnMut(Event<PersistentVolumeClaim>) + Send + 'static,
    ) -> Subscription {
        *self.shared.subscriber.lock() = Some(Box::new(subscriber));
        self.shared.subscribed.notify_one();
        Subscription(self.clone())
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;
    use topolvm_api::ApiFlavor;
    use topolvm_capacity::MinimumAllocation;
    use topolvm_capacity::{Exemption, watch_classes, watch_nodes, watch_volumes};
    use topolvm_runtime::Tasks;
    use topolvm_testkit::ApiServer;
    use topolvm_testkit::fixtures::{claim, node, pod, storage_class};

    use super::*;

    const CLAIMS: &str = "persistentvolumeclaims";

    fn describe(event: &Event<PersistentVolumeClaim>) -> String {
        match event {
            Event::Init => "list".to_owned(),
            Event::InitApply(claim) => format!("listed {}", claim.name_any()),
            Event::InitDone => "end of the list".to_owned(),
            Event::Apply(claim) => format!("changed {}", claim.name_any()),
            Event::Delete(claim) => format!("deleted {}", claim.name_any()),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_subscriber_begins_with_a_list_of_the_one_watch() {
        let server = ApiServer::new();
        server.apply_json(claim("a").build());
        let shutdown = CancellationToken::new();
        let tasks = Tasks::new(shutdown.clone());
        let minimums = MinimumAllocation { block: 0, ext4: 0, xfs: 0, btrfs: 0 };
        let capacity = Capacity::new(ApiFlavor::TopoLvm, minimums, || jiff::Timestamp::UNIX_EPOCH);
        let claims = ClaimWatch::default();
        tasks.spawn("claims", claims.clone().run(server.client(), capacity, PodClaims::default(), shutdown.clone()));
        server.wait_for_requests("watch", CLAIMS, 1).await;

        let (sender, mut events) = mpsc::unbounded_channel();
        let subscription = claims.subscribe(move |event| drop(sender.send(describe(&event))));
        for expected in ["list", "listed a", "end of the list"] {
            assert_eq!(events.recv().await.as_deref(), Some(expected));
        }
        server.apply_json(claim("b").build());
        assert_eq!(events.recv().await.as_deref(), Some("changed b"));
        assert_eq!((server.count("list", CLAIMS), server.count("watch", CLAIMS)), (2, 2));
        drop(subscription);
        assert_eq!(events.recv().await, None);
        shutdown.cancel();
        tasks.wait().await.unwrap();
    }

    /// Refusals of another replica are not in the memory of this one.
    #[tokio::test(start_paused = true)]
    async fn node_avoidance_begins_when_the_provisioner_resets_a_claim() {
        const GIB: u64 = 1 << 30;
        let (flavor, server, shutdown) = (ApiFlavor::TopoLvm, ApiServer::new(), CancellationToken::new());
        server.apply_json(storage_class("fast").device_class("ssd").build());
        for (name, gib) in [("full", 4), ("roomy", 6)] {
            server.apply_json(node(name).capacity("ssd", gib).build());
        }
        server.apply_json(pod("db").claim("data").claim("log").build());
        let waiting = |name: &str| claim(name).class("fast").sized("3Gi");
        for name in ["data", "log"] {
            server.apply_json(waiting(name).selected_node("full").build());
        }
        let tasks = Tasks::new(shutdown.clone());
        let minimums = MinimumAllocation { block: 0, ext4: 0, xfs: 0, btrfs: 0 };
        let capacity = Capacity::new(flavor, minimums, || jiff::Timestamp::UNIX_EPOCH);
        let (client, end) = (|| server.client(), || shutdown.clone());
        tasks.spawn("nodes", watch_nodes(capacity.clone(), client(), end()));
        tasks.spawn("classes", watch_classes(capacity.clone(), client(), end()));
        tasks.spawn("volumes", watch_volumes(capacity.clone(), flavor, client(), end()));
        let pods = PodClaims::default();
        tasks.spawn("pods", pods.clone().run(client(), end()));
        tasks.spawn("claims", ClaimWatch::default().run(client(), capacity.clone(), pods.clone(), end()));
        let free = || capacity.free_bytes("full", &"ssd".into(), &Exemption::default());
        let mut changes = capacity.changes();
        while !capacity.is_listed() || free() != Some(0) || pods.pod_of("default", "data").is_none() {
            changes.changed().await.unwrap();
        }

        for name in ["data", "log"] {
            server.apply_json(waiting(name).build());
        }
        while free() != Some(3 * GIB - 1) {
            changes.changed().await.unwrap();
        }
        shutdown.cancel();
        tasks.wait().await.unwrap();
    }
}
