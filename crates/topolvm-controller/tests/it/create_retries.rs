//! CreateVolume again: the same name, any number of times, from any number of controllers.

use serde_json::json;
use tonic::Code;
use topolvm_api::ApiFlavor;
use topolvm_testkit::api_server::Failure;
use topolvm_testkit::fixtures::{logical_volume, node};

use crate::agent::Agent;
use crate::harness::{GIB, Harness, LVS, create, on_nodes, refusal, sized, topology, volume, with_parameter};

#[tokio::test(start_paused = true)]
async fn the_same_request_again_is_the_same_volume() {
    let harness = Harness::with_agent().await;
    let first = harness.create(volume("pvc-1")).await.unwrap();
    let second = harness.create(volume("pvc-1")).await.unwrap();
    assert_eq!(first, second);
    assert_eq!(harness.api.list_json(LVS).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn repeated_creation_returns_the_volume_on_its_actual_node() {
    let harness = Harness::with_agent().await;
    harness.create(on_nodes(volume("pvc-1"), &["n1"])).await.unwrap();
    let preferring = harness.create(on_nodes(volume("pvc-1"), &["n2", "n1"])).await.unwrap();
    assert_eq!(preferring.accessible_topology, [topology("n1")]);
    let excluding = harness.create(on_nodes(volume("pvc-1"), &["n2"])).await.unwrap();
    assert_eq!(excluding.accessible_topology, [topology("n1")]);
}

#[tokio::test(start_paused = true)]
async fn pending_volume_stays_on_its_allowed_node() {
    let harness = Harness::new().await;
    harness.api.apply_json(logical_volume("pvc-1").on("n1").build());
    harness.start(&Agent::with_free(GIB));
    let volume = harness.create(on_nodes(volume("pvc-1"), &["n2", "n1"])).await.unwrap();
    assert_eq!(volume.accessible_topology, [topology("n1")]);
}

#[tokio::test(start_paused = true)]
async fn pending_volume_on_a_disallowed_node_is_replaced() {
    let harness = Harness::new().await;
    harness.api.apply_json(logical_volume("pvc-1").on("n1").build());
    let request = on_nodes(volume("pvc-1"), &["n2"]);
    let creating = harness.beside(create(harness.csi.clone(), request));
    harness.api.until(LVS, "", "pvc-1", |object| (object?["spec"]["nodeName"] == "n2").then_some(())).await;
    harness.start(&Agent::with_free(GIB));
    assert_eq!(creating.await.unwrap().unwrap().accessible_topology, [topology("n2")]);
}

#[tokio::test(start_paused = true)]
async fn another_size_or_class_under_the_same_name_is_refused() {
    let harness = Harness::with_agent().await;
    harness.create(sized(volume("pvc-1"), GIB, GIB)).await.unwrap();
    for (other, difference) in [
        (sized(volume("pvc-1"), 2 * GIB, 2 * GIB), "size of 1Gi"),
        (sized(volume("pvc-1"), GIB / 2, GIB / 2), "size of 1Gi"),
        (with_parameter(on_nodes(volume("pvc-1"), &["n2"]), "topolvm.io/device-class", "ssd"), "device class \"\""),
        (
            with_parameter(on_nodes(volume("pvc-1"), &["n2"]), "topolvm.io/lvcreate-option-class", "raid"),
            "option class \"\"",
        ),
    ] {
        let (code, message) = refusal(harness.create(other).await);
        assert_eq!(code, Code::AlreadyExists);
        assert!(message.contains(difference), "{message}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_clone_of_that_name_is_another_volume() {
    let harness = Harness::new().await;
    harness.api.apply_json(logical_volume("pvc-1").from_source("pvc-0", "rw").ready("u-1", "1Gi").build());
    let (code, message) = refusal(harness.create(on_nodes(volume("pvc-1"), &["n1"])).await);
    assert_eq!((code, message.contains("as a copy of pvc-0")), (Code::AlreadyExists, true), "{message}");
}

#[tokio::test(start_paused = true)]
async fn repeated_creation_after_expansion_returns_the_same_volume() {
    let harness = Harness::with_agent().await;
    let small = harness.create(volume("pvc-1")).await.unwrap();
    harness.expand(&small.volume_id, 2 * GIB).await.unwrap();
    let again = harness.create(volume("pvc-1")).await.unwrap();
    assert_eq!((again.volume_id, u64::try_from(again.capacity_bytes)), (small.volume_id, Ok(2 * GIB)));
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_fills_its_node_is_found_again() {
    let harness = Harness::with_agent().await;
    let first = harness.create(volume("pvc-1")).await.unwrap();
    for name in ["n1", "n2"] {
        harness.api.apply_json(node(name).capacity("", 0).build());
    }
    harness.until_free("", 0).await;
    assert_eq!(refusal(harness.create(volume("pvc-2")).await).0, Code::ResourceExhausted);
    assert_eq!(harness.create(volume("pvc-1")).await.unwrap(), first);
}

#[tokio::test(start_paused = true)]
async fn volume_is_awaited_until_its_agent_reports_the_size() {
    let harness = Harness::new().await;
    let creating = harness.beside(create(harness.csi.clone(), on_nodes(volume("pvc-1"), &["n1"])));
    harness.api.until(LVS, "", "pvc-1", |object| object.map(drop)).await;
    harness.api.edit(LVS, "", "pvc-1", |volume| volume["status"] = json!({"volumeID": "u-1"}));
    harness.api.edit(LVS, "", "pvc-1", |volume| volume["status"]["currentSize"] = json!("1028Mi"));
    let volume = creating.await.unwrap().unwrap();
    assert_eq!((volume.volume_id.as_str(), volume.capacity_bytes), ("u-1", 1028 << 20));
}

#[tokio::test(start_paused = true)]
async fn volume_of_unknown_size_is_never_deleted() {
    let harness = Harness::new().await;
    harness.api.apply_json(logical_volume("pvc-1").build());
    harness.api.edit(LVS, "", "pvc-1", |volume| {
        volume["status"] = json!({"volumeID": "u-1", "code": 13, "message": "lvmd is away"});
    });
    let answer = harness.create(on_nodes(volume("pvc-1"), &["n1"])).await;
    assert_eq!(refusal(answer).0, Code::DeadlineExceeded);
    assert_eq!(harness.object("pvc-1")["status"]["volumeID"], "u-1");
}

#[tokio::test(start_paused = true)]
async fn two_controllers_that_make_the_same_volume_make_one() {
    let harness = Harness::new().await;
    let other = Harness::on(&harness.api, ApiFlavor::TopoLvm);
    other.synced().await;
    let request = || on_nodes(volume("pvc-1"), &["n1"]);
    let one = harness.beside(create(harness.csi.clone(), request()));
    let two = harness.beside(create(other.csi.clone(), request()));
    harness.api.wait_for_requests("create", LVS, 2).await;
    harness.start(&Agent::with_free(GIB));
    assert_eq!(one.await.unwrap().unwrap(), two.await.unwrap().unwrap());
    assert_eq!(harness.api.list_json(LVS).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_second_call_for_the_same_name_is_aborted() {
    let harness = Harness::new().await;
    let first = harness.beside(create(harness.csi.clone(), on_nodes(volume("pvc-1"), &["n1"])));
    harness.api.until(LVS, "", "pvc-1", |object| object.map(drop)).await;
    assert_eq!(refusal(harness.create(on_nodes(volume("PVC-1"), &["n1"])).await).0, Code::Aborted);
    harness.start(&Agent::with_free(GIB));
    first.await.unwrap().unwrap();
    harness.create(on_nodes(volume("pvc-1"), &["n1"])).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn lost_create_answer_is_unavailable_and_a_retry_succeeds() {
    let harness = Harness::with_agent().await;
    harness.api.inject("create", LVS, 1, Failure::LostAnswer);
    let request = || on_nodes(volume("pvc-1"), &["n1"]);
    assert_eq!(refusal(harness.create(request()).await).0, Code::Unavailable);
    let volume = harness.create(request()).await.unwrap();
    assert_eq!(volume.volume_id, harness.object("pvc-1")["metadata"]["uid"]);
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_is_being_deleted_frees_space_for_a_new_one() {
    let harness = Harness::with_agent().await;
    harness.api.apply_json(logical_volume("pvc-1").finalizer("topolvm.io/logicalvolume").ready("u-1", "1Gi").build());
    harness.api.delete(LVS, "", "pvc-1");
    let creating = harness.beside(create(harness.csi.clone(), on_nodes(volume("pvc-1"), &["n1"])));
    let volume = creating.await.unwrap().unwrap();
    assert_ne!(volume.volume_id, "u-1");
}

#[tokio::test(start_paused = true)]
async fn a_name_whose_volume_is_not_deleted_in_time_is_aborted() {
    let harness = Harness::new().await;
    harness.api.apply_json(logical_volume("pvc-1").finalizer("topolvm.io/logicalvolume").ready("u-1", "1Gi").build());
    harness.api.delete(LVS, "", "pvc-1");
    let (code, message) = refusal(harness.create(on_nodes(volume("pvc-1"), &["n1"])).await);
    assert_eq!(code, Code::Aborted);
    assert!(message.contains("still being deleted on node n1"), "{message}");
}
