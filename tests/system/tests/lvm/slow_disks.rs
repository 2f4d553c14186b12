//! Disks that answer after half a minute: what lvmd goes on to do meanwhile, and what it says of them.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt as _;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use topolvm_proto::lvmd::{DiskReport, WatchStorageResponse};

use crate::counted_programs::CountedPrograms;
use crate::daemon::{Client, Lvmd};
use crate::disk_groups::members;
use crate::evacuation::until_told;
use crate::fixture::{EXTENT, Groups, run, run_ok, wait};
use crate::scsi_disks::{ScsiDisks, contents, until};

pub(crate) const TESTS: &[(&str, fn())] =
    &[("slow_disks_are_named_and_block_no_other_volume_group", are_named_and_hold_up_no_other_group)];

const DELAY: Duration = Duration::from_secs(30);
/// Time in which lvmd must answer everything that is not about these disks, on a machine that does something else, too.
const PROMPT: Duration = Duration::from_secs(15);
/// Threads that lvmd may have more than at rest: one for each of the two disks, and those that ask device-mapper and
/// read metadata headers.
const MORE_THREADS: usize = 5;

fn are_named_and_hold_up_no_other_group() {
    let _group = Groups::one();
    let disks = ScsiDisks::of_size(8, 2, &["scsi"]);
    let [foreign, blank] = [0, 1].map(|index| disks.device(index));
    run_ok("mkfs.ext4", &["-qF", &foreign]);
    let before = contents(&foreign);
    // Keeps the blank one out of the group until both are slow
    let exclusive = i32::try_from(OFlags::EXCL.bits()).unwrap();
    let claim = OpenOptions::new().read(true).custom_flags(exclusive).open(&blank).unwrap();
    let programs = CountedPrograms::new();
    let mut lvmd = Lvmd::start(&format!(
        "{}rescan-interval: 1\nsettle-time: 0\n\
         device-classes: [{{name: ssd, volume-group: myvg1, default: true, spare-gb: 0}}]\n\
         disk-groups: [{{name: scsi, mode: auto, paths: ['/dev/sd[a-z]+'], spare-gb: 0}}]",
        programs.config()
    ));
    lvmd.discard_log();
    wait(async {
        let client = lvmd.connect().await;
        let reasons = |told: &WatchStorageResponse| [&foreign, &blank].map(|disk| reason(told, disk));
        until_told(&client, |told| reasons(told) == ["signature", "in_use"]).await;
        client.create("before", EXTENT).await.unwrap();
        let threads = lvmd.threads();
        disks.slow_down(DELAY);
        let slow_since = Instant::now();
        let reader = read(&foreign);
        drop(claim);

        // LVM knows from its hints that it needs none of these disks, and goes on
        let until_looks = |more: usize| {
            let before = programs.counts()["pvs"];
            until("looks", || (programs.counts()["pvs"] >= before + more).then_some(()));
        };
        let is_well = async |volume: &str| {
            serves_promptly(&client, volume).await;
            assert!(lvmd.threads() <= threads + MORE_THREADS, "{} threads, {threads} at rest", lvmd.threads());
            assert!(lvm_that_run() <= 2, "LVM processes pile up");
        };
        until_looks(1);
        is_well("while-they-are-read").await;
        until_told(&client, |told| reasons(told) == ["unreadable", "unreadable"]).await;
        // Each look gives up after its time; what reads such a disk to the end waits for one answer after the other
        assert!(slow_since.elapsed() < 2 * DELAY, "{:?}", slow_since.elapsed());
        is_well("when-they-are-told").await;
        until_looks(4);
        is_well("after-more-looks").await;

        // Without hints LVM reads all disks that it can see: for a volume those of its group alone, for a scan all, of
        // which lvmd reports those that do not answer
        disks.disable_hints();
        serves_promptly(&client, "without-hints").await;
        let failure = |report: &DiskReport| report.failure.contains(&format!("do not answer: {foreign}, {blank};"));
        until_told(&client, |told| told.disk_report.as_ref().is_some_and(failure)).await;
        reads_promptly(&client).await;
        assert!(lvmd.threads() <= threads + MORE_THREADS, "{} threads, {threads} at rest", lvmd.threads());
        assert!(lvm_that_run() <= 3, "LVM processes pile up");

        ScsiDisks::speed_up();
        assert!(reader.wait_with_output().unwrap().status.success());
        assert!(slow_since.elapsed() >= DELAY, "the disks were not slow");
        let is_over = |told: &WatchStorageResponse| {
            let report = told.disk_report.as_ref().unwrap();
            reasons(told) == ["signature", ""] && report.failure.is_empty() && report.disk_groups[0].disks == 1
        };
        until_told(&client, is_over).await;
        assert_eq!(client.list().await.len(), 5);
    });
    assert_eq!(members("scsi"), [blank]);
    assert!(contents(&foreign) == before, "{foreign} was written to");
}

/// Checks that lvmd answers, makes a volume in the group on another disk, and lists it.
async fn serves_promptly(client: &Client, volume: &str) {
    let start = Instant::now();
    client.create(volume, EXTENT).await.unwrap();
    assert!(start.elapsed() < PROMPT, "{:?} for a new volume", start.elapsed());
    reads_promptly(client).await;
    assert!(client.list().await.iter().any(|listed| listed.name == volume));
}

/// Checks that lvmd answers what it can say by itself, and is well.
async fn reads_promptly(client: &Client) {
    let start = Instant::now();
    client.list().await;
    client.free().await;
    for service in ["", "proto.LVService", "proto.VGService"] {
        let request = HealthCheckRequest { service: service.to_owned() };
        let answer = HealthClient::new(client.0.clone()).check(request).await.unwrap().into_inner();
        assert_eq!(answer.status(), ServingStatus::Serving, "{service}");
    }
    assert!(start.elapsed() < PROMPT, "{:?}", start.elapsed());
}

/// Returns the first reason against a disk.
fn reason(told: &WatchStorageResponse, disk: &str) -> String {
    let disks = told.disk_report.iter().flat_map(|report| &report.disks);
    disks.filter(|found| found.path == disk).flat_map(|found| &found.reasons).next().cloned().unwrap_or_default()
}

/// Begins to read the first block of a disk.
fn read(disk: &str) -> Child {
    let args = [&format!("if={disk}"), "of=/dev/null", "bs=4096", "count=1", "iflag=direct"];
    Command::new("dd").args(args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// Returns how many processes of LVM there are.
fn lvm_that_run() -> usize {
    String::from_utf8(run("pidof", &["lvm"]).stdout).unwrap().split_whitespace().count()
}
