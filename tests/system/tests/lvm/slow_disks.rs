//! Disks that answer after half a minute: lvmd serves other requests in the meantime, and reports them.

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
use crate::evacuation::until_reported;
use crate::fixture::{EXTENT, Groups, run, run_ok, wait};
use crate::scsi_disks::{ScsiDisks, contents, until};

pub(crate) const TESTS: &[(&str, fn())] =
    &[("slow_disks_are_named_and_block_no_other_volume_group", are_named_and_block_no_other_group)];

const DELAY: Duration = Duration::from_secs(30);
/// Time in which lvmd must answer all requests that do not concern these disks, on a busy machine.
const PROMPT: Duration = Duration::from_secs(15);
/// Threads that lvmd may have in addition to those when idle: one for each of the two disks, and those that query
/// device-mapper and read metadata headers.
const MORE_THREADS: usize = 5;

fn are_named_and_block_no_other_group() {
    let _group = Groups::one();
    let disks = ScsiDisks::of_size(8, 2, &["scsi"]);
    let [foreign, blank] = [0, 1].map(|index| disks.device(index));
    run_ok("mkfs.ext4", &["-qF", &foreign]);
    let before = contents(&foreign);
    // Keeps the blank one out of the group until both are slow
    let exclusive = i32::try_from(OFlags::EXCL.bits()).unwrap();
    let claim = OpenOptions::new().read(true).custom_flags(exclusive).open(&blank).unwrap();
    let programs = CountedPrograms::new();
    let lvmd = Lvmd::start(&format!(
        "{}rescan-interval: 1\nsettle-time: 0\n\
         device-classes: [{{name: ssd, volume-group: myvg1, default: true, spare-gb: 0}}]\n\
         disk-groups: [{{name: scsi, mode: auto, paths: ['/dev/sd[a-z]+'], spare-gb: 0}}]",
        programs.config()
    ));
    wait(async {
        let client = lvmd.connect().await;
        let reasons = |reported: &WatchStorageResponse| [&foreign, &blank].map(|disk| reason(reported, disk));
        until_reported(&client, |reported| reasons(reported) == ["signature", "in_use"]).await;
        client.create("before", EXTENT).await.unwrap();
        let threads = lvmd.threads();
        disks.slow_down(DELAY);
        let slow_since = Instant::now();
        let reader = read(&foreign);
        drop(claim);

        // With hints LVM does not read these disks, and continues
        let until_scans = |more: usize| {
            let before = programs.counts()["pvs"];
            until("scans", || (programs.counts()["pvs"] >= before + more).then_some(()));
        };
        let is_well = async |volume: &str| {
            serves_promptly(&client, volume).await;
            assert!(lvmd.threads() <= threads + MORE_THREADS, "{} threads, {threads} at rest", lvmd.threads());
            assert!(lvm_that_run() <= 2, "LVM processes pile up");
        };
        until_scans(1);
        is_well("while-they-are-read").await;
        until_reported(&client, |reported| reasons(reported) == ["unreadable", "unreadable"]).await;
        // Each scan ends at its timeout; a process that reads such a disk to the end waits for one answer after the
        // other
        assert!(slow_since.elapsed() < 2 * DELAY, "{:?}", slow_since.elapsed());
        is_well("when-they-are-reported").await;
        until_scans(4);
        is_well("after-more-scans").await;

        // Without hints LVM reads all disks that it can see: for a volume only those of its group, for a scan all, and
        // lvmd reports those that do not answer
        disks.disable_hints();
        serves_promptly(&client, "without-hints").await;
        let failure = |report: &DiskReport| report.failure.contains(&format!("do not answer: {foreign}, {blank};"));
        until_reported(&client, |reported| reported.disk_report.as_ref().is_some_and(failure)).await;
        reads_promptly(&client).await;
        assert!(lvmd.threads() <= threads + MORE_THREADS, "{} threads, {threads} at rest", lvmd.threads());
        assert!(lvm_that_run() <= 3, "LVM processes pile up");

        ScsiDisks::speed_up();
        assert!(reader.wait_with_output().unwrap().status.success());
        assert!(slow_since.elapsed() >= DELAY, "the disks were not slow");
        let is_over = |reported: &WatchStorageResponse| {
            let report = reported.disk_report.as_ref().unwrap();
            reasons(reported) == ["signature", ""] && report.failure.is_empty() && report.disk_groups[0].disks == 1
        };
        until_reported(&client, is_over).await;
        assert_eq!(client.list().await.len(), 5);
    });
    assert_eq!(members("scsi"), [blank]);
    assert!(contents(&foreign) == before, "{foreign} was written to");
}

/// Checks that lvmd answers, creates a volume in the group on another disk, and lists it.
async fn serves_promptly(client: &Client, volume: &str) {
    let start = Instant::now();
    client.create(volume, EXTENT).await.unwrap();
    assert!(start.elapsed() < PROMPT, "{:?} for a new volume", start.elapsed());
    reads_promptly(client).await;
    assert!(client.list().await.iter().any(|listed| listed.name == volume));
}

/// Checks that lvmd answers requests that need no LVM, and is healthy.
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
fn reason(reported: &WatchStorageResponse, disk: &str) -> String {
    let disks = reported.disk_report.iter().flat_map(|report| &report.disks);
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
