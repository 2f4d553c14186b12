//! Memory and time that the webhooks take from the process that also serves CSI, whatever is sent to them.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::body::{Body, Bytes};
use futures::future::join_all;
use futures::stream::{FuturesUnordered, StreamExt as _};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::{Value, json};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tonic::Status;
use topolvm_controller::CapacityResource;
use topolvm_proto::csi::GetCapacityRequest;
use topolvm_proto::csi::controller_client::ControllerClient;
use topolvm_runtime::{CancellationToken, Tasks};
use topolvm_testkit::ApiServer;
use topolvm_testkit::api_server::Failure;
use topolvm_testkit::fixtures::{claim, node, pod, storage_class};

use crate::process::{Running, command, kubeconfig, listen, metrics};
use crate::webhook_harness::{WebhookHarness, creation};
use crate::webhook_tls::{Client, mount_secret};

/// The longest body that is read.
const LONGEST: usize = 8 << 20;
/// Claims of one pod that are read.
const MOST_CLAIMS: usize = 256;
/// Connections that are open at the same time.
const MOST_CONNECTIONS: usize = 256;

/// Bytes of the only node.
const ROOM: i64 = 10 << 30;

/// A pod with this many claims, of which many are named twice.
fn pod_with_claims(count: usize) -> Value {
    let mut pod = json!(pod("user").build());
    let volume = |index: usize| {
        let claim = json!({"claimName": format!("data{}", index / 2)});
        json!({"name": format!("v{index}"), "persistentVolumeClaim": claim})
    };
    pod["spec"]["volumes"] = (0..count).map(volume).collect();
    pod
}

/// A question with a body of this many bytes.
fn question_of(length: usize) -> Bytes {
    let mut user = json!(pod("user").build());
    let annotations = |length: usize| json!({"filler": "x".repeat(length)});
    user["metadata"]["annotations"] = annotations(0);
    let rest = creation("pods", &user).to_string().len();
    user["metadata"]["annotations"] = annotations(length - rest);
    let question = creation("pods", &user).to_string();
    assert_eq!(question.len(), length);
    question.into()
}

#[tokio::test]
async fn pod_webhook_limits_the_claims_it_reads_and_warns() {
    let harness = WebhookHarness::new(CapacityResource::Marker).await;
    for index in 0..300 {
        harness.api.apply_json(claim(&format!("data{index}")).class("topolvm").sized("1Gi").build());
    }
    let response = harness.ask("/pod/mutate", &creation("pods", pod_with_claims(20_000))).await;
    assert_eq!(response["allowed"], true);
    assert!(response["patch"].is_string());
    let warning = "topolvm: only 256 volumes of this pod are considered when selecting a node";
    assert_eq!(response["warnings"], json!([warning]));
    assert_eq!(harness.api.count("get", "persistentvolumeclaims"), MOST_CLAIMS);
    assert_eq!(harness.api.count("*", "*"), MOST_CLAIMS);
    // Each is one volume, however often it is mounted
    let response = harness.ask("/pod/mutate", &creation("pods", pod_with_claims(2 * MOST_CLAIMS))).await;
    assert_eq!(response["warnings"], Value::Null);
}

#[tokio::test]
async fn pod_webhook_reads_each_missing_storage_class_once() {
    let harness = WebhookHarness::new(CapacityResource::Marker).await;
    let mut user = json!(pod("user").build());
    let volume = |index: usize| {
        let class = format!("missing{}", index % 1000);
        let spec = json!({"storageClassName": class, "resources": {"requests": {"storage": "1Gi"}}});
        json!({"name": format!("v{index}"), "ephemeral": {"volumeClaimTemplate": {"spec": spec}}})
    };
    user["spec"]["volumes"] = (0..20_000).map(volume).collect();
    harness.ask("/pod/mutate", &creation("pods", user.clone())).await;
    assert_eq!(harness.api.count("get", "storageclasses"), MOST_CLAIMS);
    harness.api.clear_requests();
    user["spec"]["volumes"] = (0..200).map(|_| volume(1)).collect();
    harness.ask("/pod/mutate", &creation("pods", user)).await;
    assert_eq!(harness.api.count("get", "storageclasses"), 1);
}

#[tokio::test(start_paused = true)]
async fn the_api_server_is_asked_about_some_claims_at_a_time() {
    let harness = WebhookHarness::new(CapacityResource::Marker).await;
    harness.api.inject("get", "persistentvolumeclaims", usize::MAX, Failure::Hang);
    let question = creation("pods", pod_with_claims(400));
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
    let harness = WebhookHarness::new(CapacityResource::Marker).await;
    let question = question_of(LONGEST);
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
    let harness = WebhookHarness::new(CapacityResource::Marker).await;
    let (taken, last) = (Arc::new(AtomicUsize::new(0)), Arc::new(Semaphore::new(1)));
    let question = question_of(LONGEST);
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

/// The program, with webhooks, over a fake API server.
struct Program {
    _running: Running,
    address: String,
    metrics: String,
    pid: u32,
    client: Client,
}

impl Program {
    async fn start(dir: &Path, api: &ApiServer, tasks: &Tasks) -> Self {
        let certificates = dir.join("certs");
        std::fs::create_dir(&certificates).unwrap();
        let certificate = mount_secret(&certificates, "..1");
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let flags = [
            format!("--csi-socket={}", dir.join("csi.sock").display()),
            format!("--cert-dir={}", certificates.display()),
            "--webhook-addr=127.0.0.1:0".to_owned(),
            format!("--metrics-bind-address={free}"),
            "--health-probe-bind-address=".to_owned(),
            "--leader-election=false".to_owned(),
        ];
        let mut program = command(&flags.each_ref().map(String::as_str));
        program.env("KUBECONFIG", kubeconfig(dir, &listen(api, tasks).await)).env("LOG_FORMAT", "json");
        let mut running = Running(program.stderr(Stdio::piped()).spawn().unwrap());
        let pid = running.0.id();
        let log = BufReader::new(running.0.stderr.take().unwrap());
        let mut lines = log.lines().map(Result::unwrap);
        let line = lines.find(|line| line.contains(r#""message":"serving webhooks""#)).unwrap();
        let line: Value = serde_json::from_str(&line).unwrap();
        // Whoever logs must not wait for a reader
        std::thread::spawn(move || lines.for_each(drop));
        let address = line["address"].as_str().unwrap().to_owned();
        Self { _running: running, address, metrics: free, pid, client: Client::new(&certificate) }
    }

    /// The value of a metric without labels.
    async fn metric(&self, name: &str) -> usize {
        let page = metrics(&self.metrics).await;
        let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        assert!(line.is_some(), "no {name} in {page}");
        line.unwrap().parse().unwrap()
    }

    /// The most memory that it had at once, in bytes.
    fn peak(&self) -> usize {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid)).unwrap();
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        peak.trim().strip_suffix(" kB").unwrap().parse::<usize>().unwrap() << 10
    }

    /// An idle connection; none when it was closed for another one at once.
    async fn idle(&self) -> Option<tokio_rustls::client::TlsStream<TcpStream>> {
        self.client.connect(&self.address).await.ok()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn webhook_load_neither_blocks_csi_nor_exhausts_memory() {
    let most = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: most.maximum, ..most }).unwrap();
    let (dir, tasks) = (tempfile::tempdir().unwrap(), Tasks::new(CancellationToken::new()));
    let api = ApiServer::new();
    api.apply_json(node("n1").capacity("", 10).build());
    api.apply_json(storage_class("topolvm").build());
    let program = Program::start(dir.path(), &api, &tasks).await;
    let socket = format!("unix:{}", dir.path().join("csi.sock").display());
    let csi = loop {
        match ControllerClient::connect(socket.clone()).await {
            Ok(csi) => break csi,
            Err(_) => tokio::task::yield_now().await,
        }
    };
    let capacity = || {
        let mut csi = csi.clone();
        async move {
            Ok::<_, Status>(csi.get_capacity(GetCapacityRequest::default()).await?.into_inner().available_capacity)
        }
    };
    // Both have come to know of the node and the certificate
    while capacity().await.ok() != Some(ROOM) || program.idle().await.is_none() {
        tokio::task::yield_now().await;
    }
    let before = program.peak();

    // Idle connections: each closes another one, and whoever asks is answered
    let connecting = futures::stream::iter(0..2000).map(|_| program.idle()).buffer_unordered(32);
    let idle: Vec<_> = connecting.filter_map(std::future::ready).collect().await;
    assert!(program.metric("topolvm_webhook_connections").await <= MOST_CONNECTIONS);
    assert!(program.metric("topolvm_webhook_connections_evicted_total").await >= 2000 - 2 * MOST_CONNECTIONS);
    assert_eq!(capacity().await.unwrap(), ROOM);
    let usual = creation("pods", pod("user").build()).to_string();
    let answer = program.client.post(&program.address, usual.as_bytes()).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let closed: FuturesUnordered<_> = idle
        .into_iter()
        .map(|mut connection| async move { drop(connection.read_to_end(&mut Vec::new()).await) })
        .collect();
    let of_idle = closed.len().saturating_sub(MOST_CONNECTIONS);
    let still_idle: FuturesUnordered<_> = {
        let mut closed = closed;
        for _ in 0..of_idle {
            closed.next().await.unwrap();
        }
        closed
    };

    // Long bodies: a few are in memory at once, and CSI goes on
    let question = question_of(LONGEST);
    let posts = join_all((0..50).map(|_| program.client.post(&program.address, &question)));
    tokio::pin!(posts);
    let mut calls = 0;
    let answers = loop {
        tokio::select! {
            answers = &mut posts => break answers,
            room = capacity() => {
                assert_eq!(room.unwrap(), ROOM);
                calls += 1;
            }
        }
    };
    assert!(calls > 0);
    // Some are refused on a slow machine, before or while they are sent
    for answer in answers.into_iter().flatten() {
        assert!(["200", "408", "503"].iter().any(|status| answer[9..].starts_with(status)), "{answer}");
    }
    while !program.client.post(&program.address, &question).await.is_ok_and(|answer| answer.contains(" 200 ")) {}

    // Claims: the API server is asked about some of them
    let many = creation("pods", pod_with_claims(20_000)).to_string();
    let answer = program.client.post(&program.address, many.as_bytes()).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains(r#""allowed":true"#), "{answer}");
    assert!(api.count("get", "persistentvolumeclaims") <= MOST_CLAIMS);
    assert_eq!(capacity().await.unwrap(), ROOM);
    drop(still_idle);

    // Four long bodies, small ones and connections
    let grown = program.peak() - before;
    assert!(grown < 128 << 20, "{} MiB", grown >> 20);
}
