//! Questions to the agents of nodes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use topolvm_testkit::fixtures::logical_volume;

use super::harness::Harness;

const METRICS: &str = concat!(
    r#"topolvm_volume_info{node="n1",volume="pvc-1",namespace="shop","#,
    r#"persistentvolumeclaim="data",device_class="",pod="db-0"} 1"#,
    "\n",
    r#"topolvm_volume_reads_completed_total{namespace="shop",persistentvolumeclaim="data","#,
    r#"device_class="",pod="db-0"} 12"#,
    "\n# EOF\n",
);

/// Serves metrics as an agent; returns its port and the number of its answers.
async fn serve_agent() -> (u16, Arc<AtomicUsize>, JoinSet<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (port, asked) = (listener.local_addr().unwrap().port(), Arc::new(AtomicUsize::new(0)));
    let count = Arc::clone(&asked);
    let mut serving = JoinSet::new();
    serving.spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            // A request without a body fits into one piece
            assert!(stream.read(&mut [0; 4096]).await.unwrap() > 0);
            count.fetch_add(1, Ordering::SeqCst);
            let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{METRICS}", METRICS.len());
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    });
    (port, asked, serving)
}

fn pod(node: &str, port: u16, arguments: &[&str]) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": format!("topolvm-node-{node}"), "namespace": "topolvm-system",
            "labels": {"app.kubernetes.io/component": "node"},
        },
        "spec": {"nodeName": node, "containers": [
            {"name": "topolvm-node", "args": arguments, "ports": [{"name": "metrics", "containerPort": port}]},
        ]},
        "status": {"podIP": "127.0.0.1"},
    })
}

fn page() -> Harness {
    let on = |name: &str, node: &str| logical_volume(name).on(node).annotation("topolvm.io/claim", "shop/data").build();
    Harness::new(Vec::new(), vec![on("pvc-1", "n1"), on("pvc-2", "n2"), on("pvc-3", "n3")])
}

#[tokio::test]
async fn volume_usage_has_pod_and_io_and_is_cached_for_a_viewer() {
    let harness = page();
    let (port, asked, _serving) = serve_agent().await;
    harness.server.apply_json(pod("n1", port, &[]));
    let viewer = harness.send("/api/events").await;
    let answer = harness.get("/api/usage?volume=pvc-1&volume=unknown").await;
    let usage = &answer["volumes"]["pvc-1"];
    assert_eq!((&usage["pod"], &usage["reads"], &usage["writes"]), (&json!("db-0"), &json!(12.0), &Value::Null));
    harness.get("/api/usage?volume=pvc-1").await;
    assert_eq!(asked.load(Ordering::SeqCst), 1);
    // Nothing is cached without a viewer
    drop(viewer);
    harness.get("/api/usage?volume=pvc-1").await;
    harness.get("/api/usage?volume=pvc-1").await;
    assert_eq!(asked.load(Ordering::SeqCst), 3);
}

#[tokio::test]
async fn unknown_usage_is_reported_with_the_reason() {
    let harness = page();
    harness.server.apply_json(pod("n2", 1, &["--secure-metrics-server"]));
    harness.server.apply_json(pod("n3", 1, &["--secure-metrics-server=true", "--secure-metrics-server=false"]));
    let answer = harness.get("/api/usage?volume=pvc-1&volume=pvc-2&volume=pvc-3").await;
    assert_eq!(answer["volumes"], json!({}));
    for (node, words) in [("n1", "topolvm-node does not run"), ("n2", "requires a token"), ("n3", "is not reachable")] {
        let reason = answer["unknown"][node].as_str().unwrap();
        assert!(reason.contains(words), "{node}: {reason}");
    }
}
