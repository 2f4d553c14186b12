//! Memory and time that the webhooks take from the process that also serves CSI, whatever is sent to them.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::Stdio;

use futures::future::join_all;
use futures::stream::{FuturesUnordered, StreamExt as _};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::Value;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tonic::Status;
use topolvm_proto::csi::GetCapacityRequest;
use topolvm_proto::csi::controller_client::ControllerClient;
use topolvm_runtime::{CancellationToken, Tasks};
use topolvm_testkit::ApiServer;
use topolvm_testkit::fixtures::{creation_review, node, pod, pod_review_of_length, pod_with_claims, storage_class};

use crate::process::{Running, command, kubeconfig, listen, metrics};
use crate::webhook_tls::{Client, mount_secret};

/// The longest body that is read.
const LONGEST: usize = 8 << 20;
/// Claims of one pod that are read.
const MOST_CLAIMS: usize = 256;
/// Connections that are open at the same time.
const MOST_CONNECTIONS: usize = 256;

/// Bytes of the only node.
const FREE: i64 = 10 << 30;

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
        // The program must not wait for a reader of its log
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
    while capacity().await.ok() != Some(FREE) || program.idle().await.is_none() {
        tokio::task::yield_now().await;
    }
    let before = program.peak();

    // Idle connections: each closes another one, and new requests are answered
    let connecting = futures::stream::iter(0..2000).map(|_| program.idle()).buffer_unordered(32);
    let idle: Vec<_> = connecting.filter_map(std::future::ready).collect().await;
    assert!(program.metric("topolvm_webhook_connections").await <= MOST_CONNECTIONS);
    assert!(program.metric("topolvm_webhook_connections_evicted_total").await >= 2000 - 2 * MOST_CONNECTIONS);
    assert_eq!(capacity().await.unwrap(), FREE);
    let usual = creation_review("pods", pod("user").build()).to_string();
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
    let question = pod_review_of_length(LONGEST);
    let posts = join_all((0..50).map(|_| program.client.post(&program.address, &question)));
    tokio::pin!(posts);
    let mut calls = 0;
    let answers = loop {
        tokio::select! {
            answers = &mut posts => break answers,
            free = capacity() => {
                assert_eq!(free.unwrap(), FREE);
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
    let many = creation_review("pods", pod_with_claims(20_000)).to_string();
    let answer = program.client.post(&program.address, many.as_bytes()).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains(r#""allowed":true"#), "{answer}");
    assert!(api.count("get", "persistentvolumeclaims") <= MOST_CLAIMS);
    assert_eq!(capacity().await.unwrap(), FREE);
    drop(still_idle);

    // Four long bodies, small ones and connections
    let grown = program.peak() - before;
    assert!(grown < 128 << 20, "{} MiB", grown >> 20);
}
