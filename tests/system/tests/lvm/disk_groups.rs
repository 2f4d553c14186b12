//! Disk groups on real disks: the disks that lvmd adds to a volume group, and those that it does not change.

use std::fs;
use std::path::PathBuf;
use std::process::Output;
use std::time::{Duration, Instant};

use lvm::Tag;
use rustix::fs::{Mode, OFlags};
use serde_json::Value;
use system_tests::commands::Commands;
use topolvm_proto::lvmd::CreateLvRequest;

use crate::daemon::{Client, Lvmd};
use crate::fixture::{every, lvm, run, run_ok, vg, wait};
use crate::scsi_disks::{ScsiDisks, contents, until};
use crate::signatures::SIGNATURES;

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("lvmd_in_mode_report_changes_no_disk", reports_and_changes_nothing),
    ("lvmd_adds_a_disk_that_is_plugged_in_and_offers_its_space", adds_what_is_plugged_in),
    ("lvmd_adds_no_disk_with_any_of_many_signatures", adds_no_disk_with_a_signature),
    ("lvm_refuses_a_disk_that_gets_a_signature_at_the_last_moment", lvm_refuses_signatures),
    ("lvmd_adds_no_disk_that_is_in_use_or_read_only", adds_no_disk_in_use),
    ("lvmd_adds_a_disk_of_two_groups_to_neither", adds_a_disk_of_two_groups_to_neither),
    ("lvmd_keeps_a_group_unchanged_while_a_disk_is_disconnected", survives_a_pull),
    ("lvmd_grows_a_group_with_its_disk", grows_with_the_disk),
];

/// The group `scsi` of all SCSI disks, with nothing to wait for but the kernel's messages.
pub(crate) fn group(mode: &str) -> String {
    format!(
        "rescan-interval: 0\nsettle-time: 0\n\
         disk-groups: [{{name: scsi, mode: {mode}, paths: ['/dev/sd[a-z]+'], spare-gb: 0}}]"
    )
}

/// Returns the disks of a volume group, sorted; none if it is not there.
pub(crate) fn members(name: &str) -> Vec<String> {
    let output = run("pvs", &["--noheadings", "-o", "pv_name", "-S", &format!("vg_name={name}"), "-O", "pv_name"]);
    String::from_utf8(output.stdout).unwrap().split_whitespace().map(str::to_owned).collect()
}

pub(crate) fn until_members(count: usize) -> Vec<String> {
    until(&format!("{count} disks in the group"), || Some(members("scsi")).filter(|members| members.len() == count))
}

/// Runs `lvmd disks` with a configuration.
fn lvmd_disks(config: &str) -> Output {
    let file = "/run/lvmd-disks.yaml";
    fs::write(file, config).unwrap();
    let lvmd = programs().join("lvmd");
    run(lvmd.to_str().unwrap(), &["--config", file, "--log-level=error", "disks", "--output=json"])
}

/// Returns the directory of the product's programs.
pub(crate) fn programs() -> PathBuf {
    std::env::current_exe().unwrap().parent().unwrap().join("..")
}

/// Returns the report of `lvmd disks`.
fn report(config: &str) -> Value {
    let output = lvmd_disks(config);
    let errors = String::from_utf8_lossy(&output.stderr);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {errors}"))
}

/// Returns state and first reason of a disk.
fn state(config: &str, disk: &str) -> (String, String) {
    let report = report(config);
    let found = report["disks"].as_array().unwrap().iter().find(|found| found["path"] == disk).cloned().unwrap();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    (text(&found["state"]), text(&found["reasons"][0]["reason"]))
}

fn pair(state: &str, reason: &str) -> (String, String) {
    (state.to_owned(), reason.to_owned())
}

fn reports_and_changes_nothing() {
    let disks = ScsiDisks::new(1, &["scsi"]);
    let device = disks.device(0);
    let config = group("report");
    let mut lvmd = Lvmd::start(&config);
    lvmd.until_logged("would be added to disk group scsi");
    assert_eq!(state(&config, &device), pair("candidate", ""));
    ScsiDisks::plug_new();
    let second = disks.device(1);
    lvmd.until_logged(&second);
    for device in [device, second] {
        assert!(contents(&device).iter().all(|byte| *byte == 0));
    }
    assert_eq!(members("scsi").len(), 0);

    // The commands of the page, on this machine
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir_all("/etc/topolvm").unwrap();
    fs::write("/etc/topolvm/lvmd.yaml", &config).unwrap();
    fs::write(directory.path().join("config.json"), r#"{"diskSelector": ["sd+"]}"#).unwrap();
    let run_commands = |commands: Commands| {
        let path = format!("{}:{}", programs().display(), std::env::var("PATH").unwrap());
        commands.answer(commands.shell().env("PATH", path).current_dir(&directory)).unwrap().text
    };
    let said = run_commands(Commands::of("disk-groups.md", "See what would be done").unwrap());
    assert!(said.contains("would be added to disk group scsi"), "{said}");
    let said = run_commands(Commands::of("disk-groups.md", "From Carina").unwrap());
    assert!(said.contains("carina-vg-ssd"), "{said}");
    run_ok("vgcreate", &["-qq", "ssd", &disks.device(0)]);
    run_commands(Commands::of("disk-groups.md", "Whose volume group").unwrap());
    assert!(run_ok("vgs", &["--noheadings", "-o", "vg_tags", "ssd"]).contains("topolvm.io/disk-group=ssd"));
    run_ok("vgremove", &["-qq", "ssd"]);
}

fn adds_what_is_plugged_in() {
    let disks = ScsiDisks::new(1, &["scsi"]);
    let lvmd = Lvmd::start(&group("auto"));
    until_members(1);
    let tags = run_ok("vgs", &["--noheadings", "-o", "vg_tags", "scsi"]);
    assert!(tags.contains("topolvm.io/disk-group=scsi,topolvm.io/machine="), "{tags}");
    wait(async {
        let client = lvmd.connect().await;
        let free = free_above(&client, 0).await;
        let request = CreateLvRequest {
            name: "a".to_owned(),
            device_class: "scsi".to_owned(),
            size_bytes: 4 << 20,
            ..CreateLvRequest::default()
        };
        client.create_with(request).await.unwrap();
        ScsiDisks::plug_new();
        assert_eq!(until_members(2), [disks.device(0), disks.device(1)]);
        free_above(&client, free).await;
        client.remove("scsi", "a").await.unwrap();
    });
}

/// Waits until the class has more free bytes than these, and returns them.
async fn free_above(client: &Client, bytes: u64) -> u64 {
    let end = Instant::now() + Duration::from_mins(1);
    loop {
        match client.free_in("scsi").await {
            Ok(free) if free > bytes => return free,
            answer => assert!(Instant::now() < end, "{answer:?}"),
        }
    }
}

fn adds_no_disk_with_a_signature() {
    // Small: all of them, and a copy of each, are in the guest's memory
    let signatures: Vec<_> = every(3, SIGNATURES).collect();
    let disks = ScsiDisks::of_size(8, signatures.len() + 1, &["scsi"]);
    let marked: Vec<_> =
        signatures.iter().enumerate().map(|(index, signature)| (signature, disks.device(index))).collect();
    for (signature, device) in &marked {
        signature.make(device);
    }
    let before: Vec<_> = marked.iter().map(|(_, device)| contents(device)).collect();
    let config = group("auto");
    let _lvmd = Lvmd::start(&config);
    assert_eq!(until_members(1), [disks.device(signatures.len())]);
    for (signature, device) in &marked {
        let (state, reason) = state(&config, device);
        assert_eq!(state, "refused", "{}: {reason}", signature.name);
    }
    for ((signature, device), before) in marked.iter().zip(before) {
        assert!(contents(device) == before, "{} on {device} was overwritten", signature.name);
    }
    assert_eq!(members("scsi").len(), 1);
}

fn lvm_refuses_signatures() {
    let disks = ScsiDisks::new(3, &["scsi"]);
    let [member, ext4, swap] = [0, 1, 2].map(|index| disks.device(index));
    let tag: Tag = "a".parse().unwrap();
    wait(async {
        let lvm = lvm();
        run_ok("mkfs.ext4", &["-qF", &ext4]);
        run_ok("mkswap", &[&swap]);
        let before = [contents(&ext4), contents(&swap)];
        let refused = lvm.create_group(&vg("scsi"), &tag, &ext4).await.unwrap_err().to_string();
        assert!(refused.contains("ext4"), "{refused}");
        lvm.create_group(&vg("scsi"), &tag, &member).await.unwrap();
        for disk in [&ext4, &swap] {
            lvm.extend_group(&vg("scsi"), disk).await.unwrap_err();
        }
        assert!([contents(&ext4), contents(&swap)] == before, "a signature was overwritten");
        assert_eq!(members("scsi"), [member]);
    });
}

fn adds_no_disk_in_use() {
    let disks = ScsiDisks::new(4, &["scsi"]);
    let [claimed, mapped, read_only, free] = [0, 1, 2, 3].map(|index| disks.device(index));
    run_ok("blockdev", &["--setro", &read_only]);
    run_ok("dmsetup", &["create", "theirs", "--table", &format!("0 8 linear {mapped} 0")]);
    // Blank and claimed, as by a program that is about to use it
    let claim = rustix::fs::open(&claimed, OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC, Mode::empty()).unwrap();
    let config = group("auto").replace("rescan-interval: 0", "rescan-interval: 1");
    let mut lvmd = Lvmd::start(&config);
    assert_eq!(until_members(1), std::slice::from_ref(&free));
    assert_eq!(state(&config, &claimed), pair("refused", "in_use"));
    assert_eq!(state(&config, &mapped), pair("refused", "in_use"));
    assert_eq!(state(&config, &read_only), pair("refused", "read_only"));
    assert_eq!(state(&config, &free), pair("member", ""));
    drop(claim);
    run_ok("dmsetup", &["remove", "theirs"]);
    run_ok("blockdev", &["--setrw", &read_only]);
    until_members(4);
    // A member that turns read-only stays one. LVM would extend the group and leave the old metadata there
    run_ok("blockdev", &["--setro", &free]);
    ScsiDisks::plug_new();
    lvmd.until_logged(&format!("disk {free} of volume group scsi is read-only"));
    assert_eq!(state(&config, &free), pair("member", ""));
    assert!(contents(&disks.device(4)).iter().all(|byte| *byte == 0));
    run_ok("blockdev", &["--setrw", &free]);
    until_members(5);
}

fn adds_a_disk_of_two_groups_to_neither() {
    let disks = ScsiDisks::new(1, &["scsi", "other"]);
    let same = "disk-groups:
- {name: scsi, mode: auto, paths: [/dev/sd.]}
- {name: other, mode: auto, paths: [/dev/sd.]}";
    let refusal = lvmd_disks(same);
    assert_eq!(refusal.status.code(), Some(64));
    assert!(String::from_utf8_lossy(&refusal.stderr).contains("select the same disks"), "{refusal:?}");
    let config = same.replacen("/dev/sd.", "'/dev/sd[a-z]'", 1);
    let config = format!("settle-time: 0\n{config}");
    let mut lvmd = Lvmd::start(&config);
    lvmd.until_logged("several disk groups select it: scsi, other");
    assert_eq!(state(&config, &disks.device(0)), pair("refused", "several_groups"));
    assert!(contents(&disks.device(0)).iter().all(|byte| *byte == 0));
}

fn survives_a_pull() {
    let disks = ScsiDisks::new(2, &["scsi"]);
    let config = group("auto");
    let mut lvmd = Lvmd::start(&config);
    for _ in 0..2 {
        lvmd.until_logged("added a disk to its disk group");
    }
    let uuid = || run_ok("vgs", &["--noheadings", "-o", "vg_uuid,pv_count,vg_seqno", "scsi"]);
    let before = uuid();
    disks.pull(1);
    lvmd.until_logged("disks of a disk group are missing");
    assert_eq!(report(&config)["diskGroups"][0]["missing"], 1);
    // Another blank disk is no replacement
    ScsiDisks::plug_new();
    lvmd.until_logged("1 disks of volume group");
    assert!(contents(&disks.device(2)).iter().all(|byte| *byte == 0));
    assert_eq!(uuid(), before, "the group was changed without its disk");
    disks.put_back(1);
    assert_eq!(until_members(3).len(), 3);
    assert!(run_ok("vgs", &["--noheadings", "-o", "vg_missing_pv_count", "scsi"]).trim() == "0");
}

fn grows_with_the_disk() {
    let disks = ScsiDisks::new(1, &["scsi"]);
    let config = group("auto");
    let _lvmd = Lvmd::start(&config);
    until_members(1);
    disks.grow(0);
    let size = || run_ok("vgs", &["--noheadings", "--units=m", "--nosuffix", "-o", "vg_size", "scsi"]);
    until("the growth", || (size().trim().parse::<f64>().unwrap() > 900.0).then_some(()));
    until("the report", || (state(&config, &disks.device(0)) == pair("member", "")).then_some(()));
}
