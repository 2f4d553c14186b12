//! lvmd embedded in another process.

use std::fs;
use std::path::Path;
use std::time::Duration;

use futures::StreamExt as _;
use lvm::Lvm;
use lvmd::{Settings, embed};
use lvmd_config::Config;
use lvmd_config::tags::InstanceId;
use lvmd_engine::{Engine, StartError};
use prometheus_client::registry::Registry;
use tonic::Code;
use topolvm_proto::lvmd::GetFreeBytesRequest;
use topolvm_proto::lvmd::vg_service_client::VgServiceClient;
use topolvm_runtime::{CancellationToken, Tasks};
use topolvm_testkit::lvm::{FakeLvm, FakeVolume, Fault};

use crate::node::{GIB, MANAGED, SOCKET, two_of_one_name};

async fn start(lvm: FakeLvm) -> Result<Engine<FakeLvm>, StartError> {
    let shutdown = CancellationToken::new();
    let config = "device-classes: [{name: ssd, volume-group: vg1}, {name: hdd, volume-group: vg2}]";
    let classes = Config::parse("lvmd.yaml", config).unwrap().classes;
    Engine::start(
        Lvm::new(lvm),
        classes,
        InstanceId::new(Path::new(SOCKET), None),
        &Tasks::new(shutdown.clone()),
        shutdown,
    )
    .await
}

#[tokio::test(start_paused = true)]
async fn each_class_starts_with_the_free_space_of_its_group() {
    let lvm = FakeLvm::new().with_group("vg1", 20 * GIB).with_group("vg2", 30 * GIB);
    lvm.add_volume("vg2", "a", FakeVolume::thick(GIB));
    let capacity = start(lvm).await.unwrap().capacity();
    let free: Vec<_> = capacity.classes.iter().map(|class| (class.name.as_str(), class.free_bytes)).collect();
    // 10 GiB of each group are spared
    assert_eq!(free, [("ssd", 10 * GIB), ("hdd", 19 * GIB)]);
}

#[tokio::test(start_paused = true)]
async fn a_group_that_is_not_there_is_named_with_its_class() {
    let error = start(FakeLvm::new().with_group("vg1", GIB)).await.unwrap_err();
    let text = error.to_string();
    assert!(
        text.starts_with("device class \"hdd\": there is no volume group vg2; create it with `vgcreate vg2 DEVICE...`"),
        "{text}"
    );
}

#[tokio::test(start_paused = true)]
async fn an_lvm_that_does_not_work_is_reported_at_the_start() {
    let lvm = FakeLvm::new().with_group("vg1", GIB).with_group("vg2", GIB);
    lvm.fail_always("fullreport", Fault::Spawn);
    assert!(matches!(start(lvm).await, Err(StartError::Lvm(_))));
}

#[tokio::test(start_paused = true)]
async fn duplicate_volume_group_name_is_a_problem_and_lvmd_starts() {
    let lvm = FakeLvm::new().with_group("vg1", 20 * GIB).with_group("vg2", 20 * GIB);
    // The report on both, that on the first, and the next one
    for nth in [1, 2, 4] {
        lvm.fail("fullreport", nth, two_of_one_name("vg1"));
    }
    let engine = start(lvm.clone()).await.unwrap();
    let free = || engine.capacity().classes.iter().map(|class| class.free_bytes).collect::<Vec<_>>();
    assert_eq!(free(), [0, 10 * GIB]);
    let report = engine.watch_storage();
    let first = std::pin::pin!(report).next().await.unwrap().unwrap();
    assert!(format!("{:?}", first.problems).contains("two volume groups with the name vg1"), "{:?}", first.problems);
    assert_eq!(first.problems.len(), 1, "{:?}", first.problems);
    let other = "9be1a4a3-7f35-4d24-9d6b-5d6f6a3f2f1c".parse().unwrap();
    let error = engine.find("hdd", &other).await.unwrap_err();
    assert!(matches!(error, lvmd_engine::Error::VolumeGroupUnreadable { .. }), "{error}");
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert_eq!(free(), [10 * GIB, 10 * GIB]);
}

#[tokio::test(start_paused = true)]
async fn unreadable_group_does_not_hide_volumes_of_a_former_class() {
    let lvm = FakeLvm::new().with_group("vg1", 20 * GIB).with_group("vg2", 20 * GIB);
    lvm.add_group("broken", GIB, 1);
    lvm.add_group("former", GIB, 1);
    lvm.add_volume("former", "a", FakeVolume { tags: vec![MANAGED.to_owned()], ..FakeVolume::thick(GIB) });
    // After the report on the configured ones those on the two others, and on the first of them
    for nth in [2, 3] {
        lvm.fail("fullreport", nth, Fault::says("Volume group broken metadata invalid."));
    }
    let engine = start(lvm).await.unwrap();
    let report = engine.watch_storage();
    let first = std::pin::pin!(report).next().await.unwrap().unwrap();
    let names: Vec<_> = first.groups.iter().map(|group| group.name.as_str()).collect();
    assert_eq!(names, ["former", "vg1", "vg2"]);
}

#[tokio::test(start_paused = true)]
async fn embedded_lvmd_answers_unavailable_until_the_group_exists() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("lvmd.yaml");
    fs::write(&file, "device-classes: [{name: ssd, volume-group: vg1, spare-gb: 0}]").unwrap();
    let lvm = FakeLvm::new();
    let settings = Settings { config: lvmd_config::load(&file).unwrap(), file, runner: lvm.clone() };
    let shutdown = CancellationToken::new();
    let tasks = Tasks::new(shutdown.clone());
    let services = embed(settings, Path::new("/csi.sock"), &mut Registry::default(), &tasks, shutdown.clone()).unwrap();
    let mut client = VgServiceClient::new(services);
    let mut free = async || {
        let request = GetFreeBytesRequest { device_class: "ssd".to_owned() };
        client.get_free_bytes(request).await.map(|answer| answer.into_inner().free_bytes)
    };

    tokio::time::sleep(Duration::from_millis(500)).await;
    let status = free().await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert!(
        status.message().starts_with("not started: device class \"ssd\": there is no volume group vg1"),
        "{status}"
    );

    lvm.add_group("vg1", GIB, 1);
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(free().await.unwrap(), GIB);
    shutdown.cancel();
    tasks.wait().await.unwrap();
}
