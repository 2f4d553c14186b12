use csi::VolumeCapability;
use csi::volume_capability::access_mode::Mode;
use csi::volume_capability::{AccessMode, BlockVolume, MountVolume};
use linux_mount::{Filesystem, MkfsOptions, MountOptions};
use rstest::rstest;
use tonic::Code;
use topolvm_runtime::grpc::GrpcCode as _;

use super::*;

fn read(request: csi::NodePublishVolumeRequest) -> Result<PublishVolume, RequestError> {
    PublishVolume::parse(ApiFlavor::TopoLvm, request)
}

fn capability(access_type: Option<AccessType>) -> VolumeCapability {
    VolumeCapability { access_type, access_mode: Some(AccessMode { mode: Mode::SingleNodeWriter.into() }) }
}

fn publish() -> csi::NodePublishVolumeRequest {
    csi::NodePublishVolumeRequest {
        volume_id: "v".to_owned(),
        target_path: "/t".to_owned(),
        volume_capability: Some(capability(Some(AccessType::Mount(MountVolume {
            fs_type: String::new(),
            mount_flags: vec!["noatime".to_owned()],
            volume_mount_group: String::new(),
        })))),
        readonly: true,
        ..csi::NodePublishVolumeRequest::default()
    }
}

#[test]
fn an_unset_filesystem_type_is_ext4_and_readonly_comes_first() {
    let expected = PublishVolume {
        id: "v".to_owned(),
        staging: None,
        target: "/t".into(),
        access: Access::Mount {
            filesystem: Filesystem::Ext4,
            options: MountOptions::parse(true, &["noatime"]).unwrap(),
            mkfs_options: Ok(MkfsOptions::default()),
        },
        exclusive: false,
        pod: None,
    };
    assert_eq!(read(publish()), Ok(expected));
}

#[test]
fn the_pod_is_the_one_that_kubelet_names() {
    let context =
        |pairs: &[(&str, &str)]| pairs.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect();
    let named = [("csi.storage.k8s.io/pod.name", "web-0"), ("csi.storage.k8s.io/pod.uid", "u")];
    let request = csi::NodePublishVolumeRequest { volume_context: context(&named), ..publish() };
    let pod = PodInfo { namespace: String::new(), name: "web-0".to_owned(), uid: "u".to_owned() };
    assert_eq!(read(request).unwrap().pod, Some(pod));
    let request = csi::NodePublishVolumeRequest { volume_context: context(&named[..1]), ..publish() };
    assert_eq!(read(request).unwrap().pod, None);
}

#[test]
fn block_access_differs_from_a_filesystem() {
    let request = csi::NodePublishVolumeRequest {
        volume_capability: Some(capability(Some(AccessType::Block(BlockVolume {})))),
        ..publish()
    };
    assert_eq!(read(request).unwrap().access, Access::Block { readonly: true });
}

#[rstest]
#[case(Mode::SingleNodeWriter, false)]
#[case(Mode::SingleNodeMultiWriter, false)]
#[case(Mode::SingleNodeSingleWriter, true)]
fn only_a_volume_for_one_pod_is_exclusive(#[case] mode: Mode, #[case] expected: bool) {
    let mut request = publish();
    request.volume_capability.as_mut().unwrap().access_mode = Some(AccessMode { mode: mode.into() });
    assert_eq!(read(request).unwrap().exclusive, expected);
}

#[test]
fn options_for_mkfs_come_with_the_volume() {
    let mut request = publish();
    request.volume_context.insert("topolvm.io/mkfs-options".to_owned(), "-i 4096".to_owned());
    let Access::Mount { mkfs_options, .. } = read(request).unwrap().access else { panic!("no mount") };
    assert_eq!(mkfs_options.unwrap().as_slice(), ["-i", "4096"]);
}

type Publish = csi::NodePublishVolumeRequest;

#[rstest]
#[case(|r: &mut Publish| r.volume_id.clear(), Code::InvalidArgument)]
#[case(|r: &mut Publish| r.target_path.clear(), Code::InvalidArgument)]
#[case(|r: &mut Publish| r.target_path = "relative".to_owned(), Code::InvalidArgument)]
#[case(|r: &mut Publish| r.target_path = "/".to_owned(), Code::InvalidArgument)]
#[case(|r: &mut Publish| r.volume_capability = None, Code::InvalidArgument)]
#[case(|r: &mut Publish| r.volume_capability = Some(capability(None)), Code::InvalidArgument)]
#[case(|r: &mut Publish| r.volume_capability.as_mut().unwrap().access_mode = None, Code::FailedPrecondition)]
#[case(
    |r: &mut Publish| r.volume_capability.as_mut().unwrap().access_mode =
        Some(AccessMode { mode: Mode::MultiNodeMultiWriter.into() }),
    Code::FailedPrecondition
)]
fn wrong_publish_requests_are_refused(#[case] spoil: fn(&mut Publish), #[case] code: Code) {
    let mut request = publish();
    spoil(&mut request);
    assert_eq!(read(request).unwrap_err().code(), code);
}

#[rstest]
#[case("zfs", "noatime")]
#[case("ext4", "rw")]
#[case("ext4", "bind")]
fn filesystems_and_options_that_cannot_be_are_refused(#[case] fs_type: &str, #[case] option: &str) {
    let mount = MountVolume {
        fs_type: fs_type.to_owned(),
        mount_flags: vec![option.to_owned()],
        volume_mount_group: String::new(),
    };
    let request = csi::NodePublishVolumeRequest {
        volume_capability: Some(capability(Some(AccessType::Mount(mount)))),
        ..publish()
    };
    assert_eq!(read(request).unwrap_err().code(), Code::InvalidArgument);
}

#[rstest]
#[case(0, 0, Ok(0))]
#[case(5, 0, Ok(5))]
#[case(5, 5, Ok(5))]
#[case(0, 5, Ok(0))]
#[case(-1, 0, Err(Code::InvalidArgument))]
#[case(0, -1, Err(Code::InvalidArgument))]
#[case(6, 5, Err(Code::InvalidArgument))]
fn capacity_ranges_are_checked(#[case] required: i64, #[case] limit: i64, #[case] expected: Result<u64, Code>) {
    let request = csi::NodeExpandVolumeRequest {
        volume_id: "v".to_owned(),
        volume_path: "some/path".to_owned(),
        capacity_range: Some(csi::CapacityRange { required_bytes: required, limit_bytes: limit }),
        ..csi::NodeExpandVolumeRequest::default()
    };
    let parsed = ExpandVolume::parse(request);
    assert_eq!(parsed.map(|request| request.required_bytes).map_err(|error| error.code()), expected);
}
