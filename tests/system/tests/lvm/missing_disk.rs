//! Volume groups that have lost one of their disks.

use std::fs;

use system_tests::commands::Commands;
use tonic::Code;

use crate::daemon::{Client, Lvmd, code};
use crate::fixture::{DISKS, FailingDisk, Groups, MIB, lvm, myvg1, run, run_ok, wait};

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("vg_with_a_missing_disk_has_no_capacity_and_allows_deletion", group_without_a_disk),
    ("documented_commands_restore_a_failed_disk_that_returns", disk_that_returns),
    ("documented_commands_replace_a_failed_disk_and_keep_raid_data", disk_that_is_replaced),
];

/// A disk that can be removed.
pub(crate) struct Disk(pub(crate) String);

const FILE: &str = "/run/pulled";

impl Disk {
    pub(crate) fn new() -> Self {
        fs::File::create(FILE).unwrap().set_len(512 * MIB).unwrap();
        Self(run_ok("losetup", &["-f", "--show", FILE]).trim().to_owned())
    }

    pub(crate) fn plug(&self) {
        run_ok("losetup", &[&self.0, FILE]);
    }

    pub(crate) fn pull(&self) {
        run_ok("losetup", &["-d", &self.0]);
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        drop(run("vgremove", &["-ffqy", "myvg1"]));
        drop(run("losetup", &["-d", &self.0]));
        drop(fs::remove_file(FILE));
    }
}

fn group_without_a_disk() {
    let _groups = Groups::new(&[]);
    let disk = Disk::new();
    run_ok("vgcreate", &["-qy", "myvg1", DISKS[0], &disk.0]);
    let lvmd = Lvmd::start("device-classes: [{name: ssd, volume-group: myvg1, default: true, spare-gb: 0}]");
    wait(async {
        let client = lvmd.connect().await;
        client.create("a", 64 * MIB).await.unwrap();
        client.create("b", 64 * MIB).await.unwrap();
        let free = client.free().await;
        disk.pull();
        client.until_free(|free| free == 0).await;
        assert_eq!(myvg1(&lvm()).await.missing_pvs, 1);
        let status = client.create("c", 4 * MIB).await.unwrap_err();
        assert_eq!(status.code(), Code::FailedPrecondition);
        assert!(status.message().contains("1 physical volumes of volume group"), "{status}");
        assert_eq!(code(client.resize("a", 128 * MIB).await), Code::FailedPrecondition);
        assert_eq!(client.list().await.len(), 2);
        client.create("a", 64 * MIB).await.unwrap();
        client.remove("ssd", "b").await.unwrap();
        assert_eq!(code(client.remove("ssd", "b").await), Code::NotFound);
        assert_eq!(client.free().await, 0);
        disk.plug();
        // LVM wrote the metadata without it; nothing was on it.
        run_ok("vgextend", &["-q", "--restoremissing", "myvg1", &disk.0]);
        client.until_free(|now| now == free + 64 * MIB).await;
        client.create("c", 4 * MIB).await.unwrap();
    });
}

const CONFIG: &str = "device-classes: [{name: ssd, volume-group: myvg1, default: true, spare-gb: 0}]";

fn disk_that_returns() {
    let failing = FailingDisk::new();
    let _group = group_with(&failing);
    let lvmd = Lvmd::start(CONFIG);
    wait(async {
        let client = lvmd.connect().await;
        let free = client.free().await;
        client.create("deleted", 64 * MIB).await.unwrap();
        lose_disk(&client).await;
        // Only metadata that was written without the disk marks it as missing
        client.remove("ssd", "deleted").await.unwrap();
        FailingDisk::repair();
        let page = Commands::of("node-maintenance.md", "The disk comes back").unwrap();
        run_here(&page.with("/dev/sdb", failing.device()).unwrap());
        client.until_free(|now| now == free).await;
        check_data();
        assert_eq!(run_ok("lvs", &["--noheadings", "-o", "lv_health_status", "myvg1"]).trim(), "");
        client.create("new", 64 * MIB).await.unwrap();
    });
}

fn disk_that_is_replaced() {
    let failing = FailingDisk::new();
    let spare = Disk::new();
    let _group = group_with(&failing);
    let lvmd = Lvmd::start(CONFIG);
    wait(async {
        let client = lvmd.connect().await;
        lose_disk(&client).await;
        let page = Commands::of("node-maintenance.md", "Another disk takes its place").unwrap();
        run_here(&page.with("/dev/sdd", &spare.0).unwrap());
        client.until_free(|free| free > 0).await;
        check_data();
        let left = run_ok("lvs", &["--noheadings", "-o", "lv_name", "myvg1"]);
        assert_eq!(left.split_whitespace().collect::<Vec<_>>(), ["kept", "mirrored"]);
        let images = run_ok("lvs", &["-a", "--noheadings", "-o", "devices", "myvg1"]);
        assert!(images.contains(&spare.0) && !images.contains(failing.device()), "{images}");
        assert_eq!(myvg1(&lvm()).await.missing_pvs, 0);
        client.create("new", 64 * MIB).await.unwrap();
    });
}

/// Creates a group on the first disk and on one that fails: a mirror on both, and a volume on each of them.
fn group_with(failing: &FailingDisk) -> Groups {
    let group = Groups::on("myvg1", &[DISKS[0], failing.device()]);
    run_ok("lvcreate", &["-qy", "--type", "raid1", "-m1", "--nosync", "-L", "64m", "-n", "mirrored", "myvg1"]);
    for (name, disk) in [("kept", DISKS[0]), ("lost", failing.device())] {
        run_ok("lvcreate", &["-qy", "-L", "64m", "-n", name, "myvg1", disk]);
    }
    write_to("mirrored", "before");
    write_to("kept", "before");
    group
}

/// Fails the disk while the mirror is written to, waits until lvmd reports it, and runs the commands of the page that
/// inspect it.
async fn lose_disk(client: &Client) {
    FailingDisk::fail();
    write_to("mirrored", "meanwhile");
    client.until_free(|free| free == 0).await;
    let seen = run_here(&Commands::of("node-maintenance.md", "A disk has failed").unwrap());
    let is_partial = |volume: &str| seen.lines().any(|line| line.contains(volume) && line.contains("partial"));
    assert!(is_partial("mirrored") && is_partial("lost") && !is_partial("kept"), "{seen}");
    assert_eq!(code(client.create("new", 64 * MIB).await), Code::FailedPrecondition);
}

fn check_data() {
    assert_eq!((read_from("mirrored"), read_from("kept")), ("meanwhile".to_owned(), "before".to_owned()));
}

pub(crate) fn write_to(volume: &str, text: &str) {
    let script = format!("printf %s {text} | dd of=/dev/myvg1/{volume} bs=4096 conv=sync oflag=direct status=none");
    run_ok("sh", &["-euc", &script]);
}

pub(crate) fn read_from(volume: &str) -> String {
    let script = format!("dd if=/dev/myvg1/{volume} bs=4096 count=1 iflag=direct status=none | tr -d '\\0'");
    run_ok("sh", &["-euc", &script])
}

fn run_here(page: &Commands) -> String {
    run_ok("sh", &["-euc", page.script()])
}
