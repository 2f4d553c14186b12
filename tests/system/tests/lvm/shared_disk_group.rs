//! Disk groups of two machines that have a disk in common: the first adds it, and the other does not change it.

use std::fs;

use libtest_mimic::Trial;
use serde_json::Value;
use testbed::suite;
use tonic::{Code, Status};

use crate::daemon::{Client, Lvmd, code};
use crate::disk_groups::{members, programs};
use crate::fixture::{EXTENT, run, run_ok, wait};
use crate::scsi_disks::until;
use crate::two_machines::{Marks, OWN, SHARED, Work, boot, shared_contents};

pub(crate) const WORKS: &[Work] = &[
    ("takes-shared-disk", take),
    ("sees-shared-disk-taken", see_taken),
    ("loses-shared-disk", lose),
    ("overwrites-shared-disk", overwrite),
];

/// Name of the disk group, of its volume group and of its device class.
const GROUP: &str = "local";

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        suite::panicking_test("disk_of_two_machines_is_in_the_group_of_the_first", || {
            boot(["takes-shared-disk", "sees-shared-disk-taken"]);
        }),
        suite::panicking_test("disk_that_two_machines_take_at_once_is_that_of_the_last", || {
            boot(["loses-shared-disk", "overwrites-shared-disk"]);
        }),
    ]
}

/// The disk group of these disks. The machine gets no notification of writes of another one, so it scans each second.
fn group(paths: &str) -> String {
    format!(
        "rescan-interval: 1\nsettle-time: 0\n\
         disk-groups: [{{name: {GROUP}, mode: auto, paths: ['{paths}'], spare-gb: 0}}]"
    )
}

fn until_members(disks: &[&str]) {
    until("the disks of the group", || (members(GROUP) == disks).then_some(()));
}

async fn create(client: &Client, name: &str) -> Result<(), Status> {
    client.create_in(GROUP, name, EXTENT).await.map(drop)
}

/// Waits until a volume is created. The log may become long.
fn until_created(lvmd: &mut Lvmd, name: &str) {
    until("a volume", || wait(async { create(&lvmd.connect().await, name).await }).ok());
}

fn take(marks: &Marks) {
    marks.wait_for("other has a group");
    let mut lvmd = Lvmd::start(&group("/dev/ubd[ab]"));
    until_members(&[OWN, SHARED]);
    until_created(&mut lvmd, "kept");
    marks.set("taken");
    marks.wait_for("left alone");
    wait(async {
        let client = lvmd.connect().await;
        create(&client, "more").await.unwrap();
        let volumes = client.list_of(GROUP).await.unwrap();
        assert_eq!(volumes.len(), 2, "{volumes:?}");
    });
    let missing = run_ok("vgs", &["--noheadings", "-o", "vg_missing_pv_count", GROUP]);
    assert_eq!(missing.trim(), "0");
}

fn see_taken(marks: &Marks) {
    let mut lvmd = Lvmd::start(&group(OWN));
    until_members(&[OWN]);
    until_created(&mut lvmd, "first");
    marks.set("other has a group");
    marks.wait_for("taken");
    let before = shared_contents();
    // Two groups of one name: that of this machine works, while lvmd runs and from its start
    wait(async { create(&lvmd.connect().await, "second").await }).unwrap();
    lvmd.kill();
    let config = group("/dev/ubd[ab]");
    // LVM does not read a disk that had nothing on it when it wrote its hints, until the next boot
    assert_eq!(states(&config)[1], pair(SHARED, "refused", "signature"));
    fs::remove_file("/run/lvm/hints").unwrap();
    let mut lvmd = Lvmd::start(&config);
    until_created(&mut lvmd, "third");
    let disks = states(&config);
    assert_eq!(disks, [pair(OWN, "member", ""), pair(SHARED, "refused", "other_machine")]);
    wait(async {
        let client = lvmd.connect().await;
        for name in ["first", "second", "third"] {
            client.remove(GROUP, name).await.unwrap();
        }
        assert_eq!(code(client.remove(GROUP, "first").await), Code::NotFound);
        // The machine may have had another machine-id when it created the group
        assert_eq!(code(client.remove(GROUP, "kept").await), Code::FailedPrecondition);
    });
    lvmd.kill();

    // No group of the name but that of the other machine: the own disk is no part of it
    run_ok("vgremove", &["-ffqy", "--devices", OWN, GROUP]);
    run_ok("pvremove", &["-qy", "--devices", OWN, OWN]);
    run_ok("blkdiscard", &["-z", OWN]);
    let mut lvmd = Lvmd::start(&config);
    lvmd.until_logged("volume group local belongs to another machine");
    let disks = states(&config);
    assert_eq!(disks, [pair(OWN, "refused", "other_machine"), pair(SHARED, "refused", "other_machine")]);
    wait(async {
        let status = create(&lvmd.connect().await, "fourth").await.unwrap_err();
        assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
        assert!(status.message().contains("vgchange --deltag topolvm.io/machine="), "{status}");
    });
    assert_eq!(shared_contents(), before);
    let mapped = run("dmsetup", &["ls"]);
    let mapped = String::from_utf8_lossy(&mapped.stdout);
    assert!(!mapped.contains("local-"), "{mapped}");
    marks.set("left alone");
}

fn lose(marks: &Marks) {
    marks.wait_for("other has a group");
    let mut lvmd = Lvmd::start(&group(SHARED));
    until_members(&[SHARED]);
    until_created(&mut lvmd, "lost");
    marks.set("taken");
    marks.wait_for("overwritten");
    let before = shared_contents();
    wait(async {
        let client = lvmd.connect().await;
        let status = create(&client, "more").await.unwrap_err();
        assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
        assert!(status.message().contains("vgchange --deltag topolvm.io/machine="), "{status}");
        assert_eq!(code(client.remove(GROUP, "lost").await), Code::FailedPrecondition);
        let free = client.free_in(GROUP).await;
        assert!(!free.as_ref().is_ok_and(|free| *free > 0), "{free:?}");
    });
    assert_eq!(shared_contents(), before);
    marks.set("noticed");
    marks.wait_for("in use");
    wait(async { create(&lvmd.connect().await, "more").await }).unwrap_err();
}

/// Takes the disk when the other machine has taken it already: LVM found it blank before, and writes now.
fn overwrite(marks: &Marks) {
    let mut lvmd = Lvmd::start(&group(OWN));
    until_members(&[OWN]);
    lvmd.kill();
    marks.set("other has a group");
    marks.wait_for("taken");
    run_ok("dd", &[&format!("if={OWN}"), &format!("of={SHARED}"), "bs=1M", "count=1", "oflag=direct", "status=none"]);
    run_ok("blkdiscard", &["-z", OWN]);
    marks.set("overwritten");
    marks.wait_for("noticed");
    let mut lvmd = Lvmd::start(&group(SHARED));
    until_created(&mut lvmd, "first");
    marks.set("in use");
}

/// Returns path, state and first reason of each disk, as `lvmd disks` reports them.
fn states(config: &str) -> Vec<[String; 3]> {
    let file = "/run/lvmd-disks.yaml";
    fs::write(file, config).unwrap();
    let lvmd = programs().join("lvmd");
    let arguments = ["--config", file, "--log-level=error", "disks", "--output=json"];
    let report: Value = serde_json::from_str(&run_ok(lvmd.to_str().unwrap(), &arguments)).unwrap();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let disks = report["disks"].as_array().unwrap().iter();
    disks.map(|disk| [&disk["path"], &disk["state"], &disk["reasons"][0]["reason"]].map(text)).collect()
}

fn pair(path: &str, state: &str, reason: &str) -> [String; 3] {
    [path, state, reason].map(str::to_owned)
}
