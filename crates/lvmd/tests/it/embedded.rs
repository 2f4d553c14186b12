//! The engine in somebody else's process.

use std::path::Path;

use lvm::Lvm;
use lvmd::{Config, Engine, Maker, StartError};
use topolvm_runtime::{CancellationToken, Tasks};
use topolvm_testkit::lvm::{FakeLvm, Fault};

use crate::node::{GIB, SOCKET};

async fn start(lvm: FakeLvm) -> Result<Engine<FakeLvm>, StartError> {
    let shutdown = CancellationToken::new();
    let config = "device-classes: [{name: ssd, volume-group: vg1}, {name: hdd, volume-group: vg2}]";
    let classes = Config::parse("lvmd.yaml", config).unwrap().classes;
    Engine::start(Lvm::new(lvm), classes, Maker::new(Path::new(SOCKET)), &Tasks::new(shutdown.clone()), shutdown).await
}

#[tokio::test(start_paused = true)]
async fn all_groups_are_there() {
    let lvm = FakeLvm::new().with_group("vg1", GIB).with_group("vg2", GIB);
    start(lvm).await.unwrap();
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
    lvm.break_down("fullreport", Fault::Spawn);
    assert!(matches!(start(lvm).await, Err(StartError::Lvm(_))));
}
