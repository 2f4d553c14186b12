//! Kubernetes Events about the disks and device classes of the Node, as `kubectl describe` shows them.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use topolvm_kube::EventRecorder;

/// Component that the Events name as their source: the program of which this is a part.
const COMPONENT: &str = "topolvm-node";

/// Publishes Events of a Node. Clones share the counts of repeated ones.
#[derive(Clone, Debug)]
pub(crate) struct Events(EventRecorder);

impl Events {
    /// Makes a publisher of Events that name the agent of `node` as their source.
    pub(crate) fn new(node: &str, client: Client) -> Self {
        Self(EventRecorder::new(client, COMPONENT, node.to_owned()))
    }

    /// Publishes that disk groups of the node have got disks.
    pub(crate) async fn disks_added(&self, node: &ObjectReference, message: &str) {
        self.0.publish_normal(node, "DiskAdded", "AddDisk", message).await;
    }

    /// Publishes that disk groups of the node could get disks, and that nothing is done.
    pub(crate) async fn disks_available(&self, node: &ObjectReference, message: &str) {
        self.0.publish_normal(node, "DiskAvailable", "LookAtDisks", message).await;
    }

    /// Publishes that disks of the node could not be added to their disk groups.
    pub(crate) async fn disk_addition_failed(&self, node: &ObjectReference, message: &str) {
        self.0.publish_warning(node, "DiskAdditionFailed", "AddDisk", message).await;
    }

    /// Publishes that a disk group of the node lacks disks.
    pub(crate) async fn disks_missing(&self, node: &ObjectReference, message: &str) {
        self.0.publish_warning(node, "DiskMissing", "LookAtDisks", message).await;
    }

    /// Publishes that LVM creates no volumes in a device class of the node.
    pub(crate) async fn device_class_refused(&self, node: &ObjectReference, message: &str) {
        self.0.publish_warning(node, "DeviceClassRefused", "CreateVolume", message).await;
    }

    /// Publishes that the volumes of a disk are being moved to others.
    pub(crate) async fn evacuation_started(&self, node: &ObjectReference, message: &str) {
        self.0.publish_normal(node, "EvacuationStarted", "EvacuateDisk", message).await;
    }

    /// Publishes that the volumes of a disk cannot be moved on.
    pub(crate) async fn evacuation_blocked(&self, node: &ObjectReference, message: &str) {
        self.0.publish_warning(node, "EvacuationBlocked", "EvacuateDisk", message).await;
    }

    /// Publishes that the volumes of a disk are not moved any more.
    pub(crate) async fn evacuation_stopped(&self, node: &ObjectReference, message: &str) {
        self.0.publish_normal(node, "EvacuationStopped", "EvacuateDisk", message).await;
    }

    /// Publishes that a disk is empty, and stays in its volume group.
    pub(crate) async fn disk_evacuated(&self, node: &ObjectReference, message: &str) {
        self.0.publish_normal(node, "DiskEvacuated", "EvacuateDisk", message).await;
    }

    /// Publishes that a disk was emptied and has left its volume group.
    pub(crate) async fn disk_removed(&self, node: &ObjectReference, message: &str) {
        self.0.publish_normal(node, "DiskRemoved", "RemoveDisk", message).await;
    }

    /// Publishes that what a missing disk had was rebuilt, and that its volume group has forgotten it.
    pub(crate) async fn disk_replaced(&self, node: &ObjectReference, message: &str) {
        self.0.publish_normal(node, "DiskReplaced", "ReplaceDisk", message).await;
    }

    /// Publishes that a disk operation of an administrator has failed.
    pub(crate) async fn disk_operation_failed(&self, node: &ObjectReference, message: &str) {
        self.0.publish_warning(node, "DiskOperationFailed", "OperateDisk", message).await;
    }
}
