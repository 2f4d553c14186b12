//! CSI requests, parsed once: what comes out has no optional that is required and no string that is a number.

pub(super) mod snapshots;

use std::collections::HashMap;

use tonic::Code;
use topolvm_api::{ApiFlavor, FILESYSTEMS, MkfsOptionError, MkfsOptions};
use topolvm_proto::csi::volume_capability::{AccessType, access_mode::Mode};
use topolvm_proto::csi::{
    CapacityRange, ControllerExpandVolumeRequest, CreateVolumeRequest, GetCapacityRequest,
    ValidateVolumeCapabilitiesRequest, VolumeCapability,
};
use topolvm_runtime::grpc::GrpcCode;

use super::topology::{NoSegment, placement, segment};
use crate::MinimumAllocation;
use crate::minimum_allocation;
use crate::volume_size::{Access, CapacityRangeError, VolumeSize};
use crate::volumes::{ClaimName, Wanted};

/// Parameters with namespace and name of the claim.
const CLAIM: [&str; 2] = ["csi.storage.k8s.io/pvc/namespace", "csi.storage.k8s.io/pvc/name"];

/// A request that can never be answered, however often it is sent.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RequestError {
    #[error("the request has no {0}")]
    Missing(&'static str),
    #[error("a volume capability has neither block nor mount")]
    NoAccessType,
    #[error("access mode {0} is not supported, because a volume is on one node; use ReadWriteOnce or ReadWriteOncePod")]
    AccessMode(&'static str),
    #[error(
        "filesystem {0:?} cannot be made; set csi.storage.k8s.io/fstype of the StorageClass to {known}, or leave it out",
        known = FILESYSTEMS.join(", ")
    )]
    Filesystem(String),
    #[error(
        "snapshots, restored volumes and clones are turned off in this controller; remove the data source from the claim, or \
         have the controller started with --enable-snapshots"
    )]
    Source,
    #[error("mutable parameter {0:?} is not known; remove it from the VolumeAttributesClass")]
    Mutable(String),
    #[error("max_entries is {0}; a page has at least 0 entries")]
    MaxEntries(i32),
    #[error(transparent)]
    MkfsOptions(#[from] MkfsOptionError),
    #[error("capacity range")]
    Range(#[from] CapacityRangeError),
    #[error(transparent)]
    Topology(#[from] NoSegment),
}

impl GrpcCode for RequestError {
    fn code(&self) -> Code {
        match self {
            // external-provisioner waits five minutes after INVALID_ARGUMENT, unless the StorageClass changes: nothing
            // here may be temporary, or true on one node only. It is also the code that CSI demands from a plugin that
            // cannot make volumes from the requested kind of source.
            Self::Missing(_)
            | Self::NoAccessType
            | Self::AccessMode(_)
            | Self::Filesystem(_)
            | Self::Source
            | Self::Mutable(_)
            | Self::MaxEntries(_)
            | Self::MkfsOptions(_)
            | Self::Range(_)
            | Self::Topology(_) => Code::InvalidArgument,
        }
    }
}

/// The volume that `CreateVolume` asks for.
pub(crate) fn create_volume(
    request: &CreateVolumeRequest,
    flavor: ApiFlavor,
    minimums: MinimumAllocation,
) -> Result<Wanted, RequestError> {
    // Kubernetes wants lower case; external-provisioner's names (pvc-<uid>) are already
    let name = required(&request.name, "name")?.to_lowercase();
    let accesses = accesses(&request.volume_capabilities)?;
    check_mkfs_options(&request.parameters, flavor, &accesses)?;
    let minimum = accesses.first().map_or(0, |access| minimums.of(access));
    // What is mutable takes precedence, says CSI
    let option_class = mutable(&request.mutable_parameters, flavor)?
        .map_or_else(|| parameter(&request.parameters, flavor.lvcreate_option_class_parameter()), str::to_owned);
    Ok(Wanted {
        name,
        size: size(request.capacity_range, minimum)?,
        device_class: parameter(&request.parameters, flavor.device_class_parameter()),
        lvcreate_option_class: option_class,
        placement: placement(flavor, request.accessibility_requirements.as_ref())?,
        claim: claim(&request.parameters),
        origin: None,
    })
}

/// Options that the node would refuse when the volume is to be used. A block volume has no filesystem to make.
fn check_mkfs_options(
    parameters: &HashMap<String, String>,
    flavor: ApiFlavor,
    accesses: &[Access],
) -> Result<(), RequestError> {
    let Some(options) = parameters.get(flavor.mkfs_options_parameter()) else { return Ok(()) };
    for access in accesses {
        match access {
            Access::Mount(filesystem) => drop(MkfsOptions::parse(filesystem, options)?),
            Access::Block => {}
        }
    }
    Ok(())
}

/// The claim that the volume is for. external-provisioner names it with `--extra-create-metadata`.
fn claim(parameters: &HashMap<String, String>) -> Option<ClaimName> {
    let [namespace, name] = CLAIM.map(|key| parameters.get(key).filter(|value| !value.is_empty()).cloned());
    Some(ClaimName { namespace: namespace?, name: name? })
}

/// What the node has to know when it mounts the volume.
pub(crate) fn volume_context(parameters: &HashMap<String, String>, flavor: ApiFlavor) -> HashMap<String, String> {
    let key = flavor.mkfs_options_parameter();
    parameters.get(key).map(|options| (key.to_owned(), options.clone())).into_iter().collect()
}

/// The class of lvcreate options, the one thing that a VolumeAttributesClass can say: it changes no capacity, so that the
/// scheduler's choice of a node stays right.
pub(crate) fn mutable(parameters: &HashMap<String, String>, flavor: ApiFlavor) -> Result<Option<&str>, RequestError> {
    let key = flavor.lvcreate_option_class_parameter();
    match parameters.keys().find(|&other| other != key) {
        Some(other) => Err(RequestError::Mutable(other.clone())),
        None => Ok(parameters.get(key).map(String::as_str)),
    }
}

/// What `ControllerExpandVolume` asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ExpandVolume {
    pub(crate) id: String,
    /// Bytes to grow to.
    pub(crate) bytes: u64,
    /// Whether a filesystem has to grow as well, which the node does.
    pub(crate) has_filesystem: bool,
}

impl TryFrom<ControllerExpandVolumeRequest> for ExpandVolume {
    type Error = RequestError;

    fn try_from(request: ControllerExpandVolumeRequest) -> Result<Self, RequestError> {
        let id = required(&request.volume_id, "volume_id")?.to_owned();
        if request.capacity_range.is_none() {
            return Err(RequestError::Missing("capacity_range"));
        }
        let access = request.volume_capability.as_ref().map(access).transpose()?;
        Ok(Self {
            id,
            bytes: size(request.capacity_range, 0)?.bytes,
            // A caller that does not tell must assume a filesystem: growing one that is not there is no work
            has_filesystem: access != Some(Access::Block),
        })
    }
}

/// What `GetCapacity` asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GetCapacity {
    /// Empty is the default class.
    pub(crate) device_class: String,
    pub(crate) scope: Scope,
    /// Bytes of the smallest volume that can be asked for.
    pub(crate) smallest: u64,
}

/// Whose capacity is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// That of all nodes together.
    Cluster,
    /// That of the node of this topology segment.
    Segment(String),
    /// That of a topology where we have nothing.
    Elsewhere,
}

impl GetCapacity {
    /// Reads the request. external-provisioner sends all parameters of the StorageClass here, also those that it keeps
    /// from `CreateVolume`.
    pub(crate) fn parse(request: &GetCapacityRequest, flavor: ApiFlavor, minimums: MinimumAllocation) -> Self {
        Self {
            smallest: smallest(request, minimums),
            device_class: parameter(&request.parameters, flavor.device_class_parameter()),
            scope: request.accessible_topology.as_ref().map_or(Scope::Cluster, |topology| {
                segment(flavor, topology).map_or(Scope::Elsewhere, |value| Scope::Segment(value.to_owned()))
            }),
        }
    }
}

/// The smallest volume for the capabilities of the request. external-provisioner sends none: a class with a filesystem may
/// also be used for block volumes, and whatever is smaller counts.
fn smallest(request: &GetCapacityRequest, minimums: MinimumAllocation) -> u64 {
    let mut accesses = request.volume_capabilities.iter().filter_map(|capability| access(capability).ok());
    accesses.next().map_or_else(
        || {
            let filesystem = minimum_allocation::of_class(&request.parameters).to_owned();
            minimums.block.min(minimums.of(&Access::Mount(filesystem)))
        },
        |access| minimums.of(&access),
    )
}

/// What `ValidateVolumeCapabilities` asks for: the volume, and why it cannot be used like that, if it cannot.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ValidateVolume {
    pub(crate) id: String,
    pub(crate) objection: Option<RequestError>,
}

impl TryFrom<&ValidateVolumeCapabilitiesRequest> for ValidateVolume {
    type Error = RequestError;

    fn try_from(request: &ValidateVolumeCapabilitiesRequest) -> Result<Self, RequestError> {
        let id = required(&request.volume_id, "volume_id")?.to_owned();
        match accesses(&request.volume_capabilities) {
            Ok(_) => Ok(Self { id, objection: None }),
            Err(objection @ (RequestError::AccessMode(_) | RequestError::Filesystem(_))) => {
                Ok(Self { id, objection: Some(objection) })
            }
            Err(error) => Err(error),
        }
    }
}

/// A field that must not be empty.
pub(crate) fn required<'a>(value: &'a str, field: &'static str) -> Result<&'a str, RequestError> {
    if value.is_empty() { Err(RequestError::Missing(field)) } else { Ok(value) }
}

fn accesses(capabilities: &[VolumeCapability]) -> Result<Vec<Access>, RequestError> {
    if capabilities.is_empty() {
        return Err(RequestError::Missing("volume_capabilities"));
    }
    capabilities.iter().map(|capability| access(capability).and_then(possible)).collect()
}

/// Refuses what the node would refuse when the volume is mounted, when there are a volume and a pod already.
fn possible(access: Access) -> Result<Access, RequestError> {
    match access {
        Access::Mount(filesystem) if !minimum_allocation::is_known(&filesystem) => {
            Err(RequestError::Filesystem(filesystem))
        }
        possible @ (Access::Mount(_) | Access::Block) => Ok(possible),
    }
}

fn access(capability: &VolumeCapability) -> Result<Access, RequestError> {
    let access = match capability.access_type.as_ref().ok_or(RequestError::NoAccessType)? {
        AccessType::Block(_) => Access::Block,
        AccessType::Mount(mount) => Access::Mount(mount.fs_type.clone()),
    };
    match capability.access_mode.as_ref().map(topolvm_proto::csi::volume_capability::AccessMode::mode) {
        None | Some(Mode::SingleNodeWriter | Mode::SingleNodeSingleWriter | Mode::SingleNodeMultiWriter) => Ok(access),
        Some(other) => Err(RequestError::AccessMode(other.as_str_name())),
    }
}

fn size(range: Option<CapacityRange>, minimum: u64) -> Result<VolumeSize, RequestError> {
    let CapacityRange { required_bytes, limit_bytes } = range.unwrap_or_default();
    Ok(VolumeSize::from_range(required_bytes, limit_bytes, minimum)?)
}

fn parameter(parameters: &HashMap<String, String>, key: &str) -> String {
    parameters.get(key).cloned().unwrap_or_default()
}

#[cfg(test)]
mod tests;
