//! Snapshots by lvmd, and volumes that are restored from them.

use std::fs::{self, File};
use std::io::Read as _;

use tonic::Code;
use topolvm_proto::lvmd::CreateLvSnapshotRequest;

use crate::daemon::{Lvmd, code, signed};
use crate::fixture::{EXTENT, MIB, run, run_ok, wait};
use crate::thin::{CLASSES, pools, request};

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("lvmd_snapshots_have_what_was_in_the_source_and_stay_so", snapshots_stay_as_they_are),
    ("lvmd_restores_a_larger_volume_from_a_mounted_ones_snapshot", restores_a_larger_volume),
    ("lvmd_refuses_snapshots_that_cannot_be", refuses_snapshots_that_cannot_be),
    ("snapshot_of_frozen_filesystem_succeeds_or_leaves_nothing", snapshot_frozen_filesystem),
    ("snapshot_that_cannot_suspend_its_source_leaves_nothing", fail_to_suspend),
    ("lvmd_snapshots_outlive_their_source_and_a_new_activation", outlive_their_source_and_a_new_activation),
];

pub(crate) fn snapshot(name: &str, source: &str, access: &str, bytes: u64) -> CreateLvSnapshotRequest {
    CreateLvSnapshotRequest {
        name: name.to_owned(),
        source_volume: source.to_owned(),
        access_type: access.to_owned(),
        size_bytes: signed(bytes),
        ..CreateLvSnapshotRequest::default()
    }
}

fn beginning(path: &str) -> Vec<u8> {
    let mut bytes = vec![0; 4096];
    File::open(path).unwrap().read_exact(&mut bytes).unwrap();
    bytes
}

fn fill(path: &str) {
    run_ok("dd", &["if=/dev/urandom", &format!("of={path}"), "bs=4k", "count=256", "oflag=direct"]);
}

fn snapshots_stay_as_they_are() {
    let _groups = pools();
    let lvmd = Lvmd::start(CLASSES);
    wait(async {
        let client = lvmd.connect().await;
        let source = client.create("a", 32 * MIB).await.unwrap().path;
        fill(&source);
        let before = beginning(&source);
        let wanted = CreateLvSnapshotRequest { tags: vec!["c".to_owned()], ..snapshot("s", "a", "ro", 0) };
        let made = client.snapshot(wanted.clone()).await.unwrap();
        assert_eq!((made.size_bytes, &made.attr[..5]), (signed(32 * MIB), "Vri-a"));
        let mut tags = made.tags.clone();
        tags.sort();
        assert_eq!(tags, ["c", "topolvm.io/managed-by=lvmd", "topolvm.io/source=a"]);
        assert_eq!(client.snapshot(wanted).await.unwrap(), made, "again is success");

        fill(&source);
        assert_ne!(beginning(&source), before);
        assert_eq!(beginning(&made.path), before);
        let writing = run("dd", &["if=/dev/zero", &format!("of={}", made.path), "bs=4k", "count=1", "oflag=direct"]);
        assert!(!writing.status.success(), "it is read-only");
    });
}

fn restores_a_larger_volume() {
    let _groups = pools();
    let lvmd = Lvmd::start(CLASSES);
    wait(async {
        let client = lvmd.connect().await;
        let source = client.create("a", 32 * MIB).await.unwrap().path;
        run_ok("mkfs.ext4", &["-q", &source]);
        fs::create_dir_all("/mnt/a").unwrap();
        run_ok("mount", &[&source, "/mnt/a"]);
        fs::write("/mnt/a/file", "contents").unwrap();
        // Taking the snapshot freezes the filesystem, so what was written is in it.
        client.snapshot(snapshot("s", "a", "ro", 0)).await.unwrap();
        fs::write("/mnt/a/file", "other contents").unwrap();
        run_ok("umount", &["/mnt/a"]);

        let restored = client.snapshot(snapshot("r", "s", "rw", 48 * MIB + 1)).await.unwrap();
        assert_eq!((restored.size_bytes, &restored.attr[..5]), (signed(48 * MIB + EXTENT), "Vwi-a"));
        run_ok("e2fsck", &["-fp", &restored.path]);
        run_ok("resize2fs", &[&restored.path]);
        run_ok("mount", &[&restored.path, "/mnt/a"]);
        let contents = fs::read_to_string("/mnt/a/file").unwrap();
        run_ok("umount", &["/mnt/a"]);
        assert_eq!(contents, "contents");

        let clone = client.snapshot(snapshot("c", "a", "rw", 0)).await.unwrap();
        assert_eq!(clone.size_bytes, signed(32 * MIB));
        assert_eq!(client.free().await, (640 - 32 - 32 - 52 - 32) * MIB);
    });
}

fn refuses_snapshots_that_cannot_be() {
    let _groups = pools();
    let lvmd = Lvmd::start(CLASSES);
    wait(async {
        let client = lvmd.connect().await;
        client.create("a", 200 * MIB).await.unwrap();
        client.create_with(request("thick", "b", 16 * MIB)).await.unwrap();
        client.create_with(request("exact", "c", 16 * MIB)).await.unwrap();
        for (wanted, expected) in [
            (snapshot("s", "none", "ro", 0), Code::NotFound),
            (snapshot("s", "b", "ro", 0), Code::Unimplemented),
            (snapshot("s", "c", "ro", 0), Code::FailedPrecondition),
            (snapshot("s", "a", "ro", 4096), Code::OutOfRange),
            (snapshot("s", "a", "rw", 440 * MIB + 1), Code::ResourceExhausted),
            (snapshot("b", "a", "rw", 0), Code::AlreadyExists),
        ] {
            assert_eq!(code(client.snapshot(wanted.clone()).await), expected, "{wanted:?}");
        }
        client.snapshot(snapshot("s", "a", "rw", 440 * MIB)).await.unwrap();
        assert_eq!(client.free().await, 0);
        assert_eq!(code(client.snapshot(snapshot("t", "a", "ro", 0)).await), Code::ResourceExhausted);
    });
}

fn outlive_their_source_and_a_new_activation() {
    let _groups = pools();
    let lvmd = Lvmd::start(CLASSES);
    wait(async {
        let client = lvmd.connect().await;
        let source = client.create("a", 16 * MIB).await.unwrap().path;
        fill(&source);
        let before = beginning(&source);
        let wanted = snapshot("s", "a", "ro", 0);
        let made = client.snapshot(wanted.clone()).await.unwrap();
        client.remove("thin", "a").await.unwrap();
        assert_eq!(client.snapshot(wanted).await.unwrap().name, "s", "again is success");
        run_ok("vgchange", &["-qan", "myvg1"]);
        run_ok("vgchange", &["-qay", "myvg1"]);
        assert_eq!(beginning(&made.path), before);
    });
}

/// Returns the LVs of the group, and which devices of device-mapper are suspended.
fn state() -> (String, String) {
    let volumes = run_ok("lvs", &["-qa", "--noheadings", "-o", "lv_name,lv_attr,lv_tags,thin_id", "myvg1"]);
    (volumes, run_ok("dmsetup", &["info", "--columns", "--noheadings", "-o", "name,suspended"]))
}

/// Mounts a new ext4 on a volume of lvmd at `/mnt/a`.
fn mount_ext4(source: &str) {
    run_ok("mkfs.ext4", &["-q", source]);
    fs::create_dir_all("/mnt/a").unwrap();
    run_ok("mount", &[source, "/mnt/a"]);
}

fn snapshot_frozen_filesystem() {
    let _groups = pools();
    let lvmd = Lvmd::start(CLASSES);
    wait(async {
        let client = lvmd.connect().await;
        mount_ext4(&client.create("a", 32 * MIB).await.unwrap().path);
        let before = state();
        run_ok("fsfreeze", &["--freeze", "/mnt/a"]);
        let made = client.snapshot(snapshot("s", "a", "ro", 0)).await;
        let after = state();
        run_ok("fsfreeze", &["--unfreeze", "/mnt/a"]);
        // From Linux 6.8 on the kernel freezes it twice
        if let Err(status) = made {
            assert!(status.message().contains("fsfreeze --unfreeze"), "{status}");
            assert_eq!(after, before);
        }
        client.snapshot(snapshot("s", "a", "ro", 0)).await.unwrap();
        fs::write("/mnt/a/file", "contents").unwrap();
        run_ok("umount", &["/mnt/a"]);
        // Of a device that stays frozen the kernel mounts nothing
        run_ok("mount", &["/dev/myvg1/a", "/mnt/a"]);
        run_ok("umount", &["/mnt/a"]);
    });
}

/// LVM cannot suspend a device whose filesystem cannot be frozen: one that has shut down.
fn fail_to_suspend() {
    let _groups = pools();
    let lvmd = Lvmd::start(CLASSES);
    wait(async {
        let client = lvmd.connect().await;
        mount_ext4(&client.create("a", 32 * MIB).await.unwrap().path);
        let before = state();
        run_ok("xfs_io", &["-x", "-c", "shutdown", "/mnt/a"]);
        let made = client.snapshot(snapshot("s", "a", "ro", 0)).await;
        let after = state();
        run_ok("umount", &["/mnt/a"]);
        assert!(made.is_err(), "it can be suspended");
        assert_eq!(after, before);
        client.snapshot(snapshot("s", "a", "ro", 0)).await.unwrap();
    });
}
