//! CreateVolume where all goes well.

use rstest::rstest;
use serde_json::json;
use tonic::Code;
use topolvm_api::ApiFlavor;
use topolvm_testkit::ApiServer;
use topolvm_testkit::fixtures::{logical_volume, node};

use crate::agent::Agent;
use crate::harness::{
    GIB, Harness, LVS, MIB, block, create, on_nodes, refusal, sized, topology, volume, with_parameter,
};

const CLAIMS: &str = "persistentvolumeclaims";

#[tokio::test(start_paused = true)]
async fn a_volume_is_answered_with_its_id_its_real_size_and_its_node() {
    let harness = Harness::with_agent().await;
    let request = sized(on_nodes(volume("pvc-1"), &["n2", "n1"]), GIB + 1, 0);
    let volume = harness.create(request).await.unwrap();
    let object = harness.object("pvc-1");
    assert_eq!(volume.volume_id, object["metadata"]["uid"]);
    assert_eq!(u64::try_from(volume.capacity_bytes), Ok(GIB + 4 * MIB));
    assert_eq!(volume.accessible_topology, [topology("n2")]);
    assert!(volume.volume_context.is_empty() && volume.content_source.is_none());
}

#[tokio::test(start_paused = true)]
async fn the_object_has_all_that_the_node_agent_needs_from_the_start() {
    let harness = Harness::with_agent().await;
    let request = on_nodes(volume("PVC-1"), &["n2"]);
    let request = with_parameter(request, "topolvm.io/device-class", "ssd");
    harness.create(with_parameter(request, "topolvm.io/lvcreate-option-class", "raid")).await.unwrap();
    let object = harness.object("pvc-1");
    assert_eq!(
        object["spec"],
        json!({"name": "pvc-1", "nodeName": "n2", "size": "1Gi", "deviceClass": "ssd", "lvcreateOptionClass": "raid"})
    );
    assert_eq!(object["metadata"]["finalizers"], json!(["topolvm.io/logicalvolume"]));
    assert_eq!(object["metadata"]["labels"], json!({"app.kubernetes.io/created-by": "topolvm-controller"}));
}

#[tokio::test(start_paused = true)]
async fn logical_volume_names_the_claim_from_watch_or_request() {
    let harness = Harness::with_agent().await;
    harness.claim("1", Some("n1"), false);
    harness.driver.reserve_for_claims(&harness.tasks, &harness.shutdown);
    harness.until_free("", 29 * GIB).await;
    let named = with_parameter(on_nodes(volume("pvc-2"), &["n1"]), "csi.storage.k8s.io/pvc/namespace", "shop");
    let named = with_parameter(named, "csi.storage.k8s.io/pvc/name", "data");
    for request in [on_nodes(volume("pvc-1"), &["n1"]), named, on_nodes(volume("pvc-3"), &["n1"])] {
        harness.create(request).await.unwrap();
    }
    let claims = ["pvc-1", "pvc-2", "pvc-3"]
        .map(|name| harness.object(name)["metadata"]["annotations"]["topolvm.io/claim"].clone());
    assert_eq!(json!(claims), json!(["default/data-1", "shop/data", null]));
}

#[tokio::test(start_paused = true)]
async fn one_write_and_no_waiting_makes_a_volume() {
    let harness = Harness::with_agent().await;
    harness.api.clear_requests();
    let start = tokio::time::Instant::now();
    harness.create(on_nodes(volume("pvc-1"), &["n1"])).await.unwrap();
    assert_eq!(harness.api.count("*", LVS), 1, "{:?}", harness.api.requests());
    assert_eq!(start.elapsed().as_millis(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_volume_for_any_node_is_created_where_most_space_is_free() {
    let harness = Harness::with_agent().await;
    let volume = harness.create(volume("pvc-1")).await.unwrap();
    assert_eq!(volume.accessible_topology, [topology("n2")]);
}

#[tokio::test(start_paused = true)]
async fn small_requests_are_raised_to_the_minimum_of_their_use() {
    let harness = Harness::with_agent().await;
    let mut request = sized(on_nodes(volume("pvc-1"), &["n1"]), MIB, 0);
    request.volume_capabilities = vec![block()];
    assert_eq!(u64::try_from(harness.create(request).await.unwrap().capacity_bytes), Ok(8 * MIB));
}

#[tokio::test(start_paused = true)]
async fn a_name_is_refused_where_kubernetes_refuses_it() {
    let harness = Harness::with_agent().await;
    harness.create(on_nodes(volume(&"a".repeat(128)), &["n1"])).await.unwrap();
    harness.api.fail_next("create", LVS, 1, 422);
    let (code, message) = refusal(harness.create(on_nodes(volume("no spaces"), &["n1"])).await);
    assert_eq!(code, Code::InvalidArgument, "{message}");
}

#[tokio::test(start_paused = true)]
async fn the_legacy_group_works_the_same() {
    let api = ApiServer::new();
    api.apply_json(node("n1").build());
    let harness = Harness::on(&api, ApiFlavor::Legacy);
    harness.synced().await;
    harness.start(&Agent::with_free(GIB));
    let mut request = on_nodes(volume("pvc-1"), &[]);
    let segment = [("topology.topolvm.cybozu.com/node".to_owned(), "n1".to_owned())];
    let topology = topolvm_proto::csi::Topology { segments: segment.into() };
    request.accessibility_requirements.as_mut().unwrap().requisite = vec![topology.clone()];
    let volume = harness.create(request).await.unwrap();
    assert_eq!(volume.accessible_topology, [topology]);
    let object = harness.object("pvc-1");
    assert_eq!(object["apiVersion"], "topolvm.cybozu.com/v1");
    assert_eq!(object["metadata"]["finalizers"], json!(["topolvm.cybozu.com/logicalvolume"]));
    harness.delete(&volume.volume_id).await.unwrap();
    assert!(harness.object("pvc-1").is_null());
}

#[tokio::test(start_paused = true)]
async fn options_for_mkfs_reach_the_node_with_every_mount() {
    let harness = Harness::with_agent().await;
    let request = with_parameter(on_nodes(volume("pvc-1"), &["n1"]), "topolvm.io/mkfs-options", "-i 4096");
    let context = harness.create(request).await.unwrap().volume_context;
    assert_eq!(context, [("topolvm.io/mkfs-options".to_owned(), "-i 4096".to_owned())].into());
}

#[tokio::test(start_paused = true)]
async fn mkfs_options_that_are_not_allowed_prevent_creation() {
    let harness = Harness::with_agent().await;
    let request = with_parameter(on_nodes(volume("pvc-1"), &["n1"]), "topolvm.io/mkfs-options", "-d etc");
    let status = harness.create(request).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(status.message().contains("\"-d\" is not allowed for ext4: allowed options are -b"), "{status}");
    assert!(harness.object("pvc-1").is_null());
}

/// n1 publishes 10 GiB and n2 20 GiB. For a claim that binds immediately external-provisioner sends all nodes in the
/// same order each time.
#[rstest]
#[case::the_first_has_space(&["n1", "n2"], 10, "n1")]
#[case::the_first_is_full(&["n1", "n2"], 11, "n2")]
#[case::an_unknown_node_publishes_nothing(&["n9", "n1", "n2"], 1, "n1")]
#[case::all_are_full(&["n1", "n2"], 21, "n1")]
#[case::the_only_one_knows_better_what_it_has(&["n1"], 11, "n1")]
#[tokio::test(start_paused = true)]
async fn immediate_binding_uses_the_first_node_with_free_space(
    #[case] nodes: &[&str],
    #[case] gib: u64,
    #[case] place: &str,
) {
    let harness = Harness::with_agent().await;
    harness.claim("1", None, true);
    let volume = harness.create(sized(on_nodes(volume("pvc-1"), nodes), gib * GIB, 0)).await.unwrap();
    assert_eq!(volume.accessible_topology, [topology(place)]);
}

/// As external-provisioner asks without `--strict-topology`: the node that the scheduler has chosen comes first, and n1
/// publishes too little.
#[rstest]
#[case::chosen(Some("n1"), false)]
#[case::chosen_although_the_class_binds_immediately(Some("n1"), true)]
#[case::about_to_be_chosen_again(None, false)]
#[tokio::test(start_paused = true)]
async fn a_volume_for_a_pod_is_made_on_the_node_of_the_pod_or_nowhere(
    #[case] selected_node: Option<&str>,
    #[case] immediate: bool,
    #[values(true, false)] is_named: bool,
) {
    let harness = Harness::new().await;
    harness.start(&Agent::with_free(GIB));
    harness.claim("1", selected_node, immediate);
    let mut request = sized(on_nodes(volume("pvc-1"), &["n1", "n2"]), 11 * GIB, 0);
    if is_named {
        request = with_parameter(request, "csi.storage.k8s.io/pvc/namespace", "default");
        request = with_parameter(request, "csi.storage.k8s.io/pvc/name", "data-1");
    }
    let (code, message) = refusal(harness.create(request).await);
    assert_eq!(
        (code, message.contains("node n1 cannot create the volume")),
        (Code::ResourceExhausted, true),
        "{message}"
    );
    harness.api.until(LVS, "", "pvc-1", |object| object.is_none().then_some(())).await;
    assert_eq!(harness.api.count("list", CLAIMS), usize::from(!is_named));
}

#[tokio::test(start_paused = true)]
async fn volume_without_a_known_claim_uses_the_first_node_or_fails() {
    let harness = Harness::new().await;
    harness.start(&Agent::with_free(GIB));
    harness.claim("other", None, true);
    let request = sized(on_nodes(volume("pvc-1"), &["n1", "n2"]), 11 * GIB, 0);
    assert_eq!(refusal(harness.create(request).await).0, Code::ResourceExhausted);
}

#[tokio::test(start_paused = true)]
async fn claims_are_read_only_if_first_node_is_full_and_must_succeed() {
    let harness = Harness::with_agent().await;
    harness.claim("1", None, true);
    harness.create(on_nodes(volume("pvc-2"), &["n1", "n2"])).await.unwrap();
    assert_eq!(harness.api.count("*", CLAIMS), 0);
    harness.api.fail_next("list", CLAIMS, 1, 500);
    let request = || sized(on_nodes(volume("pvc-1"), &["n1", "n2"]), 11 * GIB, 0);
    let (code, message) = refusal(harness.create(request()).await);
    assert_eq!((code, message.contains("claim of volume pvc-1")), (Code::Unavailable, true), "{message}");
    assert!(harness.object("pvc-1").is_null());
    assert_eq!(harness.create(request()).await.unwrap().accessible_topology, [topology("n2")]);
}

/// The agent of n2 has not answered, and the scheduler has chosen again since.
#[tokio::test(start_paused = true)]
async fn pending_volume_moves_to_the_newly_selected_node() {
    let harness = Harness::new().await;
    harness.api.apply_json(logical_volume("pvc-1").on("n2").build());
    harness.claim("1", Some("n1"), false);
    let creating = harness.beside(create(harness.csi.clone(), on_nodes(volume("pvc-1"), &["n1", "n2"])));
    let is_here = |object: Option<&serde_json::Value>| (object?["spec"]["nodeName"] == "n1").then_some(());
    let asked = harness.api.until(LVS, "", "pvc-1", is_here);
    tokio::time::timeout(std::time::Duration::from_secs(20), asked).await.unwrap();
    harness.start(&Agent::with_free(100 * GIB));
    assert_eq!(creating.await.unwrap().unwrap().accessible_topology, [topology("n1")]);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_being_deleted_gets_no_volume() {
    let harness = Harness::with_agent().await;
    harness.claim("2", None, true);
    harness.api.apply_json(node("n2").capacity("", 20).finalizer("topolvm.io/node").build());
    harness.api.delete("nodes", "", "n2");
    harness.until_free("", 10 * GIB).await;
    for (name, request) in [("pvc-1", volume("pvc-1")), ("pvc-2", on_nodes(volume("pvc-2"), &["n2", "n1"]))] {
        assert_eq!(harness.create(request).await.unwrap().accessible_topology, [topology("n1")], "{name}");
    }
    let (code, message) = refusal(harness.create(on_nodes(volume("pvc-3"), &["n2"])).await);
    assert_eq!((code, message.contains("n2 is being deleted")), (Code::ResourceExhausted, true), "{message}");
    assert!(harness.object("pvc-3").is_null());
}

/// external-provisioner repeats its request with the topology from before.
#[tokio::test(start_paused = true)]
async fn a_node_that_is_gone_gets_no_volume() {
    let harness = Harness::with_agent().await;
    harness.claim("2", None, true);
    harness.api.delete("nodes", "", "n2");
    harness.until_free("", 10 * GIB).await;
    let (code, message) = refusal(harness.create(on_nodes(volume("pvc-1"), &["n2"])).await);
    assert_eq!((code, message.contains("Node n2 no longer exists")), (Code::ResourceExhausted, true), "{message}");
    assert!(harness.object("pvc-1").is_null());
    let elsewhere = harness.create(on_nodes(volume("pvc-2"), &["n2", "n1"])).await.unwrap();
    assert_eq!(elsewhere.accessible_topology, [topology("n1")]);
}

/// As from the template of a node pool. kube-scheduler would send pods with volumes of n2 to either.
#[tokio::test(start_paused = true)]
async fn node_whose_topology_label_another_has_gets_no_volume() {
    let harness = Harness::with_agent().await;
    harness.claim("2", None, true);
    let mut impostor = serde_json::to_value(node("n3").build()).unwrap();
    impostor["metadata"]["labels"]["topology.topolvm.io/node"] = json!("n2");
    harness.api.apply_json(impostor);
    harness.api.apply_json(node("n1").capacity("", 11).build());
    harness.until_free("", 31 * GIB).await;
    let (code, message) = refusal(harness.create(on_nodes(volume("pvc-1"), &["n2"])).await);
    let command = "Node n3 has the label topology.topolvm.io/node=n2 of another node";
    assert!(code == Code::ResourceExhausted && message.contains(command), "{code} {message}");
    assert!(message.contains("kubectl label node n3 topology.topolvm.io/node=n3 --overwrite"), "{message}");
    assert!(harness.object("pvc-1").is_null());
    let elsewhere = harness.create(on_nodes(volume("pvc-2"), &["n2", "n1"])).await.unwrap();
    assert_eq!(elsewhere.accessible_topology, [topology("n1")]);
}

#[tokio::test(start_paused = true)]
async fn existing_volume_is_found_on_a_node_in_deletion() {
    let harness = Harness::with_agent().await;
    let first = harness.create(on_nodes(volume("pvc-1"), &["n2"])).await.unwrap();
    harness.api.apply_json(node("n2").capacity("", 20).finalizer("topolvm.io/node").build());
    harness.api.delete("nodes", "", "n2");
    harness.until_free("", 10 * GIB).await;
    assert_eq!(harness.create(on_nodes(volume("pvc-1"), &["n2"])).await.unwrap(), first);
}
