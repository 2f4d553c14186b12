//! Tests with agents that serve lists as topolvm-node does, and with some that do not.

use std::io;
use std::net::SocketAddr;

use clap::Parser;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpStream};
use topolvm_kube::LogicalVolumeWriter;
use topolvm_runtime::authorized_server::{Authorization, Authorizer};
use topolvm_runtime::inventory_server::{InventoryArgs, json as list_of};
use topolvm_runtime::{CancellationToken, Tasks};
use topolvm_testkit::ApiServer;
use topolvm_testkit::fixtures::logical_volume;

use super::*;

/// Lets in who has the controller's token.
struct Token;

impl Authorizer for Token {
    type Error = io::Error;

    async fn authorize(&self, token: &str, verb: &str, path: &str) -> io::Result<Authorization> {
        assert_eq!((verb, path), ("get", "/volume"));
        let is_known = token == "bound";
        Ok(if is_known { Authorization::Allowed } else { Authorization::Forbidden("reader".to_owned()) })
    }
}

struct List;

impl InventorySource for List {
    async fn answer(&self, list: InventoryList) -> Response {
        list_of(format!("[\"{}\"]", list.path()))
    }
}

#[derive(Parser)]
struct Program {
    #[command(flatten)]
    lists: InventoryArgs,
    #[command(flatten)]
    access: AgentAccess,
}

/// An agent on this machine, whose certificate is in a directory, and what the controller has to ask it.
struct Setup {
    api: ApiServer,
    dir: TempDir,
    agent: SocketAddr,
    tasks: Tasks,
    shutdown: CancellationToken,
}

impl Setup {
    async fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let own = rcgen::generate_simple_self_signed([AGENT_NAME.to_owned()]).unwrap();
        std::fs::write(dir.path().join("tls.crt"), own.cert.pem()).unwrap();
        std::fs::write(dir.path().join("tls.key"), own.signing_key.serialize_pem()).unwrap();
        std::fs::write(dir.path().join("token"), "bound\n").unwrap();
        let agent = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let (shutdown, api) = (CancellationToken::new(), ApiServer::new());
        let tasks = Tasks::new(shutdown.clone());
        let setup = Self { api, dir, agent, tasks, shutdown };
        let address = format!("--inventory-bind-address={agent}");
        let lists = setup.program(&[&address, &setup.flag("--inventory-cert-dir", "")]).lists.config().unwrap();
        lists.start(List, Token, &setup.tasks, &setup.shutdown);
        let client = TlsClient::verifying_nothing(AGENT_NAME).unwrap();
        // Until it has read its certificate, too
        loop {
            if let Ok(stream) = TcpStream::connect(agent).await
                && client.connect(stream).await.is_ok()
            {
                return setup;
            }
            tokio::task::yield_now().await;
        }
    }

    fn flag(&self, flag: &str, file: &str) -> String {
        format!("{flag}={}", self.dir.path().join(file).display())
    }

    fn program(&self, flags: &[&str]) -> Program {
        let token = self.flag("--inventory-token-file", "token");
        Program::try_parse_from([&["program", &token], flags].concat()).unwrap()
    }

    /// Has a pod of topolvm-node on a node with this port for lists.
    fn add_agent(&self, node: &str, port: Option<u16>) {
        let ports = port.map(|port| json!({"name": "inventory", "containerPort": port}));
        let container = json!({"name": "topolvm-node", "ports": ports.into_iter().collect::<Vec<_>>()});
        self.api.apply_json(json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": format!("topolvm-node-{node}"), "namespace": "topolvm-system",
                "labels": {"app.kubernetes.io/component": "node"},
            },
            "spec": {"nodeName": node, "containers": [container]},
            "status": {"podIP": "127.0.0.1"},
        }));
    }

    /// Asks all agents for the volumes. There is a volume on the node n9.
    async fn ask(&self, flags: &[&str]) -> (StatusCode, Value, Value) {
        let mut volumes = LogicalVolumeWriter::of_cluster();
        volumes.apply(kube::runtime::watcher::Event::Apply(logical_volume("pvc-1").on("n9").build()));
        let access = self.program(flags).access;
        let inventory = Inventory::new(access, self.api.client(), "topolvm-system", volumes.as_reader());
        let response = inventory.answer(InventoryList::Volumes).await;
        let status = response.status();
        let errors = response.headers().get("x-topolvm-errors").map(|errors| errors.to_str().unwrap().to_owned());
        let errors = errors.map_or(Value::Null, |errors| serde_json::from_str(&errors).unwrap());
        let body = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
        (status, errors, serde_json::from_slice(&body).unwrap())
    }

    async fn stop(self) {
        self.shutdown.cancel();
        self.tasks.wait().await.unwrap();
    }
}

#[tokio::test]
async fn inventory_has_a_list_or_a_reason_for_each_node() {
    let setup = Setup::start().await;
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    for (node, port) in [("n1", Some(setup.agent.port())), ("n2", None), ("n3", Some(closed))] {
        setup.add_agent(node, port);
    }
    let (status, errors, body) = setup.ask(&[]).await;
    assert_eq!((status, body), (StatusCode::OK, json!({"n1": ["/volume"]})));
    let words = [("n2", "--inventory-bind-address"), ("n3", "is not reachable"), ("n9", "topolvm-node does not run")];
    for (node, words) in words {
        assert!(errors[node].as_str().unwrap().contains(words), "{node}: {errors}");
    }
    assert_eq!(errors.as_object().unwrap().len(), words.len());
    setup.stop().await;
}

#[tokio::test]
async fn an_agent_has_to_have_the_certificate_that_was_asked_for() {
    let setup = Setup::start().await;
    setup.add_agent("n1", Some(setup.agent.port()));
    let own = setup.flag("--inventory-agents-ca", "tls.crt");
    assert_eq!(setup.ask(&[&own]).await.2, json!({"n1": ["/volume"]}));

    let other = rcgen::generate_simple_self_signed([AGENT_NAME.to_owned()]).unwrap();
    std::fs::write(setup.dir.path().join("other.crt"), other.cert.pem()).unwrap();
    let (status, errors, _) = setup.ask(&[&setup.flag("--inventory-agents-ca", "other.crt")]).await;
    assert_eq!(status, StatusCode::BAD_GATEWAY);
    assert!(errors["n1"].as_str().unwrap().contains("--inventory-agents-ca"), "{errors}");
    setup.stop().await;
}

#[tokio::test]
async fn a_refusal_of_an_agent_is_passed_on() {
    let setup = Setup::start().await;
    setup.add_agent("n1", Some(setup.agent.port()));
    std::fs::write(setup.dir.path().join("token"), "other").unwrap();
    let (_, errors, _) = setup.ask(&[]).await;
    assert!(errors["n1"].as_str().unwrap().contains("403 Forbidden: reader may not get /volume"), "{errors}");
    setup.stop().await;
}

#[rstest::rstest]
#[case("--inventory-token-file", "nothing")]
#[case("--inventory-agents-ca", "nothing")]
#[case("--inventory-agents-ca", "token")]
#[tokio::test]
async fn without_what_agents_are_asked_with_the_answer_names_the_flag(#[case] flag: &str, #[case] file: &str) {
    let setup = Setup::start().await;
    setup.add_agent("n1", Some(setup.agent.port()));
    let mut access = setup.program(&[]).access;
    let path = setup.dir.path().join(file);
    match flag {
        "--inventory-token-file" => access.inventory_token_file = path,
        _ => access.inventory_agents_ca = path.display().to_string(),
    }
    let volumes = LogicalVolumeWriter::of_cluster().as_reader();
    let inventory = Inventory::new(access, setup.api.client(), "topolvm-system", volumes);
    let error = inventory.ask_all(InventoryList::Volumes).await.err().unwrap();
    assert!(error.to_string().contains(flag), "{error}");
    setup.stop().await;
}

#[tokio::test]
async fn no_more_than_a_few_agents_are_asked_at_once() {
    const NODES: usize = 3 * AT_ONCE + 4;
    let setup = Setup::start().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    for node in 0..NODES {
        setup.add_agent(&format!("n-{node}"), Some(listener.local_addr().unwrap().port()));
    }
    let agents = async {
        for begin in (0..NODES).step_by(AT_ONCE) {
            let mut open = Vec::new();
            for _ in begin..NODES.min(begin + AT_ONCE) {
                open.push(listener.accept().await.unwrap());
            }
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
            let next = std::pin::pin!(listener.accept());
            assert!(futures::poll!(next).is_pending(), "more than {AT_ONCE} are asked");
        }
    };
    let (answer, ()) = tokio::join!(setup.ask(&[]), agents);
    assert_eq!(answer.0, StatusCode::BAD_GATEWAY);
    setup.stop().await;
}
