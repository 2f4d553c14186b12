//! Memory and requests that the webhooks take, whatever is sent to them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::body::{Body, Bytes};
use futures::future::join_all;
use futures::stream::{FuturesUnordered, StreamExt as _};
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use topolvm_testkit::api_server::Failure;
use topolvm_testkit::fixtures::{claim, creation_review, pod, pod_review_of_length, pod_with_claims};
use topolvm_webhook::CapacityResource;

use crate::harness::Harness;

/// The longest body that is read.
const LONGEST: usize = 8 << 20;
/// Claims of one pod that are read.
const MOST_CLAIMS: usize = 256;

#[tokio::test]
async fn pod_webhook_limits_the_claims_it_reads_and_warns() {
    let harness = Harness::new(CapacityResource::Marker).await;
    for index in 0..300 {
        harness.api.apply_json(claim(&format!("data{index}")).class("topolvm").sized("1Gi").build());
    }
    let response = harness.ask("/pod/mutate", &creation_review("pods", pod_with_claims(20_000))).await;
    assert_eq!(response["allowed"], true);
    assert!(response["patch"].is_string());
    let warning = "topolvm: only 256 volumes of this pod are considered when selecting a node";
    assert_eq!(response["warnings"], json!([warning]));
    assert_eq!(harness.api.count("get", "persistentvolumeclaims"), MOST_CLAIMS);
    assert_eq!(harness.api.count("*", "*"), MOST_CLAIMS);
    // Each is one volume, however often it is mounted
    let response = harness.ask("/pod/mutate", &creation_review("pods", pod_with_claims(2 * MOST_CLAIMS))).await;
    assert_eq!(response["warnings"], Value::Null);
}

#[tokio::test]
async fn pod_webhook_reads_each_missing_storage_class_once() {
    let harness = Harness::new(CapacityResource::Marker).await;
    let mut user = json!(pod("user").build());
    let volume = |index: usize| {
        let class = format!("missing{}", index % 1000);
        let spec = json!({"storageClassName": class, "resources": {"requests": {"storage": "1Gi"}}});
        json!({"name": format!("v{index}"), "ephemeral": {"volumeClaimTemplate": {"spec": spec}}})
    };
    user["spec"]["volumes"] = (0..20_000).map(volume).collect();
    harness.ask("/pod/mutate", &creation_review("pods", user.clone())).await;
    assert_eq!(harness.api.count("get", "storageclasses"), MOST_CLAIMS);
    harness.api.clear_requests();
    user["spec"]["volumes"] = (0..200).map(|_| volume(1)).collect();
    harness.ask("/pod/mutate", &creation_review("pods", user)).await;
    assert_eq!(harness.api.count("get", "storageclasses"), 1);
}

#[tokio::test(start_paused = true)]
async fn the_api_server_is_asked_about_some_claims_at_a_time() {
    let harness = Harness::new(CapacityResource::Marker).await;
    harness.api.inject("get", "persistentvolumeclaims", usize::MAX, Failure::Hang);
    let question = creation_review("pods", pod_with_claims(400));
    let responses = join_all((0..50).map(|_| harness.ask("/pod/mutate", &question))).await;
    // None of them was answered in time
    assert!(responses.iter().all(|response| response["status"]["code"] == 500), "{responses:?}");
    // Requests that are given up leave their place to others, which are given up at the same moment
    let asked = harness.api.count("get", "persistentvolumeclaims");
    assert!((1..=64).contains(&asked), "{asked}");
}

/// A body that is handed over but for its last byte, which comes when the test says so.
fn held_back(body: &Bytes, taken: &Arc<AtomicUsize>, last: &Arc<Semaphore>) -> Body {
    const PART: usize = 1 << 20;
    let mut parts: Vec<Bytes> = body.chunks(PART).map(|part| body.slice_ref(part)).collect();
    let end = parts.pop().unwrap();
    parts.extend([end.slice(..end.len() - 1), end.slice(end.len() - 1..)]);
    let count = parts.len();
    let (taken, last) = (Arc::clone(taken), Arc::clone(last));
    Body::from_stream(futures::stream::iter(parts.into_iter().enumerate()).then(move |(index, part)| {
        let (taken, last) = (Arc::clone(&taken), Arc::clone(&last));
        async move {
            if index + 1 == count {
                last.acquire().await.unwrap().forget();
            }
            taken.fetch_add(part.len(), Ordering::Relaxed);
            Ok::<_, std::convert::Infallible>(part)
        }
    }))
}

#[tokio::test]
async fn of_50_bodies_of_the_largest_size_four_are_in_memory_at_once() {
    let harness = Harness::new(CapacityResource::Marker).await;
    let question = pod_review_of_length(LONGEST);
    let (taken, last) = (Arc::new(AtomicUsize::new(0)), Arc::new(Semaphore::new(0)));
    let mut answers: FuturesUnordered<_> =
        (0..50).map(|_| harness.post("/pod/mutate", held_back(&question, &taken, &last))).collect();
    // All have got as far as they can
    for _ in 0..1000 {
        assert!(futures::poll!(answers.next()).is_pending());
        tokio::task::yield_now().await;
    }
    assert_eq!(taken.load(Ordering::Relaxed), 4 * (LONGEST - 1));
    // A usual one is answered all the same
    harness.pod(pod("user").build()).await;
    last.add_permits(50);
    let mut answered = 0;
    while let Some((status, answer)) = answers.next().await {
        // A slow machine is busy with the others until it is too late
        assert!(matches!(status.as_u16(), 200 | 503), "{status} {answer}");
        answered += 1;
    }
    assert_eq!(answered, 50);
}

#[tokio::test]
async fn a_long_body_is_parsed_beside_the_thread_that_serves_csi() {
    let harness = Harness::new(CapacityResource::Marker).await;
    let (taken, last) = (Arc::new(AtomicUsize::new(0)), Arc::new(Semaphore::new(1)));
    let question = pod_review_of_length(LONGEST);
    let body = held_back(&question, &taken, &last);
    let mut meanwhile = 0;
    let answer = harness.post("/pod/mutate", body);
    tokio::pin!(answer);
    // What else the thread does between the last byte and the answer
    while futures::poll!(answer.as_mut()).is_pending() {
        if taken.load(Ordering::Relaxed) == LONGEST {
            meanwhile += 1;
        }
        tokio::task::yield_now().await;
    }
    assert!(meanwhile > 0);
}
