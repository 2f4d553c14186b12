//! The kinds of objects that scenarios create and observe, as resources of the API server.

use kube::core::{ApiResource, GroupVersionKind};

/// A kind of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    AdmissionBinding,
    AdmissionPolicy,
    AttributesClass,
    Claim,
    Class,
    CsiNode,
    Event,
    GroupSnapshot,
    GroupSnapshotClass,
    GroupSnapshotContent,
    LogicalVolume,
    Namespace,
    Node,
    Pod,
    Role,
    RoleBinding,
    Secret,
    ServiceAccount,
    Snapshot,
    SnapshotClass,
    SnapshotContent,
    Volume,
    VolumeAttachment,
}

impl Kind {
    /// Kinds that the run watches.
    pub(super) const WATCHED: [Self; 11] = [
        Self::Claim,
        Self::Event,
        Self::GroupSnapshot,
        Self::GroupSnapshotContent,
        Self::LogicalVolume,
        Self::Node,
        Self::Pod,
        Self::ServiceAccount,
        Self::Snapshot,
        Self::SnapshotContent,
        Self::Volume,
    ];

    /// Returns the API group, version, kind and resource.
    const fn names(self) -> [&'static str; 4] {
        match self {
            Self::AdmissionBinding => {
                names(ADMISSION, "ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings")
            }
            Self::AdmissionPolicy => names(ADMISSION, "ValidatingAdmissionPolicy", "validatingadmissionpolicies"),
            Self::AttributesClass => names(STORAGE, "VolumeAttributesClass", "volumeattributesclasses"),
            Self::Claim => names("", "PersistentVolumeClaim", "persistentvolumeclaims"),
            Self::Class => names(STORAGE, "StorageClass", "storageclasses"),
            Self::CsiNode => names(STORAGE, "CSINode", "csinodes"),
            Self::Event => names("", "Event", "events"),
            Self::GroupSnapshot => names(GROUP_SNAPSHOT, "VolumeGroupSnapshot", "volumegroupsnapshots"),
            Self::GroupSnapshotClass => names(GROUP_SNAPSHOT, "VolumeGroupSnapshotClass", "volumegroupsnapshotclasses"),
            Self::GroupSnapshotContent => {
                names(GROUP_SNAPSHOT, "VolumeGroupSnapshotContent", "volumegroupsnapshotcontents")
            }
            Self::LogicalVolume => names("topolvm.io", "LogicalVolume", "logicalvolumes"),
            Self::Namespace => names("", "Namespace", "namespaces"),
            Self::Node => names("", "Node", "nodes"),
            Self::Pod => names("", "Pod", "pods"),
            Self::Role => names(ACCESS, "Role", "roles"),
            Self::RoleBinding => names(ACCESS, "RoleBinding", "rolebindings"),
            Self::Secret => names("", "Secret", "secrets"),
            Self::ServiceAccount => names("", "ServiceAccount", "serviceaccounts"),
            Self::Snapshot => names(SNAPSHOT, "VolumeSnapshot", "volumesnapshots"),
            Self::SnapshotClass => names(SNAPSHOT, "VolumeSnapshotClass", "volumesnapshotclasses"),
            Self::SnapshotContent => names(SNAPSHOT, "VolumeSnapshotContent", "volumesnapshotcontents"),
            Self::Volume => names("", "PersistentVolume", "persistentvolumes"),
            Self::VolumeAttachment => names(STORAGE, "VolumeAttachment", "volumeattachments"),
        }
    }

    /// Returns the resource for a client.
    pub(super) fn resource(self) -> ApiResource {
        let [group, version, kind, plural] = self.names();
        ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural)
    }

    /// Returns the kind of an object that an Event names, if scenarios observe it.
    pub(super) fn of_reference(kind: &str) -> Option<Self> {
        Self::WATCHED.into_iter().find(|candidate| candidate.names()[2] == kind)
    }

    /// Returns true if objects of this kind are in a namespace.
    pub(super) const fn is_namespaced(self) -> bool {
        matches!(
            self,
            Self::Claim
                | Self::Event
                | Self::GroupSnapshot
                | Self::Pod
                | Self::Role
                | Self::RoleBinding
                | Self::Secret
                | Self::ServiceAccount
                | Self::Snapshot
        )
    }
}

const ACCESS: &str = "rbac.authorization.k8s.io";
const ADMISSION: &str = "admissionregistration.k8s.io";
const GROUP_SNAPSHOT: &str = "groupsnapshot.storage.k8s.io";
const SNAPSHOT: &str = "snapshot.storage.k8s.io";
const STORAGE: &str = "storage.k8s.io";

const fn names(group: &'static str, kind: &'static str, plural: &'static str) -> [&'static str; 4] {
    [group, "v1", kind, plural]
}
