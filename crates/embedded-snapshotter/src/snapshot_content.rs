//! VolumeSnapshotContents: single snapshots.

use csi_calls::{CallError, Secrets};
use jiff::Timestamp;
use serde_json::{Map, Value, json};
use topolvm_api::{SNAPSHOT_GROUP, SnapshotContent, SnapshotContentSpec, SnapshotContentStatus};
use topolvm_proto::csi::CreateSnapshotRequest;

use crate::content::{Content, ContentNames, Csi, Request, Source};
use crate::driver_snapshot::{DriverSnapshot, nanoseconds};

/// Annotation: the snapshot belongs to a group, which is created as a whole.
pub(crate) const GROUP_HANDLE: &str = "groupsnapshot.storage.k8s.io/volumeGroupSnapshotHandle";

/// The names of VolumeSnapshotContents.
pub(crate) const NAMES: ContentNames = ContentNames {
    content: "VolumeSnapshotContent",
    contents: "VolumeSnapshotContents",
    object: "VolumeSnapshot",
    class: "VolumeSnapshotClass",
    class_group: SNAPSHOT_GROUP,
    classes: "volumesnapshotclasses",
    what: "snapshot",
    handle_field: "spec.source.snapshotHandle",
    controller: "snapshot",
    is_optional: false,
    being_created: "snapshot.storage.kubernetes.io/volumesnapshot-being-created",
    being_deleted: "snapshot.storage.kubernetes.io/volumesnapshot-being-deleted",
    secret_name: "snapshot.storage.kubernetes.io/deletion-secret-name",
    secret_namespace: "snapshot.storage.kubernetes.io/deletion-secret-namespace",
    check_secret_name: "csi.storage.k8s.io/snapshotter-list-secret-name",
    check_secret_namespace: "csi.storage.k8s.io/snapshotter-list-secret-namespace",
    content_token: "${volumesnapshotcontent.name}",
    object_name_parameter: "csi.storage.k8s.io/volumesnapshot/name",
    object_namespace_parameter: "csi.storage.k8s.io/volumesnapshot/namespace",
    content_name_parameter: "csi.storage.k8s.io/volumesnapshotcontent/name",
    finalizer: "snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection",
    creation_failed: "SnapshotCreationFailed",
    check_failed: "SnapshotContentCheckandUpdateFailed",
    deletion_failed: "SnapshotDeleteError",
    create_action: "CreateSnapshot",
    check_action: "CheckSnapshot",
    delete_action: "DeleteSnapshot",
};

impl Content for SnapshotContent {
    const NAMES: &'static ContentNames = &NAMES;

    type Spec = SnapshotContentSpec;
    type Volumes = String;
    type Handle = String;
    type Shown = DriverSnapshot;

    fn spec(&self) -> &Self::Spec {
        &self.spec
    }

    fn driver(&self) -> &str {
        &self.spec.driver
    }

    fn deletion_policy(&self) -> &str {
        &self.spec.deletion_policy
    }

    fn bound_uid(&self) -> Option<&str> {
        self.spec.volume_snapshot_ref.uid.as_deref()
    }

    fn bound_name(&self) -> [&str; 2] {
        let object = &self.spec.volume_snapshot_ref;
        [&object.name, &object.namespace].map(|part| part.as_deref().unwrap_or_default())
    }

    fn class(&self) -> Option<&str> {
        self.spec.volume_snapshot_class_name.as_deref()
    }

    fn source(&self) -> Option<Source<String, String>> {
        let (source, status) = (&self.spec.source, &self.status);
        let is_of_group = self.metadata.annotations.as_ref().is_some_and(|all| all.contains_key(GROUP_HANDLE));
        match (&source.snapshot_handle, &source.volume_handle, &status.snapshot_handle) {
            (Some(snapshot), _, shown) => Some(Source::Existing(shown.as_ref().unwrap_or(snapshot).clone())),
            (None, None, _) => None,
            (None, Some(_), Some(snapshot)) if status.volume_group_snapshot_handle.is_some() => {
                Some(Source::Existing(snapshot.clone()))
            }
            (None, Some(_), _) if is_of_group => Some(Source::OfGroup),
            (None, Some(volume), _) => Some(Source::New(volume.clone())),
        }
    }

    fn is_pre_provisioned(&self) -> bool {
        self.spec.source.snapshot_handle.is_some()
    }

    /// The snapshots of a group are deleted with the group.
    fn made(&self) -> Option<String> {
        let SnapshotContentStatus { snapshot_handle, volume_group_snapshot_handle, .. } = &self.status;
        snapshot_handle.clone().filter(|_| volume_group_snapshot_handle.is_none())
    }

    fn ready_to_use(&self) -> Option<bool> {
        self.status.ready_to_use
    }

    fn has_error(&self) -> bool {
        self.status.error.is_some()
    }

    fn error(&self) -> Option<&str> {
        self.status.error.as_ref()?.message.as_deref()
    }

    fn has_no_status(&self) -> bool {
        self.status == SnapshotContentStatus::default()
    }

    /// snapshot-controller names no class in the snapshots of a group.
    fn is_check_secret_annotated(&self) -> bool {
        self.status.volume_group_snapshot_handle.is_some()
    }

    fn found_fields(&self, snapshot: &DriverSnapshot, now: Timestamp) -> Map<String, Value> {
        let old = &self.status;
        let mut status = Map::new();
        let mut set = |field: &str, value: Value| drop(status.insert(field.to_owned(), value));
        if old.snapshot_handle.is_none() {
            set("snapshotHandle", json!(snapshot.id));
        }
        if old.creation_time.is_none() {
            set("creationTime", json!(snapshot.nanoseconds().unwrap_or_else(|| nanoseconds(now))));
        }
        if old.restore_size.is_none() && snapshot.bytes > 0 {
            set("restoreSize", json!(snapshot.bytes));
        }
        if let (None, Some(group)) = (&old.volume_group_snapshot_handle, &snapshot.group) {
            set("volumeGroupSnapshotHandle", json!(group));
        }
        status
    }

    fn made_fields(&self) -> Vec<&'static str> {
        let old = &self.status;
        let fields = [
            ("snapshotHandle", old.snapshot_handle.is_some()),
            ("readyToUse", old.ready_to_use.is_some()),
            ("creationTime", old.creation_time.is_some()),
            ("restoreSize", old.restore_size.is_some()),
        ];
        fields.into_iter().filter(|(_, is_present)| *is_present).map(|(field, _)| field).collect()
    }

    async fn create(csi: &Csi, request: Request<String>) -> Result<DriverSnapshot, CallError> {
        let Request { name, volumes: source_volume_id, parameters, secrets } = request;
        let request =
            CreateSnapshotRequest { source_volume_id, name, secrets, parameters, ..CreateSnapshotRequest::default() };
        csi.controller.create_snapshot(request).await.map(DriverSnapshot::from)
    }

    /// A driver that lists no snapshots is assumed to have it.
    async fn find(csi: &Csi, id: String, secrets: Secrets) -> Result<Option<DriverSnapshot>, CallError> {
        if !csi.controller.lists_snapshots().await? {
            return Ok(Some(DriverSnapshot { id, is_ready: true, ..DriverSnapshot::default() }));
        }
        Ok(csi.controller.find_snapshot(&id, secrets).await?.map(DriverSnapshot::from))
    }

    async fn delete(csi: &Csi, id: String, secrets: Secrets) -> Result<(), CallError> {
        csi.controller.delete_snapshot(&id, secrets).await
    }

    fn is_ready_in(snapshot: &DriverSnapshot) -> bool {
        snapshot.is_ready
    }

    fn id_of(snapshot: &DriverSnapshot) -> &str {
        &snapshot.id
    }

    fn id_in(handle: &String) -> &str {
        handle
    }
}
