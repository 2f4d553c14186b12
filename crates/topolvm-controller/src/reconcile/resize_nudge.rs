//! Has kubelet grow a filesystem now.
//!
//! kubelet looks at the size of a mounted volume only when it syncs the pod, which without a reason is every minute or two. A changed
//! annotation of the pod is a reason. Nothing is lost when a nudge is: kubelet then grows the filesystem at its next sync. So nothing is
//! retried.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Client, ResourceExt as _};
use serde_json::json;
use tokio::sync::mpsc;
use topolvm_api::{ApiFlavor, RESIZEFS_REQUESTED_AT};
use topolvm_runtime::ReconcileMetrics;

use super::claims::{provisioner, selected_node};

/// Condition of a claim whose volume has grown and whose filesystem has not.
const PENDING: &str = "FileSystemResizePending";

/// Tells kubelet about claims whose filesystem waits to be grown.
#[derive(Clone)]
pub(super) struct ResizeNudge {
    pub(super) client: Client,
    pub(super) metrics: ReconcileMetrics,
    /// The wall clock.
    pub(super) now: fn() -> Timestamp,
}

/// A claim whose filesystem waits to be grown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Waiting {
    namespace: String,
    claim: String,
    /// The node of its pod, where the scheduler chose it.
    node: Option<String>,
    /// Since when.
    since: Option<Timestamp>,
}

impl ResizeNudge {
    /// Works for as long as claims come.
    pub(super) async fn run(self, mut waiting: mpsc::UnboundedReceiver<Waiting>) {
        while let Some(claim) = waiting.recv().await {
            if let Err(error) = self.metrics.observed("filesystemresize", self.nudge(&claim)).await {
                let Waiting { namespace, claim, .. } = &claim;
                let error = format!("{:#}", anyhow::Error::from(error));
                tracing::warn!(namespace, claim, error, "kubelet will grow the filesystem at its next sync only");
            }
        }
    }

    /// Annotates the pods that use the claim, unless that was done since it began to wait.
    async fn nudge(&self, waiting: &Waiting) -> kube::Result<()> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &waiting.namespace);
        // Pods cannot be selected by claim, but by node, and those of one node and namespace are few
        let on_node = waiting.node.as_ref().map(|node| format!("spec.nodeName={node}"));
        let list = ListParams { field_selector: on_node, ..ListParams::default() };
        for pod in pods.list(&list).await?.items.iter().filter(|pod| waiting.is_used_by(pod)) {
            let patch = json!({"metadata": {
                // Another pod of the same name is not meant
                "uid": pod.metadata.uid,
                "annotations": {RESIZEFS_REQUESTED_AT: (self.now)().to_string()},
            }});
            pods.patch_metadata(&pod.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await?;
            tracing::info!(namespace = waiting.namespace, pod = pod.name_any(), "asked kubelet to grow a filesystem");
        }
        Ok(())
    }
}

impl Waiting {
    /// The claim, if it is ours and waits.
    pub(super) fn of(flavor: ApiFlavor, claim: &PersistentVolumeClaim) -> Option<Self> {
        let provisioner = provisioner(claim)?;
        let conditions = claim.status.as_ref()?.conditions.iter().flatten();
        let pending =
            conditions.into_iter().find(|condition| condition.type_ == PENDING && condition.status == "True")?;
        (provisioner == flavor.driver_name() && claim.metadata.deletion_timestamp.is_none()).then(|| Self {
            namespace: claim.namespace().unwrap_or_default(),
            claim: claim.name_any(),
            node: selected_node(claim).map(str::to_owned),
            since: pending.last_transition_time.as_ref().map(|time| time.0),
        })
    }

    /// Whether the pod mounts the claim and has not been told since it began to wait.
    fn is_used_by(&self, pod: &Pod) -> bool {
        let mut volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
        let uses = volumes.any(|volume| {
            volume.persistent_volume_claim.as_ref().is_some_and(|source| source.claim_name == self.claim)
        });
        let told = pod.annotations().get(RESIZEFS_REQUESTED_AT).and_then(|time| time.parse::<Timestamp>().ok());
        uses && pod.metadata.deletion_timestamp.is_none()
            && told.is_none_or(|told| self.since.is_none_or(|since| told <= since))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;
    use topolvm_api::SELECTED_NODE;
    use topolvm_runtime::{CancellationToken, Tasks};
    use topolvm_testkit::ApiServer;
    use topolvm_testkit::api_server::Failure;

    use super::super::bench::Bench;
    use super::*;

    const SINCE: &str = "2026-01-01T00:00:00Z";

    fn now() -> Timestamp {
        "2026-01-01T00:00:05Z".parse().unwrap()
    }

    fn claim(provisioner: &str, pending: &str) -> Value {
        json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {"name": "data", "namespace": "ns", "annotations": {
                "volume.kubernetes.io/storage-provisioner": provisioner, SELECTED_NODE: "n1"}},
            "status": {"conditions": [{"type": PENDING, "status": pending, "lastTransitionTime": SINCE}]},
        })
    }

    fn pod(name: &str, claim: &str, told: Option<&str>) -> Value {
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": "ns", "annotations": told.map(|told| json!({RESIZEFS_REQUESTED_AT: told}))},
            "spec": {"nodeName": "n1", "containers": [], "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": claim}}]},
        })
    }

    fn start(server: &ApiServer) -> (Tasks, CancellationToken) {
        let shutdown = CancellationToken::new();
        let tasks = Tasks::new(shutdown.clone());
        let controllers = Bench::controllers(server, ApiFlavor::TopoLvm, now, &tasks, &shutdown);
        tasks.spawn("controllers", controllers.run(shutdown.clone()));
        (tasks, shutdown)
    }

    fn told(pod: &Value) -> Option<String> {
        pod["metadata"]["annotations"][RESIZEFS_REQUESTED_AT].as_str().map(str::to_owned)
    }

    #[tokio::test]
    async fn pods_of_a_waiting_claim_are_annotated_once() {
        let server = ApiServer::new();
        server.apply_json(pod("user", "data", None));
        server.apply_json(pod("told-before", "data", Some("2025-12-31T00:00:00Z")));
        server.apply_json(pod("told-since", "data", Some("2026-01-01T00:00:01Z")));
        server.apply_json(pod("other", "else", None));
        let (tasks, shutdown) = start(&server);
        server.apply_json(claim("topolvm.io", "True"));
        for name in ["user", "told-before"] {
            server.until("pods", "ns", name, |pod| (told(pod?)? == now().to_string()).then_some(())).await;
        }
        shutdown.cancel();
        tasks.wait().await.unwrap();
        assert_eq!(told(&server.get_json("pods", "ns", "told-since").unwrap()).unwrap(), "2026-01-01T00:00:01Z");
        assert_eq!(told(&server.get_json("pods", "ns", "other").unwrap()), None);
    }

    #[tokio::test]
    async fn an_api_server_that_hangs_does_not_hold_up_the_end() {
        let server = ApiServer::new();
        let (asked, is_asked) = tokio::sync::oneshot::channel();
        let mut asked = Some(asked);
        server.before_next("list", "pods", move |_| asked.take().unwrap().send(()).unwrap());
        server.inject("patch", "pods", 1, Failure::Hang);
        server.apply_json(pod("user", "data", None));
        let (tasks, shutdown) = start(&server);
        server.apply_json(claim("topolvm.io", "True"));
        is_asked.await.unwrap();
        shutdown.cancel();
        tasks.wait().await.unwrap();
    }

    #[tokio::test]
    async fn claims_of_others_and_claims_that_do_not_wait_are_left_alone() {
        let of = |value: Value| Waiting::of(ApiFlavor::TopoLvm, &serde_json::from_value(value).unwrap());
        assert_eq!(of(claim("ebs.example", "True")), None);
        assert_eq!(of(claim("topolvm.io", "False")), None);
        let waiting = of(claim("topolvm.io", "True")).unwrap();
        assert_eq!((waiting.claim.as_str(), waiting.node.as_deref()), ("data", Some("n1")));
    }

    #[tokio::test]
    async fn a_failed_nudge_does_not_end_the_watch() {
        let server = ApiServer::new();
        server.apply_json(pod("user", "data", None));
        server.apply_json(claim("topolvm.io", "True"));
        server.fail_next("list", "pods", 1, 500);
        let (tasks, shutdown) = start(&server);
        server.until_requested("list", "pods", 1).await;
        let mut again = claim("topolvm.io", "True");
        again["status"]["capacity"] = json!({"storage": "1Gi"});
        server.apply_json(again);
        server.until("pods", "ns", "user", |pod| told(pod?)).await;
        shutdown.cancel();
        tasks.wait().await.unwrap();
    }
}
