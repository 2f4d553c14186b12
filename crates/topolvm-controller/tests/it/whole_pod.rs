//! CreateVolume for pods with several claims.

use std::time::Duration;

use tonic::Code;
use topolvm_testkit::fixtures::{node, pod};

use crate::harness::{GIB, Harness, on_nodes, refusal, volume};

#[tokio::test(start_paused = true)]
async fn pod_volumes_are_not_created_on_a_node_without_space_for_all() {
    let harness = Harness::with_agent().await;
    let create = |uid: &str| harness.create(on_nodes(volume(&format!("pvc-{uid}")), &["n1"]));
    let set_free = |bytes| harness.api.apply_json(node("n1").capacity_bytes("", bytes).build());
    set_free(GIB * 3 / 2);
    for uid in ["1", "2", "3"] {
        harness.claim(uid, Some("n1"), false);
    }
    harness.api.apply_json(pod("db").claim("data-1").claim("data-2").build());
    harness.api.apply_json(pod("web").claim("data-3").build());
    harness.driver.reserve_for_claims(&harness.tasks, &harness.shutdown);
    harness.until_free("", 20 * GIB).await;
    while harness.api.count("watch", "pods") == 0 {
        tokio::task::yield_now().await;
    }

    let (code, message) = refusal(create("1").await);
    assert_eq!(code, Code::ResourceExhausted);
    assert_eq!(
        message,
        "node n1 has 1610612736 bytes free in device class \"\", but the remaining volumes of pod default/db need \
         2147483648 bytes together; none of them is created there"
    );

    set_free(10 * GIB);
    // The pod has room on another node, so that this one is said to have none for its claims
    harness.until_free("", 21 * GIB - 1).await;
    assert_eq!(refusal(create("2").await).0, Code::ResourceExhausted, "it would be alone there");
    tokio::time::advance(Duration::from_secs(2)).await;
    create("1").await.unwrap();
    // The pod can go nowhere else any more
    set_free(0);
    create("2").await.unwrap();
    // A pod with one claim is scheduled with its volume or without it
    create("3").await.unwrap();
}
