//! Volumes whose object is deleted: in quarantine, adopted by another object, removed.

use std::collections::BTreeSet;

use tonic::{Code, Status};
use topolvm_proto::lvmd::orphan_service_client::OrphanServiceClient;
use topolvm_proto::lvmd::{AdoptLvRequest, QuarantineLvRequest, RemoveQuarantinedLvRequest};

use crate::daemon::{Client, Lvmd, code};
use crate::fixture::{Groups, MIB, run_ok, wait};

pub(crate) const TESTS: &[(&str, fn())] =
    &[("quarantined_volume_keeps_every_byte_and_can_be_adopted", quarantine_and_adopt)];

const CLASS: &str = "device-classes: [{name: ssd, volume-group: myvg1, default: true, spare-gb: 0}]";
const OLD: &str = "0b5a2f4e-8d54-4f5c-9a0e-7d8f6f3c2b1a";
const NEW: &str = "7c1d2f4e-8d54-4f5c-9a0e-7d8f6f3c2b1a";
const KEPT: &str = "topolvm.quarantine.0b5a2f4e-8d54-4f5c-9a0e-7d8f6f3c2b1a";

async fn quarantine(client: &Client, at: i64) -> Result<(), Status> {
    let request = QuarantineLvRequest { name: OLD.to_owned(), device_class: "ssd".to_owned(), quarantined_at: at };
    OrphanServiceClient::new(client.0.clone()).quarantine_lv(request).await.map(drop)
}

async fn adopt(client: &Client, new: &str) -> Result<(), Status> {
    let request = AdoptLvRequest {
        name: KEPT.to_owned(),
        device_class: "ssd".to_owned(),
        new_name: new.to_owned(),
        size_bytes: i64::try_from(64 * MIB).unwrap(),
        tags: vec!["topolvm.io/logicalvolume=pvc-2".to_owned()],
    };
    OrphanServiceClient::new(client.0.clone()).adopt_lv(request).await.map(drop)
}

async fn remove(client: &Client, at: i64) -> Result<(), Status> {
    let request =
        RemoveQuarantinedLvRequest { name: KEPT.to_owned(), device_class: "ssd".to_owned(), quarantined_at: at };
    OrphanServiceClient::new(client.0.clone()).remove_quarantined_lv(request).await.map(drop)
}

/// The name and the tags of the only LV in the group.
fn lv() -> (String, BTreeSet<String>) {
    let listed = run_ok("lvs", &["--noheadings", "-o", "lv_name,lv_tags", "myvg1"]);
    let mut words = listed.split_whitespace();
    let name = words.next().unwrap().to_owned();
    let tags = words.next().unwrap().split(',').map(str::to_owned).collect();
    assert_eq!(words.next(), None, "{listed}");
    (name, tags)
}

fn named(name: &str, tags: [&str; 2]) -> (String, BTreeSet<String>) {
    (name.to_owned(), tags.map(str::to_owned).into())
}

/// The checksum of an LV, read from the disk.
fn sum(name: &str) -> String {
    run_ok("sh", &["-c", &format!("dd if=/dev/myvg1/{name} bs=1M iflag=direct status=none | sha256sum")])
}

fn quarantine_and_adopt() {
    let _groups = Groups::one();
    let mut lvmd = Lvmd::start(CLASS);
    wait(async {
        let client = lvmd.connect().await;
        client.create(OLD, 64 * MIB).await.unwrap();
        let free = client.free().await;
        run_ok("dd", &["if=/dev/urandom", &format!("of=/dev/myvg1/{OLD}"), "bs=1M", "count=64", "oflag=direct"]);
        let before = sum(OLD);

        // Another program has it open
        let held = std::fs::File::open(format!("/dev/myvg1/{OLD}")).unwrap();
        assert_eq!(code(quarantine(&client, 7).await), Code::FailedPrecondition);
        drop(held);
        quarantine(&client, 7).await.unwrap();
        assert_eq!(lv(), named(KEPT, ["topolvm.io/managed-by=lvmd", "topolvm.io/quarantined=7"]));
        assert_eq!((client.free().await, sum(KEPT)), (free, before.clone()));
        assert_eq!(code(client.create(OLD, 64 * MIB).await), Code::Unavailable);

        adopt(&client, NEW).await.unwrap();
        assert_eq!(lv(), named(NEW, ["topolvm.io/logicalvolume=pvc-2", "topolvm.io/managed-by=lvmd"]));
        assert_eq!(sum(NEW), before);
        run_ok("lvrename", &["-q", "myvg1", NEW, OLD]);
        lvmd.kill();
    });
    let lvmd = Lvmd::start(CLASS);
    wait(async {
        let client = lvmd.connect().await;
        quarantine(&client, 8).await.unwrap();
        // Taken out by hand
        run_ok("lvchange", &["-q", "--deltag", "topolvm.io/quarantined=8", &format!("myvg1/{KEPT}")]);
        remove(&client, 8).await.unwrap_err();
        run_ok("lvchange", &["-q", "--addtag", "topolvm.io/quarantined=9", &format!("myvg1/{KEPT}")]);
        assert_eq!(code(remove(&client, 8).await), Code::FailedPrecondition);
        remove(&client, 9).await.unwrap();
        assert_eq!(client.list().await, []);
    });
}
