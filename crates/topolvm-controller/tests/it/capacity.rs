//! GetCapacity.

use rstest::rstest;
use tonic::Code;
use topolvm_api::ApiFlavor;
use topolvm_proto::csi::{GetCapacityRequest, Topology, VolumeCapability};
use topolvm_testkit::ApiServer;
use topolvm_testkit::fixtures::node;

use crate::harness::{GIB, Harness, MIB, block, mount, refusal, topology};

#[tokio::test(start_paused = true)]
async fn free_space_is_told_of_the_cluster_or_of_one_node() {
    let harness = Harness::new().await;
    assert_eq!(harness.free("", None).await, 30 * GIB);
    assert_eq!(harness.free("", Some(topology("n1"))).await, 10 * GIB);
    assert_eq!(harness.free("ssd", Some(topology("n2"))).await, 5 * GIB);
    assert_eq!(harness.free("ssd", Some(topology("n1"))).await, 0);
    assert_eq!(harness.free("", Some(topology("n9"))).await, 0);
    assert_eq!(harness.free("", Some(Topology::default())).await, 0);
}

#[tokio::test(start_paused = true)]
async fn free_space_follows_the_nodes() {
    let harness = Harness::new().await;
    harness.api.apply_json(node("n1").capacity("", 3).build());
    harness.api.delete("nodes", "", "n2");
    harness.until_free("", 3 * GIB).await;
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_being_deleted_has_no_space() {
    let harness = Harness::new().await;
    harness.api.apply_json(node("n2").capacity("", 20).finalizer("topolvm.io/node").build());
    harness.api.delete("nodes", "", "n2");
    harness.until_free("", 10 * GIB).await;
    assert_eq!(harness.free("", Some(topology("n2"))).await, 0);
}

#[tokio::test(start_paused = true)]
async fn before_the_nodes_are_known_nothing_is_told() {
    let api = ApiServer::new();
    api.disconnect();
    let harness = Harness::on(&api, ApiFlavor::TopoLvm);
    let answer = harness.csi.clone().get_capacity(GetCapacityRequest::default()).await;
    assert_eq!(refusal(answer).0, Code::Unavailable);
}

#[tokio::test(start_paused = true)]
async fn nodes_are_watched_by_their_metadata_only() {
    let harness = Harness::new().await;
    assert_eq!(harness.api.count("list", "nodes"), 1);
    assert_eq!(harness.api.count("get", "nodes"), 0);
}

/// The first three as external-provisioner asks, which sends the parameters of the StorageClass and no capabilities:
/// the class may be used for block volumes too, which may be smaller than those with a filesystem.
#[rstest]
#[case::any_use("", None, 8 * MIB)]
#[case::any_use_of_a_class_with_xfs("xfs", None, 8 * MIB)]
#[case::any_use_of_a_class_with_a_filesystem_without_a_minimum("zfs", None, 0)]
#[case::block("xfs", Some(block()), 8 * MIB)]
#[case::ext4("", Some(mount("")), 32 * MIB)]
#[case::xfs("", Some(mount("xfs")), 300 * MIB)]
#[tokio::test(start_paused = true)]
async fn less_than_the_smallest_volume_is_nothing(
    #[case] filesystem: &str,
    #[case] capability: Option<VolumeCapability>,
    #[case] smallest: u64,
) {
    let harness = Harness::new().await;
    let full = node("n1").capacity_bytes("", smallest.saturating_sub(1)).build();
    let enough = node("n2").capacity_bytes("", smallest).build();
    harness.api.apply_json(full);
    harness.api.apply_json(enough);
    let told = async |node: &str| {
        let request = GetCapacityRequest {
            volume_capabilities: capability.clone().into_iter().collect(),
            parameters: [("csi.storage.k8s.io/fstype".to_owned(), filesystem.to_owned())].into(),
            accessible_topology: Some(topology(node)),
        };
        let answer = harness.csi.clone().get_capacity(request).await.unwrap().into_inner();
        (u64::try_from(answer.available_capacity).unwrap(), u64::try_from(answer.minimum_volume_size.unwrap()).unwrap())
    };
    while told("n2").await.0 > smallest {
        tokio::task::yield_now().await;
    }
    assert_eq!(told("n2").await, (smallest, smallest));
    assert_eq!(told("n1").await, (0, smallest));
}
