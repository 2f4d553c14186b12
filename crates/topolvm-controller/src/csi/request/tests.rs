use rstest::rstest;
use tonic::Code;
use topolvm_proto::csi::Topology;
use topolvm_proto::csi::volume_capability::{AccessMode, BlockVolume, MountVolume};
use topolvm_runtime::grpc::GrpcCode as _;

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

fn parse(request: &CreateVolumeRequest) -> Result<VolumeRequest, RequestError> {
    parse_create_volume(request, FLAVOR, MINIMUMS)
}

#[test]
fn the_fields_of_a_request_are_parsed() {
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
        Ok(VolumeRequest {
            name: "pvc-1".to_owned(),
            size: VolumeSize::from_range(1 << 20, 0, 300 << 20).unwrap(),
            device_class: "ssd".to_owned(),
            lvcreate_option_class: "raid".to_owned(),
            io_limits: IoLimits::default(),
            filesystem: Some("xfs".to_owned()),
            placement: Placement::Anywhere,
            claim: Some(ClaimName { namespace: "ns".to_owned(), name: "data".to_owned() }),
            source: None,
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
fn io_limits_of_attributes_class_replace_those_of_storage_class() {
    let limits = |pairs: &[(IoLimit, u64)]| {
        pairs.iter().fold(IoLimits::default(), |limits, &(limit, rate)| limits.with(limit, Some(rate)))
    };
    let mut request = request();
    request.parameters.insert("topolvm.io/read-bytes-per-second".to_owned(), "1Mi".to_owned());
    assert_eq!(parse(&request).unwrap().io_limits, limits(&[(IoLimit::ReadBytes, 1 << 20)]));
    request.mutable_parameters.insert("topolvm.io/write-operations-per-second".to_owned(), "70".to_owned());
    assert_eq!(parse(&request).unwrap().io_limits, limits(&[(IoLimit::WriteOperations, 70)]));
}

#[rstest]
#[case("topolvm.io/read-bytes-per-second", "0")]
#[case("topolvm.io/write-bytes-per-second", "-1")]
#[case("topolvm.io/read-operations-per-second", "18446744073709551616")]
#[case("topolvm.io/write-operations-per-second", "1.5")]
fn limits_that_cannot_be_meant_are_refused_in_either_class(#[case] key: &str, #[case] value: &str) {
    let parameters = HashMap::from([(key.to_owned(), value.to_owned())]);
    for request in [
        CreateVolumeRequest { parameters: parameters.clone(), ..request() },
        CreateVolumeRequest { mutable_parameters: parameters, ..request() },
    ] {
        let error = parse(&request).unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument);
        assert!(error.to_string().contains(key) && error.to_string().contains(value), "{error}");
    }
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
#[case::no_name(|r: &mut CreateVolumeRequest| r.name.clear(), RequestError::MissingField("name"))]
#[case::no_capabilities(
    |r: &mut CreateVolumeRequest| r.volume_capabilities.clear(),
    RequestError::MissingField("volume_capabilities")
)]
#[case::no_access_type(
    |r: &mut CreateVolumeRequest| r.volume_capabilities.push(VolumeCapability::default()),
    RequestError::NoAccessType
)]
#[case::mutable(
    |r: &mut CreateVolumeRequest| drop(r.mutable_parameters.insert("iops".to_owned(), "9".to_owned())),
    RequestError::UnknownMutableParameter("iops".to_owned())
)]
#[case::limit_below_minimum(
    |r: &mut CreateVolumeRequest| r.capacity_range.as_mut().unwrap().limit_bytes = 2 << 20,
    RequestError::CapacityRange(CapacityRangeError::MinimumAboveLimit { minimum: 300 << 20, limit: 2 << 20 })
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
    assert_eq!(
        (error.code(), &error),
        (Code::InvalidArgument, &RequestError::UnsupportedFilesystem(filesystem.to_owned()))
    );
    assert!(error.to_string().contains("to ext4, xfs, btrfs, or"), "{error}");

    let validate = ValidateVolumeCapabilitiesRequest {
        volume_id: "v".to_owned(),
        volume_capabilities: vec![mount(filesystem)],
        ..ValidateVolumeCapabilitiesRequest::default()
    };
    assert_eq!(ValidateVolume::parse(&validate).unwrap().objection, Some(error));
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

/// A volume that TopoLVM made can still be expanded.
#[test]
fn a_volume_with_another_filesystem_can_grow() {
    let request = ControllerExpandVolumeRequest {
        volume_id: "v".to_owned(),
        capacity_range: Some(CapacityRange { required_bytes: 5000, limit_bytes: 0 }),
        volume_capability: Some(mount("ext3")),
        ..ControllerExpandVolumeRequest::default()
    };
    assert!(ExpandVolume::parse(&request).unwrap().has_filesystem);
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
    assert_eq!(parse(&request), Err(RequestError::UnsupportedAccessMode(mode.as_str_name())));

    let validate = ValidateVolumeCapabilitiesRequest {
        volume_id: "v".to_owned(),
        volume_capabilities: vec![wrong],
        ..ValidateVolumeCapabilitiesRequest::default()
    };
    let objection = ValidateVolume::parse(&validate).unwrap().objection;
    assert_eq!(objection, Some(RequestError::UnsupportedAccessMode(mode.as_str_name())));
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
fn expansion_needs_the_node_only_for_filesystem_volumes(
    #[case] capability: Option<VolumeCapability>,
    #[case] has_filesystem: bool,
) {
    let request = ControllerExpandVolumeRequest {
        volume_id: "v".to_owned(),
        capacity_range: Some(CapacityRange { required_bytes: 5000, limit_bytes: 0 }),
        volume_capability: capability,
        ..ControllerExpandVolumeRequest::default()
    };
    let size = VolumeSize::from_range(5000, 0, 0).unwrap();
    assert_eq!(ExpandVolume::parse(&request), Ok(ExpandVolume { id: "v".to_owned(), size, has_filesystem }));
}

#[test]
fn expansion_needs_an_id_and_a_range() {
    let mut request = ControllerExpandVolumeRequest::default();
    let parse = ExpandVolume::parse;
    assert_eq!(parse(&request), Err(RequestError::MissingField("volume_id")));
    request.volume_id.push('v');
    assert_eq!(parse(&request), Err(RequestError::MissingField("capacity_range")));
}

#[rstest]
#[case(None, CapacityScope::Cluster)]
#[case(Some(("topology.topolvm.io/node", "n1")), CapacityScope::Segment("n1".to_owned()))]
#[case(Some(("topology.topolvm.cybozu.com/node", "n1")), CapacityScope::Elsewhere)]
fn capacity_is_asked_of_the_cluster_or_of_one_segment(
    #[case] topology: Option<(&str, &str)>,
    #[case] scope: CapacityScope,
) {
    let request = GetCapacityRequest {
        parameters: [("topolvm.io/device-class", "ssd"), ("topolvm.io/lvcreate-option-class", "raid")]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into(),
        accessible_topology: topology
            .map(|(key, value)| Topology { segments: [(key.to_owned(), value.to_owned())].into() }),
        ..GetCapacityRequest::default()
    };
    let expected = GetCapacity { classes: VolumeClasses::new("ssd", "raid"), scope, minimum_volume_size: 8 << 20 };
    assert_eq!(GetCapacity::parse(&request, FLAVOR, MINIMUMS), expected);
}

#[rstest]
#[case::of_a_capability(Some(mount("xfs")), ("csi.storage.k8s.io/fstype", ""), 300)]
#[case::of_the_class(None, ("csi.storage.k8s.io/fstype", "xfs"), 64)]
#[case::of_the_class_as_older_classes_say_it(None, ("fstype", "btrfs"), 64)]
#[case::of_the_class_as_older_classes_write_it(None, ("fsType", "btrfs"), 64)]
#[case::of_the_class_in_another_case(None, ("CSI.storage.k8s.io/fsType", "xfs"), 64)]
#[case::of_an_unknown_filesystem(None, ("csi.storage.k8s.io/fstype", "zfs"), 0)]
fn the_minimum_volume_size_depends_on_capability_and_class(
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
    assert_eq!(GetCapacity::parse(&request, FLAVOR, minimums).minimum_volume_size, mebibytes << 20);
}
