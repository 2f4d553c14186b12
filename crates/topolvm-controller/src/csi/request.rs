//! CSI requests, parsed once: what comes out has no optional that is required and no string that is a number.

use std::collections::HashMap;

use topolvm_api::{
    ApiFlavor, DEFAULT_FILESYSTEM, FILESYSTEMS, IoLimit, IoLimitError, IoLimits, MAX_SNAPSHOT_GROUP, MkfsOptionError,
    MkfsOptions,
};
use topolvm_capacity::VolumeClasses;
use topolvm_proto::csi::volume_capability::{AccessType, access_mode::Mode};
use topolvm_proto::csi::{
    CapacityRange, ControllerExpandVolumeRequest, CreateVolumeRequest, GetCapacityRequest,
    ValidateVolumeCapabilitiesRequest, VolumeCapability,
};

use super::topology::{MissingSegment, node_segment, parse_placement};
use crate::minimum_allocation::{self, MinimumAllocation, VolumeMode};
use crate::volume_size::{CapacityRangeError, VolumeSize};
use crate::volumes::{ClaimName, VolumeRequest};

/// Parameters in which external-provisioner names the claim: namespace and name.
const CLAIM_PARAMETERS: [&str; 2] = ["csi.storage.k8s.io/pvc/namespace", "csi.storage.k8s.io/pvc/name"];

/// A request that can never be answered, however often it is sent.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RequestError {
    #[error("the request has no {0}")]
    MissingField(&'static str),
    #[error("a volume capability has neither block nor mount")]
    NoAccessType,
    #[error(
        "access mode {0} is not supported because a volume exists on one node only; use ReadWriteOnce or \
         ReadWriteOncePod"
    )]
    UnsupportedAccessMode(&'static str),
    #[error(
        "filesystem {0:?} is not supported; set csi.storage.k8s.io/fstype of the StorageClass to {known}, or omit it",
        known = FILESYSTEMS.join(", ")
    )]
    UnsupportedFilesystem(String),
    #[error(
        "snapshots, restored volumes and clones are disabled in this controller; remove the data source from the \
         claim, or start the controller with --enable-snapshots"
    )]
    SnapshotsDisabled,
    #[error("unknown mutable parameter {0:?}; remove it from the VolumeAttributesClass")]
    UnknownMutableParameter(String),
    #[error("max_entries is {0}; it must be 0 or more")]
    NegativeMaxEntries(i32),
    #[error("{0} volumes for snapshots of one moment; request 1 to {MAX_SNAPSHOT_GROUP}")]
    GroupSize(usize),
    #[error("volume {0} is requested twice for snapshots of one moment; request it once")]
    RepeatedSource(String),
    #[error(transparent)]
    MkfsOptions(#[from] MkfsOptionError),
    #[error(transparent)]
    IoLimit(#[from] IoLimitError),
    #[error("capacity range")]
    CapacityRange(#[from] CapacityRangeError),
    #[error(transparent)]
    Topology(#[from] MissingSegment),
}

/// Parses the volume that `CreateVolume` asks for.
pub(crate) fn parse_create_volume(
    request: &CreateVolumeRequest,
    flavor: ApiFlavor,
    minimums: MinimumAllocation,
) -> Result<VolumeRequest, RequestError> {
    // Kubernetes wants lower case; external-provisioner's names (pvc-<uid>) are already
    let name = required_field(&request.name, "name")?.to_lowercase();
    let modes = parse_capabilities(&request.volume_capabilities)?;
    check_mkfs_options(&request.parameters, flavor, &modes)?;
    let minimum = modes.first().map_or(0, |mode| minimums.for_mode(mode));
    // Mutable parameters take precedence, as CSI specifies
    let mutable = MutableParameters::parse(&request.mutable_parameters, flavor)?;
    let option_class = mutable
        .lvcreate_option_class
        .map_or_else(|| parameter(&request.parameters, flavor.lvcreate_option_class_parameter()), str::to_owned);
    // Of the limits all together: another class, later, would replace them all, too
    let has_mutable = !request.mutable_parameters.is_empty();
    let of_class = parse_io_limits(&request.parameters, flavor)?;
    Ok(VolumeRequest {
        name,
        size: parse_capacity_range(request.capacity_range, minimum)?,
        device_class: parameter(&request.parameters, flavor.device_class_parameter()),
        lvcreate_option_class: option_class,
        io_limits: if has_mutable { mutable.io_limits } else { of_class },
        filesystem: modes.iter().find_map(requested_filesystem).map(str::to_owned),
        placement: parse_placement(flavor, request.accessibility_requirements.as_ref())?,
        claim: claim_name(&request.parameters),
        source: None,
    })
}

/// Refuses mkfs options that the node would refuse when the volume is used. A block volume has no filesystem to make.
fn check_mkfs_options(
    parameters: &HashMap<String, String>,
    flavor: ApiFlavor,
    modes: &[VolumeMode],
) -> Result<(), RequestError> {
    let Some(options) = parameters.get(flavor.mkfs_options_parameter()) else { return Ok(()) };
    for mode in modes {
        match mode {
            VolumeMode::Filesystem(filesystem) => drop(MkfsOptions::parse(filesystem, options)?),
            VolumeMode::Block => {}
        }
    }
    Ok(())
}

/// Returns the filesystem that the node mounts; none for a device.
fn requested_filesystem(mode: &VolumeMode) -> Option<&str> {
    match mode {
        VolumeMode::Block => None,
        VolumeMode::Filesystem(name) if name.is_empty() => Some(DEFAULT_FILESYSTEM),
        VolumeMode::Filesystem(name) => Some(name),
    }
}

/// Returns the claim that the volume is for. external-provisioner names it with `--extra-create-metadata`.
fn claim_name(parameters: &HashMap<String, String>) -> Option<ClaimName> {
    let [namespace, name] = CLAIM_PARAMETERS.map(|key| parameters.get(key).filter(|value| !value.is_empty()).cloned());
    Some(ClaimName { namespace: namespace?, name: name? })
}

/// Returns the volume context: what the node has to know when it mounts the volume.
pub(crate) fn volume_context(parameters: &HashMap<String, String>, flavor: ApiFlavor) -> HashMap<String, String> {
    let key = flavor.mkfs_options_parameter();
    parameters.get(key).map(|options| (key.to_owned(), options.clone())).into_iter().collect()
}

/// The parameters of a VolumeAttributesClass: the class of lvcreate options and limits of I/O, and no other. A device
/// class would make the scheduler's choice of a node wrong, which goes by the StorageClass alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MutableParameters<'a> {
    /// The class of lvcreate options, if the VolumeAttributesClass names one.
    pub(crate) lvcreate_option_class: Option<&'a str>,
    /// All limits of the volume: one that is not in it is taken away.
    pub(crate) io_limits: IoLimits,
}

impl<'a> MutableParameters<'a> {
    pub(crate) fn parse(parameters: &'a HashMap<String, String>, flavor: ApiFlavor) -> Result<Self, RequestError> {
        let option_class = flavor.lvcreate_option_class_parameter();
        let is_limit = |key: &str| IoLimit::ALL.into_iter().any(|limit| limit.key(flavor) == key);
        if let Some(other) = parameters.keys().find(|&key| key != option_class && !is_limit(key)) {
            return Err(RequestError::UnknownMutableParameter(other.clone()));
        }
        let lvcreate_option_class = parameters.get(option_class).map(String::as_str);
        Ok(Self { lvcreate_option_class, io_limits: parse_io_limits(parameters, flavor)? })
    }
}

fn parse_io_limits(parameters: &HashMap<String, String>, flavor: ApiFlavor) -> Result<IoLimits, IoLimitError> {
    IoLimits::parse(flavor, |key| parameters.get(key).map(String::as_str))
}

/// The parsed request of `ControllerExpandVolume`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ExpandVolume {
    pub(crate) id: String,
    /// The size to grow to.
    pub(crate) size: VolumeSize,
    /// True if a filesystem has to grow as well, which the node does.
    pub(crate) has_filesystem: bool,
}

impl ExpandVolume {
    pub(crate) fn parse(request: &ControllerExpandVolumeRequest) -> Result<Self, RequestError> {
        let id = required_field(&request.volume_id, "volume_id")?.to_owned();
        if request.capacity_range.is_none() {
            return Err(RequestError::MissingField("capacity_range"));
        }
        let mode = request.volume_capability.as_ref().map(parse_capability).transpose()?;
        Ok(Self {
            id,
            size: parse_capacity_range(request.capacity_range, 0)?,
            // A caller that does not report it must assume a filesystem: growing a missing filesystem is no work
            has_filesystem: mode != Some(VolumeMode::Block),
        })
    }
}

/// The parsed request of `GetCapacity`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GetCapacity {
    pub(crate) classes: VolumeClasses,
    pub(crate) scope: CapacityScope,
    /// Bytes of the smallest volume that can be requested.
    pub(crate) minimum_volume_size: u64,
}

/// The nodes whose capacity is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CapacityScope {
    /// All nodes together.
    Cluster,
    /// The node of this topology segment.
    Segment(String),
    /// A topology without nodes of this driver.
    Elsewhere,
}

impl GetCapacity {
    /// Reads the request. external-provisioner sends all parameters of the StorageClass here, also those that it keeps
    /// from `CreateVolume`.
    pub(crate) fn parse(request: &GetCapacityRequest, flavor: ApiFlavor, minimums: MinimumAllocation) -> Self {
        Self {
            minimum_volume_size: minimum_volume_size(request, minimums),
            classes: VolumeClasses::new(
                &parameter(&request.parameters, flavor.device_class_parameter()),
                &parameter(&request.parameters, flavor.lvcreate_option_class_parameter()),
            ),
            scope: request.accessible_topology.as_ref().map_or(CapacityScope::Cluster, |topology| {
                node_segment(flavor, topology)
                    .map_or(CapacityScope::Elsewhere, |value| CapacityScope::Segment(value.to_owned()))
            }),
        }
    }
}

/// Returns the bytes of the smallest volume for the capabilities of the request. external-provisioner sends none: a
/// class with a filesystem may also be used for block volumes, and the smaller minimum counts.
fn minimum_volume_size(request: &GetCapacityRequest, minimums: MinimumAllocation) -> u64 {
    let mut modes = request.volume_capabilities.iter().filter_map(|capability| parse_capability(capability).ok());
    modes.next().map_or_else(
        || {
            let filesystem = minimum_allocation::filesystem_parameter(&request.parameters).to_owned();
            minimums.block.min(minimums.for_mode(&VolumeMode::Filesystem(filesystem)))
        },
        |mode| minimums.for_mode(&mode),
    )
}

/// The parsed request of `ValidateVolumeCapabilities`: the volume, and the capability that it cannot have, if there is
/// one.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ValidateVolume {
    pub(crate) id: String,
    pub(crate) objection: Option<RequestError>,
}

impl ValidateVolume {
    pub(crate) fn parse(request: &ValidateVolumeCapabilitiesRequest) -> Result<Self, RequestError> {
        let id = required_field(&request.volume_id, "volume_id")?.to_owned();
        match parse_capabilities(&request.volume_capabilities) {
            Ok(_) => Ok(Self { id, objection: None }),
            Err(objection @ (RequestError::UnsupportedAccessMode(_) | RequestError::UnsupportedFilesystem(_))) => {
                Ok(Self { id, objection: Some(objection) })
            }
            Err(error) => Err(error),
        }
    }
}

/// Returns the value of a field that must not be empty.
pub(crate) fn required_field<'a>(value: &'a str, field: &'static str) -> Result<&'a str, RequestError> {
    if value.is_empty() { Err(RequestError::MissingField(field)) } else { Ok(value) }
}

fn parse_capabilities(capabilities: &[VolumeCapability]) -> Result<Vec<VolumeMode>, RequestError> {
    if capabilities.is_empty() {
        return Err(RequestError::MissingField("volume_capabilities"));
    }
    capabilities.iter().map(|capability| parse_capability(capability).and_then(check_filesystem)).collect()
}

/// Refuses a filesystem that the node would refuse when it mounts the volume, when there are a volume and a pod
/// already.
fn check_filesystem(mode: VolumeMode) -> Result<VolumeMode, RequestError> {
    match mode {
        VolumeMode::Filesystem(filesystem) if !minimum_allocation::is_supported_filesystem(&filesystem) => {
            Err(RequestError::UnsupportedFilesystem(filesystem))
        }
        supported @ (VolumeMode::Filesystem(_) | VolumeMode::Block) => Ok(supported),
    }
}

fn parse_capability(capability: &VolumeCapability) -> Result<VolumeMode, RequestError> {
    let volume_mode = match capability.access_type.as_ref().ok_or(RequestError::NoAccessType)? {
        AccessType::Block(_) => VolumeMode::Block,
        AccessType::Mount(mount) => VolumeMode::Filesystem(mount.fs_type.clone()),
    };
    match capability.access_mode.as_ref().map(topolvm_proto::csi::volume_capability::AccessMode::mode) {
        None | Some(Mode::SingleNodeWriter | Mode::SingleNodeSingleWriter | Mode::SingleNodeMultiWriter) => {
            Ok(volume_mode)
        }
        Some(other) => Err(RequestError::UnsupportedAccessMode(other.as_str_name())),
    }
}

fn parse_capacity_range(range: Option<CapacityRange>, minimum: u64) -> Result<VolumeSize, RequestError> {
    let CapacityRange { required_bytes, limit_bytes } = range.unwrap_or_default();
    Ok(VolumeSize::from_range(required_bytes, limit_bytes, minimum)?)
}

fn parameter(parameters: &HashMap<String, String>, key: &str) -> String {
    parameters.get(key).cloned().unwrap_or_default()
}

#[cfg(test)]
mod tests;
