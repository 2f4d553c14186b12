//! Creates copies: snapshots, volumes restored from a snapshot, and clones.
//!
//! A copy shares its blocks with its source, so that it is created on the node of the source, in its device class, and
//! at least as large. Once created it does not need its source any more.

use tokio::time::Instant;
use topolvm_api::{AccessType, ApiFlavor, IoLimits, LogicalVolume, SnapshotGroup};

use super::delete::{Deletion, exact_version};
use super::existing::{Existing, compare_existing};
use super::volume::{requested_bytes, size_bytes};
use super::{ContentSource, CopySource, Placement, Volume, VolumeError, VolumeRequest, Volumes};
use crate::volume_size::VolumeSize;

/// A request for a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SnapshotRequest {
    /// Name of the `LogicalVolume`.
    pub(crate) name: String,
    /// Id of the volume.
    pub(crate) source: String,
    /// The nodes that the caller allows.
    pub(crate) placement: Placement,
    /// The group that the snapshot is a member of.
    pub(crate) group: Option<SnapshotGroup>,
}

impl Volumes {
    /// Creates a volume that begins as a copy, as [`create`](Self::create) does one that begins empty. What the source
    /// decides is added to the request.
    pub(crate) async fn create_copy(
        &self,
        request: VolumeRequest,
        source: ContentSource,
        deadline: Instant,
    ) -> Result<Volume, VolumeError> {
        let object = self.find_source(&source).await?;
        if let Some(copy) = self.find_earlier_copy(&request, &source, object.as_ref()).await? {
            return self.objects.wait_provisioned(copy, deadline).await;
        }
        let object = object.ok_or_else(|| source_not_found(&source))?;
        check_filesystem(request.filesystem.as_deref(), object.annotation(self.objects.flavor.filesystem()))?;
        // Also for a pod that was scheduled to another node: the copy can be nowhere else, and where the request allows
        // its node, the scheduler sends the pod after the volume
        let placement = copy_placement(&request.placement, &object)?;
        let request = VolumeRequest {
            size: copy_size(request.size, self.objects.flavor, &object)?,
            device_class: copy_device_class(request.device_class, &object)?,
            placement,
            source: Some(self.copy_source(&object, source, AccessType::ReadWrite)),
            ..request
        };
        self.create(&request, deadline).await
    }

    /// Takes a snapshot, or finds that it has been taken: the same request any number of times has the same result.
    pub(crate) async fn create_snapshot(
        &self,
        request: SnapshotRequest,
        deadline: Instant,
    ) -> Result<Volume, VolumeError> {
        let SnapshotRequest { name, source, placement, group } = request;
        let source = ContentSource::Volume(source);
        let Some(object) = self.find_source(&source).await? else {
            return self.find_earlier_snapshot(&name, source, group.as_ref(), deadline).await;
        };
        let request = VolumeRequest {
            name,
            size: VolumeSize::of_snapshot(size_bytes(&object), requested_bytes(self.objects.flavor, &object)),
            device_class: object.spec.device_class.clone(),
            lvcreate_option_class: String::new(),
            io_limits: IoLimits::default(),
            placement: copy_placement(&placement, &object)?,
            claim: None,
            filesystem: None,
            source: Some(CopySource { group, ..self.copy_source(&object, source, AccessType::ReadOnly) }),
        };
        self.create(&request, deadline).await
    }

    /// Finds the copy if an earlier request has created its object. It is compared with the request and not with its
    /// source, which may have grown since, or be gone: the same request has the same result.
    async fn find_earlier_copy(
        &self,
        request: &VolumeRequest,
        source: &ContentSource,
        source_object: Option<&LogicalVolume>,
    ) -> Result<Option<LogicalVolume>, VolumeError> {
        loop {
            let Some(copy) = self.objects.read(&request.name).await? else { return Ok(None) };
            let copy_source = ContentSource::from_annotations(self.objects.flavor, &copy);
            // A copy that TopoLVM made has only the name of its source
            let object_name = match source_object {
                Some(object) => object.name(),
                None if copy_source.as_ref() == Some(source) => copy.spec.source.as_str(),
                None => return Ok(None),
            };
            let (object_name, id, access) = (object_name.to_owned(), source.clone(), AccessType::ReadWrite);
            let copy_source = CopySource { object_name, id, access, filesystem: None, group: None };
            let mut request = VolumeRequest { source: Some(copy_source), ..request.clone() };
            if request.device_class.is_empty() {
                request.device_class.clone_from(&copy.spec.device_class);
            }
            match compare_existing(self.objects.flavor, &copy, &request) {
                Existing::Matches => return Ok(Some(copy)),
                // Whatever the answer will be, its node must not create a volume that is unknown to every client
                Existing::Unprovisioned => match self.objects.delete_object(copy.name(), exact_version(&copy)).await? {
                    Deletion::Done | Deletion::Pending => return Ok(None),
                    Deletion::Conflict => {}
                },
                Existing::BeingDeleted | Existing::Differs(_) => return Ok(None),
            }
        }
    }

    /// Finds the object of the source, unless it is being deleted.
    pub(super) async fn find_source(&self, source: &ContentSource) -> Result<Option<LogicalVolume>, VolumeError> {
        Ok(self.objects.find(source.kind(), source.id()).await?.filter(|object| !object.is_deleting()))
    }

    fn copy_source(&self, object: &LogicalVolume, id: ContentSource, access: AccessType) -> CopySource {
        let filesystem = object.annotation(self.objects.flavor.filesystem()).map(str::to_owned);
        CopySource { object_name: object.name().to_owned(), id, access, filesystem, group: None }
    }

    /// Finds the snapshot of a volume that is gone. The answer to the first request may have been lost, and the source
    /// deleted since: after "not found" the client would never request the snapshot again, and nothing would delete it.
    async fn find_earlier_snapshot(
        &self,
        name: &str,
        source: ContentSource,
        group: Option<&SnapshotGroup>,
        deadline: Instant,
    ) -> Result<Volume, VolumeError> {
        let copy = self.objects.read(name).await?.filter(|object| {
            !object.is_deleting()
                && SnapshotGroup::of(self.objects.flavor, object).as_ref() == group
                && ContentSource::from_annotations(self.objects.flavor, object).as_ref() == Some(&source)
        });
        match copy {
            Some(object) => self.objects.wait_provisioned(object, deadline).await,
            None => Err(source_not_found(&source)),
        }
    }
}

pub(super) fn source_not_found(source: &ContentSource) -> VolumeError {
    VolumeError::SourceNotFound { kind: source.kind(), id: source.id().to_owned() }
}

/// Returns the size of the copy. A request for the size that the source was requested with gets the source's real size:
/// LVM and the filesystem round up, and a claim of the same size must do for a copy.
fn copy_size(requested: VolumeSize, flavor: ApiFlavor, source: &LogicalVolume) -> Result<VolumeSize, VolumeError> {
    let source_bytes = size_bytes(source);
    let least = requested_bytes(flavor, source);
    // What an older version recorded was rounded up, as the bytes of this request are
    if let Some(asked) = requested.requested().filter(|_| requested.bytes < least) {
        return Err(VolumeError::SmallerThanSource { least, asked });
    }
    let too_small = VolumeError::SmallerThanSource { least: source_bytes, asked: requested.bytes };
    requested.raised_to(source_bytes).ok_or(too_small)
}

/// Refuses a copy that is to be mounted with another filesystem than its source has, as far as that is known: it would
/// use space and never be mounted.
fn check_filesystem(wanted: Option<&str>, found: Option<&str>) -> Result<(), VolumeError> {
    match (wanted, found) {
        (Some(wanted), Some(found)) if wanted != found => {
            Err(VolumeError::SourceFilesystemDiffers { found: found.to_owned(), wanted: wanted.to_owned() })
        }
        _ => Ok(()),
    }
}

/// Returns the device class of the copy. A StorageClass that names none leaves it to the source.
fn copy_device_class(wanted: String, source: &LogicalVolume) -> Result<String, VolumeError> {
    let source_class = source.spec.device_class.clone();
    if wanted.is_empty() || wanted == source_class {
        Ok(source_class)
    } else {
        Err(VolumeError::SourceClassDiffers { source_class, wanted })
    }
}

/// Returns the placement of the copy: the node of its source, if the request allows it.
fn copy_placement(requested: &Placement, source: &LogicalVolume) -> Result<Placement, VolumeError> {
    let node = source.spec.node_name.as_str();
    if requested.accepts(node) {
        Ok(Placement::only(node))
    } else {
        Err(VolumeError::SourceNotAccessible { node: node.to_owned() })
    }
}
