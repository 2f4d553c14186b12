//! Snapshots of several volumes at one moment by lvmd.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tonic::{Code, Status};
use topolvm_proto::lvmd::lv_service_client::LvServiceClient;
use topolvm_proto::lvmd::{CreateLvSnapshotRequest, CreateLvSnapshotsRequest, LogicalVolume};

use crate::crash::Killer;
use crate::daemon::{Client, Lvmd};
use crate::fixture::{MIB, run_ok, runs, wait};
use crate::snapshot::snapshot;
use crate::thin::{CLASSES, pools};
use crate::two_daemons::NoticeTimeout;

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("lvmd_snapshots_of_several_volumes_have_one_moment", have_one_moment),
    ("lvmd_killed_between_snapshots_of_a_group_leaves_nothing", killed_lvmd_leaves_nothing),
    ("lvmd_makes_no_snapshot_of_a_group_that_it_cannot_freeze", makes_none_without_freezing),
];

async fn request(client: &Client, snapshots: Vec<CreateLvSnapshotRequest>) -> Result<Vec<LogicalVolume>, Status> {
    let request = CreateLvSnapshotsRequest { snapshots };
    Ok(LvServiceClient::new(client.0.clone()).create_lv_snapshots(request).await?.into_inner().snapshots)
}

fn group() -> Vec<CreateLvSnapshotRequest> {
    vec![snapshot("sa", "a", "ro", 0), snapshot("sb", "b", "ro", 0)]
}

/// Creates the volumes `a` and `b`, and mounts them.
async fn mount_both(client: &Client) {
    for name in ["a", "b"] {
        let path = client.create(name, 32 * MIB).await.unwrap().path;
        run_ok("mkfs.ext4", &["-q", &path]);
        fs::create_dir_all(format!("/mnt/{name}")).unwrap();
        run_ok("mount", &[&path, &format!("/mnt/{name}")]);
    }
}

fn unmount_both() {
    for name in ["a", "b"] {
        run_ok("umount", &[&format!("/mnt/{name}")]);
    }
}

/// Writes the same growing number to a file on `a`, then on `b`, each time until it is on the disk.
fn count_up(stop: &AtomicBool) {
    let open = |name: &str| File::create(format!("/mnt/{name}/count")).unwrap();
    let files = [open("a"), open("b")];
    for number in 1_u64.. {
        for file in &files {
            file.write_all_at(&number.to_be_bytes(), 0).unwrap();
            file.sync_all().unwrap();
        }
        if stop.load(Ordering::Relaxed) {
            return;
        }
    }
}

/// Returns the number in a snapshot; 0 before the first. Freezing leaves nothing in the log that is to be replayed.
fn count_in(name: &str) -> u64 {
    fs::create_dir_all("/mnt/s").unwrap();
    run_ok("mount", &["-o", "ro,noload", &format!("/dev/myvg1/{name}"), "/mnt/s"]);
    let bytes = fs::read("/mnt/s/count").unwrap_or_default();
    run_ok("umount", &["/mnt/s"]);
    bytes.try_into().map_or(0, u64::from_be_bytes)
}

/// Takes snapshots `sa` and `sb` while the numbers grow, and returns the numbers in them.
async fn numbers<F: Future<Output = ()>>(client: &Client, rounds: u64, take: impl Fn() -> F) -> Vec<(u64, u64)> {
    let stop = Arc::new(AtomicBool::new(false));
    let writer = std::thread::spawn({
        let stop = Arc::clone(&stop);
        move || count_up(&stop)
    });
    let mut found = Vec::new();
    for _ in 0..rounds {
        take().await;
        found.push((count_in("sa"), count_in("sb")));
        for name in ["sa", "sb"] {
            client.remove("thin", name).await.unwrap();
        }
    }
    stop.store(true, Ordering::Relaxed);
    writer.join().unwrap();
    found
}

fn have_one_moment() {
    let _groups = pools();
    let lvmd = Lvmd::start(CLASSES);
    wait(async {
        let client = lvmd.connect().await;
        mount_both(&client).await;
        let together = numbers(&client, runs(15), async || {
            request(&client, group()).await.unwrap();
        })
        .await;
        // The same writer and the same check, without the group
        let apart = numbers(&client, 5, async || {
            for wanted in group() {
                client.snapshot(wanted).await.unwrap();
            }
        })
        .await;
        unmount_both();
        let is_of_one_moment = |&(a, b): &(u64, u64)| a == b || a == b + 1;
        assert!(together.iter().all(is_of_one_moment), "{together:?}");
        assert!(together.iter().any(|(a, _)| *a > 1), "nothing was written: {together:?}");
        assert!(!apart.iter().all(is_of_one_moment), "the check finds nothing: {apart:?}");
    });
}

fn killed_lvmd_leaves_nothing() {
    let _groups = pools();
    let killer = Killer::new();
    let lvmd = killer.start();
    wait(async {
        let client = lvmd.connect().await;
        mount_both(&client).await;
        fs::write(killer.plan(), "after lvcreate").unwrap();
        assert!(request(&client, group()).await.is_err());
        assert!(!killer.plan().exists(), "lvmd was not killed");
    });
    drop(lvmd);
    assert!(Path::new("/dev/myvg1/sa").exists() && !Path::new("/dev/myvg1/sb").exists());
    // Each would wait forever on a filesystem that stays frozen
    for name in ["a", "b"] {
        let file = File::create(format!("/mnt/{name}/file")).unwrap();
        file.sync_all().unwrap();
    }
    let lvmd = killer.start();
    wait(async {
        let client = lvmd.connect().await;
        NoticeTimeout::now().until("no snapshot", async || !Path::new("/dev/myvg1/sa").exists()).await;
        assert_eq!(request(&client, group()).await.unwrap().len(), 2);
    });
    unmount_both();
}

fn makes_none_without_freezing() {
    let _groups = pools();
    let lvmd = Lvmd::start(CLASSES);
    wait(async {
        let client = lvmd.connect().await;
        mount_both(&client).await;
        run_ok("umount", &["/mnt/b"]);
        let in_use = File::open("/dev/myvg1/b").unwrap();
        let status = request(&client, group()).await.unwrap_err();
        assert!(status.message().contains("myvg1-b is in use"), "{status}");
        assert_eq!(status.code(), Code::FailedPrecondition);
        assert_eq!(client.list().await.len(), 2);
        drop(in_use);
        fs::write("/mnt/a/file", "not frozen").unwrap();
        assert_eq!(request(&client, group()).await.unwrap().len(), 2, "b is not in use");
        run_ok("umount", &["/mnt/a"]);
    });
}
