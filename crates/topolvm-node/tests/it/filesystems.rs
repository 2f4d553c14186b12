//! Preparation of a volume before it is mounted, and refusals.

use std::path::Path;

use linux_mount::{Contents, Mounter as _};
use rstest::rstest;
use tonic::Code;
use topolvm_proto::csi::volume_capability::access_mode::Mode;
use topolvm_proto::csi::volume_capability::{AccessMode, AccessType, MountVolume};
use topolvm_proto::csi::{NodePublishVolumeRequest, VolumeCapability};
use topolvm_testkit::lvm::Fault;

use crate::lvmd_process::VG;
use crate::node::{GIB, Node, device};

fn with_filesystem(node: &Node, fs_type: &str) -> NodePublishVolumeRequest {
    let mount = MountVolume { fs_type: fs_type.to_owned(), ..MountVolume::default() };
    NodePublishVolumeRequest {
        volume_capability: Some(crate::node::capability(AccessType::Mount(mount))),
        ..node.filesystem()
    }
}

fn in_mode(mode: Mode, request: NodePublishVolumeRequest) -> NodePublishVolumeRequest {
    let access_mode = Some(AccessMode { mode: mode.into() });
    let volume_capability = request.volume_capability.map(|capability| VolumeCapability { access_mode, ..capability });
    NodePublishVolumeRequest { volume_capability, ..request }
}

fn elsewhere(node: &Node, request: NodePublishVolumeRequest) -> NodePublishVolumeRequest {
    NodePublishVolumeRequest { target_path: node.dir.path().join("elsewhere").display().to_string(), ..request }
}

#[rstest]
#[case("ext4", "")]
#[case("xfs", "nouuid")]
#[case("btrfs", "")]
#[tokio::test]
async fn each_filesystem_is_made_mounted_and_found_again(#[case] fs_type: &str, #[case] data: &str) {
    let node = Node::start().await;
    for _ in 0..2 {
        node.publish(with_filesystem(&node, fs_type)).await.unwrap();
        let [mount] = node.machine.mounts().try_into().unwrap();
        assert_eq!((mount.filesystem.unwrap().as_str(), mount.data.as_str()), (fs_type, data));
        node.unpublish().await.unwrap();
    }
    assert_eq!(node.machine.done(), ["mkfs /dev/myvg/v1", "check /dev/myvg/v1"]);
}

#[tokio::test]
async fn options_of_the_storage_class_reach_mkfs() {
    let node = Node::start().await;
    let mut request = node.filesystem();
    request.volume_context.insert("topolvm.io/mkfs-options".to_owned(), "-i 4096".to_owned());
    node.publish(request).await.unwrap();
    assert_eq!(node.machine.done(), ["mkfs /dev/myvg/v1 -i 4096"]);
}

#[rstest]
#[case::a_directory_of_the_agent("", "-d etc")]
#[case::a_file_to_write("ext4", "-z undo")]
#[case::forced_twice("ext4", "-F")]
#[case::the_device_is_taken_for_a_label("ext4", "victim -L")]
#[case::another_file("xfs", "-d file,name=victim,size=1g")]
#[case::a_directory_of_the_agent("btrfs", "--rootdir etc")]
#[tokio::test]
async fn options_that_reach_beyond_the_filesystem_never_come_to_mkfs(#[case] fs_type: &str, #[case] options: &str) {
    let node = Node::start().await;
    let mut request = with_filesystem(&node, fs_type);
    request.volume_context.insert("topolvm.io/mkfs-options".to_owned(), options.to_owned());
    let status = node.publish(request.clone()).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument, "{status}");
    assert!(status.message().contains("allowed") || status.message().contains("value"), "{status}");
    assert_eq!((node.machine.done(), node.machine.mounts()), (Vec::new(), Vec::new()));

    // What an earlier version made with them is mounted as before
    let found = if fs_type.is_empty() { "ext4" } else { fs_type };
    node.machine.put(&device(), Contents::Filesystem(found.to_owned()));
    node.publish(request).await.unwrap();
    assert_eq!(node.machine.formatted(), 0);
}

#[tokio::test]
async fn damaged_filesystem_is_not_mounted_and_message_has_the_fix() {
    let node = Node::start().await;
    node.machine.put(&device(), Contents::Filesystem("ext4".to_owned()));
    node.machine.damage(&device());
    let status = node.publish(node.filesystem()).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition);
    assert!(status.message().contains("e2fsck") && status.message().contains("/dev/myvg/v1"), "{status}");
    assert_eq!((node.machine.mounts(), node.machine.formatted()), (Vec::new(), 0));
}

#[tokio::test]
async fn a_filesystem_is_checked_unless_it_is_in_use_or_only_read() {
    let node = Node::start().await;
    node.machine.put(&device(), Contents::Filesystem("ext4".to_owned()));
    let readonly = NodePublishVolumeRequest { readonly: true, ..node.filesystem() };
    node.publish(readonly).await.unwrap();
    node.unpublish().await.unwrap();
    assert_eq!(node.machine.done(), [""; 0]);
    node.publish(node.filesystem()).await.unwrap();
    node.publish(elsewhere(&node, node.filesystem())).await.unwrap();
    assert_eq!(node.machine.done(), ["check /dev/myvg/v1"]);
}

#[tokio::test]
async fn one_pod_of_the_node_may_write_while_another_reads() {
    let node = Node::start().await;
    node.publish(node.filesystem()).await.unwrap();
    let readonly = NodePublishVolumeRequest { readonly: true, ..node.filesystem() };
    for _ in 0..2 {
        node.publish(elsewhere(&node, readonly.clone())).await.unwrap();
    }
    let mounts: Vec<_> = node.machine.mounts().into_iter().map(|mount| (mount.target, mount.readonly)).collect();
    assert_eq!(mounts, [(node.target(), false), (node.dir.path().join("elsewhere"), true)]);
}

#[tokio::test]
async fn writer_after_a_reader_gets_the_blocker_in_the_error() {
    let node = Node::start().await;
    node.machine.put(&device(), Contents::Filesystem("ext4".to_owned()));
    node.publish(NodePublishVolumeRequest { readonly: true, ..node.filesystem() }).await.unwrap();
    let status = node.publish(elsewhere(&node, node.filesystem())).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
    assert!(status.message().contains(node.target().to_str().unwrap()), "{status}");
}

#[tokio::test]
async fn a_device_that_a_pod_uses_as_a_block_volume_is_not_formatted() {
    let node = Node::start().await;
    node.publish(node.block()).await.unwrap();
    let status = node.publish(elsewhere(&node, node.filesystem())).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
    assert_eq!(node.machine.formatted(), 0);
}

#[tokio::test]
async fn a_copy_gets_an_identity_of_its_own_before_it_is_mounted() {
    let node = Node::start().await;
    let copy = node.copy_volume();
    node.machine.put(&copy, Contents::Filesystem("btrfs".to_owned()));
    let request = NodePublishVolumeRequest { volume_id: "v2".to_owned(), ..with_filesystem(&node, "btrfs") };
    node.publish(request.clone()).await.unwrap();
    assert_eq!(node.machine.done(), ["check /dev/myvg/v2", "separate /dev/myvg/v2 v2"]);
    node.publish(elsewhere(&node, request)).await.unwrap();
    assert_eq!(node.machine.done().len(), 2, "a mounted filesystem is left alone");
}

#[tokio::test]
async fn shut_down_filesystem_is_mounted_again() {
    let node = Node::start().await;
    node.publish(node.filesystem()).await.unwrap();
    node.machine.mount_by_hand(&device(), &node.target());
    node.machine.fail(&node.target());
    node.publish(node.filesystem()).await.unwrap();
    assert_eq!(node.machine.mounts().len(), 1);
    assert_eq!(node.machine.done(), ["mkfs /dev/myvg/v1", "check /dev/myvg/v1"]);
}

#[tokio::test]
async fn targets_that_are_no_directories_are_refused() {
    let node = Node::start().await;
    std::fs::create_dir_all(node.target().parent().unwrap()).unwrap();
    std::fs::write(node.target(), "").unwrap();
    let status = node.publish(node.filesystem()).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
    std::fs::remove_file(node.target()).unwrap();
    std::os::unix::fs::symlink(node.dir.path(), node.target()).unwrap();
    let status = node.publish(node.filesystem()).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
    assert_eq!((node.machine.mounts(), node.machine.done()), (Vec::new(), Vec::new()));
}

#[rstest]
#[case::filesystem(false)]
#[case::block(true)]
#[tokio::test]
async fn a_volume_for_a_single_pod_is_published_once(#[case] is_block: bool) {
    let node = Node::start().await;
    let request = if is_block { node.block() } else { node.filesystem() };
    let exclusive = in_mode(Mode::SingleNodeSingleWriter, request.clone());
    node.publish(exclusive.clone()).await.unwrap();
    node.publish(exclusive.clone()).await.unwrap();
    let status = node.publish(elsewhere(&node, exclusive)).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
    assert!(status.message().contains("ReadWriteOncePod"), "{status}");
    let shared = in_mode(Mode::SingleNodeMultiWriter, request);
    node.publish(elsewhere(&node, shared)).await.unwrap();
}

/// After a restart kubelet publishes what is published, and has by then bound the device to a place of its own.
#[tokio::test]
async fn single_pod_block_volume_is_republished_to_its_pod_only() {
    let node = Node::start().await;
    let devices = node.dir.path().join("plugins/kubernetes.io/csi/volumeDevices");
    let request = |pod: &str| NodePublishVolumeRequest {
        target_path: devices.join("publish/pvc-1").join(pod).display().to_string(),
        ..in_mode(Mode::SingleNodeSingleWriter, node.block())
    };
    node.publish(request("pod-1")).await.unwrap();
    let map = devices.join("pvc-1/dev");
    std::fs::create_dir_all(&map).unwrap();
    std::fs::write(map.join("pod-1"), "").unwrap();
    node.machine.bind(&device(), &map.join("pod-1")).await.unwrap();
    node.publish(request("pod-1")).await.unwrap();
    assert_eq!(node.publish(request("pod-2")).await.unwrap_err().code(), Code::FailedPrecondition);
}

#[tokio::test]
async fn read_only_lv_is_published_read_only_without_journal_replay() {
    let node = Node::start().await;
    node.machine.put(&device(), Contents::Filesystem("ext4".to_owned()));
    node.lvm.edit_volume(VG, "v1", |volume| volume.attr = "-ri-a-----".to_owned());
    for request in [node.filesystem(), node.block()] {
        let status = node.publish(request).await.unwrap_err();
        assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
    }
    let request = NodePublishVolumeRequest { readonly: true, ..with_filesystem(&node, "") };
    node.publish(request).await.unwrap();
    let [mount] = node.machine.mounts().try_into().unwrap();
    assert_eq!((mount.readonly, mount.data.as_str()), (true, "noload"));
}

#[tokio::test]
async fn inactive_lv_that_cannot_be_activated_is_an_error_with_a_fix() {
    let node = Node::start().await;
    node.lvm.edit_volume(VG, "v1", |volume| volume.active = false);
    node.lvm.fail_always("lvchange", Fault::says("cannot activate"));
    let status = node.publish(node.filesystem()).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
    assert!(status.message().contains("lvchange --activate y"), "{status}");
    node.lvm.edit_volume(VG, "v1", |volume| volume.active = true);
    node.publish(node.filesystem()).await.unwrap();
    assert_eq!(node.machine.filesystem_bytes(&device()), GIB);
}

#[tokio::test]
async fn a_volume_whose_disk_hangs_stays_taken_until_the_disk_answers() {
    let node = Node::start().await;
    node.publish(node.filesystem()).await.unwrap();
    node.machine.hang(&node.target());
    assert_eq!(node.publish(node.filesystem()).await.unwrap_err().code(), Code::DeadlineExceeded);
    assert_eq!(node.publish(node.filesystem()).await.unwrap_err().code(), Code::Aborted);
    node.machine.answer();
    node.publish(node.filesystem()).await.unwrap();
    assert_eq!(Path::new("/dev/myvg/v1"), device());
}
