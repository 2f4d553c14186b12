use serde_json::{Value, json};
use tokio::sync::watch;
use tonic::Code;
use topolvm_proto::csi::volume_capability::AccessType;
use topolvm_proto::csi::volume_capability::access_mode::Mode;
use topolvm_runtime::CancellationToken;
use topolvm_testkit::api_server::Failure;

use super::fake_driver::Call;
use super::harness::{CLAIMS, Harness, VOLUMES, change_claim, request};

const SECRETS: &str = "secrets";

fn triple(capacity: &str, allocated: &str, state: &str) -> (String, String, String) {
    (capacity.to_owned(), allocated.to_owned(), state.to_owned())
}

#[tokio::test(start_paused = true)]
async fn filesystem_is_expanded_and_left_to_the_kubelet() {
    let harness = Harness::start();
    harness.request("3Gi");
    harness.wait(1).await;
    assert_eq!((harness.driver.sizes(), harness.volume_size()), (vec![3], json!("3Gi")));
    assert_eq!(harness.progress(), triple("1Gi", "3Gi", "NodeResizePending"));
    assert_eq!(harness.conditions(), ["Resizing", "FileSystemResizePending"]);
    assert_eq!(harness.reasons(), ["FileSystemResizeRequired", "Resizing"]);
    let Call::Expand { request, .. } = &harness.driver.calls()[0] else { panic!() };
    let capability = request.volume_capability.clone().unwrap();
    let Some(AccessType::Mount(mount)) = capability.access_type else { panic!() };
    assert_eq!((request.volume_id.as_str(), mount.fs_type.as_str()), ("id-1", "xfs"));
    assert_eq!(capability.access_mode.unwrap().mode(), Mode::SingleNodeMultiWriter);
    assert_eq!(request.capacity_range.unwrap().limit_bytes, 0);

    harness.finish_on_node("3Gi");
    harness.wait(3600).await;
    assert_eq!((harness.driver.sizes(), harness.server.count("patch", CLAIMS)), (vec![3], 2));
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn device_is_expanded_without_the_kubelet() {
    let harness = Harness::start_with_block();
    harness.request("3Gi");
    harness.wait(1).await;
    assert_eq!((harness.driver.sizes(), harness.volume_size()), (vec![3], json!("3Gi")));
    assert_eq!(harness.progress(), triple("3Gi", "3Gi", ""));
    assert_eq!(harness.conditions(), Vec::<String>::new());
    let annotation = "/metadata/annotations/volume.kubernetes.io~1node-expansion-not-required";
    assert_eq!(harness.claim().pointer(annotation), Some(&json!("true")));
    assert_eq!(harness.reasons(), ["Resizing", "VolumeResizeSuccessful"]);
    // One read of the PersistentVolume before the call, and one that finds that nothing more is requested
    let server = &harness.server;
    assert_eq!((server.count("get", CLAIMS), server.count("patch", CLAIMS)), (0, 2));
    assert_eq!((server.count("get", VOLUMES), server.count("patch", VOLUMES)), (1, 1));
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn expansion_begins_when_the_driver_is_ready() {
    let (server, driver) = Harness::start_with_block().end().await;
    let (ready, driver_ready) = watch::channel(false);
    let harness = Harness::start_when(driver_ready, server, driver);
    harness.request("3Gi");
    harness.wait(60).await;
    assert_eq!((harness.driver.sizes(), harness.server.count("patch", CLAIMS)), (vec![], 0));
    ready.send_replace(true);
    harness.wait(1).await;
    assert_eq!((harness.driver.sizes(), harness.progress()), (vec![3], triple("3Gi", "3Gi", "")));
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn claims_of_others_cost_one_read_and_no_write() {
    let csi = json!({"spec": {"csi": {"driver": "ebs.example"}}});
    let unbound = json!({"spec": {"claimRef": {"uid": "another"}}});
    for volume in [csi, unbound] {
        let harness = Harness::start_with(&json!({}), &volume);
        harness.wait(1).await;
        assert_eq!(harness.server.count("get", VOLUMES), 0);
        harness.request("3Gi");
        harness.wait(3600).await;
        assert_eq!((harness.driver.sizes(), harness.server.count("get", VOLUMES)), (vec![], 1));
        assert_eq!((harness.server.count("patch", "*"), harness.reasons()), (0, vec![]));
        harness.end().await;
    }
}

#[tokio::test(start_paused = true)]
async fn larger_request_follows_after_the_first_has_ended() {
    let harness = Harness::start_with_block();
    let server = harness.server.clone();
    harness.driver.during_next(move || request(&server, "5Gi"));
    harness.request("3Gi");
    harness.wait(1).await;
    assert_eq!((harness.driver.sizes(), harness.progress()), (vec![3, 5], triple("5Gi", "5Gi", "")));
    harness.end().await;

    let harness = Harness::start();
    harness.request("3Gi");
    harness.wait(1).await;
    harness.request("5Gi");
    harness.wait(3600).await;
    assert_eq!(harness.driver.sizes(), [3], "the kubelet has to end the first one");
    harness.finish_on_node("3Gi");
    harness.wait(1).await;
    assert_eq!((harness.driver.sizes(), harness.progress()), (vec![3, 5], triple("3Gi", "5Gi", "NodeResizePending")));
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn infeasible_size_is_retried_slowly_and_can_be_reduced() {
    for code in [Code::InvalidArgument, Code::OutOfRange, Code::NotFound] {
        let harness = Harness::start_with_block();
        harness.driver.fail_next(3, code, "node n1 is full");
        harness.request("9Gi");
        harness.wait(299).await;
        assert_eq!((harness.driver.sizes(), harness.volume_size()), (vec![9], json!("1Gi")), "{code:?}");
        assert_eq!(harness.progress(), triple("1Gi", "9Gi", "ControllerResizeInfeasible"));
        assert_eq!(harness.conditions(), ["Resizing", "ControllerResizeError"]);
        let expected = format!("cannot expand the volume: rpc error: code = {code:?} desc = node n1 is full");
        assert_eq!(harness.message("ControllerResizeError"), expected);
        assert_eq!(harness.reasons(), ["Resizing", "VolumeResizeFailed"]);
        harness.wait(310).await;
        assert_eq!(harness.driver.sizes(), [9, 9, 9]);

        harness.request("2Gi");
        harness.wait(1).await;
        assert_eq!((harness.driver.sizes(), harness.progress()), (vec![9, 9, 9, 2], triple("2Gi", "2Gi", "")));
        assert_eq!(harness.conditions(), Vec::<String>::new());
        harness.wait(3600).await;
        assert_eq!(harness.driver.sizes().len(), 4);
        harness.end().await;
    }
}

#[tokio::test(start_paused = true)]
async fn final_failure_backs_off_and_can_be_reduced() {
    for code in [Code::Internal, Code::FailedPrecondition] {
        let harness = Harness::start_with_block();
        harness.driver.fail_next(4, code, "lvextend failed");
        harness.request("9Gi");
        harness.wait(2).await;
        assert_eq!(harness.driver.sizes(), [9, 9], "retried after a second");
        harness.wait(6).await;
        assert_eq!(harness.driver.sizes(), [9, 9, 9, 9], "and after 2 and 4");
        assert_eq!(harness.progress(), triple("1Gi", "9Gi", "ControllerResizeInProgress"));
        assert_eq!(harness.conditions(), ["Resizing", "ControllerResizeError"]);
        // The same failure is written once, and each later attempt reads the claim before the call
        assert_eq!((harness.server.count("patch", CLAIMS), harness.server.count("get", CLAIMS)), (2, 3));
        harness.request("2Gi");
        harness.wait(1).await;
        assert_eq!((harness.driver.sizes()[4..].to_vec(), harness.progress()), (vec![2], triple("2Gi", "2Gi", "")));
        harness.end().await;
    }
}

#[tokio::test(start_paused = true)]
async fn uncertain_failure_keeps_its_size() {
    for code in [Code::Aborted, Code::Unavailable, Code::ResourceExhausted, Code::DeadlineExceeded, Code::Cancelled] {
        let harness = Harness::start_with_block();
        harness.driver.fail_next(2, code, "not yet");
        harness.request("9Gi");
        harness.wait(1).await;
        harness.request("2Gi");
        harness.wait(10).await;
        assert_eq!((harness.driver.sizes(), harness.progress()), (vec![9, 9, 9], triple("9Gi", "9Gi", "")), "{code:?}");
        harness.end().await;
    }
}

#[tokio::test(start_paused = true)]
async fn call_without_an_answer_ends_at_the_timeout() {
    let harness = Harness::start_with_block();
    harness.driver.hang_next();
    harness.request("3Gi");
    harness.wait(9).await;
    assert_eq!(harness.reasons(), ["Resizing"]);
    harness.wait(5).await;
    assert_eq!((harness.driver.sizes(), harness.progress()), (vec![3, 3], triple("3Gi", "3Gi", "")));
    assert_eq!(harness.reasons(), ["Resizing", "VolumeResizeFailed", "VolumeResizeSuccessful"]);
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn failure_of_the_kubelet_is_checked_with_the_driver() {
    let harness = Harness::start();
    harness.request("3Gi");
    harness.wait(1).await;
    let failed = json!({"allocatedResourceStatuses": {"storage": "NodeResizeInfeasible"},
                        "conditions": [{"type": "NodeResizeError", "status": "True", "message": "no xfs_growfs"}]});
    harness.change_claim(&json!({"status": failed}));
    harness.wait(1).await;
    assert_eq!((harness.driver.sizes(), harness.progress()), (vec![3, 3], triple("1Gi", "3Gi", "NodeResizePending")));
    assert_eq!(harness.message("NodeResizeError"), "no xfs_growfs", "the user still sees why");
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn restart_continues_where_the_process_ended() {
    // After each request that changes something
    for writes in 0..3 {
        let harness = Harness::start_with_block();
        match writes {
            0 => harness.driver.hang_next(),
            1 => harness.server.inject("patch", VOLUMES, 1, Failure::Hang),
            _ => harness.server.before_next("patch", VOLUMES, |server| {
                server.inject("patch", CLAIMS, 1, Failure::Hang);
            }),
        }
        harness.request("3Gi");
        harness.wait(1).await;
        assert_eq!(harness.progress(), triple("1Gi", "3Gi", "ControllerResizeInProgress"), "{writes}");
        // The request becomes another one meanwhile
        harness.request("4Gi");
        let (server, driver) = harness.end().await;
        server.clear_faults();
        let harness = Harness::start_on(server, driver);
        harness.wait(1).await;
        assert_eq!((harness.driver.sizes(), harness.volume_size()), (vec![3, 3, 4], json!("4Gi")), "{writes}");
        assert_eq!(harness.progress(), triple("4Gi", "4Gi", ""));
        harness.end().await;
    }
}

#[tokio::test(start_paused = true)]
async fn each_term_begins_with_all_pending_claims() {
    let harness = Harness::start_with_block();
    harness.driver.fail_next(1, Code::OutOfRange, "full");
    harness.request("3Gi");
    harness.wait(1).await;
    let (server, driver) = harness.end().await;
    let harness = Harness::start_on(server, driver);
    harness.wait(1).await;
    assert_eq!((harness.driver.sizes(), harness.progress()), (vec![3, 3], triple("3Gi", "3Gi", "")));
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn lost_lease_ends_all_calls_until_the_next_term() {
    let harness = Harness::start_with_block();
    let term = CancellationToken::new();
    harness.begin_term(term.clone());
    harness.wait(1).await;
    term.cancel();
    harness.request("3Gi");
    harness.wait(60).await;
    assert_eq!(harness.driver.sizes(), Vec::<i64>::new());
    harness.begin_term(CancellationToken::new());
    harness.wait(1).await;
    assert_eq!((harness.driver.sizes(), harness.progress()), (vec![3], triple("3Gi", "3Gi", "")));
}

#[tokio::test(start_paused = true)]
async fn old_claim_is_read_again_before_the_driver_is_called() {
    let harness = Harness::start_with_block();
    harness.wait(1).await;
    // The watch shows 9 GiB, of which the user has thought better when the controller writes
    harness.server.before_next("patch", CLAIMS, |server| request(server, "2Gi"));
    harness.request("9Gi");
    harness.wait(1).await;
    assert_eq!((harness.driver.sizes(), harness.progress()), (vec![2], triple("2Gi", "2Gi", "")));
    assert_eq!(harness.server.count("get", CLAIMS), 1);
    assert_eq!(harness.reasons(), ["Resizing", "VolumeResizeSuccessful"], "a conflict is no failure");
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn result_is_written_to_a_claim_that_has_changed() {
    let harness = Harness::start();
    let server = harness.server.clone();
    harness.driver.during_next(move || change_claim(&server, &json!({"metadata": {"labels": {"app": "shop"}}})));
    harness.request("3Gi");
    harness.wait(1).await;
    assert_eq!((harness.driver.sizes(), harness.progress()), (vec![3], triple("1Gi", "3Gi", "NodeResizePending")));
    assert_eq!(harness.claim()["metadata"]["labels"]["app"], "shop");
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn kubelet_that_was_faster_is_not_overwritten() {
    let harness = Harness::start();
    let server = harness.server.clone();
    let done = json!({"status": {"capacity": {"storage": "3Gi"}, "allocatedResourceStatuses": null}});
    harness.driver.during_next(move || change_claim(&server, &done));
    harness.request("3Gi");
    harness.wait(1).await;
    assert_eq!((harness.driver.sizes(), harness.progress()), (vec![3], triple("3Gi", "3Gi", "")));
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn claim_that_is_deleted_meanwhile_is_not_recreated() {
    let harness = Harness::start_with_block();
    let server = harness.server.clone();
    harness.driver.during_next(move || assert!(server.delete(CLAIMS, "default", "data")));
    harness.request("3Gi");
    harness.wait(3600).await;
    assert_eq!((harness.driver.sizes(), harness.volume_size()), (vec![3], json!("3Gi")));
    assert_eq!(harness.server.list_json(CLAIMS), Vec::<Value>::new());
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn server_without_allocated_resources_is_enough() {
    let unknown = ["/status/allocatedResources", "/status/allocatedResourceStatuses"];
    let harness = Harness::start();
    harness.server.prune_fields(CLAIMS, &unknown);
    harness.request("3Gi");
    harness.wait(3600).await;
    assert_eq!((harness.driver.sizes(), harness.progress()), (vec![3], triple("1Gi", "", "")));
    assert_eq!(harness.conditions(), ["Resizing", "FileSystemResizePending"]);
    let (server, driver) = harness.end().await;
    let harness = Harness::start_on(server, driver);
    harness.wait(10).await;
    assert_eq!(harness.driver.sizes(), [3], "a restart leaves it to the kubelet");
    harness.finish_on_node("3Gi");
    harness.request("4Gi");
    harness.wait(1).await;
    assert_eq!(harness.driver.sizes(), [3, 4]);
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn secret_of_the_volume_is_sent_to_the_driver() {
    let reference = json!({"spec": {"csi": {"controllerExpandSecretRef": {"name": "key", "namespace": "vault"}}}});
    let harness = Harness::start_with(&json!({}), &reference);
    harness.request("3Gi");
    harness.wait(1).await;
    assert_eq!(harness.driver.sizes(), Vec::<i64>::new());
    let notes = harness.server.event_notes("VolumeResizeFailed");
    assert_eq!(notes, ["Secret vault/key does not exist; create it, or correct the reference to it"]);
    harness.server.apply_json(json!({"apiVersion": "v1", "kind": "Secret", "data": {"token": "cGFzcw=="},
                                     "metadata": {"name": "key", "namespace": "vault"}}));
    harness.server.fail_next("get", SECRETS, 1, 403);
    harness.wait(10).await;
    let notes = harness.server.event_notes("VolumeResizeFailed");
    assert!(notes.iter().any(|note| note.contains("allow get of it in a Role")), "{notes:?}");
    let Call::Expand { request, .. } = &harness.driver.calls()[0] else { panic!() };
    assert_eq!(request.secrets["token"], "pass");
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn failures_of_the_api_server_are_retried() {
    let harness = Harness::start_with_block();
    harness.server.fail_next("get", VOLUMES, 1, 500);
    harness.server.inject("patch", CLAIMS, 1, Failure::LostAnswer);
    harness.server.fail_next("patch", VOLUMES, 1, 500);
    harness.request("3Gi");
    harness.wait(20).await;
    assert_eq!((harness.driver.sizes(), harness.progress()), (vec![3, 3], triple("3Gi", "3Gi", "")));
    assert_eq!(harness.volume_size(), json!("3Gi"));
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn refusal_of_the_api_server_has_an_event() {
    for (status, expected) in [(422, true), (403, true), (500, false)] {
        let harness = Harness::start_with_block();
        harness.server.fail_next("patch", VOLUMES, 1, status);
        harness.request("3Gi");
        harness.wait(10).await;
        assert_eq!(harness.progress(), triple("3Gi", "3Gi", ""), "{status}");
        let has_event = harness.reasons().contains(&"VolumeResizeFailed".to_owned());
        assert_eq!(has_event, expected, "{status}");
        harness.end().await;
    }
}

#[tokio::test(start_paused = true)]
async fn missing_volume_is_awaited() {
    let harness = Harness::start_with_block();
    let volume = harness.volume();
    harness.server.delete(VOLUMES, "", "pvc-1");
    harness.request("3Gi");
    harness.wait(10).await;
    assert_eq!((harness.driver.sizes(), harness.server.count("patch", "*")), (vec![], 0));
    harness.server.apply_json(volume);
    harness.wait(10).await;
    assert_eq!((harness.driver.sizes(), harness.progress()), (vec![3], triple("3Gi", "3Gi", "")));
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn workers_limit_the_calls_at_a_time() {
    let harness = Harness::start_with_block();
    for name in ["b", "c"] {
        let (mut claim, mut volume) = (harness.claim(), harness.volume());
        (claim["metadata"]["name"], volume["metadata"]["name"]) = (json!(name), json!(format!("pvc-{name}")));
        (claim["metadata"]["uid"], volume["metadata"]["uid"]) = (json!(name), json!(format!("v-{name}")));
        volume["spec"]["claimRef"]["uid"] = json!(name);
        claim["spec"]["volumeName"] = json!(format!("pvc-{name}"));
        claim["spec"]["resources"]["requests"]["storage"] = json!("2Gi");
        harness.server.apply_json(volume);
        // The harness has one worker, which waits for its first call
        harness.driver.hang_next();
        harness.server.apply_json(claim);
    }
    harness.wait(9).await;
    assert_eq!(harness.driver.sizes().len(), 1);
    harness.wait(30).await;
    assert_eq!(harness.driver.sizes().len(), 4);
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn answer_with_fewer_bytes_is_a_failure() {
    let harness = Harness::start_with_block();
    harness.driver.answer_with_less(1);
    harness.request("3Gi");
    harness.wait(2).await;
    assert_eq!((harness.driver.sizes(), harness.volume_size()), (vec![3, 3], json!("1Gi")));
    assert_eq!(harness.server.event_notes("VolumeResizeFailed").len(), 1);
    harness.driver.answer_with_less(0);
    harness.wait(10).await;
    assert_eq!(harness.progress(), triple("3Gi", "3Gi", ""));
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn infeasible_state_that_was_not_written_is_found_again() {
    let harness = Harness::start_with_block();
    harness.driver.fail_next(2, Code::OutOfRange, "full");
    harness.wait(1).await;
    harness.server.before_next("patch", CLAIMS, |server| server.fail_next("patch", CLAIMS, 1, 500));
    harness.request("9Gi");
    harness.wait(60).await;
    assert_eq!(
        (harness.driver.sizes(), harness.progress()),
        (vec![9, 9], triple("1Gi", "9Gi", "ControllerResizeInfeasible"))
    );
    harness.end().await;
}
