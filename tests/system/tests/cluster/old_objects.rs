//! Objects, volumes and filesystems that TopoLVM leaves in a cluster, in the format of its programs and sidecars, in
//! either API group.

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use system_tests::manifests::{VolumeMode, claim};
use system_tests::shared::TestCluster;
use testbed::node::Node;
use topolvm_api::{ApiFlavor, CREATED_BY, CREATED_BY_LABEL};

use crate::fixture::logical_volume_resource;

/// A foreign finalizer.
pub(crate) const HOLD: &str = "example.com/hold";

/// Finalizer and label of a LogicalVolume in the steps of TopoLVM's agent: it adds its finalizer, the label a second
/// later, and then creates the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AgentMetadata {
    /// Neither: the controller has just created it.
    None,
    /// The finalizer, behind a foreign one if so, and no label.
    Finalizer { behind_another: bool },
    /// The finalizer and the label.
    FinalizerAndLabel,
}

/// Objects of the time when TopoLVM served an API group.
#[derive(Clone, Copy)]
pub(crate) struct OldObjects<'a> {
    pub(crate) shared: &'a TestCluster,
    pub(crate) node: &'a Node,
    pub(crate) flavor: ApiFlavor,
}

impl OldObjects<'_> {
    /// Returns the name of an object, which is another one in each API group.
    pub(crate) fn name(&self, name: &str) -> String {
        match self.flavor {
            ApiFlavor::TopoLvm => name.to_owned(),
            ApiFlavor::Legacy => format!("legacy-{name}"),
        }
    }

    /// Returns the name of the LogicalVolume and of the PersistentVolume that
    /// [`create_bound_claim`](Self::create_bound_claim) gives a claim.
    pub(crate) fn volume_name(&self, claim: &str) -> String {
        format!("pvc-{}", self.name(claim))
    }

    /// Creates a LogicalVolume as TopoLVM's controller and agent leave it, and returns its UID.
    pub(crate) fn create_logical_volume(&self, name: &str, spec: &Value, metadata: AgentMetadata) -> Result<String> {
        let mut volume = json!({
            "apiVersion": format!("{}/v1", self.flavor.group()), "kind": "LogicalVolume",
            "metadata": {"name": name},
            "spec": {"name": name, "nodeName": self.node.name()},
        });
        let ours = self.flavor.logical_volume_finalizer();
        volume["metadata"]["finalizers"] = match metadata {
            AgentMetadata::None => json!([]),
            AgentMetadata::Finalizer { behind_another: true } => json!([HOLD, ours]),
            AgentMetadata::Finalizer { behind_another: false } | AgentMetadata::FinalizerAndLabel => json!([ours]),
        };
        if metadata == AgentMetadata::FinalizerAndLabel {
            volume["metadata"]["labels"] = json!({CREATED_BY_LABEL: CREATED_BY});
        }
        for (key, value) in spec.as_object().context("the spec is no object")? {
            volume["spec"][key] = value.clone();
        }
        self.shared.apply(&volume)?;
        self.shared.value(&logical_volume_resource(self.flavor), name, ".metadata.uid")
    }

    /// Patches the status of a LogicalVolume.
    pub(crate) fn patch_status(&self, name: &str, status: &Value) -> Result<()> {
        let patch = json!({"status": status}).to_string();
        let group = logical_volume_resource(self.flavor);
        self.shared.kubectl(&["patch", &group, name, "--subresource=status", "--type=merge", "-p", &patch]).map(drop)
    }

    /// Creates a filesystem with a file in it on an LV.
    pub(crate) fn make_filesystem(&self, make: &str, device: &str) -> Result<()> {
        let script = format!(
            "wipefs -qa /dev/{device} && mkfs.{make} /dev/{device} >/dev/null \
             && mkdir -p /run/old && mount /dev/{device} /run/old \
             && chmod 2777 /run/old && echo theirs >/run/old/file && umount /run/old"
        );
        self.node.script(&script).map(drop)
    }

    /// Creates a claim that is bound to a PersistentVolume as external-provisioner writes it for TopoLVM, with this
    /// filesystem if any.
    pub(crate) fn create_bound_claim(
        &self,
        name: &str,
        class: &str,
        size: &str,
        filesystem: Option<&str>,
        id: &str,
    ) -> Result<()> {
        let driver = self.flavor.driver_name();
        let (volume, name, class) = (self.volume_name(name), self.name(name), self.name(class));
        let mode = if filesystem.is_some() { VolumeMode::Filesystem } else { VolumeMode::Block };
        let identity = format!("1700000000000-8081-{driver}");
        let mut csi = json!({
            "driver": driver, "volumeHandle": id,
            "volumeAttributes": {"storage.kubernetes.io/csiProvisionerIdentity": identity},
        });
        if let Some(filesystem) = filesystem {
            csi["fsType"] = json!(filesystem);
        }
        let node = self.node.name();
        let nodes = json!({"key": self.flavor.topology_key(), "operator": "In", "values": [node]});
        self.shared.apply(&json!({
            "apiVersion": "v1", "kind": "PersistentVolume",
            "metadata": {
                "name": volume,
                "annotations": {
                    "pv.kubernetes.io/provisioned-by": driver,
                    "volume.kubernetes.io/provisioner-deletion-secret-name": "",
                    "volume.kubernetes.io/provisioner-deletion-secret-namespace": "",
                },
                "finalizers": ["external-provisioner.volume.kubernetes.io/finalizer", "kubernetes.io/pv-protection"],
            },
            "spec": {
                "accessModes": ["ReadWriteOnce"], "capacity": {"storage": size}, "csi": csi,
                "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": "default", "name": name},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [nodes]}]}},
                "persistentVolumeReclaimPolicy": "Delete", "storageClassName": class, "volumeMode": format!("{mode:?}"),
            },
        }))?;
        let mut claim = claim(&name, &class, size, mode);
        claim["metadata"]["annotations"] = json!({
            "volume.beta.kubernetes.io/storage-provisioner": driver,
            "volume.kubernetes.io/storage-provisioner": driver,
            "volume.kubernetes.io/selected-node": node,
        });
        // A finalizer of before 0.40
        claim["metadata"]["finalizers"] = json!(["kubernetes.io/pvc-protection", self.flavor.pvc_finalizer()]);
        claim["spec"]["volumeName"] = json!(volume);
        self.shared.apply(&claim)
    }

    /// Creates a VolumeSnapshot and its content as external-snapshotter writes them for TopoLVM.
    pub(crate) fn create_ready_snapshot(&self, name: &str, id: &str) -> Result<()> {
        let (name, class) = (self.name(name), self.name("snapshots"));
        let content = format!("snapcontent-{name}");
        self.shared.apply(&json!({
            "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent",
            "metadata": {
                "name": content,
                "finalizers": ["snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection"],
            },
            "spec": {
                "deletionPolicy": "Delete", "driver": self.flavor.driver_name(), "source": {"snapshotHandle": id},
                "volumeSnapshotClassName": class, "volumeSnapshotRef": {"namespace": "default", "name": name},
            },
        }))?;
        self.shared.apply(&json!({
            "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"volumeSnapshotClassName": class, "source": {"volumeSnapshotContentName": content}},
        }))
    }
}
