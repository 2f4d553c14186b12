//! The record that a volume was formatted: what has it is never formatted again by itself, and its root directory is
//! left alone.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use linux_mount::Contents;
use rstest::rstest;
use serde_json::{Value, json};
use tonic::{Code, Request};
use topolvm_proto::csi::node_server::Node as _;
use topolvm_proto::csi::volume_capability::{AccessType, MountVolume};
use topolvm_proto::csi::{NodeGetVolumeHealthRequest, NodePublishVolumeRequest, NodeStageVolumeRequest};
use topolvm_testkit::fixtures::logical_volume;
use topolvm_testkit::lvm::FakeVolume;

use crate::cluster::LV;
use crate::lvmd_process::VG;
use crate::node::{GIB, Node, capability, device, mode};

const FILESYSTEM: &str = "topolvm.io/filesystem";
const REFORMAT: &str = "topolvm.io/reformat";

fn readonly(node: &Node) -> NodePublishVolumeRequest {
    NodePublishVolumeRequest { readonly: true, ..node.filesystem() }
}

fn of_type(node: &Node, fs_type: &str) -> NodePublishVolumeRequest {
    let mount = MountVolume { fs_type: fs_type.to_owned(), ..MountVolume::default() };
    NodePublishVolumeRequest { volume_capability: Some(capability(AccessType::Mount(mount))), ..node.filesystem() }
}

/// Notes of the Events about `v1`.
fn events(node: &Node) -> Vec<String> {
    let text = |event: &Value, path: &str| event.pointer(path).and_then(Value::as_str).unwrap_or_default().to_owned();
    let events = node.api.list_json("events.events.k8s.io").into_iter();
    let about = events.filter(|event| text(event, "/regarding/uid") == "v1");
    about.map(|event| format!("{} {}", text(&event, "/reason"), text(&event, "/note"))).collect()
}

/// A volume that a pod has had, and whose device now shows something else.
async fn node_that_lost(contents: Contents) -> Node {
    let node = Node::start().await;
    node.publish(node.filesystem()).await.unwrap();
    node.unpublish().await.unwrap();
    node.machine.put(&device(), contents);
    node
}

#[rstest]
#[case::signature(Contents::Unrecognized)]
#[case::everything_at_both_ends(Contents::Blank)]
#[case::raid_is_seen_instead(Contents::Other("ddf_raid_member".to_owned()))]
#[case::something_else_is_seen_instead(Contents::Filesystem("minix".to_owned()))]
#[tokio::test]
async fn lost_filesystem_is_refused_and_the_message_has_the_fix(
    #[case] contents: Contents,
    #[values(true, false)] is_watched: bool,
) {
    let node = node_that_lost(contents).await;
    assert_eq!(node.annotation(FILESYSTEM), json!("ext4"));
    if is_watched {
        node.watch();
    }
    for request in [node.filesystem(), node.filesystem()] {
        let status = node.publish(request).await.unwrap_err();
        assert_eq!(status.code(), Code::FailedPrecondition);
        for words in
            ["ext4", "/dev/myvg/v1", "e2fsck -b", "annotate logicalvolumes.topolvm.io pvc-1 topolvm.io/reformat=ext4"]
        {
            assert!(status.message().contains(words), "{words}: {status}");
        }
    }
    assert_eq!((node.machine.formatted(), node.machine.mounts()), (1, Vec::new()));
    let [event] = events(&node).try_into().unwrap();
    assert!(event.starts_with("FilesystemMissing volume v1") && event.contains("e2fsck -b"), "{event}");
}

#[tokio::test]
async fn lost_filesystem_is_reported_as_health_until_recovered() {
    let node = node_that_lost(Contents::Unrecognized).await;
    let reasons = async || -> Vec<String> {
        let request =
            NodeGetVolumeHealthRequest { volume_id: "v1".to_owned(), ..NodeGetVolumeHealthRequest::default() };
        let answer = node.service.node_get_volume_health(Request::new(request)).await.unwrap().into_inner();
        answer.volume_health.unwrap().health_statuses.into_iter().map(|entry| entry.reason).collect()
    };
    assert_eq!(reasons().await, [""; 0]);
    node.publish(node.filesystem()).await.unwrap_err();
    assert_eq!(reasons().await, ["FilesystemMissing"]);
    // What e2fsck -b does
    node.machine.put(&device(), Contents::Filesystem("ext4".to_owned()));
    node.publish(node.filesystem()).await.unwrap();
    assert_eq!(reasons().await, [""; 0]);
    assert_eq!(node.machine.formatted(), 1);
}

#[tokio::test]
async fn reader_gets_the_error_of_a_lost_filesystem_too() {
    let node = node_that_lost(Contents::Blank).await;
    node.watch();
    let status = node.publish(readonly(&node)).await.unwrap_err();
    assert!(status.message().contains("e2fsck -b"), "{status}");
}

#[rstest]
#[case(Contents::Unrecognized)]
#[case(Contents::Filesystem("xfs".to_owned()))]
#[case(Contents::Other("LVM2_member".to_owned()))]
#[tokio::test]
async fn what_is_given_up_is_formatted_again_once(#[case] contents: Contents, #[values(true, false)] is_watched: bool) {
    let node = node_that_lost(contents.clone()).await;
    node.watch();
    node.annotate(REFORMAT, "xfs");
    node.publish(node.filesystem()).await.unwrap_err();
    node.annotate(REFORMAT, "ext4");
    if is_watched {
        node.watch();
    }
    node.publish(node.filesystem()).await.unwrap();
    assert_eq!(node.machine.formatted(), 2);
    assert_eq!(mode(&node.target()), 0o2777, "its root directory is new");
    assert_eq!((node.annotation(FILESYSTEM), node.annotation(REFORMAT)), (json!("ext4"), Value::Null));
    node.unpublish().await.unwrap();
    // The watch may still show the request
    node.machine.put(&device(), contents);
    node.publish(node.filesystem()).await.unwrap_err();
    assert_eq!(node.machine.formatted(), 2);
}

#[tokio::test]
async fn a_whole_filesystem_is_not_given_up_by_the_annotation() {
    let node = Node::start().await;
    node.publish(node.filesystem()).await.unwrap();
    node.unpublish().await.unwrap();
    node.annotate(REFORMAT, "ext4");
    node.watch();
    node.publish(node.filesystem()).await.unwrap();
    assert_eq!(node.machine.formatted(), 1);
    assert_eq!(node.annotation(REFORMAT), Value::Null, "it would be the end of the data one day");
}

#[tokio::test]
async fn no_pod_gets_a_filesystem_before_its_record_is_stored() {
    let node = Node::start().await;
    node.api.fail_next("patch", LV, 1, 500);
    let status = node.publish(node.filesystem()).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    assert_eq!(node.annotation(FILESYSTEM), Value::Null);
    node.publish(node.filesystem()).await.unwrap();
    assert_eq!((node.machine.formatted(), node.machine.mounts().len()), (1, 1));
    assert_eq!(node.annotation(FILESYSTEM), json!("ext4"));
}

#[tokio::test]
async fn the_first_mkfs_is_repeated_when_it_was_killed() {
    let node = Node::start().await;
    node.machine.put(&device(), Contents::Unrecognized);
    node.publish(node.filesystem()).await.unwrap();
    assert_eq!(node.machine.formatted(), 1);
}

#[tokio::test]
async fn volume_without_api_server_is_mounted_only_with_a_record() {
    let node = Node::start().await;
    node.api.disconnect();
    let status = node.publish(node.filesystem()).await.unwrap_err();
    assert_eq!((status.code(), node.machine.formatted()), (Code::Unavailable, 0), "{status}");
    node.api.reconnect();
    node.publish(node.filesystem()).await.unwrap();
    node.unpublish().await.unwrap();
    node.watch();
    node.api.disconnect();
    node.publish(node.filesystem()).await.unwrap();
}

#[tokio::test]
async fn foreign_filesystem_is_recorded_before_a_pod_writes() {
    let node = Node::start().await;
    node.machine.put(&device(), Contents::Filesystem("ext4".to_owned()));
    node.publish(readonly(&node)).await.unwrap();
    node.unpublish().await.unwrap();
    assert_eq!(node.annotation(FILESYSTEM), Value::Null, "its root directory may not have been opened yet");
    node.publish(node.filesystem()).await.unwrap();
    node.unpublish().await.unwrap();
    assert_eq!(node.annotation(FILESYSTEM), json!("ext4"));
    node.machine.put(&device(), Contents::Unrecognized);
    node.publish(node.filesystem()).await.unwrap_err();
    assert_eq!(node.machine.formatted(), 0);
}

#[tokio::test]
async fn a_record_is_written_once() {
    let node = Node::start().await;
    for _ in 0..2 {
        node.publish(node.filesystem()).await.unwrap();
        node.publish(node.filesystem()).await.unwrap();
        node.unpublish().await.unwrap();
        assert_eq!(node.api.count("patch", LV), 1);
    }
    node.watch();
    node.api.clear_requests();
    node.publish(node.filesystem()).await.unwrap();
    assert_eq!(node.api.requests(), []);
}

#[tokio::test]
async fn the_record_goes_to_no_other_object_of_the_same_name() {
    let node = Node::start().await;
    node.api.before_next("patch", LV, |api| {
        api.delete(LV, "", "pvc-1");
        api.apply_json(logical_volume("pvc-1").uid("v2").ready("v2", "1Gi").build());
    });
    let status = node.publish(node.filesystem()).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    assert_eq!(node.annotation(FILESYSTEM), Value::Null);
}

#[tokio::test]
async fn filesystem_of_another_type_than_requested_is_refused() {
    let node = Node::start().await;
    node.publish(of_type(&node, "xfs")).await.unwrap();
    node.unpublish().await.unwrap();
    let status = node.publish(node.filesystem()).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition);
    assert!(status.message().contains("contains xfs"), "{status}");
    // And where it cannot be seen, the record is what counts
    node.machine.put(&device(), Contents::Blank);
    let status = node.publish(node.filesystem()).await.unwrap_err();
    assert!(status.message().contains("xfs_repair"), "{status}");
    assert_eq!((node.machine.formatted(), node.annotation(FILESYSTEM)), (1, json!("xfs")));
}

/// As after a switch to another agent and back.
#[tokio::test]
async fn filesystem_of_requested_type_is_mounted_despite_its_record() {
    let node = Node::start().await;
    node.annotate(FILESYSTEM, "ext4");
    node.machine.put(&device(), Contents::Filesystem("xfs".to_owned()));
    node.publish(of_type(&node, "xfs")).await.unwrap();
    assert_eq!((node.machine.formatted(), node.annotation(FILESYSTEM)), (0, json!("xfs")));
}

/// The controller gives a copy the record of its source.
#[rstest]
#[case(Contents::Blank)]
#[case(Contents::Unrecognized)]
#[tokio::test]
async fn a_copy_without_the_filesystem_of_its_source_is_refused(#[case] contents: Contents) {
    let node = Node::start().await;
    node.lvm.add_volume(VG, "v2", FakeVolume::thick(GIB));
    let copy = logical_volume("pvc-2").uid("v2").from_source("pvc-1", "rw").annotation(FILESYSTEM, "ext4");
    node.api.apply_json(copy.ready("v2", "1Gi").build());
    node.machine.put(&Path::new("/dev").join(VG).join("v2"), contents);
    let request = NodePublishVolumeRequest { volume_id: "v2".to_owned(), ..node.filesystem() };
    assert_eq!(node.publish(request).await.unwrap_err().code(), Code::FailedPrecondition);
    assert_eq!(node.machine.formatted(), 0);
}

#[tokio::test]
async fn staged_volume_is_recorded_first_and_refused_if_lost() {
    let mut node = Node::start().await;
    node.restart(true);
    let staging = node.dir.path().join("globalmount");
    std::fs::create_dir(&staging).unwrap();
    let request = NodeStageVolumeRequest {
        volume_id: "v1".to_owned(),
        staging_target_path: staging.display().to_string(),
        volume_capability: node.filesystem().volume_capability,
        ..NodeStageVolumeRequest::default()
    };
    let stage = async || node.service.node_stage_volume(Request::new(request.clone())).await.map(drop);
    node.api.fail_next("patch", LV, 1, 500);
    assert_eq!(stage().await.unwrap_err().code(), Code::Unavailable);
    stage().await.unwrap();
    assert_eq!((node.annotation(FILESYSTEM), mode(&staging)), (json!("ext4"), 0o2777));
    let published =
        NodePublishVolumeRequest { staging_target_path: staging.display().to_string(), ..node.filesystem() };
    node.publish(published).await.unwrap();
    assert_eq!((node.machine.formatted(), node.api.count("patch", LV)), (1, 2));
    node.unpublish().await.unwrap();

    let mut node = node_that_lost(Contents::Blank).await;
    node.restart(true);
    std::fs::create_dir(node.dir.path().join("globalmount")).unwrap();
    let staging_target_path = node.dir.path().join("globalmount").display().to_string();
    let request = NodeStageVolumeRequest { staging_target_path, ..request };
    let status = node.service.node_stage_volume(Request::new(request)).await.unwrap_err();
    assert!(status.message().contains("e2fsck -b"), "{status}");
    assert_eq!(node.machine.formatted(), 1);
}

/// An empty root directory that belongs to root looks as mkfs has made it, and can be what a pod wants.
#[tokio::test]
async fn root_directory_mode_is_set_once_per_filesystem() {
    let node = Node::start().await;
    node.publish(node.filesystem()).await.unwrap();
    assert_eq!(mode(&node.target()), 0o2777);
    std::fs::set_permissions(node.target(), PermissionsExt::from_mode(0o755)).unwrap();
    node.publish(node.filesystem()).await.unwrap();
    assert_eq!(mode(&node.target()), 0o755);
    node.unpublish().await.unwrap();
    // The directory that stands for the root in these tests is as mkfs makes it
    node.publish(node.filesystem()).await.unwrap();
    assert_eq!(mode(&node.target()), 0o755);
}
