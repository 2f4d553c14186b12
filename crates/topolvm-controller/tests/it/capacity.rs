//! GetCapacity.

use rstest::rstest;
use tonic::Code;
use topolvm_api::{ApiFlavor, NodeStrategy};
use topolvm_controller::DriverSettings;
use topolvm_proto::csi::{GetCapacityRequest, Topology, VolumeCapability};
use topolvm_testkit::ApiServer;
use topolvm_testkit::fixtures::{logical_volume, node, storage_class};

use crate::harness::{
    GIB, Harness, MIB, block, create, mount, on_nodes, refusal, settings, sized, topology, volume, with_parameter,
};

const OPTION_CLASS: &str = "topolvm.io/lvcreate-option-class";

#[tokio::test(start_paused = true)]
async fn free_space_is_returned_for_the_cluster_or_one_node() {
    let harness = Harness::new().await;
    assert_eq!(harness.free("", None).await, 30 * GIB);
    assert_eq!(harness.free("", Some(topology("n1"))).await, 10 * GIB);
    assert_eq!(harness.free("ssd", Some(topology("n2"))).await, 5 * GIB);
    assert_eq!(harness.free("ssd", Some(topology("n1"))).await, 0);
    assert_eq!(harness.free("", Some(topology("n9"))).await, 0);
    assert_eq!(harness.free("", Some(Topology::default())).await, 0);
}

/// The agent of n2 is TopoLVM's, which does not report option classes.
#[tokio::test(start_paused = true)]
async fn an_option_class_has_the_space_that_its_layout_leaves() {
    let harness = Harness::new().await;
    harness.api.apply_json(node("n1").capacity("", 9).copies("", "mirrored", 4, 2).build());
    harness.until_free("", 29 * GIB).await;
    let capacity_of = async |topology: Option<Topology>| {
        let request = GetCapacityRequest {
            parameters: [(OPTION_CLASS.to_owned(), "mirrored".to_owned())].into(),
            accessible_topology: topology,
            ..GetCapacityRequest::default()
        };
        let answer = harness.csi.clone().get_capacity(request).await.unwrap().into_inner();
        (u64::try_from(answer.available_capacity).unwrap() / GIB, answer.maximum_volume_size.map(|bytes| bytes >> 30))
    };
    assert_eq!(capacity_of(Some(topology("n1"))).await, (4, None));
    assert_eq!(capacity_of(Some(topology("n2"))).await, (20, None));
    assert_eq!(capacity_of(None).await, (24, Some(20)));
    // The first node that has room for both copies, though n1 has room for one
    harness.claim("1", None, true);
    let request = with_parameter(sized(volume("pvc-1"), 5 * GIB, 0), OPTION_CLASS, "mirrored");
    drop(harness.beside(create(harness.csi.clone(), on_nodes(request, &["n1", "n2"]))));
    harness.api.wait_for_requests("create", "logicalvolumes", 1).await;
    harness.until_free("", 24 * GIB).await;
    assert_eq!(harness.object("pvc-1")["spec"]["nodeName"], "n2");
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

/// external-provisioner asks about a new node as soon as kubelet knows the driver, and only after an error again before
/// a minute is over.
#[tokio::test(start_paused = true)]
async fn capacity_of_a_new_node_is_unavailable_until_it_is_published() {
    let harness = Harness::new().await;
    let ask = async || {
        let request = GetCapacityRequest { accessible_topology: Some(topology("n3")), ..GetCapacityRequest::default() };
        harness.csi.clone().get_capacity(request).await
    };
    harness.api.apply_json(node("n3").build());
    while ask().await.is_ok() {
        tokio::task::yield_now().await;
    }
    let (code, message) = refusal(ask().await);
    assert_eq!(code, Code::Unavailable);
    assert!(message.contains("node n3 has not published"), "{message}");
    harness.api.apply_json(node("n3").capacity("", 7).build());
    harness.until_free("", 37 * GIB).await;
    assert_eq!(harness.free("", Some(topology("n3"))).await, 7 * GIB);
}

#[tokio::test(start_paused = true)]
async fn capacity_is_unavailable_before_the_nodes_are_known() {
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
    let capacity_of = async |node: &str| {
        let request = GetCapacityRequest {
            volume_capabilities: capability.clone().into_iter().collect(),
            parameters: [("csi.storage.k8s.io/fstype".to_owned(), filesystem.to_owned())].into(),
            accessible_topology: Some(topology(node)),
        };
        let answer = harness.csi.clone().get_capacity(request).await.unwrap().into_inner();
        (u64::try_from(answer.available_capacity).unwrap(), u64::try_from(answer.minimum_volume_size.unwrap()).unwrap())
    };
    while capacity_of("n2").await.0 > smallest {
        tokio::task::yield_now().await;
    }
    assert_eq!(capacity_of("n2").await, (smallest, smallest));
    assert_eq!(capacity_of("n1").await, (0, smallest));
}

#[tokio::test(start_paused = true)]
async fn space_reserved_for_claims_and_volumes_is_not_free() {
    let harness = Harness::new().await;
    harness.driver.reserve_for_claims(&harness.tasks, &harness.shutdown);
    harness.claim("1", Some("n1"), false);
    harness.until_free("", 29 * GIB).await;
    harness.api.apply_json(logical_volume("pvc-2").sized("2Gi").build());
    harness.until_free("", 27 * GIB).await;
    assert_eq!(harness.free("", Some(topology("n1"))).await, 7 * GIB);
    // The volume of the claim is the same reservation
    harness.api.apply_json(logical_volume("pvc-1").build());
    harness.api.delete("logicalvolumes", "", "pvc-2");
    harness.until_free("", 29 * GIB).await;
    harness.api.edit("logicalvolumes", "", "pvc-1", |volume| {
        volume["status"] = serde_json::json!({"code": 8, "message": "full"});
    });
    harness.until_free("", 30 * GIB).await;
}

#[tokio::test(start_paused = true)]
async fn restarted_controller_knows_the_reservations() {
    let api = ApiServer::new();
    api.apply_json(node("n1").capacity("", 10).build());
    let before = Harness::on(&api, ApiFlavor::TopoLvm);
    before.claim("1", Some("n1"), false);
    api.apply_json(logical_volume("pvc-2").sized("2Gi").build());
    let after = Harness::on(&api, ApiFlavor::TopoLvm);
    for harness in [before, after] {
        harness.driver.reserve_for_claims(&harness.tasks, &harness.shutdown);
        harness.synced().await;
        harness.until_free("", 7 * GIB).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_claim_is_not_refused_because_of_its_own_reservation() {
    let harness = Harness::with_agent().await;
    harness.driver.reserve_for_claims(&harness.tasks, &harness.shutdown);
    let class = storage_class("class").immediate().build();
    harness.claim("1", Some("n2"), false);
    harness.api.apply_json(class);
    harness.until_free("", 29 * GIB).await;
    let request = || sized(volume("pvc-1"), 20 * GIB, 0);
    assert_eq!(harness.create(request()).await.unwrap().accessible_topology, [topology("n2")]);
}

#[tokio::test(start_paused = true)]
async fn node_choice_takes_reservations_into_account() {
    let harness = Harness::new().await;
    harness.claim("1", None, true);
    harness.api.apply_json(logical_volume("pvc-0").sized("8Gi").build());
    harness.until_free("", 22 * GIB).await;
    let request = sized(on_nodes(volume("pvc-1"), &["n1", "n2"]), 3 * GIB, 0);
    drop(harness.beside(create(harness.csi.clone(), request)));
    harness.until_free("", 19 * GIB).await;
    assert_eq!(harness.free("", Some(topology("n2"))).await, 17 * GIB);
}

/// Without a strategy it is n3, the first that has room; the scheduler's choice stays n3 whatever the strategy.
#[rstest]
#[case::in_order(None, &["n1", "n3", "n2", "n4"], None, "n3")]
#[case::the_emptiest(Some(NodeStrategy::Spread), &["n1", "n3", "n2", "n4"], None, "n2")]
#[case::the_fullest_with_space(Some(NodeStrategy::Binpack), &["n1", "n2", "n3", "n4"], None, "n4")]
#[case::anywhere(None, &[], None, "n2")]
#[case::the_fullest_anywhere(Some(NodeStrategy::Binpack), &[], None, "n4")]
#[case::selected(Some(NodeStrategy::Spread), &["n3", "n1", "n2", "n4"], Some("n3"), "n3")]
#[tokio::test(start_paused = true)]
async fn volume_without_selected_node_is_placed_by_the_strategy(
    #[case] strategy: Option<NodeStrategy>,
    #[case] nodes: &[&str],
    #[case] selected: Option<&str>,
    #[case] expected: &str,
) {
    let harness = Harness::configured(DriverSettings { node_strategy: strategy, ..settings() }).await;
    harness.api.apply_json(node("n3").capacity("", 15).build());
    harness.api.apply_json(node("n4").capacity("", 12).build());
    harness.until_free("", 57 * GIB).await;
    harness.claim("1", selected, selected.is_none());
    let request = sized(volume("pvc-1"), 11 * GIB, 0);
    let request = if nodes.is_empty() { request } else { on_nodes(request, nodes) };
    drop(harness.beside(create(harness.csi.clone(), request)));
    harness.api.wait_for_requests("create", "logicalvolumes", 1).await;
    assert_eq!(harness.api.list_json("logicalvolumes")[0]["spec"]["nodeName"], expected);
}

/// All are asked for before the watch has reported the first.
#[tokio::test(start_paused = true)]
async fn volume_creation_in_parallel_never_exceeds_node_capacity() {
    let harness = Harness::new().await;
    let creations = (0..6).map(|number| {
        let request = sized(volume(&format!("pvc-{number}")), 6 * GIB, 0);
        harness.beside(create(harness.csi.clone(), request))
    });
    let creations: Vec<_> = creations.collect();
    harness.api.wait_for_requests("create", "logicalvolumes", 4).await;
    harness.until_free("", 6 * GIB).await;
    let mut nodes: Vec<_> = harness
        .api
        .list_json("logicalvolumes")
        .iter()
        .map(|volume| volume["spec"]["nodeName"].as_str().unwrap().to_owned())
        .collect();
    nodes.sort();
    assert_eq!(nodes, ["n1", "n2", "n2", "n2"]);
    drop(creations);
}
