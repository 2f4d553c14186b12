//! The log line of each change.

#![expect(clippy::indexing_slicing, reason = "reading a member that a JSON value lacks gives null")]

use std::path::Path;

use lvmd::{Settings, embed};
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use topolvm_proto::lvmd::lv_service_client::LvServiceClient;
use topolvm_proto::lvmd::vg_service_client::VgServiceClient;
use topolvm_proto::lvmd::{CreateLvRequest, GetFreeBytesRequest, RemoveLvRequest, ResizeLvRequest};
use topolvm_runtime::grpc::{RpcMetrics, observed};
use topolvm_runtime::{CancellationToken, Tasks};
use topolvm_testkit::Log;
use topolvm_testkit::lvm::FakeLvm;

use crate::node::{CONFIG, GIB};

/// The lines of calls since this was asked last: level, message and what the call was about.
fn calls(log: &Log) -> Vec<Value> {
    let log = log.take();
    let lines = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let of_calls = lines.filter(|line| line["span"]["name"] == "rpc");
    let essence = |mut line: Value| {
        assert!(line["milliseconds"].is_f64(), "{line}");
        line["span"].as_object_mut().unwrap().remove("name");
        json!([line["level"], line["message"], line["code"], line["span"]])
    };
    of_calls.map(essence).collect()
}

#[tokio::test(start_paused = true)]
async fn log_line_of_each_change_has_method_volume_and_lvm_processes() {
    let log = Log::default();
    let writer = log.clone();
    // As the program does at its usual level
    let subscriber = tracing_subscriber::fmt().json().flatten_event(true).with_span_list(false);
    let subscriber = subscriber.with_max_level(tracing::Level::INFO).with_writer(move || writer.clone());
    let _guard = tracing::subscriber::set_default(subscriber.finish());

    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("lvmd.yaml");
    std::fs::write(&file, CONFIG).unwrap();
    let lvm = FakeLvm::new().with_group("vg-ssd", 10 * GIB);
    lvm.add_group("vg-hdd", 20 * GIB, 2);
    let settings = Settings { config: lvmd_config::load(&file).unwrap(), file, runner: lvm };
    let shutdown = CancellationToken::new();
    let tasks = Tasks::new(shutdown.clone());
    let services = embed(settings, Path::new("/csi.sock"), &mut Registry::default(), &tasks, shutdown.clone()).unwrap();
    let services = observed(services, &RpcMetrics::register(&mut Registry::default()));
    let (mut lv, mut vg) = (LvServiceClient::new(services.clone()), VgServiceClient::new(services));
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;

    let create =
        |gib: i64| CreateLvRequest { name: "u1".to_owned(), size_bytes: gib << 30, ..CreateLvRequest::default() };
    let about = |method: &str, processes: u32| {
        json!({
            "method": method,
            "device_class": "ssd",
            "volume_group": "vg-ssd",
            "volume": "u1",
            "lvm_processes": processes
        })
    };
    lv.create_lv(create(1)).await.unwrap();
    assert_eq!(calls(&log), [json!(["INFO", "done", null, about("CreateLV", 1)])]);
    lv.create_lv(create(1)).await.unwrap();
    assert_eq!(calls(&log), [json!(["INFO", "done", null, about("CreateLV", 0)])]);
    let resize = ResizeLvRequest { name: "u1".to_owned(), device_class: "ssd".to_owned(), size_bytes: 2 << 30 };
    lv.resize_lv(resize).await.unwrap();
    assert_eq!(calls(&log), [json!(["INFO", "done", null, about("ResizeLV", 1)])]);
    lv.create_lv(create(100)).await.unwrap_err();
    assert_eq!(calls(&log), [json!(["WARN", "failed", "AlreadyExists", about("CreateLV", 0)])]);

    vg.get_free_bytes(GetFreeBytesRequest { device_class: "ssd".to_owned() }).await.unwrap();
    assert_eq!(calls(&log), Vec::<Value>::new());

    let remove = |name: &str| RemoveLvRequest { name: name.to_owned(), ..RemoveLvRequest::default() };
    lv.remove_lv(remove("-rf")).await.unwrap_err();
    let about_nothing = json!({"method": "RemoveLV", "device_class": "ssd", "volume_group": "vg-ssd", "volume": "-rf"});
    assert_eq!(calls(&log), [json!(["WARN", "failed", "InvalidArgument", about_nothing])]);
    lv.remove_lv(remove("u1")).await.unwrap();
    assert_eq!(calls(&log), [json!(["INFO", "done", null, about("RemoveLV", 1)])]);
    shutdown.cancel();
    tasks.wait().await.unwrap();
}
