//! The measured cluster with its node, its classes and clients for its objects.

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::Api;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, PostParams};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use testbed::cluster::Cluster;
use testbed::node::Node;
use testbed::topolvm::THIN_CLASS;
use topolvm_api::ApiFlavor;

use crate::api_client;
use crate::metrics;
use system_tests::manifests::{snapshot_class, storage_class};

/// Volume group of the node.
pub(super) const VG: &str = "myvg1";
/// Name of the StorageClass that binds at once.
pub(super) const IMMEDIATE: &str = "immediate";
/// Name of the StorageClass that waits for a pod.
pub(super) const WAITING: &str = "waiting";
/// Name of the StorageClass in a thin pool that waits for a pod.
pub(super) const THIN: &str = "thin";
/// Name of the VolumeSnapshotClass.
pub(super) const SNAPSHOTS: &str = "snapshots";

/// A cluster with one node and the classes above.
pub(super) struct Setup<'a> {
    pub(super) cluster: &'a Cluster,
    pub(super) node: &'a Node,
    pub(super) claims: Api<PersistentVolumeClaim>,
    pub(super) pods: Api<Pod>,
    pub(super) snapshots: Api<DynamicObject>,
}

impl<'a> Setup<'a> {
    pub(super) async fn new(cluster: &'a Cluster, node: &'a Node) -> Result<Self> {
        let client = api_client::connect(&cluster.inner_kubeconfig()).await?;
        let classes = [
            storage_class(ApiFlavor::TopoLvm, IMMEDIATE, None, true),
            storage_class(ApiFlavor::TopoLvm, WAITING, None, false),
            storage_class(ApiFlavor::TopoLvm, THIN, Some(THIN_CLASS), false),
            snapshot_class(ApiFlavor::TopoLvm, SNAPSHOTS),
        ];
        for class in classes {
            cluster.apply(&class.to_string())?;
        }
        let kind = GroupVersionKind::gvk("snapshot.storage.k8s.io", "v1", "VolumeSnapshot");
        let snapshot_resource = ApiResource::from_gvk(&kind);
        Ok(Self {
            cluster,
            node,
            claims: Api::default_namespaced(client.clone()),
            pods: Api::default_namespaced(client.clone()),
            snapshots: Api::default_namespaced_with(client, &snapshot_resource),
        })
    }

    /// Deletes all pods, snapshots and claims, and waits until no volume is left.
    pub(super) fn clean_up(&self) -> Result<()> {
        self.delete_all("pods,volumesnapshots,persistentvolumeclaims")
    }

    /// Deletes all claims, which no pod uses, and waits until no volume is left.
    pub(super) fn delete_claims(&self) -> Result<()> {
        self.delete_all("persistentvolumeclaims")
    }

    fn delete_all(&self, kinds: &str) -> Result<()> {
        self.cluster.kubectl_ok(["delete", kinds, "--all", "--timeout=180s"])?;
        let volumes = "persistentvolumes,logicalvolumes.topolvm.io";
        self.cluster.kubectl_ok(["wait", "--for=delete", volumes, "--all", "--timeout=180s"]).map(drop)
    }

    /// Returns the number of LVM processes that lvmd has started.
    pub(super) fn lvm_processes(&self) -> Result<f64> {
        metrics::lvm_processes(&self.node.script("curl -sS http://127.0.0.1:8082/metrics")?)
    }

    /// Returns the number of gRPC calls of a method that the agent has handled.
    pub(super) fn handled_calls(&self, method: &str) -> Result<f64> {
        let page = self.node.script("curl -sS http://127.0.0.1:8080/metrics")?;
        metrics::sum(&page, &format!("topolvm_grpc_handled_total{{method=\"{method}\""))
    }
}

/// Creates an object.
pub(super) async fn create<K>(api: &Api<K>, object: Value) -> Result<()>
where
    K: Clone + std::fmt::Debug + DeserializeOwned + Serialize,
{
    let object = serde_json::from_value(object).context("make an object")?;
    api.create(&PostParams::default(), &object).await?;
    Ok(())
}

/// Returns true if a pod is Ready.
pub(super) fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}
