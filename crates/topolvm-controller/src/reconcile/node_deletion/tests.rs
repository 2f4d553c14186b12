use serde_json::{Value, json};
use topolvm_testkit::ApiServer;
use topolvm_testkit::api_server::Failure;
use topolvm_testkit::fixtures::{claim, logical_volume, node, storage_class};

use super::super::Settings;
use super::super::bench::{Bench, DEFAULTS};
use super::*;

const LVS: &str = "logicalvolumes.topolvm.io";
const CLAIMS: &str = "persistentvolumeclaims";
const PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";

/// Nodes n1 and n2, each with a claim that the scheduler sent there and its volume.
fn cluster() -> ApiServer {
    let server = ApiServer::new();
    server.apply_json(storage_class("ours").build());
    server.apply_json(storage_class("theirs").provisioner("ebs.example").build());
    for name in ["n1", "n2"] {
        server.apply_json(node(name).finalizer("topolvm.io/node").build());
        server.apply_json(claim(&format!("data-{name}")).class("ours").selected_node(name).build());
        let volume = logical_volume(&format!("pvc-{name}")).on(name).finalizer("topolvm.io/logicalvolume");
        server.apply_json(volume.build());
    }
    server
}

#[tokio::test(start_paused = true)]
async fn a_deleted_node_takes_its_claims_and_volumes_with_it_and_no_others() {
    let server = cluster();
    let bench = Bench::start(&server, DEFAULTS);
    bench.settle().await;
    assert!(bench.has(CLAIMS, "default", "data-n1"), "nothing happens before");
    server.delete("nodes", "", "n1");
    bench.gone("nodes", "", "n1").await;
    assert!(!bench.has(CLAIMS, "default", "data-n1"));
    assert!(!bench.has(LVS, "", "pvc-n1"));
    for (resource, namespace, name) in [("nodes", "", "n2"), (CLAIMS, "default", "data-n2"), (LVS, "", "pvc-n2")] {
        assert!(bench.has(resource, namespace, name), "{name} is of another node");
    }
    let mut events = bench.events();
    events.sort();
    let event = |name: &str| ("NodeDeleted".to_owned(), name.to_owned());
    assert_eq!(events, [event("data-n1"), event("pvc-n1")]);
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_node_deleted_while_no_controller_ran_is_seen_at_the_start() {
    let server = cluster();
    server.delete("nodes", "", "n1");
    let bench = Bench::start(&server, DEFAULTS);
    bench.gone("nodes", "", "n1").await;
    assert!(!bench.has(CLAIMS, "default", "data-n1"));
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn the_legacy_group_has_its_own_finalizers() {
    let server = ApiServer::new();
    server.apply_json(node("n1").legacy().finalizer("topolvm.cybozu.com/node").finalizer("topolvm.io/node").build());
    let volume = logical_volume("pvc-1").legacy().finalizer("topolvm.cybozu.com/logicalvolume").build();
    server.apply_json(volume);
    server.delete("nodes", "", "n1");
    let bench = Bench::start_as(&server, ApiFlavor::Legacy, DEFAULTS);
    bench.gone("logicalvolumes.topolvm.cybozu.com", "", "pvc-1").await;
    bench.settle().await;
    assert_eq!(server.get_json("nodes", "", "n1").unwrap()["metadata"]["finalizers"], json!(["topolvm.io/node"]));
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn when_told_to_skip_only_the_node_goes() {
    let server = cluster();
    let bench = Bench::start(&server, Settings { skip_node_finalize: true, ..DEFAULTS });
    server.delete("nodes", "", "n1");
    bench.gone("nodes", "", "n1").await;
    assert!(bench.has(CLAIMS, "default", "data-n1"));
    let volume = server.get_json(LVS, "", "pvc-n1").unwrap();
    assert_eq!(volume["metadata"]["finalizers"], json!(["topolvm.io/logicalvolume"]));
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn claims_of_other_drivers_stay() {
    let server = cluster();
    server.apply_json(claim("by-class").class("theirs").selected_node("n1").build());
    let mut by_annotation = claim("by-annotation").class("ours").selected_node("n1").build();
    by_annotation.annotations_mut().insert(PROVISIONER.to_owned(), "ebs.example".to_owned());
    server.apply_json(by_annotation);
    server.apply_json(claim("without-class").selected_node("n1").build());
    let bench = Bench::start(&server, DEFAULTS);
    server.delete("nodes", "", "n1");
    bench.gone("nodes", "", "n1").await;
    for name in ["by-class", "by-annotation", "without-class"] {
        assert!(bench.has(CLAIMS, "default", name), "{name}");
    }
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_was_bound_at_once_goes_with_its_volume() {
    let server = cluster();
    let mut immediate = claim("immediate").class("ours").bound_to("pvc-n1").build();
    immediate.annotations_mut().insert(PROVISIONER.to_owned(), "topolvm.io".to_owned());
    server.apply_json(immediate);
    let bench = Bench::start(&server, DEFAULTS);
    server.delete("nodes", "", "n1");
    bench.gone("nodes", "", "n1").await;
    assert!(!bench.has(CLAIMS, "default", "immediate"));
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_was_sent_to_another_node_meanwhile_stays() {
    let server = cluster();
    let bench = Bench::start(&server, DEFAULTS);
    bench.settle().await;
    server.before_next("delete", CLAIMS, |server| {
        server.edit(CLAIMS, "default", "data-n1", |claim| {
            claim["metadata"]["annotations"][topolvm_api::SELECTED_NODE] = json!("n2");
        });
    });
    server.delete("nodes", "", "n1");
    bench.gone("nodes", "", "n1").await;
    assert!(bench.has(CLAIMS, "default", "data-n1"));
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_finalizer_that_somebody_adds_meanwhile_is_not_dropped() {
    let server = cluster();
    let add = |object: &mut Value| object["metadata"]["finalizers"].as_array_mut().unwrap().push(json!("other/one"));
    server.edit("nodes", "", "n2", add);
    server.before_next("patch", LVS, move |server| server.edit(LVS, "", "pvc-n1", add));
    let bench = Bench::start(&server, DEFAULTS);
    server.delete("nodes", "", "n1");
    bench.gone("nodes", "", "n1").await;
    let volume = server.get_json(LVS, "", "pvc-n1").unwrap();
    assert_eq!(volume["metadata"]["finalizers"], json!(["other/one"]));
    // The agent is told to keep its hands off before the object is on its way out
    assert_eq!(volume["metadata"]["annotations"]["topolvm.io/pendingdeletion"], json!("true"));
    assert!(!volume["metadata"]["deletionTimestamp"].is_null());
    server.delete("nodes", "", "n2");
    bench.gone(LVS, "", "pvc-n2").await;
    bench.settle().await;
    assert_eq!(server.get_json("nodes", "", "n2").unwrap()["metadata"]["finalizers"], json!(["other/one"]));
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_is_asked_for_meanwhile_goes_too() {
    let server = cluster();
    server.before_next("delete", LVS, |server| {
        server.apply_json(logical_volume("late").on("n1").finalizer("topolvm.io/logicalvolume").build());
    });
    let bench = Bench::start(&server, DEFAULTS);
    server.delete("nodes", "", "n1");
    bench.gone("nodes", "", "n1").await;
    assert!(!bench.has(LVS, "", "late"));
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn the_node_stays_until_everything_has_gone_whatever_fails_in_between() {
    for (verb, resource) in [
        ("get", "nodes"),
        ("list", LVS),
        ("get", CLAIMS),
        ("delete", CLAIMS),
        ("patch", LVS),
        ("delete", LVS),
        ("patch", "nodes"),
    ] {
        for failure in [Failure::Status(500), Failure::Status(409), Failure::Unreachable, Failure::LostAnswer] {
            let server = cluster();
            let what = format!("{verb} {resource} {failure:?}");
            let bench = Bench::start(&server, DEFAULTS);
            bench.settle().await;
            server.inject(verb, resource, 1, failure);
            server.delete("nodes", "", "n1");
            bench.gone("nodes", "", "n1").await;
            assert!(!bench.has(CLAIMS, "default", "data-n1"), "{what}");
            assert!(!bench.has(LVS, "", "pvc-n1"), "{what}");
            bench.end().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn without_selectable_fields_only_the_volumes_of_the_node_go() {
    let server = cluster();
    server.set_selectable_fields(LVS, &[]);
    let bench = Bench::start(&server, DEFAULTS);
    server.delete("nodes", "", "n1");
    bench.gone("nodes", "", "n1").await;
    assert!(!bench.has(LVS, "", "pvc-n1"));
    assert!(bench.has(LVS, "", "pvc-n2"));
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn work_is_per_node_and_not_per_cluster() {
    let server = cluster();
    for number in 0..50 {
        server.apply_json(logical_volume(&format!("other-{number}")).on("n2").build());
        server.apply_json(claim(&format!("other-{number}")).class("ours").selected_node("n2").build());
    }
    let bench = Bench::start(&server, DEFAULTS);
    bench.settle().await;
    server.clear_requests();
    server.delete("nodes", "", "n1");
    bench.gone("nodes", "", "n1").await;
    bench.settle().await;
    let requests: Vec<_> = server.requests().into_iter().filter(|(verb, _)| *verb != "watch").collect();
    assert!(requests.len() <= 12, "{requests:#?}");
    bench.end().await;
}
