//! Staging: a volume is mounted once and bound to each pod. And what is left of it when it is switched on or off.

use std::path::{Path, PathBuf};

use linux_mount::{Contents, Filesystem};
use rstest::rstest;
use tonic::{Code, Request, Status};
use topolvm_proto::csi::node_server::Node as _;
use topolvm_proto::csi::node_service_capability::{Type, rpc};
use topolvm_proto::csi::volume_capability::access_mode::Mode;
use topolvm_proto::csi::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use topolvm_proto::csi::{
    NodeExpandVolumeRequest, NodeGetCapabilitiesRequest, NodeGetVolumeHealthRequest, NodeGetVolumeStatsRequest,
    NodePublishVolumeRequest, NodeStageVolumeRequest, NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest,
    VolumeCapability,
};

use crate::lvmd_process::VG;
use crate::node::{GIB, Node, capability, device, mode};

/// A node whose agent stages volumes.
async fn staging_node() -> Node {
    let mut node = Node::start().await;
    node.restart(true);
    std::fs::create_dir_all(node.staging()).unwrap();
    node
}

impl Node {
    /// Returns the path at which kubelet stages the volume.
    fn staging(&self) -> PathBuf {
        self.dir.path().join("plugins/kubernetes.io/csi/topolvm.io/4e07408562be/globalmount")
    }

    /// The path of a second pod.
    fn second(&self) -> PathBuf {
        self.dir.path().join("second").join("mount")
    }

    fn to_stage(&self) -> NodeStageVolumeRequest {
        NodeStageVolumeRequest {
            volume_id: "v1".to_owned(),
            staging_target_path: self.staging().display().to_string(),
            volume_capability: self.filesystem().volume_capability,
            ..NodeStageVolumeRequest::default()
        }
    }

    async fn stage(&self, request: NodeStageVolumeRequest) -> Result<(), Status> {
        self.service.node_stage_volume(Request::new(request)).await.map(drop)
    }

    async fn unstage(&self) -> Result<(), Status> {
        let staging_target_path = self.staging().display().to_string();
        let request = NodeUnstageVolumeRequest { volume_id: "v1".to_owned(), staging_target_path };
        self.service.node_unstage_volume(Request::new(request)).await.map(drop)
    }

    async fn unpublish_at(&self, target: &Path) -> Result<(), Status> {
        let target_path = target.display().to_string();
        let request = NodeUnpublishVolumeRequest { volume_id: "v1".to_owned(), target_path };
        self.service.node_unpublish_volume(Request::new(request)).await.map(drop)
    }

    /// Of a volume that kubelet has staged before.
    fn staged(&self, request: NodePublishVolumeRequest) -> NodePublishVolumeRequest {
        NodePublishVolumeRequest { staging_target_path: self.staging().display().to_string(), ..request }
    }

    fn at_second(&self, request: NodePublishVolumeRequest) -> NodePublishVolumeRequest {
        NodePublishVolumeRequest { target_path: self.second().display().to_string(), ..request }
    }

    /// Paths and whether they are for reading only, the oldest first.
    fn mounted(&self) -> Vec<(PathBuf, bool)> {
        self.machine.mounts().into_iter().map(|mount| (mount.target, mount.readonly)).collect()
    }

    async fn announces_staging(&self) -> bool {
        let answer = self.service.node_get_capabilities(Request::new(NodeGetCapabilitiesRequest {})).await.unwrap();
        let is_it = |kind: Type| matches!(kind, Type::Rpc(rpc) if rpc.r#type() == rpc::Type::StageUnstageVolume);
        answer.into_inner().capabilities.into_iter().filter_map(|capability| capability.r#type).any(is_it)
    }
}

fn of_filesystem(fs_type: &str, flags: &[&str]) -> VolumeCapability {
    capability(AccessType::Mount(MountVolume {
        fs_type: fs_type.to_owned(),
        mount_flags: flags.iter().map(|&flag| flag.to_owned()).collect(),
        ..MountVolume::default()
    }))
}

#[tokio::test]
async fn staging_is_announced_and_served_only_when_asked_for() {
    let mut node = Node::start().await;
    assert!(!node.announces_staging().await);
    assert_eq!(node.stage(node.to_stage()).await.unwrap_err().code(), Code::Unimplemented);
    assert_eq!(node.machine.mounts(), []);
    node.restart(true);
    assert!(node.announces_staging().await);
}

#[tokio::test]
async fn staged_volume_is_checked_and_mounted_once_for_all_pods() {
    let node = staging_node().await;
    node.machine.put(&device(), Contents::Filesystem("ext4".to_owned()));
    for _ in 0..2 {
        node.stage(node.to_stage()).await.unwrap();
        node.publish(node.staged(node.filesystem())).await.unwrap();
        node.publish(node.at_second(node.staged(node.filesystem()))).await.unwrap();
    }
    assert_eq!(node.machine.done(), ["check /dev/myvg/v1"]);
    let expected = [node.staging(), node.target(), node.second()].map(|path| (path, false));
    assert_eq!(node.mounted(), expected);

    for _ in 0..2 {
        node.unpublish().await.unwrap();
        node.unpublish_at(&node.second()).await.unwrap();
        node.unstage().await.unwrap();
    }
    assert_eq!(node.machine.mounts(), []);
    assert!(!node.target().exists() && node.staging().is_dir(), "the staging directory is the caller's");
}

#[tokio::test]
async fn staged_blank_volume_is_formatted_with_mode_2777() {
    let node = staging_node().await;
    let mut request = node.to_stage();
    request.volume_context.insert("topolvm.io/mkfs-options".to_owned(), "-i 4096".to_owned());
    node.stage(request).await.unwrap();
    assert_eq!(node.machine.done(), ["mkfs /dev/myvg/v1 -i 4096"]);
    assert_eq!(node.machine.mounts().first().unwrap().data, "discard");
    assert_eq!(mode(&node.staging()), 0o2777);
}

#[tokio::test]
async fn read_only_pod_gets_a_read_only_bind_next_to_its_writer() {
    let node = staging_node().await;
    node.stage(node.to_stage()).await.unwrap();
    let reader = NodePublishVolumeRequest { readonly: true, ..node.staged(node.filesystem()) };
    for _ in 0..2 {
        node.publish(reader.clone()).await.unwrap();
        node.publish(node.at_second(node.staged(node.filesystem()))).await.unwrap();
    }
    assert_eq!(node.mounted(), [(node.staging(), false), (node.target(), true), (node.second(), false)]);
    let writer = node.publish(node.staged(node.filesystem())).await.unwrap_err();
    assert_eq!(writer.code(), Code::AlreadyExists, "{writer}");
}

#[tokio::test]
async fn staged_volume_grows_at_staging_and_by_either_path() {
    let node = staging_node().await;
    node.machine.put(&device(), Contents::Filesystem("ext4".to_owned()));
    node.grow_lv(2 * GIB);
    node.stage(node.to_stage()).await.unwrap();
    assert_eq!(node.machine.filesystem_bytes(&device()), 2 * GIB);
    node.publish(node.staged(node.filesystem())).await.unwrap();
    for (path, size) in [(node.staging(), 3 * GIB), (node.target(), 4 * GIB)] {
        node.grow_lv(size);
        let answer = node.expand("v1", &path, size).await.unwrap();
        assert_eq!((u64::try_from(answer).unwrap(), node.machine.filesystem_bytes(&device())), (size, size));
    }
}

#[tokio::test]
async fn read_only_pod_grows_its_volume_by_the_staging_path() {
    let node = staging_node().await;
    node.stage(node.to_stage()).await.unwrap();
    node.publish(NodePublishVolumeRequest { readonly: true, ..node.staged(node.filesystem()) }).await.unwrap();
    node.grow_lv(2 * GIB);
    let status = node.expand("v1", &node.target(), 2 * GIB).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
    let request = NodeExpandVolumeRequest {
        volume_id: "v1".to_owned(),
        volume_path: node.target().display().to_string(),
        staging_target_path: node.staging().display().to_string(),
        ..NodeExpandVolumeRequest::default()
    };
    node.service.node_expand_volume(Request::new(request)).await.unwrap();
    assert_eq!(node.machine.filesystem_bytes(&device()), 2 * GIB);
}

#[tokio::test]
async fn usage_and_health_are_reported_for_staging_and_pod_paths() {
    let node = staging_node().await;
    node.stage(node.to_stage()).await.unwrap();
    node.publish(NodePublishVolumeRequest { readonly: true, ..node.staged(node.filesystem()) }).await.unwrap();
    node.machine.stop_writes(&device());
    for path in [node.staging(), node.target()] {
        let (path, staging) = (path.display().to_string(), node.staging().display().to_string());
        let request = NodeGetVolumeStatsRequest {
            volume_id: "v1".to_owned(),
            volume_path: path.clone(),
            staging_target_path: staging.clone(),
        };
        let stats = node.service.node_get_volume_stats(Request::new(request)).await.unwrap().into_inner();
        assert_eq!(stats.usage.len(), 2);
        let condition = stats.volume_condition.unwrap();
        assert!(condition.abnormal && condition.message.contains("read-only"), "{path}: {condition:?}");
        let request = NodeGetVolumeHealthRequest {
            volume_id: "v1".to_owned(),
            volume_publish_path: path,
            staging_target_path: staging,
        };
        let health = node.service.node_get_volume_health(Request::new(request)).await.unwrap().into_inner();
        let reasons: Vec<_> = health.volume_health.unwrap().health_statuses.into_iter().map(|it| it.reason).collect();
        assert_eq!(reasons, ["FilesystemReadOnly"]);
    }
}

#[tokio::test]
async fn staging_a_block_volume_activates_it_and_mounts_nothing() {
    let node = staging_node().await;
    node.lvm.edit_volume(VG, "v1", |volume| volume.active = false);
    let request = NodeStageVolumeRequest { volume_capability: node.block().volume_capability, ..node.to_stage() };
    for _ in 0..2 {
        node.stage(request.clone()).await.unwrap();
    }
    assert!(node.lvm.volume(VG, "v1").unwrap().active);
    assert_eq!((node.machine.mounts(), node.machine.done()), (Vec::new(), Vec::new()));
    node.publish(node.staged(node.block())).await.unwrap();
    node.grow_lv(2 * GIB);
    assert_eq!(u64::try_from(node.expand("v1", &node.target(), 2 * GIB).await.unwrap()).unwrap(), 2 * GIB);
    node.unpublish().await.unwrap();
    node.unstage().await.unwrap();
    assert_eq!(node.machine.mounts(), []);
}

type Stage = NodeStageVolumeRequest;

#[rstest]
#[case(|request: &mut Stage| request.volume_id.clear(), Code::InvalidArgument)]
#[case(|request: &mut Stage| request.staging_target_path.clear(), Code::InvalidArgument)]
#[case(|request: &mut Stage| request.staging_target_path = "relative".to_owned(), Code::InvalidArgument)]
#[case(|request: &mut Stage| request.volume_capability = None, Code::InvalidArgument)]
#[case(|request: &mut Stage| request.volume_capability = Some(of_filesystem("zfs", &[])), Code::InvalidArgument)]
#[case(|request: &mut Stage| request.volume_id = "v2".to_owned(), Code::NotFound)]
#[case(
    |request: &mut Stage| {
        let access_mode = Some(AccessMode { mode: Mode::MultiNodeMultiWriter.into() });
        request.volume_capability = Some(VolumeCapability { access_mode, ..of_filesystem("", &[]) });
    },
    Code::FailedPrecondition
)]
#[tokio::test]
async fn wrong_requests_to_stage_are_refused(#[case] spoil: fn(&mut Stage), #[case] code: Code) {
    let node = staging_node().await;
    let mut request = node.to_stage();
    spoil(&mut request);
    assert_eq!(node.stage(request).await.unwrap_err().code(), code);
    assert_eq!(node.machine.mounts(), []);
}

#[rstest]
#[case::another_filesystem(of_filesystem("xfs", &[]))]
#[case::for_reading_only(of_filesystem("ext4", &["ro"]))]
#[case::block(capability(AccessType::Block(BlockVolume {})))]
#[tokio::test]
async fn what_is_staged_in_one_way_is_not_staged_in_another(#[case] other: VolumeCapability) {
    let node = staging_node().await;
    node.stage(node.to_stage()).await.unwrap();
    let request = NodeStageVolumeRequest { volume_capability: Some(other), ..node.to_stage() };
    let status = node.stage(request).await.unwrap_err();
    assert_eq!(status.code(), Code::AlreadyExists, "{status}");
    assert_eq!(node.mounted(), [(node.staging(), false)]);
}

#[tokio::test]
async fn requests_to_unstage_without_volume_or_path_are_refused() {
    let node = staging_node().await;
    for (id, path) in [("", "/staging"), ("v1", ""), ("v1", "relative")] {
        let request = NodeUnstageVolumeRequest { volume_id: id.to_owned(), staging_target_path: path.to_owned() };
        let status = node.service.node_unstage_volume(Request::new(request)).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{status}");
    }
}

#[tokio::test]
async fn publishing_what_is_not_staged_is_refused() {
    let node = staging_node().await;
    for request in [node.filesystem(), node.block(), node.staged(node.filesystem())] {
        let status = node.publish(request).await.unwrap_err();
        assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
        assert!(status.message().contains("stag"), "{status}");
    }
    assert_eq!((node.machine.mounts(), node.machine.formatted()), (Vec::new(), 0));
}

#[tokio::test]
async fn a_staging_path_with_something_else_on_it_is_refused() {
    let node = staging_node().await;
    node.lvm.add_volume(VG, "other", topolvm_testkit::lvm::FakeVolume::thick(GIB));
    node.machine.mount_by_hand(Path::new("/dev/myvg/other"), &node.staging());
    let stage = node.stage(node.to_stage()).await.unwrap_err();
    let publish = node.publish(node.staged(node.filesystem())).await.unwrap_err();
    assert_eq!((stage.code(), publish.code()), (Code::FailedPrecondition, Code::FailedPrecondition));
    assert_eq!(node.machine.mounts().len(), 1);
}

#[rstest]
#[case::filesystem(false)]
#[case::block(true)]
#[tokio::test]
async fn a_volume_for_a_single_pod_is_staged_and_published_once(#[case] is_block: bool) {
    let node = staging_node().await;
    let mut request = node.staged(if is_block { node.block() } else { node.filesystem() });
    let access_mode = Some(AccessMode { mode: Mode::SingleNodeSingleWriter.into() });
    request.volume_capability = request.volume_capability.map(|given| VolumeCapability { access_mode, ..given });
    let volume_capability = request.volume_capability.clone();
    node.stage(NodeStageVolumeRequest { volume_capability, ..node.to_stage() }).await.unwrap();
    for _ in 0..2 {
        node.publish(request.clone()).await.unwrap();
    }
    let status = node.publish(node.at_second(request)).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
    assert!(status.message().contains(node.target().to_str().unwrap()), "{status}");
}

#[tokio::test]
async fn a_read_only_lv_is_staged_for_reading() {
    let node = staging_node().await;
    node.machine.put(&device(), Contents::Filesystem("ext4".to_owned()));
    node.lvm.edit_volume(VG, "v1", |volume| volume.attr = "-ri-a-----".to_owned());
    for _ in 0..2 {
        node.stage(node.to_stage()).await.unwrap();
    }
    let reader = NodePublishVolumeRequest { readonly: true, ..node.staged(node.filesystem()) };
    node.publish(reader).await.unwrap();
    assert_eq!(node.mounted(), [(node.staging(), true), (node.target(), true)]);
    assert_eq!(node.machine.mounts().first().unwrap().data, "discard,noload");
    let writer = node.publish(node.at_second(node.staged(node.filesystem()))).await.unwrap_err();
    assert_eq!(writer.code(), Code::FailedPrecondition, "{writer}");
}

#[tokio::test]
async fn staged_filesystem_that_has_shut_down_is_mounted_again() {
    let node = staging_node().await;
    node.stage(node.to_stage()).await.unwrap();
    node.publish(node.staged(node.filesystem())).await.unwrap();
    node.machine.fail(&node.staging());
    node.machine.fail(&node.target());
    node.publish(node.staged(node.filesystem())).await.unwrap();
    assert_eq!(node.mounted(), [(node.staging(), false), (node.target(), false)]);
    assert_eq!(node.machine.done(), ["mkfs /dev/myvg/v1", "check /dev/myvg/v1"]);
    node.machine.fail(&node.staging());
    node.unstage().await.unwrap();
    assert_eq!(node.mounted(), [(node.target(), false)]);
}

#[tokio::test]
async fn staging_takes_the_volume_as_publishing_does() {
    let node = staging_node().await;
    node.machine.hold_mkfs();
    let mut first = Box::pin(node.stage(node.to_stage()));
    tokio::select! {
        result = &mut first => panic!("mkfs cannot have ended: {result:?}"),
        () = node.machine.mkfs_begun(1) => {}
    }
    assert_eq!(node.unstage().await.unwrap_err().code(), Code::Aborted);
    assert_eq!(node.publish(node.staged(node.filesystem())).await.unwrap_err().code(), Code::Aborted);
    node.machine.release_mkfs();
    first.await.unwrap();
}

#[tokio::test]
async fn staging_enabled_later_keeps_volumes_of_running_pods() {
    let mut node = Node::start().await;
    node.publish(node.filesystem()).await.unwrap();
    node.restart(true);
    // kubelet does not stage what it has mounted: it publishes again after its own restart, and for further pods
    node.publish(node.staged(node.filesystem())).await.unwrap();
    node.publish(node.at_second(node.staged(node.filesystem()))).await.unwrap();
    assert_eq!(node.mounted(), [(node.target(), false), (node.second(), false)]);
    // A kubelet that was restarted stages first
    node.stage(node.to_stage()).await.unwrap();
    node.publish(node.staged(node.filesystem())).await.unwrap();
    assert_eq!(node.machine.mounts().len(), 3);
    assert_eq!(node.machine.done(), ["mkfs /dev/myvg/v1"], "a filesystem in use is left alone");

    node.unpublish().await.unwrap();
    node.unpublish_at(&node.second()).await.unwrap();
    node.unstage().await.unwrap();
    assert_eq!(node.machine.mounts(), []);
    assert_eq!(node.publish(node.staged(node.filesystem())).await.unwrap_err().code(), Code::FailedPrecondition);
}

#[tokio::test]
async fn staging_disabled_later_unmounts_with_the_last_pod() {
    let mut node = staging_node().await;
    node.stage(node.to_stage()).await.unwrap();
    node.publish(node.staged(node.filesystem())).await.unwrap();
    node.publish(node.at_second(node.staged(node.filesystem()))).await.unwrap();
    node.restart(false);
    node.publish(node.filesystem()).await.unwrap();
    assert_eq!(node.machine.mounts().len(), 3);
    node.unpublish().await.unwrap();
    assert_eq!(node.mounted(), [(node.staging(), false), (node.second(), false)]);
    node.unpublish_at(&node.second()).await.unwrap();
    assert_eq!(node.machine.mounts(), []);
}

#[tokio::test]
async fn a_staged_volume_is_unstaged_by_an_agent_that_does_not_stage() {
    let mut node = staging_node().await;
    node.stage(node.to_stage()).await.unwrap();
    node.restart(false);
    node.unstage().await.unwrap();
    assert_eq!(node.machine.mounts(), []);
}

#[tokio::test]
async fn a_left_staging_mount_is_no_pod_and_is_not_formatted_over() {
    let mut node = staging_node().await;
    node.stage(node.to_stage()).await.unwrap();
    node.restart(false);
    let mut request = node.filesystem();
    let access_mode = Some(AccessMode { mode: Mode::SingleNodeSingleWriter.into() });
    request.volume_capability = request.volume_capability.map(|given| VolumeCapability { access_mode, ..given });
    node.publish(request).await.unwrap();
    assert_eq!(node.machine.done(), ["mkfs /dev/myvg/v1"]);
    assert_eq!(node.machine.mounts().last().unwrap().filesystem, Some(Filesystem::Ext4));
    node.unpublish().await.unwrap();
    assert_eq!(node.machine.mounts(), []);
}

#[tokio::test]
async fn mounts_that_kubelet_did_not_stage_are_left_alone() {
    let node = Node::start().await;
    node.publish(node.filesystem()).await.unwrap();
    let by_hand = node.dir.path().join("by-hand");
    node.machine.mount_by_hand(&device(), &by_hand);
    node.unpublish().await.unwrap();
    assert_eq!(node.mounted(), [(by_hand, false)]);
}
