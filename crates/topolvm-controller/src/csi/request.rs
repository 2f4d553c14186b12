//! CSI requests, parsed once: what comes out has no optional that is required and no string that is a number.

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
use crate::filesystem;
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
            let filesystem = filesystem::of_class(&request.parameters).to_owned();
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
        Access::Mount(filesystem) if !filesystem::is_known(&filesystem) => Err(RequestError::Filesystem(filesystem)),
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
mod tests {
    use rstest::rstest;
    use topolvm_proto::csi::Topology;
    use topolvm_proto::csi::volume_capability::{AccessMode, BlockVolume, MountVolume};

    use super::*;
    use crate::volumes::Placement;

    const FLAVOR: ApiFlavor = ApiFlavor::TopoLvm;
    const MINIMUMS: MinimumAllocation =
        MinimumAllocation { block: 8 << 20, ext4: 32 << 20, xfs: 300 << 20, btrfs: 200 << 20 };

    fn mount(filesystem: &str) -> VolumeCapability {
        capability(
            AccessType::Mount(MountVolume { fs_type: filesystem.to_owned(), ..MountVolume::default() }),
            Mode::SingleNodeWriter,
        )
    }

    fn capability(access_type: AccessType, mode: Mode) -> VolumeCapability {
        VolumeCapability { access_type: Some(access_type), access_mode: Some(AccessMode { mode: mode.into() }) }
    }

    fn request() -> CreateVolumeRequest {
        CreateVolumeRequest {
            name: "PVC-1".to_owned(),
            capacity_range: Some(CapacityRange { required_bytes: 1 << 20, limit_bytes: 0 }),
            volume_capabilities: vec![mount("xfs")],
            ..CreateVolumeRequest::default()
        }
    }

    fn parse(request: &CreateVolumeRequest) -> Result<Wanted, RequestError> {
        create_volume(request, FLAVOR, MINIMUMS)
    }

    #[test]
    fn a_request_becomes_a_wanted_volume() {
        let mut request = request();
        request.parameters = [
            ("topolvm.io/device-class", "ssd"),
            ("topolvm.io/lvcreate-option-class", "raid"),
            ("topolvm.cybozu.com/device-class", "other"),
            ("csi.storage.k8s.io/pv/name", "pvc-1"),
            ("csi.storage.k8s.io/pvc/name", "data"),
            ("csi.storage.k8s.io/pvc/namespace", "ns"),
        ]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into();
        assert_eq!(
            parse(&request),
            Ok(Wanted {
                name: "pvc-1".to_owned(),
                size: VolumeSize::from_range(1 << 20, 0, 300 << 20).unwrap(),
                device_class: "ssd".to_owned(),
                lvcreate_option_class: "raid".to_owned(),
                placement: Placement::Anywhere,
                claim: Some(ClaimName { namespace: "ns".to_owned(), name: "data".to_owned() }),
                origin: None,
            })
        );
    }

    #[test]
    fn a_volume_attributes_class_decides_the_lvcreate_options() {
        let mut request = request();
        let key = FLAVOR.lvcreate_option_class_parameter();
        request.parameters.insert(key.to_owned(), "stripe".to_owned());
        request.mutable_parameters.insert(key.to_owned(), "raid".to_owned());
        assert_eq!(parse(&request).unwrap().lvcreate_option_class, "raid");
    }

    #[test]
    fn mkfs_options_travel_to_the_node_in_the_context_of_the_volume() {
        let parameters = [("topolvm.io/mkfs-options", "-i 4096"), ("topolvm.io/device-class", "ssd")];
        let parameters = parameters.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        let context = [("topolvm.io/mkfs-options".to_owned(), "-i 4096".to_owned())].into();
        assert_eq!(volume_context(&parameters, FLAVOR), context);
    }

    #[rstest]
    #[case(mount("xfs"), 300)]
    #[case(mount("btrfs"), 200)]
    #[case(mount(""), 32)]
    #[case(capability(AccessType::Block(BlockVolume {}), Mode::SingleNodeWriter), 8)]
    fn the_first_capability_decides_the_minimum(#[case] first: VolumeCapability, #[case] mebibytes: u64) {
        let mut request = request();
        request.volume_capabilities = vec![first, mount("xfs")];
        assert_eq!(parse(&request).unwrap().size.bytes, mebibytes << 20);
    }

    #[rstest]
    #[case::no_name(|r: &mut CreateVolumeRequest| r.name.clear(), RequestError::Missing("name"))]
    #[case::no_capabilities(|r: &mut CreateVolumeRequest| r.volume_capabilities.clear(), RequestError::Missing("volume_capabilities"))]
    #[case::no_access_type(|r: &mut CreateVolumeRequest| r.volume_capabilities.push(VolumeCapability::default()), RequestError::NoAccessType)]
    #[case::mutable(
        |r: &mut CreateVolumeRequest| drop(r.mutable_parameters.insert("iops".to_owned(), "9".to_owned())),
        RequestError::Mutable("iops".to_owned())
    )]
    #[case::limit_below_minimum(
        |r: &mut CreateVolumeRequest| r.capacity_range.as_mut().unwrap().limit_bytes = 2 << 20,
        RequestError::Range(CapacityRangeError::MinimumAboveLimit { minimum: 300 << 20, limit: 2 << 20 })
    )]
    fn what_can_never_work_is_refused(#[case] change: fn(&mut CreateVolumeRequest), #[case] error: RequestError) {
        let mut request = request();
        change(&mut request);
        assert_eq!(parse(&request), Err(error));
    }

    /// The node compares names as they are, and so do mkfs and the kernel.
    #[rstest]
    #[case("zfs")]
    #[case("ext3")]
    #[case("XFS")]
    #[case(" ext4")]
    fn filesystems_that_no_node_makes_are_refused(#[case] filesystem: &str) {
        let mut request = request();
        request.volume_capabilities.push(mount(filesystem));
        let error = parse(&request).unwrap_err();
        assert_eq!((error.code(), &error), (Code::InvalidArgument, &RequestError::Filesystem(filesystem.to_owned())));
        assert!(error.to_string().contains("to ext4, xfs, btrfs, or"), "{error}");

        let validate = ValidateVolumeCapabilitiesRequest {
            volume_id: "v".to_owned(),
            volume_capabilities: vec![mount(filesystem)],
            ..ValidateVolumeCapabilitiesRequest::default()
        };
        assert_eq!(ValidateVolume::try_from(&validate).unwrap().objection, Some(error));
    }

    #[rstest]
    #[case("")]
    #[case("ext4")]
    #[case("xfs")]
    #[case("btrfs")]
    fn filesystems_that_nodes_make_are_served(#[case] filesystem: &str) {
        let mut request = request();
        request.volume_capabilities = vec![mount(filesystem)];
        assert!(parse(&request).is_ok());
    }

    /// What TopoLVM made goes on growing.
    #[test]
    fn a_volume_with_another_filesystem_can_grow() {
        let request = ControllerExpandVolumeRequest {
            volume_id: "v".to_owned(),
            capacity_range: Some(CapacityRange { required_bytes: 5000, limit_bytes: 0 }),
            volume_capability: Some(mount("ext3")),
            ..ControllerExpandVolumeRequest::default()
        };
        assert!(ExpandVolume::try_from(request).unwrap().has_filesystem);
    }

    #[rstest]
    #[case(Mode::Unknown)]
    #[case(Mode::SingleNodeReaderOnly)]
    #[case(Mode::MultiNodeReaderOnly)]
    #[case(Mode::MultiNodeSingleWriter)]
    #[case(Mode::MultiNodeMultiWriter)]
    fn other_modes_than_writing_on_one_node_are_refused(#[case] mode: Mode) {
        let mut request = request();
        let wrong = capability(AccessType::Block(BlockVolume {}), mode);
        request.volume_capabilities.push(wrong.clone());
        assert_eq!(parse(&request), Err(RequestError::AccessMode(mode.as_str_name())));

        let validate = ValidateVolumeCapabilitiesRequest {
            volume_id: "v".to_owned(),
            volume_capabilities: vec![wrong],
            ..ValidateVolumeCapabilitiesRequest::default()
        };
        let objection = ValidateVolume::try_from(&validate).unwrap().objection;
        assert_eq!(objection, Some(RequestError::AccessMode(mode.as_str_name())));
    }

    #[rstest]
    #[case(Mode::SingleNodeWriter)]
    #[case(Mode::SingleNodeSingleWriter)]
    #[case(Mode::SingleNodeMultiWriter)]
    fn writers_on_one_node_are_served(#[case] mode: Mode) {
        let mut request = request();
        request.volume_capabilities = vec![capability(AccessType::Block(BlockVolume {}), mode)];
        assert!(parse(&request).is_ok());
    }

    #[rstest]
    #[case(None, true)]
    #[case(Some(mount("xfs")), true)]
    #[case(Some(capability(AccessType::Block(BlockVolume {}), Mode::SingleNodeWriter)), false)]
    fn a_filesystem_grows_on_the_node_unless_the_volume_is_a_block_device(
        #[case] capability: Option<VolumeCapability>,
        #[case] has_filesystem: bool,
    ) {
        let request = ControllerExpandVolumeRequest {
            volume_id: "v".to_owned(),
            capacity_range: Some(CapacityRange { required_bytes: 5000, limit_bytes: 0 }),
            volume_capability: capability,
            ..ControllerExpandVolumeRequest::default()
        };
        assert_eq!(
            ExpandVolume::try_from(request),
            Ok(ExpandVolume { id: "v".to_owned(), bytes: 8192, has_filesystem })
        );
    }

    #[test]
    fn expansion_needs_an_id_and_a_range() {
        let mut request = ControllerExpandVolumeRequest::default();
        let parse = ExpandVolume::try_from;
        assert_eq!(parse(request.clone()), Err(RequestError::Missing("volume_id")));
        request.volume_id.push('v');
        assert_eq!(parse(request), Err(RequestError::Missing("capacity_range")));
    }

    #[rstest]
    #[case(None, Scope::Cluster)]
    #[case(Some(("topology.topolvm.io/node", "n1")), Scope::Segment("n1".to_owned()))]
    #[case(Some(("topology.topolvm.cybozu.com/node", "n1")), Scope::Elsewhere)]
    fn capacity_is_asked_of_the_cluster_or_of_one_segment(
        #[case] topology: Option<(&str, &str)>,
        #[case] scope: Scope,
    ) {
        let request = GetCapacityRequest {
            parameters: [("topolvm.io/device-class".to_owned(), "ssd".to_owned())].into(),
            accessible_topology: topology
                .map(|(key, value)| Topology { segments: [(key.to_owned(), value.to_owned())].into() }),
            ..GetCapacityRequest::default()
        };
        let expected = GetCapacity { device_class: "ssd".to_owned(), scope, smallest: 8 << 20 };
        assert_eq!(GetCapacity::parse(&request, FLAVOR, MINIMUMS), expected);
    }

    #[rstest]
    #[case::of_a_capability(Some(mount("xfs")), ("csi.storage.k8s.io/fstype", ""), 300)]
    #[case::of_the_class(None, ("csi.storage.k8s.io/fstype", "xfs"), 64)]
    #[case::of_the_class_as_older_classes_say_it(None, ("fstype", "btrfs"), 64)]
    #[case::of_the_class_as_older_classes_write_it(None, ("fsType", "btrfs"), 64)]
    #[case::of_the_class_as_nobody_writes_it(None, ("CSI.storage.k8s.io/fsType", "xfs"), 64)]
    #[case::of_an_unknown_filesystem(None, ("csi.storage.k8s.io/fstype", "zfs"), 0)]
    fn the_smallest_volume_depends_on_the_use(
        #[case] capability: Option<VolumeCapability>,
        #[case] (parameter, filesystem): (&str, &str),
        #[case] mebibytes: u64,
    ) {
        let minimums = MinimumAllocation { block: 64 << 20, ..MINIMUMS };
        let request = GetCapacityRequest {
            parameters: [(parameter.to_owned(), filesystem.to_owned())].into(),
            volume_capabilities: capability.into_iter().collect(),
            ..GetCapacityRequest::default()
        };
        assert_eq!(GetCapacity::parse(&request, FLAVOR, minimums).smallest, mebibytes << 20);
    }
}
