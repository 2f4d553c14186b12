//! GetCapacity.

use tonic::Code;
use topolvm_api::ApiFlavor;
use topolvm_proto::csi::{GetCapacityRequest, Topology};
use topolvm_testkit::ApiServer;
use topolvm_testkit::fixtures::node;

use crate::bench::{Bench, GIB, refusal, topology};

#[tokio::test(start_paused = true)]
async fn free_space_is_told_of_the_cluster_or_of_one_node() {
    let bench = Bench::new().await;
    assert_eq!(bench.free("", None).await, 30 * GIB);
    assert_eq!(bench.free("", Some(topology("n1"))).await, 10 * GIB);
    assert_eq!(bench.free("ssd", Some(topology("n2"))).await, 5 * GIB);
    assert_eq!(bench.free("ssd", Some(topology("n1"))).await, 0);
    assert_eq!(bench.free("", Some(topology("n9"))).await, 0);
    assert_eq!(bench.free("", Some(Topology::default())).await, 0);
}

#[tokio::test(start_paused = true)]
async fn free_space_follows_the_nodes() {
    let bench = Bench::new().await;
    bench.api.apply_json(node("n1").capacity("", 3).build());
    bench.api.delete("nodes", "", "n2");
    bench.until_free("", 3 * GIB).await;
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_being_deleted_has_no_space() {
    let bench = Bench::new().await;
    bench.api.apply_json(node("n2").capacity("", 20).finalizer("topolvm.io/node").build());
    bench.api.delete("nodes", "", "n2");
    bench.until_free("", 10 * GIB).await;
    assert_eq!(bench.free("", Some(topology("n2"))).await, 0);
}

#[tokio::test(start_paused = true)]
async fn before_the_nodes_are_known_nothing_is_told() {
    let api = ApiServer::new();
    api.disconnect();
    let bench = Bench::on(&api, ApiFlavor::TopoLvm);
    let answer = bench.csi.clone().get_capacity(GetCapacityRequest::default()).await;
    assert_eq!(refusal(answer).0, Code::Unavailable);
}

#[tokio::test(start_paused = true)]
async fn nodes_are_watched_by_their_metadata_only() {
    let bench = Bench::new().await;
    assert_eq!(bench.api.count("list", "nodes"), 1);
    assert_eq!(bench.api.count("get", "nodes"), 0);
}
