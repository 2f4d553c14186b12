//! CreateVolume from a snapshot or from another volume.

use rstest::rstest;
use serde_json::json;
use tonic::Code;
use topolvm_proto::csi::CreateVolumeRequest;
use topolvm_testkit::fixtures::logical_volume;

use crate::agent::Agent;
use crate::harness::{
    GIB, Harness, LVS, MIB, block, cloned, create, on_nodes, refusal, restored, sized, topology, volume,
    with_filesystem, with_parameter,
};

/// A controller with a volume `u-1` of 1025 MiB, which LVM made 1028 MiB, in class ssd on n2, and its snapshot `s-1`.
async fn harness() -> Harness {
    let harness = Harness::with_agent().await;
    let source = logical_volume("pvc-1").on("n2").class("ssd").sized("1025Mi");
    harness.api.apply_json(source.uid("u-1").ready("u-1", "1028Mi").build());
    let snapshot = logical_volume("snapshot-1").on("n2").class("ssd").sized("1028Mi").from_source("pvc-1", "ro");
    let snapshot = snapshot.annotation("topolvm.io/source-volume-id", "u-1");
    harness.api.apply_json(snapshot.uid("s-1").ready("s-1", "1028Mi").build());
    harness
}

#[tokio::test(start_paused = true)]
async fn a_restored_volume_is_a_writable_copy_beside_its_snapshot() {
    let harness = harness().await;
    let request = restored(on_nodes(volume("pvc-2"), &["n2", "n1"]), "s-1");
    let answer = harness.create(sized(request.clone(), 2 * GIB, 0)).await.unwrap();
    let object = harness.object("pvc-2");
    assert_eq!(
        object["spec"],
        json!({
            "name": "pvc-2", "nodeName": "n2", "size": "2Gi", "deviceClass": "ssd",
            "source": "snapshot-1", "accessType": "rw",
        })
    );
    assert_eq!(object["metadata"]["annotations"], json!({"topolvm.io/source-snapshot-id": "s-1"}));
    assert_eq!(answer.content_source, request.volume_content_source);
    assert_eq!(answer.accessible_topology, [topology("n2")]);
    assert_eq!(u64::try_from(answer.capacity_bytes), Ok(2 * GIB));
}

#[tokio::test(start_paused = true)]
async fn a_clone_is_a_writable_copy_beside_its_source() {
    let harness = harness().await;
    let request = cloned(on_nodes(volume("pvc-2"), &["n2"]), "u-1");
    let answer = harness.create(sized(request.clone(), 2 * GIB, 0)).await.unwrap();
    let object = harness.object("pvc-2");
    assert_eq!((&object["spec"]["source"], &object["spec"]["accessType"]), (&json!("pvc-1"), &json!("rw")));
    assert_eq!(object["metadata"]["annotations"], json!({"topolvm.io/source-volume-id": "u-1"}));
    assert_eq!(answer.content_source, request.volume_content_source);
}

#[rstest]
#[case::nothing_asked(0, 0, Some(1028))]
#[case::what_the_source_was_asked_to_be(1025, 0, Some(1028))]
#[case::larger(2048, 0, Some(2048))]
#[case::exactly(1028, 1028, Some(1028))]
#[case::smaller(1024, 0, None)]
#[case::limited_to_less(1025, 1026, None)]
#[case::only_limited(0, 1024, None)]
#[tokio::test(start_paused = true)]
async fn a_copy_is_at_least_as_large_as_its_source(
    #[case] required: u64,
    #[case] limit: u64,
    #[case] mebibytes: Option<u64>,
) {
    let harness = harness().await;
    let request = cloned(on_nodes(volume("pvc-2"), &["n2"]), "u-1");
    let answer = harness.create(sized(request, required * MIB, limit * MIB)).await;
    if let Some(mebibytes) = mebibytes {
        assert_eq!(u64::try_from(answer.unwrap().capacity_bytes), Ok(mebibytes * MIB));
    } else {
        let (code, message) = refusal(answer);
        assert_eq!(code, Code::OutOfRange);
        assert!(message.contains("at least as large as"), "{message}");
    }
}

/// The size that the first claim asked for was rounded up to a sector, raised to what the filesystem takes, and rounded
/// up to LVM's extents.
#[rstest]
#[case::of_mebibytes(50 * MIB, "ext4")]
#[case::of_decimal_bytes(100_000_000, "ext4")]
#[case::of_a_tenth_of_a_gibibyte(107_374_183, "btrfs")]
#[case::below_the_least_of_xfs(128 * MIB, "xfs")]
#[tokio::test(start_paused = true)]
async fn a_copy_of_a_copy_may_have_the_size_of_the_first_claim(#[case] bytes: u64, #[case] filesystem: &str) {
    let harness = Harness::with_agent().await;
    let request = |name: &str| sized(with_filesystem(volume(name), filesystem), bytes, 0);
    let source = harness.create(request("pvc-1")).await.unwrap();
    assert!(u64::try_from(source.capacity_bytes).unwrap() > bytes);
    let clone = harness.create(cloned(request("pvc-2"), &source.volume_id)).await.unwrap();
    let snapshot = harness.snapshot("snapshot-1", &clone.volume_id).await.unwrap();
    assert_eq!(u64::try_from(snapshot.size_bytes), Ok(bytes), "external-provisioner would refuse such a claim");
    let copy = harness.create(restored(request("pvc-3"), &snapshot.snapshot_id)).await.unwrap();
    assert_eq!(copy.capacity_bytes, source.capacity_bytes);

    let too_small = sized(request("pvc-4"), bytes - 4096, 0);
    let refused = harness.create(cloned(too_small, &source.volume_id)).await;
    // The least of xfs is as much for fewer bytes
    assert_eq!(refused.is_ok(), filesystem != "ext4", "{refused:?}");
}

#[tokio::test(start_paused = true)]
async fn a_copy_with_another_filesystem_than_its_source_is_refused() {
    let harness = Harness::new().await;
    let source = logical_volume("pvc-1").uid("u-1").annotation("topolvm.io/filesystem", "ext4").ready("u-1", "1Gi");
    harness.api.apply_json(source.build());
    harness.start(&Agent::with_free(3 * GIB));
    let request = cloned(volume("pvc-2"), "u-1");
    let (code, message) = refusal(harness.create(with_filesystem(request.clone(), "xfs")).await);
    assert_eq!((code, message.contains("filesystem ext4")), (Code::InvalidArgument, true), "{message}");
    assert!(harness.object("pvc-2").is_null());
    // No filesystem is the default one, and a device has whatever the source has
    harness.create(with_filesystem(request, "")).await.unwrap();
    let mut device = cloned(volume("pvc-3"), "u-1");
    device.volume_capabilities = vec![block()];
    harness.create(device).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn copy_scheduled_to_another_node_is_resource_exhausted() {
    let harness = harness().await;
    let request = restored(on_nodes(volume("pvc-2"), &["n1"]), "s-1");
    let (code, message) = refusal(harness.create(sized(request, 2 * GIB, 0)).await);
    assert_eq!((code, message.contains("on node n2")), (Code::ResourceExhausted, true), "{message}");
    assert!(harness.object("pvc-2").is_null());
}

/// As external-provisioner asks without `--strict-topology`. The source is on n2, and the pod follows the volume.
#[rstest]
#[case::chosen(Some("n1"), false)]
#[case::about_to_be_chosen_again(None, false)]
#[case::bound_immediately(None, true)]
#[tokio::test(start_paused = true)]
async fn copy_is_created_on_the_node_of_its_source(#[case] selected_node: Option<&str>, #[case] immediate: bool) {
    let harness = harness().await;
    harness.claim("2", selected_node, immediate);
    let request = restored(on_nodes(volume("pvc-2"), &["n1", "n2"]), "s-1");
    let answer = harness.create(sized(request, 2 * GIB, 0)).await;
    assert_eq!(answer.unwrap().accessible_topology, [topology("n2")]);
}

#[tokio::test(start_paused = true)]
async fn a_copy_stays_in_the_class_of_its_source() {
    let harness = harness().await;
    let request = || sized(restored(on_nodes(volume("pvc-2"), &["n2"]), "s-1"), 2 * GIB, 0);
    let other = with_parameter(request(), "topolvm.io/device-class", "hdd");
    let (code, message) = refusal(harness.create(other).await);
    assert_eq!((code, message.contains("use a StorageClass")), (Code::InvalidArgument, true), "{message}");
    harness.create(with_parameter(request(), "topolvm.io/device-class", "ssd")).await.unwrap();
    assert_eq!(harness.object("pvc-2")["spec"]["deviceClass"], "ssd");
}

#[tokio::test(start_paused = true)]
async fn sources_that_are_not_there_are_named() {
    let harness = harness().await;
    for request in [
        restored(volume("pvc-2"), "s-9"),
        cloned(volume("pvc-2"), "u-9"),
        // A snapshot is no volume, and the other way round
        restored(volume("pvc-2"), "u-1"),
        cloned(volume("pvc-2"), "s-1"),
    ] {
        let (code, message) = refusal(harness.create(request).await);
        assert_eq!((code, message.contains("to copy does not exist")), (Code::NotFound, true), "{message}");
    }
    assert!(harness.object("pvc-2").is_null());
}

#[tokio::test(start_paused = true)]
async fn a_source_that_is_being_deleted_is_not_copied() {
    let harness = Harness::new().await;
    let source = logical_volume("pvc-1").uid("u-1").finalizer("topolvm.io/logicalvolume").ready("u-1", "1Gi");
    harness.api.apply_json(source.build());
    harness.api.delete(LVS, "", "pvc-1");
    assert_eq!(refusal(harness.create(cloned(volume("pvc-2"), "u-1")).await).0, Code::NotFound);
}

#[tokio::test(start_paused = true)]
async fn copy_is_idempotent_also_after_its_source_is_deleted() {
    let harness = harness().await;
    let request = || sized(restored(on_nodes(volume("pvc-2"), &["n2"]), "s-1"), 2 * GIB, 0);
    let first = harness.create(request()).await.unwrap();
    assert_eq!(harness.create(request()).await.unwrap(), first);
    harness.delete_snapshot("s-1").await.unwrap();
    assert_eq!(harness.create(request()).await.unwrap(), first);
}

#[rstest]
#[case::clone(|request| cloned(request, "u-1"))]
#[case::restore(|request| restored(request, "s-1"))]
#[tokio::test(start_paused = true)]
async fn copy_is_idempotent_whatever_node_is_allowed(#[case] copied: fn(CreateVolumeRequest) -> CreateVolumeRequest) {
    let harness = harness().await;
    let request = |node| sized(copied(on_nodes(volume("pvc-2"), &[node])), 2 * GIB, 0);
    let first = harness.create(request("n2")).await.unwrap();
    let second = harness.create(request("n1")).await.unwrap();
    assert_eq!(second, first);
    assert_eq!(second.accessible_topology, [topology("n2")]);
}

#[tokio::test(start_paused = true)]
async fn clone_is_idempotent_after_its_source_has_grown_and_gone() {
    let harness = harness().await;
    let request = || sized(cloned(on_nodes(volume("pvc-2"), &["n2"]), "u-1"), 1025 * MIB, 0);
    let first = harness.create(request()).await.unwrap();
    harness.expand("u-1", 4 * GIB).await.unwrap();
    assert_eq!(harness.create(request()).await.unwrap(), first);
    harness.delete("u-1").await.unwrap();
    assert_eq!(harness.create(request()).await.unwrap(), first);
}

#[tokio::test(start_paused = true)]
async fn a_copy_that_does_not_fit_the_request_is_not_the_answer_to_it() {
    let harness = harness().await;
    let request = |bytes| sized(cloned(on_nodes(volume("pvc-2"), &["n2"]), "u-1"), bytes, 0);
    harness.create(request(2 * GIB)).await.unwrap();
    assert_eq!(refusal(harness.create(request(3 * GIB)).await).0, Code::AlreadyExists);
    let other = with_parameter(request(2 * GIB), "topolvm.io/lvcreate-option-class", "raid");
    assert_eq!(refusal(harness.create(other).await).0, Code::AlreadyExists);
}

#[tokio::test(start_paused = true)]
async fn copy_pending_on_a_disallowed_node_is_resource_exhausted() {
    let harness = Harness::new().await;
    harness.api.apply_json(logical_volume("pvc-1").on("n2").uid("u-1").ready("u-1", "1Gi").build());
    harness.api.apply_json(logical_volume("pvc-2").on("n2").from_source("pvc-1", "rw").build());
    let answer = harness.create(cloned(on_nodes(volume("pvc-2"), &["n1"]), "u-1")).await;
    let (code, message) = refusal(answer);
    assert_eq!((code, message.contains("on node n2")), (Code::ResourceExhausted, true), "{message}");
    assert!(harness.object("pvc-2").is_null(), "the agent of n2 could still make it");
}

#[tokio::test(start_paused = true)]
async fn a_copy_that_its_node_cannot_make_is_not_sent_to_another_node() {
    let harness = Harness::new().await;
    harness.api.apply_json(logical_volume("pvc-1").uid("u-1").ready("u-1", "1Gi").build());
    let cloning = harness.beside(create(harness.csi.clone(), cloned(on_nodes(volume("pvc-2"), &["n1"]), "u-1")));
    harness.api.until(LVS, "", "pvc-2", |object| object.map(drop)).await;
    harness.api.edit(LVS, "", "pvc-2", |clone| clone["status"] = json!({"code": 9, "message": "no pool"}));
    assert_eq!(refusal(cloning.await.unwrap()).0, Code::FailedPrecondition);
}

#[tokio::test(start_paused = true)]
async fn a_copy_of_something_else_under_the_same_name_is_refused() {
    let harness = harness().await;
    let request = |name: &str| sized(on_nodes(volume(name), &["n2"]), 2 * GIB, 0);
    harness.create(cloned(request("pvc-2"), "u-1")).await.unwrap();
    for other in [restored(request("pvc-2"), "s-1"), request("pvc-2"), cloned(request("pvc-1"), "u-1")] {
        assert_eq!(refusal(harness.create(other).await).0, Code::AlreadyExists);
    }
}

/// Weak point 3 of what this replaces: a source without a size crashed the controller.
#[tokio::test(start_paused = true)]
async fn copy_of_a_source_without_current_size_has_requested_size() {
    let harness = Harness::new().await;
    harness.api.apply_json(logical_volume("pvc-1").uid("u-1").build());
    harness.api.edit(LVS, "", "pvc-1", |volume| volume["status"] = json!({"volumeID": "u-1"}));
    let cloning = harness.beside(create(harness.csi.clone(), cloned(on_nodes(volume("pvc-2"), &["n1"]), "u-1")));
    let size = harness.api.until(LVS, "", "pvc-2", |clone| Some(clone?["spec"]["size"].clone())).await;
    assert_eq!(size, "1Gi");
    harness.api.edit(LVS, "", "pvc-2", |clone| clone["status"] = json!({"volumeID": "u-2", "currentSize": "1028Mi"}));
    assert_eq!(cloning.await.unwrap().unwrap().capacity_bytes, 1028 << 20);
}
