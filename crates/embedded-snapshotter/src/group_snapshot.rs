//! VolumeGroupSnapshotContents: snapshots of several volumes, which the driver makes and deletes together.
//!
//! snapshot-controller creates a VolumeSnapshotContent for each of them from the status.

use csi_calls::{CallError, Secrets};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Map, Value, json};
use topolvm_proto::csi::CreateVolumeGroupSnapshotRequest;

use crate::content::{Content, ContentNames, Csi, Request, Source};
use crate::driver_snapshot::{DriverGroup, DriverSnapshot};
use crate::group_content::{
    GROUP_SNAPSHOT_GROUP, GroupSnapshotContent, GroupSnapshotContentSpec, GroupSnapshotContentStatus,
};

/// CSI ids of a group and of its snapshots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GroupHandle {
    pub(crate) group: String,
    pub(crate) snapshots: Vec<String>,
}

/// The names of VolumeGroupSnapshotContents.
pub(crate) const NAMES: ContentNames = ContentNames {
    content: "VolumeGroupSnapshotContent",
    contents: "VolumeGroupSnapshotContents",
    object: "VolumeGroupSnapshot",
    class: "VolumeGroupSnapshotClass",
    class_group: GROUP_SNAPSHOT_GROUP,
    classes: "volumegroupsnapshotclasses",
    what: "group of snapshots",
    handle_field: "spec.source.groupSnapshotHandles",
    controller: "groupsnapshot",
    is_optional: true,
    being_created: "groupsnapshot.storage.kubernetes.io/volumegroupsnapshot-being-created",
    being_deleted: "groupsnapshot.storage.kubernetes.io/volumegroupsnapshot-being-deleted",
    secret_name: "groupsnapshot.storage.kubernetes.io/deletion-secret-name",
    secret_namespace: "groupsnapshot.storage.kubernetes.io/deletion-secret-namespace",
    check_secret_name: "csi.storage.k8s.io/group-snapshotter-get-secret-name",
    check_secret_namespace: "csi.storage.k8s.io/group-snapshotter-get-secret-namespace",
    content_token: "${volumegroupsnapshotcontent.name}",
    object_name_parameter: "csi.storage.k8s.io/volumegroupsnapshot/name",
    object_namespace_parameter: "csi.storage.k8s.io/volumegroupsnapshot/namespace",
    content_name_parameter: "csi.storage.k8s.io/volumegroupsnapshotcontent/name",
    finalizer: "groupsnapshot.storage.kubernetes.io/volumegroupsnapshotcontent-bound-protection",
    creation_failed: "GroupSnapshotCreationFailed",
    check_failed: "GroupSnapshotContentCheckandUpdateFailed",
    deletion_failed: "GroupSnapshotDeleteError",
    create_action: "CreateGroupSnapshot",
    check_action: "CheckGroupSnapshot",
    delete_action: "DeleteGroupSnapshot",
};

impl Content for GroupSnapshotContent {
    const NAMES: &'static ContentNames = &NAMES;

    type Spec = GroupSnapshotContentSpec;
    type Volumes = Vec<String>;
    type Handle = GroupHandle;
    type Shown = DriverGroup;

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
        self.spec.volume_group_snapshot_ref.uid.as_deref()
    }

    fn bound_name(&self) -> [&str; 2] {
        let object = &self.spec.volume_group_snapshot_ref;
        [&object.name, &object.namespace].map(|part| part.as_deref().unwrap_or_default())
    }

    fn class(&self) -> Option<&str> {
        self.spec.volume_group_snapshot_class_name.as_deref()
    }

    fn source(&self) -> Option<Source<Vec<String>, GroupHandle>> {
        let source = &self.spec.source;
        if let Some(handles) = &source.group_snapshot_handles {
            let shown = self.status.volume_group_snapshot_handle.as_ref();
            let group = shown.unwrap_or(&handles.volume_group_snapshot_handle).clone();
            return Some(Source::Existing(GroupHandle { group, snapshots: handles.volume_snapshot_handles.clone() }));
        }
        (!source.volume_handles.is_empty()).then(|| Source::New(source.volume_handles.clone()))
    }

    fn is_pre_provisioned(&self) -> bool {
        self.spec.source.group_snapshot_handles.is_some()
    }

    fn made(&self) -> Option<GroupHandle> {
        let GroupSnapshotContentStatus { volume_group_snapshot_handle, volume_snapshot_info_list, .. } = &self.status;
        let group = volume_group_snapshot_handle.clone()?;
        let mut snapshots: Vec<_> =
            volume_snapshot_info_list.iter().map(|snapshot| snapshot.snapshot_handle.clone()).collect();
        // The status of a group that existed before does not list them
        if let (true, Some(handles)) = (snapshots.is_empty(), &self.spec.source.group_snapshot_handles) {
            snapshots.clone_from(&handles.volume_snapshot_handles);
        }
        Some(GroupHandle { group, snapshots })
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
        self.status == GroupSnapshotContentStatus::default()
    }

    fn is_check_secret_annotated(&self) -> bool {
        false
    }

    fn found_fields(&self, group: &DriverGroup, now: Timestamp) -> Map<String, Value> {
        let old = &self.status;
        let mut status = Map::new();
        let mut set = |field: &str, value: Value| drop(status.insert(field.to_owned(), value));
        if old.volume_group_snapshot_handle.is_none() {
            set("volumeGroupSnapshotHandle", json!(group.id));
        }
        if old.creation_time.is_none() {
            set("creationTime", json!(Time(group.created.unwrap_or(now))));
        }
        // As with csi-snapshotter, which leaves the snapshots of a group that existed before to their own contents
        if old.volume_snapshot_info_list.is_empty() && !group.snapshots.is_empty() && !self.is_pre_provisioned() {
            set("volumeSnapshotInfoList", group.snapshots.iter().map(snapshot_info).collect());
        }
        status
    }

    fn made_fields(&self) -> Vec<&'static str> {
        let old = &self.status;
        let fields = [
            ("volumeGroupSnapshotHandle", old.volume_group_snapshot_handle.is_some()),
            ("readyToUse", old.ready_to_use.is_some()),
            ("creationTime", old.creation_time.is_some()),
            ("error", old.error.is_some()),
        ];
        fields.into_iter().filter(|(_, is_present)| *is_present).map(|(field, _)| field).collect()
    }

    async fn create(csi: &Csi, request: Request<Vec<String>>) -> Result<DriverGroup, CallError> {
        let Request { name, volumes: source_volume_ids, parameters, secrets } = request;
        let request = CreateVolumeGroupSnapshotRequest { name, source_volume_ids, secrets, parameters };
        csi.groups.create_group_snapshot(request).await.map(DriverGroup::from)
    }

    async fn find(csi: &Csi, handle: GroupHandle, secrets: Secrets) -> Result<Option<DriverGroup>, CallError> {
        let GroupHandle { group, snapshots } = handle;
        csi.groups.get_group_snapshot(&group, snapshots, secrets).await.map(|group| Some(group.into()))
    }

    async fn delete(csi: &Csi, handle: GroupHandle, secrets: Secrets) -> Result<(), CallError> {
        csi.groups.delete_group_snapshot(&handle.group, handle.snapshots, secrets).await
    }

    fn is_ready_in(group: &DriverGroup) -> bool {
        group.is_ready
    }

    fn id_of(group: &DriverGroup) -> &str {
        &group.id
    }

    fn id_in(handle: &GroupHandle) -> &str {
        &handle.group
    }
}

/// Returns what the status says of a snapshot of the group.
fn snapshot_info(snapshot: &DriverSnapshot) -> Value {
    let known =
        [("creationTime", snapshot.nanoseconds()), ("restoreSize", Some(snapshot.bytes).filter(|bytes| *bytes > 0))];
    let mut info = Map::from_iter([
        ("volumeHandle".to_owned(), json!(snapshot.volume)),
        ("snapshotHandle".to_owned(), json!(snapshot.id)),
        ("readyToUse".to_owned(), json!(snapshot.is_ready)),
    ]);
    info.extend(known.into_iter().filter_map(|(field, value)| Some((field.to_owned(), json!(value?)))));
    info.into()
}
