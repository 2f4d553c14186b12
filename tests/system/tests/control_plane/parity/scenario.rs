//! A scenario as data: objects, changes and conditions, one after the other, in a namespace of its name.

use serde_json::{Value, json};
use topolvm_api::SELECTED_NODE;

use super::kinds::Kind;
use super::merge::merge;

/// Stands for the name of the scenario in names and objects: its namespace, its StorageClass, and the prefix of other
/// objects of the cluster.
pub(super) const SELF: &str = "$SELF";
/// Stands for the name of the PersistentVolume of the claim `a`.
pub(super) const VOLUME: &str = "$VOLUME";
/// Stands for the id of the volume of the LogicalVolume with the name of the scenario.
pub(super) const VOLUME_ID: &str = "$ID";
/// Stands for the id of the snapshot of the VolumeSnapshot `s`.
pub(super) const HANDLE: &str = "$HANDLE";
/// Stand for the ids of the group `g` and of its snapshots.
pub(super) const GROUP_HANDLE: &str = "$GROUP";
pub(super) const MEMBER_HANDLES: [&str; 2] = ["$MEMBER0", "$MEMBER1"];
/// A node with free space in all classes.
pub(super) const ALPHA: &str = "alpha";
/// Another one.
pub(super) const BETA: &str = "beta";
/// Name of the driver.
pub(super) const DRIVER: &str = "topolvm.io";

/// The annotation of a content whose snapshot may exist.
pub(super) const BEING_CREATED_POINTER: &str =
    "/metadata/annotations/snapshot.storage.kubernetes.io~1volumesnapshot-being-created";

/// An object of a scenario.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Target {
    Named(Kind, String),
    /// The PersistentVolume of a claim of the scenario, whether it exists or not.
    VolumeOf(&'static str),
    /// The LogicalVolume of a claim of the scenario, whether it exists or not.
    LogicalVolumeOf(&'static str),
    /// The VolumeSnapshotContent of a VolumeSnapshot of the scenario, whether it exists or not.
    ContentOf(&'static str),
    /// The LogicalVolume of a VolumeSnapshot of the scenario, whether it exists or not.
    SnapshotVolumeOf(&'static str),
    /// The VolumeGroupSnapshotContent of a VolumeGroupSnapshot of the scenario, whether it exists or not.
    GroupContentOf(&'static str),
    /// The LogicalVolume of a snapshot of a VolumeGroupSnapshot of the scenario, whether it exists or not.
    GroupVolumeOf(&'static str, usize),
    /// The VolumeSnapshot of this claim that belongs to a group, when it exists.
    MemberOf(&'static str),
}

/// A step of a scenario.
#[derive(Clone, Debug)]
pub(super) enum Step {
    Create(Target, Value),
    /// A merge patch.
    Patch(Target, Value),
    PatchStatus(Target, Value),
    Delete(Target),
    Wait(Target, Until),
    /// Another claim is created and provisioned, and expanded where resizers are tested, so that the program under test
    /// has seen all that was created before.
    Barrier,
    /// Adds the objects of the scenario to its outcome.
    Record,
    /// Waits until the API server refuses new objects like this one.
    WaitRefused(Kind, Value),
    StopAgent(&'static str),
    StartAgent(&'static str),
    /// Every start of a sub-command of LVM on a node fails.
    BreakLvm(&'static str, &'static str),
    /// No sub-command of LVM on a node fails any more.
    RepairLvm(&'static str),
    /// Removes the volume that fills a node.
    FreeSpace(&'static str),
    /// Kills the program under test.
    Kill,
    /// Starts it again.
    Restart,
    /// Stops the program under test and starts the other one.
    HandOver,
}

/// A condition of an object.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Until {
    /// A claim is bound, its volume exists, and the provisioner has reported that it is done.
    Bound,
    /// A claim is bound, or the provisioner has reported a failure.
    Decided,
    /// The provisioner has reported a success or a failure about a claim.
    Reported,
    /// Several LogicalVolumes were created for a claim, one after the other.
    Retried,
    Exists,
    Gone,
    /// No group of the scenario has a VolumeSnapshot.
    NoMembers,
    /// The claim has this condition.
    Condition(&'static str),
    /// The program under test has reported an Event with this reason about it, whose message contains the text.
    Event(&'static str, &'static str),
    /// The value at a JSON pointer; null if it is absent.
    Field(&'static str, Value),
    /// The list at a JSON pointer contains the value.
    Contains(&'static str, Value),
    /// It does not, or the object does not exist.
    Without(&'static str, Value),
}

/// A node of one scenario.
#[derive(Clone, Copy, Debug)]
pub(super) struct ScenarioNode {
    pub(super) name: &'static str,
    /// Free bytes of the class `ssd`.
    pub(super) free: u64,
    /// Bytes of the volume that [`Step::FreeSpace`] removes.
    pub(super) filled: u64,
}

/// The part of the objects that a scenario compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Compared {
    /// Claims and how their volumes are provisioned.
    Provisioning,
    /// Snapshots, and not their volumes.
    Snapshots,
    /// Sizes and VolumeAttributesClasses of claims and volumes, with the conditions of claims.
    Expansions,
}

/// A scenario. Its methods append steps.
#[derive(Clone, Debug)]
pub(super) struct Scenario {
    pub(super) name: &'static str,
    pub(super) nodes: Vec<ScenarioNode>,
    pub(super) steps: Vec<Step>,
    /// The volume may be on any node.
    pub(super) any_node: bool,
    pub(super) compared: Compared,
}

impl Scenario {
    pub(super) fn new(name: &'static str) -> Self {
        Self { name, nodes: Vec::new(), steps: Vec::new(), any_node: false, compared: Compared::Provisioning }
    }

    /// A scenario with a StorageClass that binds when a node is selected, changed by a patch.
    pub(super) fn with_class(name: &'static str, patch: Value) -> Self {
        Self::new(name).class(patch)
    }

    /// Adds a node with this many GiB in the class `ssd`, and as many that are used.
    pub(super) fn node(mut self, name: &'static str, free: u64, filled: u64) -> Self {
        self.nodes.push(ScenarioNode { name, free: free << 30, filled: filled << 30 });
        self
    }

    pub(super) fn on_any_node(mut self) -> Self {
        self.any_node = true;
        self
    }

    pub(super) fn comparing(self, compared: Compared) -> Self {
        Self { compared, ..self }
    }

    pub(super) fn step(mut self, step: Step) -> Self {
        self.steps.push(step);
        self
    }

    pub(super) fn class(self, patch: Value) -> Self {
        self.named_class(SELF, patch)
    }

    pub(super) fn named_class(self, name: &str, patch: Value) -> Self {
        self.create(Kind::Class, name, class(name, patch))
    }

    /// Creates a claim of 64 MiB with the scenario's StorageClass, changed by patches.
    pub(super) fn claim(self, name: &'static str, patches: impl IntoIterator<Item = Value>) -> Self {
        self.create(Kind::Claim, name, claim(name, patches))
    }

    pub(super) fn create(self, kind: Kind, name: &str, object: Value) -> Self {
        self.step(Step::Create(Target::Named(kind, name.to_owned()), object))
    }

    pub(super) fn patch(self, kind: Kind, name: &str, patch: Value) -> Self {
        self.step(Step::Patch(Target::Named(kind, name.to_owned()), patch))
    }

    pub(super) fn delete(self, kind: Kind, name: &str) -> Self {
        self.step(Step::Delete(Target::Named(kind, name.to_owned())))
    }

    pub(super) fn wait(self, kind: Kind, name: &str, until: Until) -> Self {
        self.step(Step::Wait(Target::Named(kind, name.to_owned()), until))
    }

    /// Waits until a claim is bound, and records the objects.
    pub(super) fn bound(self, claim: &str) -> Self {
        self.wait(Kind::Claim, claim, Until::Bound).step(Step::Record)
    }

    /// Waits until a claim is bound or the provisioner has reported a failure.
    pub(super) fn decided(self, claim: &str) -> Self {
        self.wait(Kind::Claim, claim, Until::Decided)
    }

    /// Waits until the provisioner has reported that provisioning failed, with this text. The objects are not recorded:
    /// the provisioner may change them after its report.
    pub(super) fn failed(self, claim: &str, text: &'static str) -> Self {
        self.wait(Kind::Claim, claim, Until::Event("ProvisioningFailed", text))
    }

    /// Waits until the annotation with the selected node is removed from a claim.
    pub(super) fn unselected(self, claim: &str) -> Self {
        self.wait(Kind::Claim, claim, Until::Field(SELECTED_POINTER, Value::Null)).step(Step::Record)
    }

    /// Selects a node for a claim, as kube-scheduler does.
    pub(super) fn select(self, claim: &str, node: &str) -> Self {
        self.patch(Kind::Claim, claim, on(node))
    }

    /// Requests another size in a claim.
    pub(super) fn request(self, claim: &str, bytes: &str) -> Self {
        self.patch(Kind::Claim, claim, size(bytes))
    }

    /// Requests another VolumeAttributesClass in a claim.
    pub(super) fn request_class(self, claim: &str, class: &str) -> Self {
        self.patch(Kind::Claim, claim, attributes_class(class))
    }

    /// Creates a VolumeAttributesClass.
    pub(super) fn attributes(self, name: &str, driver: &str, parameters: &Value) -> Self {
        let class = json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttributesClass", "metadata": {"name": ""},
            "driverName": driver, "parameters": parameters,
        });
        self.create(Kind::AttributesClass, name, class)
    }

    /// Waits until a claim has this size and the resizer has reported success, and records the objects.
    pub(super) fn expanded(self, claim: &str, bytes: &'static str) -> Self {
        self.wait(Kind::Claim, claim, Until::Field("/status/capacity/storage", bytes.into()))
            .wait(Kind::Claim, claim, Until::Event("VolumeResizeSuccessful", ""))
            .record()
    }

    /// Waits until an expansion to this size is in this state.
    pub(super) fn in_state(self, claim: &str, bytes: &'static str, state: &'static str) -> Self {
        self.wait(Kind::Claim, claim, Until::Field("/status/allocatedResources/storage", bytes.into())).wait(
            Kind::Claim,
            claim,
            Until::Field("/status/allocatedResourceStatuses/storage", state.into()),
        )
    }

    /// Waits until a volume has this size and its claim waits for the kubelet, and records the objects.
    pub(super) fn node_pending(self, claim: &str, bytes: &'static str) -> Self {
        self.wait(Kind::Claim, claim, Until::Event("FileSystemResizeRequired", ""))
            .in_state(claim, bytes, "NodeResizePending")
            .record()
    }

    /// Waits until the driver has called the expansion to this size infeasible, and records the objects.
    pub(super) fn infeasible(self, claim: &str, bytes: &'static str) -> Self {
        self.wait(Kind::Claim, claim, Until::Event("VolumeResizeFailed", ""))
            .in_state(claim, bytes, "ControllerResizeInfeasible")
            .record()
    }

    /// Writes to the status of a claim that the kubelet has grown the filesystem to this size.
    pub(super) fn node_finished(self, claim: &str, bytes: &str) -> Self {
        let status = json!({"status": {
            "capacity": {"storage": bytes}, "allocatedResourceStatuses": {"storage": null}, "conditions": null,
        }});
        self.patch_status(claim, status)
    }

    /// Changes the status of a claim.
    pub(super) fn patch_status(self, claim: &str, status: Value) -> Self {
        self.step(Step::PatchStatus(Target::Named(Kind::Claim, claim.to_owned()), status))
    }

    /// Waits until the volume of a claim has this VolumeAttributesClass, and records the objects.
    pub(super) fn modified(self, claim: &str, class: &str) -> Self {
        self.wait(Kind::Claim, claim, Until::Field("/status/currentVolumeAttributesClassName", class.into()))
            .wait(Kind::Claim, claim, Until::Field("/status/modifyVolumeStatus", Value::Null))
            .wait(Kind::Claim, claim, Until::Event("VolumeModifySuccessful", ""))
            .record()
    }

    /// Waits until the modification of the volume of a claim is in this state, and records the objects.
    pub(super) fn modification(self, claim: &str, state: &'static str) -> Self {
        self.wait(Kind::Claim, claim, Until::Field("/status/modifyVolumeStatus/status", state.into()))
            .wait(Kind::Claim, claim, Until::Event("VolumeModifyFailed", ""))
            .record()
    }

    /// Creates a VolumeSnapshotClass with the scenario's name, changed by a patch.
    pub(super) fn snapshot_class(self, patch: Value) -> Self {
        let class = json!({
            "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotClass", "metadata": {"name": ""},
            "driver": DRIVER, "deletionPolicy": "Delete",
        });
        self.create(Kind::SnapshotClass, SELF, merge(class, patch))
    }

    /// Creates a VolumeSnapshot of a claim with the scenario's class.
    pub(super) fn snapshot(self, name: &'static str, claim: &str) -> Self {
        let snapshot = json!({
            "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot", "metadata": {"name": name},
            "spec": {"volumeSnapshotClassName": SELF, "source": {"persistentVolumeClaimName": claim}},
        });
        self.create(Kind::Snapshot, name, snapshot)
    }

    /// Waits until a VolumeSnapshot is ready and the snapshotter has removed its annotation, and records the objects.
    pub(super) fn ready(self, snapshot: &'static str) -> Self {
        self.wait(Kind::Snapshot, snapshot, Until::Field("/status/readyToUse", true.into()))
            .wait_content(snapshot, Until::Field(BEING_CREATED_POINTER, Value::Null))
            .step(Step::Record)
    }

    /// Waits for a condition of the content of a VolumeSnapshot.
    pub(super) fn wait_content(self, snapshot: &'static str, until: Until) -> Self {
        self.step(Step::Wait(Target::ContentOf(snapshot), until))
    }

    /// Waits until the snapshotter has reported the first failure to create a snapshot and a later one, with this text.
    pub(super) fn refused(self, snapshot: &'static str, text: &'static str) -> Self {
        self.wait_content(snapshot, Until::Event("SnapshotCreationFailed", text))
            .wait_content(snapshot, Until::Event("SnapshotContentCheckandUpdateFailed", text))
    }

    /// Waits until a VolumeSnapshot, its content and its LogicalVolume do not exist.
    pub(super) fn snapshot_gone(self, snapshot: &'static str) -> Self {
        let targets = [
            Target::Named(Kind::Snapshot, snapshot.to_owned()),
            Target::ContentOf(snapshot),
            Target::SnapshotVolumeOf(snapshot),
        ];
        targets.into_iter().fold(self, |scenario, target| scenario.step(Step::Wait(target, Until::Gone)))
    }

    pub(super) fn barrier(self) -> Self {
        self.step(Step::Barrier)
    }

    /// Deletes a claim and waits until its objects are deleted.
    pub(super) fn deleted(self, claim: &'static str) -> Self {
        self.delete(Kind::Claim, claim).gone(claim)
    }

    /// Waits until a claim, its PersistentVolume and its LogicalVolume do not exist.
    pub(super) fn gone(self, claim: &'static str) -> Self {
        // In this order: a PersistentVolume may be created after its claim was deleted
        let targets =
            [Target::Named(Kind::Claim, claim.to_owned()), Target::LogicalVolumeOf(claim), Target::VolumeOf(claim)];
        targets.into_iter().fold(self, |scenario, target| scenario.step(Step::Wait(target, Until::Gone)))
    }

    pub(super) fn wait_volume(self, claim: &'static str, until: Until) -> Self {
        self.step(Step::Wait(Target::VolumeOf(claim), until))
    }

    pub(super) fn patch_volume(self, claim: &'static str, patch: Value) -> Self {
        self.step(Step::Patch(Target::VolumeOf(claim), patch))
    }

    pub(super) fn record(self) -> Self {
        self.step(Step::Record)
    }
}

/// Pointer to the annotation with the selected node.
const SELECTED_POINTER: &str = "/metadata/annotations/volume.kubernetes.io~1selected-node";

/// Returns a StorageClass that binds when a node is selected, changed by a patch.
pub(super) fn class(name: &str, patch: Value) -> Value {
    let class = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
        "metadata": {"name": name}, "provisioner": DRIVER, "volumeBindingMode": "WaitForFirstConsumer",
    });
    merge(class, patch)
}

/// Returns a claim of 64 MiB with the scenario's StorageClass, changed by patches.
pub(super) fn claim(name: &str, patches: impl IntoIterator<Item = Value>) -> Value {
    let claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": SELF,
            "resources": {"requests": {"storage": "64Mi"}},
        },
    });
    patches.into_iter().fold(claim, merge)
}

/// Returns a patch of a claim that selects a node, as kube-scheduler does.
pub(super) fn on(node: &str) -> Value {
    json!({"metadata": {"annotations": {SELECTED_NODE: node}}})
}

/// Returns a patch of a StorageClass with these parameters.
pub(super) fn parameters(parameters: &Value) -> Value {
    json!({"parameters": parameters})
}

/// Returns a patch of a StorageClass that binds at once, to a node.
pub(super) fn immediate_on(node: &str) -> Value {
    merge(allowed("topology.topolvm.io/node", &[node]), json!({"volumeBindingMode": "Immediate"}))
}

/// Returns a patch of a StorageClass that allows these values of a label.
pub(super) fn allowed(key: &str, values: &[&str]) -> Value {
    json!({"allowedTopologies": [{"matchLabelExpressions": [{"key": key, "values": values}]}]})
}

/// Returns a patch of a claim with this VolumeAttributesClass.
pub(super) fn attributes_class(class: &str) -> Value {
    json!({"spec": {"volumeAttributesClassName": class}})
}

/// Returns a patch of a claim with this size.
pub(super) fn size(size: &str) -> Value {
    json!({"spec": {"resources": {"requests": {"storage": size}}}})
}
