//! Kubernetes Events of LogicalVolumes, of the pods that have them, and of Nodes, as `kubectl describe` shows them.

use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Resource as _;
use kube::runtime::events::{Event, EventType};
use topolvm_api::{ApiFlavor, LogicalVolume, Readiness};
use topolvm_kube::{EventRecorder, api_server};
use topolvm_runtime::error_chain;

use crate::published_pods::PodInfo;

/// Field manager of our writes, as `managedFields` shows it.
pub(crate) const FIELD_MANAGER: &str = "topolvm-node";

/// Deadline of an event. No volume waits longer for one.
const DEADLINE: Duration = Duration::from_secs(5);

/// Publishes Events of LogicalVolumes, pods and Nodes.
#[derive(Clone, Debug)]
pub(crate) struct Events {
    flavor: ApiFlavor,
    recorder: EventRecorder,
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

    /// Publishes that LVs of the node are without their LogicalVolumes.
    pub(crate) async fn volumes_orphaned(&self, node: &ObjectReference, message: &str) {
        self.publish(node, "OrphanedVolumes", "Compare", message).await;
    }

    /// Publishes that an LV was put into quarantine.
    pub(crate) async fn volume_quarantined(&self, node: &ObjectReference, message: &str) {
        self.publish(node, "VolumeQuarantined", "Quarantine", message).await;
    }

    /// Publishes that an LV was removed after its quarantine.
    pub(crate) async fn quarantine_ended(&self, node: &ObjectReference, message: &str) {
        self.publish(node, "QuarantinedVolumeRemoved", "Remove", message).await;
    }

    /// Publishes that disk groups of the node have got disks.
    pub(crate) async fn disks_added(&self, node: &ObjectReference, message: &str) {
        self.publish_normal(node, "DiskAdded", "AddDisk", message).await;
    }

    /// Publishes that disk groups of the node could get disks, and that nothing is done.
    pub(crate) async fn disks_available(&self, node: &ObjectReference, message: &str) {
        self.publish_normal(node, "DiskAvailable", "LookAtDisks", message).await;
    }

    /// Publishes that disks of the node could not be added to their disk groups.
    pub(crate) async fn disk_addition_failed(&self, node: &ObjectReference, message: &str) {
        self.publish(node, "DiskAdditionFailed", "AddDisk", message).await;
    }

    /// Publishes that a disk group of the node lacks disks.
    pub(crate) async fn disks_missing(&self, node: &ObjectReference, message: &str) {
        self.publish(node, "DiskMissing", "LookAtDisks", message).await;
    }

    /// Publishes that LVM creates no volumes in a device class of the node.
    pub(crate) async fn device_class_refused(&self, node: &ObjectReference, message: &str) {
        self.publish(node, "DeviceClassRefused", "CreateVolume", message).await;
    }

    /// Publishes that the volumes of a disk are being moved to others.
    pub(crate) async fn evacuation_started(&self, node: &ObjectReference, message: &str) {
        self.publish_normal(node, "EvacuationStarted", "EvacuateDisk", message).await;
    }

    /// Publishes that the volumes of a disk cannot be moved on.
    pub(crate) async fn evacuation_blocked(&self, node: &ObjectReference, message: &str) {
        self.publish(node, "EvacuationBlocked", "EvacuateDisk", message).await;
    }

    /// Publishes that the volumes of a disk are not moved any more.
    pub(crate) async fn evacuation_stopped(&self, node: &ObjectReference, message: &str) {
        self.publish_normal(node, "EvacuationStopped", "EvacuateDisk", message).await;
    }

    /// Publishes that a disk is empty, and stays in its volume group.
    pub(crate) async fn disk_evacuated(&self, node: &ObjectReference, message: &str) {
        self.publish_normal(node, "DiskEvacuated", "EvacuateDisk", message).await;
    }

    /// Publishes that a disk was emptied and has left its volume group.
    pub(crate) async fn disk_removed(&self, node: &ObjectReference, message: &str) {
        self.publish_normal(node, "DiskRemoved", "RemoveDisk", message).await;
    }

    /// Publishes that what a missing disk had was rebuilt, and that its volume group has forgotten it.
    pub(crate) async fn disk_replaced(&self, node: &ObjectReference, message: &str) {
        self.publish_normal(node, "DiskReplaced", "ReplaceDisk", message).await;
    }

    /// Publishes that a disk operation of an administrator has failed.
    pub(crate) async fn disk_operation_failed(&self, node: &ObjectReference, message: &str) {
        self.publish(node, "DiskOperationFailed", "OperateDisk", message).await;
    }

    /// Publishes that the topology label of the node was wrong or missing, and is right now.
    pub(crate) async fn topology_label_corrected(&self, node: &ObjectReference, message: &str) {
        self.publish(node, "TopologyLabelCorrected", "LabelNode", message).await;
    }

    /// Publishes that the topology label of the node is wrong or missing.
    pub(crate) async fn topology_label_wrong(&self, node: &ObjectReference, message: &str) {
        self.publish(node, "TopologyLabelWrong", "LabelNode", message).await;
    }

    /// Publishes that limits of I/O which a pod is to have are not in force.
    pub(crate) async fn io_limits_not_in_force(&self, pod: &PodInfo, reason: &str, message: &str) {
        let regarding = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            namespace: Some(pod.namespace.clone()),
            name: Some(pod.name.clone()),
            uid: Some(pod.uid.clone()),
            ..ObjectReference::default()
        };
        self.publish(&regarding, reason, "LimitIO", message).await;
    }

    /// Publishes a warning about a volume.
    async fn publish_warning(&self, volume: &LogicalVolume, reason: &str, action: &str, message: &str) {
        self.publish(&volume.object_ref(&self.flavor), reason, action, message).await;
    }

    /// Publishes a warning.
    async fn publish(&self, regarding: &ObjectReference, reason: &str, action: &str, message: &str) {
        self.publish_of(EventType::Warning, regarding, reason, action, message).await;
    }

    /// Publishes that something is as it should be.
    async fn publish_normal(&self, regarding: &ObjectReference, reason: &str, action: &str, message: &str) {
        self.publish_of(EventType::Normal, regarding, reason, action, message).await;
    }

    /// Publishes an event of this type. A failure is only logged, because nothing depends on an event.
    async fn publish_of(
        &self,
        type_: EventType,
        regarding: &ObjectReference,
        reason: &str,
        action: &str,
        message: &str,
    ) {
        let event = Event {
            type_,
            reason: reason.to_owned(),
            note: Some(message.to_owned()),
            action: action.to_owned(),
            secondary: None,
        };
        if let Err(error) = api_server::call(DEADLINE, self.recorder.publish(event, regarding)).await {
            tracing::debug!(object = regarding.name, reason, error = error_chain(&error), "cannot publish an Event");
        }
    }
}
