//! Publishing, unpublishing and expanding.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use kube::runtime::watcher::Event;
use linux_mount::Contents;
use rstest::rstest;
use tonic::{Code, Request};
use topolvm_kube::LogicalVolumeWriter;
use topolvm_proto::csi::NodePublishVolumeRequest;
use topolvm_proto::csi::node_server::Node as _;
use topolvm_testkit::fixtures::logical_volume;
use topolvm_testkit::lvm::{EXTENT, FakeVolume};

use crate::cluster::LV;
use crate::lvmd_process::VG;
use crate::node::{GIB, Node, device, mode};

#[tokio::test]
async fn a_blank_volume_is_formatted_mounted_and_opened_to_everybody() {
    let node = Node::start().await;
    node.publish(node.filesystem()).await.unwrap();
    let [mount] = node.machine.mounts().try_into().unwrap();
    assert_eq!((mount.target.as_path(), mount.data.as_str()), (node.target().as_path(), "discard"));
    assert_eq!(node.machine.formatted(), 1);
    assert_eq!(mode(&node.target()), 0o2777);
}

#[rstest]
#[case::no_longer_configured("device-classes: [{name: hdd, volume-group: slow, spare-gb: 0}]")]
#[case::elsewhere_now("device-classes: [{name: ssd, volume-group: slow, default: true, spare-gb: 0}]")]
#[tokio::test]
async fn volume_of_a_changed_class_is_published_measured_and_grown(#[case] config: &str) {
    let mut node = Node::start().await;
    node.lvm.edit_volume(VG, "v1", |volume| volume.tags.push("topolvm.io/managed-by=lvmd".to_owned()));
    node.lvm.add_group("slow", 10 * GIB, 1);
    node.reconfigure(config).await;
    node.publish(node.filesystem()).await.unwrap();
    let condition = node.usage_and_condition("v1", &node.target()).await.unwrap().volume_condition.unwrap();
    assert!(!condition.abnormal && condition.message.starts_with("volume is healthy"), "{condition:?}");
    node.grow_lv(2 * GIB);
    node.expand("v1", &node.target(), 2 * GIB).await.unwrap();
    node.unpublish().await.unwrap();
}

#[tokio::test]
async fn publishing_again_changes_nothing() {
    let node = Node::start().await;
    node.publish(node.filesystem()).await.unwrap();
    let before = node.machine.mounts();
    std::fs::set_permissions(node.target(), PermissionsExt::from_mode(0o700)).unwrap();
    node.publish(node.filesystem()).await.unwrap();
    assert_eq!(node.machine.mounts(), before);
    assert_eq!(node.machine.formatted(), 1);
    assert_eq!(mode(&node.target()), 0o700, "the pod's own choice stays");
}

#[tokio::test]
async fn a_call_that_was_killed_after_the_mount_is_completed() {
    let node = Node::start().await;
    std::fs::create_dir_all(node.target()).unwrap();
    std::fs::set_permissions(node.target(), PermissionsExt::from_mode(0o755)).unwrap();
    if std::os::unix::fs::MetadataExt::uid(&std::fs::metadata(node.target()).unwrap()) != 0 {
        println!("skipped: a filesystem's root directory belongs to root, and this test does not run as root");
        return;
    }
    node.machine.put(&device(), Contents::Filesystem("ext4".to_owned()));
    node.machine.mount_by_hand(&device(), &node.target());
    node.publish(node.filesystem()).await.unwrap();
    assert_eq!(mode(&node.target()), 0o2777);
}

/// Its pod may have taken the right to write away from everybody else.
#[tokio::test]
async fn the_mode_of_a_directory_with_something_in_it_is_the_pods() {
    let node = Node::start().await;
    node.publish(node.filesystem()).await.unwrap();
    std::fs::write(node.target().join("data"), "of a pod").unwrap();
    std::fs::set_permissions(node.target(), PermissionsExt::from_mode(0o755)).unwrap();
    node.publish(node.filesystem()).await.unwrap();
    assert_eq!(mode(&node.target()), 0o755);
}

#[tokio::test]
async fn data_survives_a_new_publication() {
    let node = Node::start().await;
    node.publish(node.filesystem()).await.unwrap();
    node.unpublish().await.unwrap();
    assert!(!node.target().exists());
    assert_eq!(node.machine.mounts(), []);
    node.publish(node.filesystem()).await.unwrap();
    assert_eq!(node.machine.formatted(), 1);
}

#[rstest]
#[case(Contents::Filesystem("zfs_member".to_owned()), "zfs_member")]
#[case(Contents::Other("LVM2_member".to_owned()), "LVM2_member")]
#[tokio::test]
async fn what_lies_on_a_volume_is_never_overwritten(#[case] contents: Contents, #[case] found: &str) {
    let node = Node::start().await;
    node.machine.put(&device(), contents);
    let status = node.publish(node.filesystem()).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition);
    assert!(status.message().contains(found) && status.message().contains("ext4"), "{status}");
    assert_eq!((node.machine.formatted(), node.machine.mounts()), (0, Vec::new()));
}

#[rstest]
#[case::what_a_deleted_volume_left("", 1)]
#[case::what_a_pod_wrote_to_the_source("pvc-0", 0)]
#[tokio::test]
async fn unrecognized_data_is_kept_in_a_copy_only(#[case] source: &str, #[case] formatted: usize) {
    let volume = logical_volume("pvc-1").uid("v1").ready("v1", "1Gi").from_source(source, "rw").build();
    let node = Node::start_with(&mut |own| drop(own.apply(Event::Apply(volume.clone())))).await;
    node.api.apply_json(&volume);
    node.machine.put(&device(), Contents::Unrecognized);
    let published = node.publish(node.filesystem()).await;
    assert_eq!((published.is_ok(), node.machine.formatted()), (formatted == 1, formatted));
    if published.is_err() {
        node.machine.put(&device(), Contents::Blank);
        node.publish(node.filesystem()).await.unwrap();
    }
}

#[rstest]
#[case::without_a_signature(Contents::Unrecognized, "data without a signature")]
#[case::disk_of_a_virtual_machine(Contents::Other("a partition table (gpt)".to_owned()), "a partition table (gpt)")]
#[tokio::test]
async fn copy_of_a_raw_block_volume_is_mounted_if_it_is_formatted(#[case] contents: Contents, #[case] found: &str) {
    let node = Node::start().await;
    let copy = node.copy_volume();
    node.machine.put(&copy, contents);
    let request = NodePublishVolumeRequest { volume_id: "v2".to_owned(), ..node.filesystem() };
    let status = node.publish(request.clone()).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition);
    let (reason, fix) = status.message().split_once(';').unwrap();
    assert!(reason.contains(found) && reason.contains("copy of a raw block volume"), "{status}");
    let (mode, _) = fix.split_once("topolvm.io/reformat").unwrap();
    assert!(mode.contains("volumeMode Block"), "{status}");
    assert_eq!((node.machine.formatted(), node.machine.mounts()), (0, Vec::new()));

    // As mkfs in a pod leaves it
    node.machine.put(&copy, Contents::Filesystem("ext4".to_owned()));
    node.publish(request).await.unwrap();
    assert_eq!((node.machine.formatted(), node.machine.mounts().len()), (0, 1));
}

#[tokio::test]
async fn read_only_publish_neither_formats_nor_grows_nor_chmods() {
    let node = Node::start().await;
    let request = NodePublishVolumeRequest { readonly: true, ..node.filesystem() };
    let status = node.publish(request.clone()).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition, "{status}");

    node.machine.put(&device(), Contents::Filesystem("ext4".to_owned()));
    node.grow_lv(2 * GIB);
    node.publish(request).await.unwrap();
    assert!(node.machine.mounts().first().unwrap().readonly);
    assert_eq!(mode(&node.target()), 0o755);
    assert_eq!(node.machine.filesystem_bytes(&device()), GIB);
}

#[tokio::test]
async fn another_readonly_setting_at_the_same_path_is_refused() {
    let node = Node::start().await;
    node.publish(node.filesystem()).await.unwrap();
    let request = NodePublishVolumeRequest { readonly: true, ..node.filesystem() };
    assert_eq!(node.publish(request).await.unwrap_err().code(), Code::AlreadyExists);
}

#[tokio::test]
async fn a_path_that_something_else_is_mounted_at_is_refused() {
    let node = Node::start().await;
    node.lvm.add_volume(VG, "other", FakeVolume::thick(GIB));
    node.machine.mount_by_hand(Path::new("/dev/myvg/other"), &node.target());
    let status = node.publish(node.filesystem()).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
}

#[tokio::test]
async fn a_volume_that_was_expanded_while_unused_grows_when_published() {
    let node = Node::start().await;
    node.machine.put(&device(), Contents::Filesystem("ext4".to_owned()));
    node.grow_lv(2 * GIB);
    node.publish(node.filesystem()).await.unwrap();
    assert_eq!(node.machine.filesystem_bytes(&device()), 2 * GIB);
}

#[tokio::test]
async fn block_volume_publish_is_idempotent_and_creates_the_parent() {
    let node = Node::start().await;
    node.publish(node.block()).await.unwrap();
    let file_mode = mode(&node.target());
    node.publish(node.block()).await.unwrap();
    assert_eq!(node.machine.mounts().len(), 1);
    assert_eq!(mode(&node.target()), file_mode);
    node.unpublish().await.unwrap();
    assert!(!node.target().exists());
}

/// The mount would be at the other end, and unpublishing would not find it.
#[tokio::test]
async fn a_link_is_no_place_for_a_block_volume() {
    let node = Node::start().await;
    let elsewhere = node.dir.path().join("elsewhere");
    std::fs::write(&elsewhere, "").unwrap();
    std::fs::create_dir_all(node.target().parent().unwrap()).unwrap();
    std::os::unix::fs::symlink(&elsewhere, node.target()).unwrap();
    let status = node.publish(node.block()).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
    assert_eq!(node.machine.mounts(), []);
}

#[tokio::test]
async fn filesystem_is_not_mounted_while_a_pod_uses_its_device() {
    let node = Node::start().await;
    node.publish(node.block()).await.unwrap();
    node.machine.put(&device(), Contents::Filesystem("ext4".to_owned()));
    let target_path = node.dir.path().join("other").display().to_string();
    let request = NodePublishVolumeRequest { target_path, ..node.filesystem() };
    let status = node.publish(request).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
    assert_eq!(node.machine.mounts().len(), 1);
}

#[tokio::test]
async fn a_read_only_block_volume_that_was_bound_only_is_completed() {
    let node = Node::start().await;
    node.publish(node.block()).await.unwrap();
    let request = NodePublishVolumeRequest { readonly: true, ..node.block() };
    node.publish(request).await.unwrap();
    let [mount] = node.machine.mounts().try_into().unwrap();
    assert!(mount.readonly);
}

#[tokio::test]
async fn unknown_volume_is_not_found() {
    let node = Node::start().await;
    let request = NodePublishVolumeRequest { volume_id: "v2".to_owned(), ..node.filesystem() };
    assert_eq!(node.publish(request).await.unwrap_err().code(), Code::NotFound);
    let stats = node.stats("v2", node.dir.path()).await.unwrap_err();
    assert_eq!(stats.code(), Code::NotFound);
    let expand = node.expand("v2", Path::new("some/path"), GIB).await.unwrap_err();
    assert_eq!(expand.code(), Code::NotFound);
}

#[tokio::test]
async fn volumes_of_other_nodes_are_not_found() {
    let node = Node::start().await;
    node.lvm.add_volume(VG, "v2", FakeVolume::thick(GIB));
    node.api.apply_json(logical_volume("pvc-2").on("n2").uid("v2").ready("v2", "1Gi").build());
    let request = NodePublishVolumeRequest { volume_id: "v2".to_owned(), ..node.filesystem() };
    assert_eq!(node.publish(request).await.unwrap_err().code(), Code::NotFound);
}

#[tokio::test]
async fn volume_unknown_to_the_watch_is_found_with_a_list() {
    let node = Node::start().await;
    node.lvm.add_volume(VG, "v2", FakeVolume::thick(GIB));
    let selectable: [&[&str]; 2] = [&["spec.nodeName", "status.volumeID"], &[]];
    for (number, fields) in selectable.into_iter().enumerate() {
        node.api.set_selectable_fields(LV, fields);
        let target_path = node.target().with_extension(number.to_string()).display().to_string();
        let request = NodePublishVolumeRequest { volume_id: "v2".to_owned(), target_path, ..node.filesystem() };
        assert_eq!(node.publish(request.clone()).await.unwrap_err().code(), Code::NotFound);
        node.api.apply_json(logical_volume("pvc-2").uid("v2").ready("v2", "1Gi").build());
        node.api.clear_requests();
        node.publish(request.clone()).await.unwrap();
        let lists: Vec<_> = node.api.requests().into_iter().filter(|(verb, _)| *verb == "list").collect();
        assert!(lists[0].1.contains("fieldSelector=spec.nodeName=n1,status.volumeID=v2"), "{lists:?}");
        assert_eq!(lists.len(), if fields.is_empty() { 2 } else { 1 });
        node.api.delete(LV, "", "pvc-2");
    }
}

#[tokio::test]
async fn unknown_volume_is_unavailable_while_the_api_server_is_away() {
    let node = Node::start().await;
    node.api.disconnect();
    let request = NodePublishVolumeRequest { volume_id: "v2".to_owned(), ..node.filesystem() };
    assert_eq!(node.publish(request).await.unwrap_err().code(), Code::Unavailable);
    node.publish(node.block()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn unknown_volume_is_unavailable_before_the_first_list() {
    let node = Node::start_with(&mut |own| *own = LogicalVolumeWriter::default()).await;
    let status = node.publish(node.filesystem()).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    std::fs::create_dir_all(node.target()).unwrap();
    node.machine.put(&device(), Contents::Filesystem("ext4".to_owned()));
    node.machine.mount_by_hand(&device(), &node.target());
    assert_eq!(node.stats("v1", &node.target()).await.unwrap().len(), 2);
    node.unpublish().await.unwrap();
}

#[tokio::test]
async fn an_object_without_its_lv_is_not_found() {
    let node = Node::start().await;
    node.lvm.remove_volume(VG, "v1");
    let status = node.publish(node.filesystem()).await.unwrap_err();
    assert_eq!(status.code(), Code::NotFound, "{status}");
}

#[tokio::test]
async fn unpublishing_takes_all_layers_away_even_from_a_failed_disk() {
    let node = Node::start().await;
    node.publish(node.filesystem()).await.unwrap();
    node.machine.mount_by_hand(&device(), &node.target());
    node.machine.fail(&node.target());
    node.unpublish().await.unwrap();
    assert_eq!(node.machine.mounts(), []);
    assert!(!node.target().exists());
    node.unpublish().await.unwrap();
}

#[tokio::test]
async fn unpublishing_never_deletes_what_is_outside_of_the_volume() {
    let node = Node::start().await;
    std::fs::create_dir_all(node.target()).unwrap();
    std::fs::write(node.target().join("precious"), "data").unwrap();
    assert_eq!(node.unpublish().await.unwrap_err().code(), Code::Internal);
    assert!(node.target().join("precious").exists());
}

#[tokio::test]
async fn unpublishing_removes_the_device_node_of_an_old_version() {
    let node = Node::start().await;
    let leftover = node.dir.path().join("old").join("v1");
    std::fs::write(&leftover, "").unwrap();
    node.unpublish().await.unwrap();
    assert!(!leftover.exists());
}

#[tokio::test]
async fn an_expanded_filesystem_grows_and_the_real_size_is_the_answer() {
    let node = Node::start().await;
    node.publish(node.filesystem()).await.unwrap();
    node.grow_lv(2 * GIB + 1);
    let real = 2 * GIB + (4 << 20);
    let answer = node.expand("v1", &node.target(), 2 * GIB + 1).await.unwrap();
    assert_eq!(u64::try_from(answer).unwrap(), real);
    assert_eq!(node.machine.filesystem_bytes(&device()), real);
}

#[tokio::test]
async fn an_expanded_block_volume_has_its_size_at_once() {
    let node = Node::start().await;
    node.publish(node.block()).await.unwrap();
    node.grow_lv(2 * GIB);
    let answer = node.expand("v1", &node.target(), 2 * GIB).await.unwrap();
    assert_eq!(u64::try_from(answer).unwrap(), 2 * GIB);
}

#[tokio::test]
async fn a_filesystem_is_not_said_to_be_larger_than_its_volume() {
    let node = Node::start().await;
    node.publish(node.filesystem()).await.unwrap();
    let status = node.expand("v1", &node.target(), 2 * GIB).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
}

#[tokio::test]
async fn expanding_where_nothing_is_published_is_not_found() {
    let node = Node::start().await;
    for path in [Path::new("some/path"), node.dir.path()] {
        let status = node.expand("v1", path, GIB).await.unwrap_err();
        assert_eq!(status.code(), Code::NotFound, "{status}");
    }
}

#[tokio::test]
async fn a_slow_mkfs_blocks_its_own_volume_only_and_outlives_the_call() {
    let node = Node::start().await;
    node.lvm.add_volume(VG, "v2", FakeVolume::thick(GIB));
    node.api.apply_json(logical_volume("pvc-2").uid("v2").ready("v2", "1Gi").build());
    node.machine.put(Path::new("/dev/myvg/v2"), Contents::Filesystem("ext4".to_owned()));
    node.machine.hold_mkfs();

    let (service, request) = (Arc::clone(&node.service), node.filesystem());
    let mut caller = Box::pin(async move { service.node_publish_volume(Request::new(request)).await.map(drop) });
    tokio::select! {
        result = &mut caller => panic!("mkfs cannot have ended: {result:?}"),
        () = node.machine.mkfs_begun(1) => {}
    }
    assert_eq!(node.publish(node.filesystem()).await.unwrap_err().code(), Code::Aborted);
    let other = NodePublishVolumeRequest {
        volume_id: "v2".to_owned(),
        target_path: node.dir.path().join("other").display().to_string(),
        ..node.filesystem()
    };
    node.publish(other).await.unwrap();

    // kubelet hangs up
    drop(caller);
    assert_eq!(node.unpublish().await.unwrap_err().code(), Code::Aborted);
    node.machine.release_mkfs();
    node.shutdown.cancel();
    node.tasks.wait().await.unwrap();
    let targets: Vec<_> = node.machine.mounts().into_iter().map(|mount| mount.target).collect();
    assert_eq!(targets, [node.dir.path().join("other"), node.dir.path().join("pod/mount")]);
}

/// 32 volumes at the same time are enough for a disk, and more would be programs and memory without end.
#[tokio::test]
async fn of_many_slow_beginnings_the_last_waits_and_no_end_does() {
    let node = Node::start().await;
    node.publish(node.filesystem()).await.unwrap();
    node.machine.hold_mkfs();
    let beginnings = (0..33).map(|number| {
        let (name, id) = (format!("pvc-slow{number}"), format!("slow{number}"));
        node.lvm.add_volume(VG, &id, FakeVolume::thick(EXTENT));
        node.api.apply_json(logical_volume(&name).uid(&id).ready(&id, "4Mi").build());
        let target_path = node.dir.path().join(&id).display().to_string();
        node.publish(NodePublishVolumeRequest { volume_id: id, target_path, ..node.filesystem() })
    });
    let end = async {
        node.machine.mkfs_begun(1 + 32).await;
        node.unpublish().await.unwrap();
        node.machine.mkfs_begun(1 + 32).await;
        node.machine.release_mkfs();
    };
    let (results, ()) = tokio::join!(futures::future::join_all(beginnings), end);
    assert!(results.iter().all(Result::is_ok), "{results:?}");
    assert_eq!(node.machine.formatted(), 1 + 33);
}
