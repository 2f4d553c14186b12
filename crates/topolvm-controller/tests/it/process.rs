//! The program itself.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use assert_cmd::cargo::CommandCargoExt as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use topolvm_proto::csi::ProbeRequest;
use topolvm_proto::csi::identity_client::IdentityClient;
use topolvm_runtime::{CancellationToken, Tasks};
use topolvm_testkit::ApiServer;
use topolvm_testkit::fixtures::claim;

pub(crate) fn command(arguments: &[&str]) -> std::process::Command {
    let mut command = std::process::Command::cargo_bin("topolvm-controller").unwrap();
    command.args(arguments).env_remove("USE_LEGACY").env("LOG_LEVEL", "info").env("LOG_FORMAT", "text");
    command
}

/// Ends the program when the test fails before it does.
pub(crate) struct Running(pub(crate) Child);

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

#[test]
fn wrong_flags_end_it_with_64_and_say_which() {
    let output = command(&["--minimum-allocation-ext4=much"]).output().unwrap();
    assert_eq!(output.status.code(), Some(64));
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(message.contains("--minimum-allocation-ext4"), "{message}");
}

#[rstest::rstest]
#[case("--webhook-addr=9443", &["--enable-webhooks"])]
#[case("--webhook-addr=", &["--enable-webhooks"])]
#[case("--webhook-addr=0", &["--enable-webhooks"])]
#[case("--metrics-bind-address=localhost", &[])]
#[case("--health-probe-bind-address=:http", &[])]
fn an_address_that_is_none_ends_it_with_64_and_names_the_flag(#[case] wrong: &str, #[case] others: &[&str]) {
    let output = command(&[&[wrong][..], others].concat()).output().unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(64), "{message}");
    assert!(message.contains(wrong.split_once('=').unwrap().0), "{message}");
}

#[test]
fn times_with_which_two_replicas_could_lead_end_it_with_64() {
    let output = command(&["--leader-election-lease-duration=5s"]).output().unwrap();
    assert_eq!(output.status.code(), Some(64));
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(message.contains("--leader-election-renew-deadline"), "{message}");
}

#[test]
fn scheduling_mode_flags_that_contradict_exit_with_64() {
    let flags = ["--scheduling-mode=capacity", "--enable-webhooks", "--pod-capacity-resource=marker"];
    let output = command(&flags).output().unwrap();
    assert_eq!(output.status.code(), Some(64));
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(message.contains("contradict each other; remove --pod-capacity-resource"), "{message}");
}

/// A kubeconfig with an address at which no API server listens.
pub(crate) fn unreachable_api_server(dir: &Path) -> PathBuf {
    kubeconfig(dir, "127.0.0.1:1")
}

/// A kubeconfig with this address of an API server.
pub(crate) fn kubeconfig(dir: &Path, address: &str) -> PathBuf {
    let kubeconfig = dir.join("kubeconfig");
    let content = serde_json::json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": format!("http://{address}")}}],
        "users": [{"name": "u", "user": {}}],
    });
    std::fs::write(&kubeconfig, content.to_string()).unwrap();
    kubeconfig
}

/// Flags of deployments of TopoLVM: what controller-runtime takes for "off", and what is not served here.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn program_with_topolvm_address_flags_serves_csi_and_warns() {
    let dir = tempfile::tempdir().unwrap();
    let socket_flag = format!("--csi-socket={}", dir.path().join("csi.sock").display());
    for secure in ["--secure-metrics-server=false", "--secure-metrics-server"] {
        let off = ["--metrics-bind-address=0", "--health-probe-bind-address=0", "--profiling-bind-address=:6060"];
        let mut program = command(&[&[&socket_flag, secure][..], &off].concat());
        let child =
            program.env("KUBECONFIG", unreachable_api_server(dir.path())).stderr(Stdio::piped()).spawn().unwrap();
        let mut running = Running(child);
        let mut log = BufReader::new(running.0.stderr.take().unwrap()).lines().map(Result::unwrap);
        assert!(log.any(|line| line.contains("--profiling-bind-address=:6060 has no effect")), "{secure}");
        // Comes after all addresses were listened to, or could not be
        assert!(log.any(|line| line.contains("cannot watch")), "{secure}");
        let pid = rustix::process::Pid::from_child(&running.0);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        assert!(log.any(|line| line.contains("stopped")), "{secure}");
        assert_eq!(running.0.wait().unwrap().code(), Some(0), "{secure}");
    }
}

#[test]
fn csi_socket_path_of_a_directory_exits_with_1_and_a_fix() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("csi.sock");
    std::fs::create_dir(&socket).unwrap();
    let socket_flag = format!("--csi-socket={}", socket.display());
    let mut program = command(&[&socket_flag, "--metrics-bind-address=", "--health-probe-bind-address="]);
    let output = program.env("KUBECONFIG", unreachable_api_server(dir.path())).output().unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(message.contains("csi.sock exists and is not a socket; remove it or set another socket path"), "{message}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn program_without_api_server_serves_csi_and_is_not_ready() {
    let dir = tempfile::tempdir().unwrap();
    let kubeconfig = unreachable_api_server(dir.path());
    let socket = dir.path().join("csi.sock");
    let socket_flag = format!("--csi-socket={}", socket.display());
    let mut program = command(&[&socket_flag, "--metrics-bind-address=", "--health-probe-bind-address=127.0.0.1:0"]);
    let child = program.env("KUBECONFIG", &kubeconfig).stderr(Stdio::piped()).spawn().unwrap();
    let mut running = Running(child);

    let mut log = BufReader::new(running.0.stderr.take().unwrap()).lines().map(Result::unwrap);
    assert!(log.any(|line| line.contains("serving CSI")));
    let mut identity = IdentityClient::connect(format!("unix:{}", socket.display())).await.unwrap();
    assert_eq!(identity.probe(ProbeRequest {}).await.unwrap().into_inner().ready, Some(false));
    let warning = log.find(|line| line.contains("cannot watch")).unwrap();
    assert!(warning.contains("check the network, and the API server's address"), "{warning}");

    drop(identity);
    let pid = rustix::process::Pid::from_child(&running.0);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(log.any(|line| line.contains("stopped")));
    assert_eq!(running.0.wait().unwrap().code(), Some(0));
    assert!(!socket.exists());
}

/// The metrics page of a program that may be about to serve it.
pub(crate) async fn metrics(address: &str) -> String {
    let mut connection = loop {
        match TcpStream::connect(address).await {
            Ok(connection) => break connection,
            Err(_) => tokio::task::yield_now().await,
        }
    };
    connection.write_all(b"GET /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await.unwrap();
    let mut page = String::new();
    connection.read_to_string(&mut page).await.unwrap();
    page
}

/// Serves an API server on a socket, for a program of its own. Returns the address.
pub(crate) async fn listen(api: &ApiServer, tasks: &Tasks) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let client = api.client();
    let answer = move |request: axum::extract::Request| {
        let client = client.clone();
        async move {
            let (head, body) = request.into_parts();
            let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
            let request = http::Request::from_parts(head, kube::client::Body::from(body));
            client.send(request).await.unwrap().map(axum::body::Body::new)
        }
    };
    let router = axum::Router::new().fallback(answer);
    tasks.spawn("API server", async move { Ok(axum::serve(listener, router).await?) });
    address
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn metrics_page_counts_calls_and_reconcile_results() {
    let (dir, tasks) = (tempfile::tempdir().unwrap(), Tasks::new(CancellationToken::new()));
    let api = ApiServer::new();
    api.apply_json(claim("data").finalizer("topolvm.io/pvc").build());
    api.fail_next("patch", "persistentvolumeclaims", 1, 500);
    let kubeconfig = kubeconfig(dir.path(), &listen(&api, &tasks).await);
    let socket = dir.path().join("csi.sock");
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let flags = [
        format!("--csi-socket={}", socket.display()),
        format!("--metrics-bind-address={free}"),
        "--health-probe-bind-address=".to_owned(),
        "--leader-election=false".to_owned(),
    ];
    let mut program = command(&flags.each_ref().map(String::as_str));
    let _running = Running(program.env("KUBECONFIG", kubeconfig).stderr(Stdio::null()).spawn().unwrap());

    api.wait_for_requests("patch", "persistentvolumeclaims", 2).await;
    let mut identity = IdentityClient::connect(format!("unix:{}", socket.display())).await.unwrap();
    identity.probe(ProbeRequest {}).await.unwrap();
    let reconciles = |result: &str| {
        format!("topolvm_reconcile_seconds_count{{controller=\"persistentvolumeclaim\",result=\"{result}\"}} 1\n")
    };
    // The claim is written a moment before the reconcile that wrote it has ended
    let page = loop {
        let page = metrics(&free).await;
        if page.contains(&reconciles("ok")) {
            break page;
        }
    };
    for series in [reconciles("error"), "topolvm_grpc_seconds_count{method=\"Probe\"} 1\n".to_owned()] {
        assert!(page.contains(&series), "no {series} in {page}");
    }
}
