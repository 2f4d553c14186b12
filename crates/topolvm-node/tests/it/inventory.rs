//! The lists that the agent serves for the tools of Carina's users.

use std::net::SocketAddr;

use axum::body::Body;
use clap::Parser;
use http::{Request, StatusCode};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use topolvm_api::INVENTORY_AUDIENCE;
use topolvm_runtime::http_client::send;
use topolvm_runtime::inventory_server::InventoryArgs;
use topolvm_runtime::tls::TlsClient;
use topolvm_testkit::ApiServer;
use topolvm_testkit::fixtures::logical_volume;
use topolvm_testkit::lvm::FakeVolume;

use crate::lvmd_process::{LvmdProcess, THIN_CLASS, VG};
use crate::whole_agent::Agent;

const GIB: u64 = 1 << 30;

#[derive(Parser)]
struct Program {
    #[command(flatten)]
    lists: InventoryArgs,
}

/// Asks until the agent has an answer with this status.
async fn ask(agent: SocketAddr, path: &str, token: &str, status: StatusCode) -> Value {
    loop {
        let Ok(stream) = TcpStream::connect(agent).await else {
            tokio::task::yield_now().await;
            continue;
        };
        let stream = TlsClient::verifying_nothing("any").unwrap().connect(stream).await.unwrap();
        let request = Request::get(path).header("authorization", format!("Bearer {token}"));
        let (answered, body) = send(stream, request.body(Body::empty()).unwrap(), 1 << 20).await.unwrap();
        if answered == status {
            return serde_json::from_slice(&body).unwrap();
        }
        assert_eq!(answered, StatusCode::SERVICE_UNAVAILABLE, "{body:?}");
    }
}

#[tokio::test]
async fn inventory_lists_volumes_and_groups_without_an_lvm_process() {
    let api = ApiServer::new();
    api.add_token("reader", "scraper");
    api.add_token_for("controller", "scraper", INVENTORY_AUDIENCE);
    for path in ["/volume", "/devicegroup"] {
        api.allow("scraper", "get", path);
    }
    let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let flag = format!("--inventory-bind-address={address}");
    let lists = Program::try_parse_from(["agent", &flag]).unwrap().lists.config().unwrap();
    let agent = Agent::start_with_lists(&api, lists).await;
    let refused = ask(address, "/volume", "reader", StatusCode::SERVICE_UNAVAILABLE).await;
    assert!(refused["error"].as_str().unwrap().contains("try again"), "{refused}");

    agent.lvm.add_volume(VG, "pool", FakeVolume::thin_pool(4 * GIB));
    for name in ["u1", "theirs"] {
        agent.lvm.add_volume(VG, name, FakeVolume { mapped_sectors: 1 << 19, ..FakeVolume::thin(GIB, "pool") });
    }
    let copy = FakeVolume { origin: Some("u1".to_owned()), mapped_sectors: 8, ..FakeVolume::thin(GIB, "pool") };
    agent.lvm.add_volume(VG, "u2", copy);
    api.apply_json(logical_volume("pvc-1").uid("u1").ready("u1", "1Gi").build());
    api.apply_json(logical_volume("snapshot-1").uid("u2").from_source("pvc-1", "ro").ready("u2", "1Gi").build());
    let _lvmd = LvmdProcess::start(&agent.lvm, THIN_CLASS).await.listen(&agent.dir.path().join("lvmd.sock")).await;

    let volumes = loop {
        let volumes = ask(address, "/volume", "reader", StatusCode::OK).await;
        if volumes.as_array().unwrap().len() == 2 {
            break volumes;
        }
    };
    let processes = agent.lvm.processes();
    let fields =
        |volume: &Value| ["lvName", "vgName", "poolLv", "origin", "dataPercent"].map(|key| volume[key].clone());
    assert_eq!(fields(&volumes[0]), ["u1", VG, "pool", "", "25.00"].map(Value::from));
    assert_eq!(fields(&volumes[1]), ["u2", VG, "pool", "u1", "0.00"].map(Value::from));
    assert_eq!(ask(address, "/volume", "controller", StatusCode::OK).await, volumes);

    let groups = ask(address, "/devicegroup", "reader", StatusCode::OK).await;
    assert_eq!((&groups[0]["vgName"], &groups[0]["lvCount"]), (&json!(VG), &json!(4)));
    assert_eq!(agent.lvm.processes(), processes);
    ask(address, "/volume", "made-up", StatusCode::UNAUTHORIZED).await;
    agent.stop().await;
}
