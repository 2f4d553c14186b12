//! Kubernetes Events about the LVs of the Node that are without their objects, as `kubectl describe` shows them.

use k8s_openapi::api::core::v1::ObjectReference;
use topolvm_kube::EventRecorder;

/// Publishes Events of a Node.
#[derive(Debug)]
pub(crate) struct Events(pub(crate) EventRecorder);

impl Events {
    /// Publishes that LVs of the node are without their LogicalVolumes.
    pub(crate) async fn volumes_orphaned(&self, node: &ObjectReference, message: &str) {
        self.0.publish_warning(node, "OrphanedVolumes", "Compare", message).await;
    }

    /// Publishes that an LV was put into quarantine.
    pub(crate) async fn volume_quarantined(&self, node: &ObjectReference, message: &str) {
        self.0.publish_warning(node, "VolumeQuarantined", "Quarantine", message).await;
    }

    /// Publishes that an LV was removed after its quarantine.
    pub(crate) async fn quarantine_ended(&self, node: &ObjectReference, message: &str) {
        self.0.publish_warning(node, "QuarantinedVolumeRemoved", "Remove", message).await;
    }
}
