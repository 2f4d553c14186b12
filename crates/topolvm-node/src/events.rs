//! Kubernetes Events of LogicalVolumes, pods and Nodes, as `kubectl describe` shows them.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Resource as _;
use published_pods::PodInfo;
use topolvm_api::{ApiFlavor, LogicalVolume, Readiness};
use topolvm_kube::EventRecorder;

/// Field manager of our writes, as `managedFields` shows it.
pub(crate) const FIELD_MANAGER: &str = "topolvm-node";

/// Publishes Events of LogicalVolumes, pods and Nodes.
#[derive(Clone, Debug)]
pub(crate) struct Events {
    flavor: ApiFlavor,
    pub(crate) recorder: EventRecorder,
}

impl Events {
    /// Makes a publisher of Events that name the agent of `node` as their source.
    pub(crate) fn new(flavor: ApiFlavor, node: &str, client: kube::Client) -> Self {
        Self { flavor, recorder: EventRecorder::new(client, FIELD_MANAGER, node.to_owned()) }
    }

    /// Publishes that the volume could not be made or grown.
    pub(crate) async fn create_or_expand_failed(&self, volume: &LogicalVolume, message: &str) {
        let (reason, action) = if volume.volume_id().is_none() {
            (Readiness::CreateFailed, "Create")
        } else {
            (Readiness::ExpandFailed, "Expand")
        };
        self.publish_warning(volume, reason.as_str(), action, message).await;
    }

    /// Publishes that the LV is not in LVM any more.
    pub(crate) async fn volume_lost(&self, volume: &LogicalVolume, message: &str) {
        self.publish_warning(volume, Readiness::VolumeLost.as_str(), "Compare", message).await;
    }

    /// Publishes that the LV could not be removed.
    pub(crate) async fn remove_failed(&self, volume: &LogicalVolume, message: &str) {
        self.publish_warning(volume, "RemoveFailed", "Remove", message).await;
    }

    /// Publishes that the LV of a deleted object stays, because something refers to the volume.
    pub(crate) async fn removal_blocked(&self, volume: &LogicalVolume, message: &str) {
        self.publish_warning(volume, "RemovalBlocked", "Remove", message).await;
    }

    /// Publishes that the recorded filesystem of the volume is missing.
    pub(crate) async fn filesystem_missing(&self, volume: &LogicalVolume, message: &str) {
        self.publish_warning(volume, "FilesystemMissing", "Publish", message).await;
    }

    /// Publishes that the filesystem of the volume was frozen and is no more.
    pub(crate) async fn filesystem_thawed(&self, volume: &LogicalVolume, message: &str) {
        self.publish_warning(volume, "FilesystemThawed", "Thaw", message).await;
    }

    /// Publishes to a volume, and to the pod that has it, that the volume could not be unmounted.
    pub(crate) async fn unmount_failed(&self, volume: Option<&LogicalVolume>, pod: Option<&PodInfo>, message: &str) {
        let volume = volume.map(|volume| volume.object_ref(&self.flavor));
        for about in pod.map(PodInfo::object_ref).into_iter().chain(volume) {
            self.recorder.publish_warning(&about, "UnmountFailed", "Unmount", message).await;
        }
    }

    /// Publishes that the topology label of the node was wrong or missing, and is right now.
    pub(crate) async fn topology_label_corrected(&self, node: &ObjectReference, message: &str) {
        self.recorder.publish_warning(node, "TopologyLabelCorrected", "LabelNode", message).await;
    }

    /// Publishes that the topology label of the node is wrong or missing.
    pub(crate) async fn topology_label_wrong(&self, node: &ObjectReference, message: &str) {
        self.recorder.publish_warning(node, "TopologyLabelWrong", "LabelNode", message).await;
    }

    /// Publishes a warning about a volume.
    async fn publish_warning(&self, volume: &LogicalVolume, reason: &str, action: &str, message: &str) {
        self.recorder.publish_warning(&volume.object_ref(&self.flavor), reason, action, message).await;
    }
}
