//! Annotations and the finalizer of VolumeSnapshotContents that snapshot-controller and csi-snapshotter agree on.

/// A call to create the snapshot may have an effect: the content is not deleted before its outcome is known.
pub(crate) const BEING_CREATED: &str = "snapshot.storage.kubernetes.io/volumesnapshot-being-created";
/// The VolumeSnapshot of the content is being deleted. Written by snapshot-controller.
pub(crate) const BEING_DELETED: &str = "snapshot.storage.kubernetes.io/volumesnapshot-being-deleted";
/// Name of the Secret for calls about the snapshot. Written by snapshot-controller.
pub(crate) const SECRET_NAME: &str = "snapshot.storage.kubernetes.io/deletion-secret-name";
/// Namespace of that Secret.
pub(crate) const SECRET_NAMESPACE: &str = "snapshot.storage.kubernetes.io/deletion-secret-namespace";
/// The snapshot belongs to a group, which is created as a whole.
pub(crate) const GROUP_HANDLE: &str = "groupsnapshot.storage.k8s.io/volumeGroupSnapshotHandle";
/// Keeps the content until its snapshot is deleted. snapshot-controller adds it, and the snapshotter removes it.
pub(crate) const FINALIZER: &str = "snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection";
