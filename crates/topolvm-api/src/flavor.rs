//! The two API groups in the field and every name that is derived from them.

use std::fmt;

/// Label on LogicalVolumes with the program that created them.
pub const CREATED_BY_LABEL: &str = "app.kubernetes.io/created-by";
/// Value of [`CREATED_BY_LABEL`]; the same in both flavors.
pub const CREATED_BY: &str = "topolvm-controller";
/// Annotation of a claim with the node that kube-scheduler has selected.
pub const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
/// Pod annotation whose change makes kubelet sync the pod and grow a filesystem; the same in both flavors.
pub const RESIZEFS_REQUESTED_AT: &str = "topolvm.io/last-resizefs-requested-at";
/// Name of the default class in a capacity annotation. It is no valid class name, so that the two cannot collide.
pub const DEFAULT_DEVICE_CLASS_KEY: &str = "00default";
/// Default socket of the CSI services.
pub const DEFAULT_CSI_SOCKET: &str = "/run/topolvm/csi-topolvm.sock";
/// Default socket of lvmd.
pub const DEFAULT_LVMD_SOCKET: &str = "/run/topolvm/lvmd.sock";
/// Audience of the tokens with which the controller asks agents for their lists. The API server takes none of them.
pub const INVENTORY_AUDIENCE: &str = "inventory.topolvm.io";

/// API group that a deployment uses. One process serves exactly one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ApiFlavor {
    /// `topolvm.io`.
    #[default]
    TopoLvm,
    /// `topolvm.cybozu.com`, used by deployments that are older than TopoLVM 0.11.
    Legacy,
}

/// Both values of a name that is the API group with something before or after it.
macro_rules! names {
    ($($(#[$doc:meta])* $name:ident = $prefix:literal, $suffix:literal;)*) => {
        $(
            $(#[$doc])*
            pub const fn $name(self) -> &'static str {
                match self {
                    Self::TopoLvm => concat!($prefix, "topolvm.io", $suffix),
                    Self::Legacy => concat!($prefix, "topolvm.cybozu.com", $suffix),
                }
            }
        )*
    };
}

impl ApiFlavor {
    /// Returns the flavor that the environment variable `USE_LEGACY` selects: any non-empty value, even `false`, is
    /// legacy, as existing deployments rely on.
    pub fn from_use_legacy(value: Option<&str>) -> Self {
        match value {
            None | Some("") => Self::TopoLvm,
            Some(_) => Self::Legacy,
        }
    }

    names! {
        /// API group of the `LogicalVolume` resource.
        group = "", "";
        /// Name of the CSI driver, its CSIDriver object and the provisioner in StorageClasses.
        driver_name = "", "";
        /// Key of the CSI topology segment; kubelet makes a Node label of the same name.
        topology_key = "topology.", "/node";
        /// Prefix of the capacity annotations on Nodes and Pods.
        capacity_prefix = "capacity.", "/";
        /// Node annotation with the free bytes of the lvcreate option classes that give volumes another layout than
        /// their device class does. Not below the prefix above: TopoLVM would take it for a device class.
        option_class_capacity = "", "/lvcreate-option-class-capacity";
        /// Prefix of the extended resources of a Node with the size of each device class in bytes.
        size_resource_prefix = "size.", "/";
        /// Prefix of the extended resources of a Node with the free bytes of each device class.
        free_resource_prefix = "free.", "/";
        /// Extended resource that the pod webhook adds to pods.
        capacity_resource = "", "/capacity";
        /// Annotation of the pod with which the controller probes whether kube-scheduler calls the extender.
        extender_probe = "", "/extender-probe";
        /// StorageClass parameter: device class.
        device_class_parameter = "", "/device-class";
        /// StorageClass parameter: class of lvcreate options.
        lvcreate_option_class_parameter = "", "/lvcreate-option-class";
        /// StorageClass parameter and key in a volume's context: options for mkfs, separated by spaces.
        mkfs_options_parameter = "", "/mkfs-options";
        /// Parameter of classes, and annotation of pods and LogicalVolumes: most bytes that are read in a second.
        read_bytes_per_second = "", "/read-bytes-per-second";
        /// Parameter of classes, and annotation of pods and LogicalVolumes: most bytes that are written in a second.
        write_bytes_per_second = "", "/write-bytes-per-second";
        /// Parameter of classes, and annotation of pods and LogicalVolumes: most reads in a second.
        read_operations_per_second = "", "/read-operations-per-second";
        /// Parameter of classes, and annotation of pods and LogicalVolumes: most writes in a second.
        write_operations_per_second = "", "/write-operations-per-second";
        /// StorageClass parameter and claim annotation: when a claim is recreated, empty, because its node is lost.
        rebuild = "", "/rebuild";
        /// StorageClass parameter and claim annotation: `true` keeps the PersistentVolume of a recreated claim.
        rebuild_keep = "", "/rebuild-keep";
        /// Finalizer on claims that are being deleted so that their StatefulSets recreate them, while pods wait for
        /// them.
        rebuilding = "", "/rebuilding";
        /// LogicalVolume annotation: bytes that were asked for, where the size was rounded up or raised to a minimum. A
        /// copy of so many is allowed, and made as large as its source.
        requested_size = "", "/requested-size";
        /// LogicalVolume annotation that the controller changes together with a new size.
        resize_requested_at = "", "/resize-requested-at";
        /// LogicalVolume annotation: id of the snapshot that the volume was restored from.
        source_snapshot_id = "", "/source-snapshot-id";
        /// LogicalVolume annotation: id of the volume that the snapshot or clone was made from.
        source_volume_id = "", "/source-volume-id";
        /// LogicalVolume annotation: id of the group of snapshots that the snapshot is a member of.
        snapshot_group = "", "/snapshot-group";
        /// LogicalVolume annotation: number of members of the group of snapshots.
        snapshot_group_size = "", "/snapshot-group-size";
        /// LogicalVolume annotation: the group of the snapshot is deleted by its CSI caller, so that objects that refer
        /// to the snapshot do not keep it. Only its presence counts.
        snapshot_group_deleted = "", "/snapshot-group-deleted";
        /// LogicalVolume annotation: namespace and name of the claim that the volume was made for, with `/` between.
        claim = "", "/claim";
        /// LogicalVolume annotation: type of the filesystem that was created on the volume, or found on it. A volume
        /// with this annotation is never formatted again automatically.
        filesystem = "", "/filesystem";
        /// LogicalVolume annotation with which an administrator gives up the data of a volume: type of the filesystem
        /// to make on it. Taken away when that has been made.
        reformat = "", "/reformat";
        /// LogicalVolume annotation: name of an LV without a LogicalVolume, which becomes that of this one. No other LV
        /// is made for it.
        adopt = "", "/adopt";
        /// LogicalVolume annotation: former name of the LV, once the object that asked for it has it.
        adopted = "", "/adopted";
        /// Node annotation with the LVs whose LogicalVolumes do not exist.
        orphans = "", "/orphans";
        /// Node annotation with the time of creation of the newest LogicalVolume whose LV the agent has seen: proof of
        /// what the API server remembers.
        volumes_until = "", "/volumes-until";
        /// LogicalVolume annotation: free space and inodes below which the volume is too small, where its claim may
        /// grow automatically.
        growth_thresholds = "", "/growth-thresholds";
        /// LogicalVolume annotation: size in bytes at which the volume was found to be too small.
        too_small_at = "", "/too-small-at";
        /// LogicalVolume annotation with which the node agent leaves an object alone; only its presence counts.
        pending_deletion = "", "/pendingdeletion";
        /// Finalizer on LogicalVolumes, removed when the LV is gone.
        logical_volume_finalizer = "", "/logicalvolume";
        /// Finalizer on DiskOperations while the agent works on them, removed when they have ended.
        disk_operation_finalizer = "", "/diskoperation";
        /// LVM tag on an LV, followed by `=` and the name of its LogicalVolume.
        logical_volume_tag = "", "/logicalvolume";
        /// LVM tag on an LV, followed by `=` and the device class that its LogicalVolume asks for.
        device_class_tag = "", "/device-class";
        /// LVM tag on an LV, followed by `=` and the UID of the namespace kube-system of its cluster.
        cluster_tag = "", "/cluster";
        /// LVM tag on an LV, followed by `=` and the time of creation of its LogicalVolume, in seconds since 1970.
        created_tag = "", "/created";
        /// Finalizer on Nodes, removed when the node's volumes have been cleaned up.
        node_finalizer = "", "/node";
        /// Finalizer that some versions of TopoLVM have added to claims.
        pvc_finalizer = "", "/pvc";
        /// Namespace label that exempts a namespace from the webhook with the value `ignore`.
        webhook_label = "", "/webhook";
    }

    /// Returns the Node or Pod annotation with the capacity of a device class. The empty name is the default class.
    pub fn capacity_annotation(self, device_class: &str) -> String {
        let class = if device_class.is_empty() { DEFAULT_DEVICE_CLASS_KEY } else { device_class };
        format!("{}{class}", self.capacity_prefix())
    }

    /// Returns whether topolvm-node writes the Node annotation of this name.
    pub fn is_capacity_annotation(self, name: &str) -> bool {
        name.starts_with(self.capacity_prefix()) || name == self.option_class_capacity()
    }
}

impl fmt::Display for ApiFlavor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.group())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_both_flavors_are_those_of_the_field() {
        assert_eq!(ApiFlavor::TopoLvm.topology_key(), "topology.topolvm.io/node");
        assert_eq!(ApiFlavor::Legacy.topology_key(), "topology.topolvm.cybozu.com/node");
        assert_eq!(ApiFlavor::TopoLvm.logical_volume_finalizer(), "topolvm.io/logicalvolume");
        assert_eq!(ApiFlavor::Legacy.device_class_parameter(), "topolvm.cybozu.com/device-class");
        assert_eq!(ApiFlavor::Legacy.filesystem(), "topolvm.cybozu.com/filesystem");
        assert_eq!(ApiFlavor::TopoLvm.reformat(), "topolvm.io/reformat");
        assert_eq!(ApiFlavor::TopoLvm.capacity_annotation(""), "capacity.topolvm.io/00default");
        assert_eq!(ApiFlavor::Legacy.capacity_annotation("ssd"), "capacity.topolvm.cybozu.com/ssd");
        assert_eq!(ApiFlavor::Legacy.disk_operation_finalizer(), "topolvm.cybozu.com/diskoperation");
        assert_eq!(ApiFlavor::TopoLvm.option_class_capacity(), "topolvm.io/lvcreate-option-class-capacity");
    }

    #[test]
    fn any_non_empty_value_of_use_legacy_selects_legacy() {
        assert_eq!(ApiFlavor::from_use_legacy(None), ApiFlavor::TopoLvm);
        assert_eq!(ApiFlavor::from_use_legacy(Some("")), ApiFlavor::TopoLvm);
        assert_eq!(ApiFlavor::from_use_legacy(Some("true")), ApiFlavor::Legacy);
        assert_eq!(ApiFlavor::from_use_legacy(Some("false")), ApiFlavor::Legacy);
    }
}
