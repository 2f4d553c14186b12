//! A disk group of a node with many disks: the disks that are added, those that are not, and the cost of a scan.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use testbed::suite;
use topolvm_proto::lvmd::{DiskItem, WatchStorageResponse};

use crate::counted_programs::{CountedPrograms, lvm_processes};
use crate::daemon::{Client, Lvmd};
use crate::disk_groups::members;
use crate::evacuation::until_reported;
use crate::fixture::{EXTENT, wait};
use crate::scsi_disks::{ScsiDisks, contents, until};
use crate::signatures::SIGNATURES;

pub(crate) const TESTS: &[(&str, fn())] = &[("lvmd_adds_blank_disks_once_and_scans_with_one_process", takes_many)];

/// Size of a disk in MiB: LVM's metadata and one extent.
const MIB: usize = 6;
/// Time in which all disks must be in the group, on a machine that does something else, too.
const BOUND: Duration = Duration::from_mins(3);

fn takes_many() {
    let disk_count = if suite::is_soak() { 64 } else { 24 };
    let (marked_count, most) = (disk_count / 8, disk_count / 2);
    let disks = ScsiDisks::of_size(MIB, disk_count, &["scsi"]);
    let devices: Vec<_> = (0..disk_count).map(|index| disks.device(index)).collect();
    let (marked, blank): (Vec<_>, Vec<_>) = devices.iter().cloned().enumerate().partition(|(index, _)| index % 8 == 3);
    let [marked, blank] = [marked, blank].map(|disks| disks.into_iter().map(|(_, device)| device).collect::<Vec<_>>());
    assert_eq!((marked.len(), blank.len()), (marked_count, disk_count - marked_count));
    for (device, signature) in marked.iter().zip(SIGNATURES) {
        signature.make(device);
    }
    let before: Vec<_> = marked.iter().map(|device| contents(device)).collect();
    let programs = CountedPrograms::new();
    let config = |limits: &str| {
        format!(
            "{}rescan-interval: 1\nsettle-time: 0\n\
             disk-groups: [{{name: scsi, mode: auto, paths: ['/dev/sd[a-z]+'], {limits}}}]",
            programs.config()
        )
    };

    // No more disks than the maximum, and no free space except the spare
    let start = Instant::now();
    let mut lvmd = Lvmd::start(&config(&format!("max-disks: {most}, spare-gb: 1")));
    wait(async {
        let client = lvmd.connect().await;
        let report = until_members(&client, most).await;
        assert_report(&report, &devices, &marked, "group_full");
        let left: Vec<_> = report.iter().filter(|disk| disk.reasons == ["group_full"]).collect();
        assert_eq!(left.len(), blank.len() - most);
        for disk in left {
            assert!(contents(&disk.path).iter().all(|byte| *byte == 0), "{} was written to", disk.path);
        }
        assert_eq!(client.free_in("scsi").await.unwrap(), 0, "the spare is offered");
    });
    assert!(lvmd.terminate().success());

    let lvmd = Lvmd::start(&config("spare-gb: 0"));
    wait(async {
        let client = lvmd.connect().await;
        let report = until_members(&client, blank.len()).await;
        assert_report(&report, &devices, &marked, "");
        assert_eq!(client.free_in("scsi").await.unwrap(), u64::try_from(blank.len()).unwrap() * EXTENT);
    });
    assert!(start.elapsed() < BOUND, "{:?}", start.elapsed());
    let [in_group, expected] = [members("scsi"), blank.clone()].map(BTreeSet::from_iter);
    assert_eq!(in_group, expected);
    let counts = programs.counts();
    assert_eq!(counts["vgcreate"] + counts["vgextend"], blank.len(), "a disk was added more than once: {counts:?}");
    assert!(lvm_processes(&counts) < 4 * disk_count, "{counts:?}");

    // When idle a scan is one LVM process, and one blkid for each disk that is not blank
    let first = until("a scan when idle", || Some(programs.counts()).filter(|now| now["pvs"] > counts["pvs"]));
    let last = until("three more scans", || Some(programs.counts()).filter(|now| now["pvs"] >= first["pvs"] + 3));
    let scans = last["pvs"] - first["pvs"];
    assert_eq!(lvm_processes(&last) - lvm_processes(&first), scans, "{first:?} {last:?}");
    assert!(last["blkid"] - first["blkid"] <= (scans + 1) * marked_count, "{first:?} {last:?}");
    for (device, before) in marked.iter().zip(before) {
        assert!(contents(device) == before, "{device} was written to");
    }
}

/// Waits until the group has this number of disks, and lvmd reports a reason for all others.
async fn until_members(client: &Client, count: usize) -> Vec<DiskItem> {
    let is_so = |reported: &WatchStorageResponse| {
        reported.disk_report.as_ref().is_some_and(|report| {
            report.disk_groups.iter().any(|group| usize::try_from(group.disks) == Ok(count))
                && report.disks.iter().all(|disk| disk.state != "candidate")
        })
    };
    until_reported(client, is_so).await.disk_report.unwrap().disks
}

/// Checks that each disk is in the report once: foreign ones with their contents, the others as members or with this
/// reason.
fn assert_report(report: &[DiskItem], devices: &[String], marked: &[String], reason: &str) {
    for device in devices {
        let found: Vec<_> = report.iter().filter(|disk| disk.path == *device).collect();
        let [disk] = found[..] else { panic!("{device} is listed {} times", found.len()) };
        let words: Vec<_> = disk.reasons.iter().map(String::as_str).collect();
        match (disk.state.as_str(), &words[..]) {
            ("refused", ["signature" | "physical_volume" | "data"]) => assert!(marked.contains(device), "{disk:?}"),
            ("refused", [word]) => assert_eq!(*word, reason, "{disk:?}"),
            ("member", []) => assert!(!marked.contains(device), "{disk:?}"),
            _ => panic!("{disk:?}"),
        }
        assert!(!disk.message.is_empty());
    }
}
