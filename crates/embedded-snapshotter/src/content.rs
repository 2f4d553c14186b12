//! Common interface of VolumeSnapshotContents and VolumeGroupSnapshotContents, so that both are handled alike.

use std::collections::HashMap;
use std::fmt::Debug;

use csi_calls::{CallError, CsiController, CsiGroupController, Secrets};
use jiff::Timestamp;
use kube::{Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// A content: the object in the API server that stands for a snapshot, or for a group of snapshots.
pub(crate) trait Content:
    Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static
{
    /// Names of the kind.
    const NAMES: &'static ContentNames;

    /// Desired state.
    type Spec: Clone + Debug + PartialEq + Send + Sync;
    /// CSI ids of what snapshots are made of.
    type Volumes: Clone + Debug + PartialEq + Send + Sync;
    /// CSI ids of what the driver has made.
    type Handle: Clone + Debug + PartialEq + Send + Sync;
    /// The snapshot or the group, as the driver shows it.
    type Shown: Debug + Send + Sync;

    fn spec(&self) -> &Self::Spec;
    fn driver(&self) -> &str;
    fn deletion_policy(&self) -> &str;
    /// Returns the UID of the VolumeSnapshot or VolumeGroupSnapshot to which the content is bound.
    fn bound_uid(&self) -> Option<&str>;
    /// Returns name and namespace of that object.
    fn bound_name(&self) -> [&str; 2];
    fn class(&self) -> Option<&str>;
    /// Returns where the snapshots come from. `None` if the content does not say it.
    fn source(&self) -> Option<Source<Self::Volumes, Self::Handle>>;
    /// Returns whether an administrator has created the content for snapshots that existed before.
    fn is_pre_provisioned(&self) -> bool;
    /// Returns what the driver deletes with the content, unless the policy is `Retain`.
    fn made(&self) -> Option<Self::Handle>;
    fn ready_to_use(&self) -> Option<bool>;
    fn has_error(&self) -> bool;
    /// Returns the message of the error in the status.
    fn error(&self) -> Option<&str>;
    /// Returns whether nothing was written to the status.
    fn has_no_status(&self) -> bool;
    /// Returns whether the annotations, and not the class, name the Secret for the check of what existed before.
    fn is_check_secret_annotated(&self) -> bool;

    /// Returns the fields of the status that change when the driver has shown this.
    fn found_fields(&self, shown: &Self::Shown, now: Timestamp) -> Map<String, Value>;
    /// Returns the fields of the status that go with what is deleted.
    fn made_fields(&self) -> Vec<&'static str>;

    /// Has the driver create what is requested, or show it if it exists.
    fn create(
        csi: &Csi,
        request: Request<Self::Volumes>,
    ) -> impl Future<Output = Result<Self::Shown, CallError>> + Send;
    /// Asks the driver for what existed before. `None` if it does not exist.
    fn find(
        csi: &Csi,
        handle: Self::Handle,
        secrets: Secrets,
    ) -> impl Future<Output = Result<Option<Self::Shown>, CallError>> + Send;
    /// Has the driver delete what it has made.
    fn delete(csi: &Csi, handle: Self::Handle, secrets: Secrets) -> impl Future<Output = Result<(), CallError>> + Send;
    fn is_ready_in(shown: &Self::Shown) -> bool;
    /// Returns the CSI id in what the driver shows, for messages.
    fn id_of(shown: &Self::Shown) -> &str;
    /// Returns the CSI id in a handle, for messages.
    fn id_in(handle: &Self::Handle) -> &str;

    /// Returns whether volumes can be restored.
    fn is_ready(&self) -> bool {
        self.ready_to_use() == Some(true)
    }

    /// Returns whether a call to create the snapshots may have an effect that the status does not show.
    fn is_being_created(&self) -> bool {
        self.annotations().contains_key(Self::NAMES.being_created)
    }
}

/// Source of a content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source<V, H> {
    /// The driver makes snapshots of these volumes.
    New(V),
    /// The driver has it already.
    Existing(H),
    /// The snapshot is created with its group.
    OfGroup,
}

/// The services of the driver.
#[derive(Clone)]
pub(crate) struct Csi {
    pub(crate) controller: CsiController,
    pub(crate) groups: CsiGroupController,
}

/// A request to create snapshots.
#[derive(Clone, Debug)]
pub(crate) struct Request<V> {
    pub(crate) name: String,
    pub(crate) volumes: V,
    pub(crate) parameters: HashMap<String, String>,
    pub(crate) secrets: Secrets,
}

/// Names that differ between the two kinds of contents. Those in objects are agreed upon with snapshot-controller and
/// csi-snapshotter.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ContentNames {
    /// Kind of the contents.
    pub(crate) content: &'static str,
    /// Their resource.
    pub(crate) contents: &'static str,
    /// Kind of the objects that users create.
    pub(crate) object: &'static str,
    /// Kind, API group and resource of the class.
    pub(crate) class: &'static str,
    pub(crate) class_group: &'static str,
    pub(crate) classes: &'static str,
    /// Name of the thing that the driver makes, in messages.
    pub(crate) what: &'static str,
    /// Field with the CSI id of what existed before.
    pub(crate) handle_field: &'static str,
    /// Name in the metric of reconciles.
    pub(crate) controller: &'static str,
    /// True if clusters without this kind are usual.
    pub(crate) is_optional: bool,
    /// Annotation: a call to create may have an effect, and the content is not deleted before its outcome is known.
    pub(crate) being_created: &'static str,
    /// Annotation of snapshot-controller: the object that the content is bound to is being deleted.
    pub(crate) being_deleted: &'static str,
    /// Annotations of snapshot-controller with name and namespace of the Secret for calls.
    pub(crate) secret_name: &'static str,
    pub(crate) secret_namespace: &'static str,
    /// Parameters of the class with name and namespace of the Secret for the check of what existed before.
    pub(crate) check_secret_name: &'static str,
    pub(crate) check_secret_namespace: &'static str,
    /// Token for the name of the content in them.
    pub(crate) content_token: &'static str,
    /// Parameters of the driver with the names of the object and of the content.
    pub(crate) object_name_parameter: &'static str,
    pub(crate) object_namespace_parameter: &'static str,
    pub(crate) content_name_parameter: &'static str,
    /// Finalizer: keeps the content until its snapshots are deleted. snapshot-controller adds it, and the snapshotter
    /// removes it.
    pub(crate) finalizer: &'static str,
    /// Reason of the Event about the first attempt to create.
    pub(crate) creation_failed: &'static str,
    /// Reason of the Event about later attempts, and about what existed before.
    pub(crate) check_failed: &'static str,
    /// Reason of the Event about a failed deletion.
    pub(crate) deletion_failed: &'static str,
    /// Actions of Events.
    pub(crate) create_action: &'static str,
    pub(crate) check_action: &'static str,
    pub(crate) delete_action: &'static str,
}
