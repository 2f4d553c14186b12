//! Wiping of removed volumes: their contents are nowhere when their space is used again.

use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::time::Duration;

use tonic::Code;

use crate::daemon::{Client, Lvmd, code};
use crate::fixture::{DISKS, Groups, MIB, run, run_ok, wait};

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("volume_contents_remain_without_wiping", contents_stay_without_wiping),
    ("lvmd_wipes_removed_volumes_with_zeroes", zeroed_contents_are_nowhere),
    ("lvmd_wipes_removed_volumes_with_discard", discarded_contents_are_nowhere),
    ("lvmd_killed_while_wiping_wipes_all_after_its_next_start", killed_while_wiping),
    ("lvmd_ends_quickly_while_wiping", ends_quickly_while_wiping),
    ("lvmd_wipes_no_volume_that_is_open", wipes_nothing_that_is_open),
];

/// Content of each sector of a volume that is to be wiped.
const SECRET: &[u8] = b"no other user may read this";

fn classes(wipe: &str) -> String {
    format!("device-classes: [{{name: ssd, volume-group: myvg1, default: true, spare-gb: 0, wipe: {wipe}}}]")
}

pub(crate) fn write_secret(device: &str) {
    let mut sector = [0; 512];
    sector[..SECRET.len()].copy_from_slice(SECRET);
    let piece = sector.repeat(2048);
    let mut device = OpenOptions::new().write(true).open(device).unwrap();
    // Ends with an error at the end of the device.
    while device.write_all(&piece).is_ok() {}
    device.sync_all().unwrap();
}

/// Counts the sectors of a device that contain the secret.
pub(crate) fn count_secrets(device: &str) -> usize {
    let mut device = File::open(device).unwrap();
    let mut piece = vec![0; 1 << 20];
    let mut found = 0;
    loop {
        let length = device.read(&mut piece).unwrap();
        if length == 0 {
            return found;
        }
        found += piece[..length].chunks(512).filter(|sector| sector.starts_with(SECRET)).count();
    }
}

/// Creates a volume, fills it, and returns the free bytes before.
async fn create_filled(client: &Client, name: &str, bytes: u64) -> u64 {
    let free = client.free().await;
    client.create(name, bytes).await.unwrap();
    write_secret(&format!("/dev/myvg1/{name}"));
    free
}

/// Creates a volume on the whole group and counts its sectors with the secret.
fn count_secrets_in_next_volume() -> usize {
    run_ok("lvcreate", &["-qy", "-Wn", "-Zn", "-l100%FREE", "-n", "next", "myvg1"]);
    count_secrets("/dev/myvg1/next")
}

/// Shows without wiping that the other tests would find contents that are left.
fn contents_stay_without_wiping() {
    let _groups = Groups::one();
    let lvmd = Lvmd::start(&classes("none"));
    wait(async {
        let client = lvmd.connect().await;
        create_filled(&client, "a", 256 * MIB).await;
        client.remove("ssd", "a").await.unwrap();
    });
    assert_eq!(count_secrets_in_next_volume(), 256 << 11);
}

fn contents_are_nowhere(wipe: &str) {
    let _groups = Groups::one();
    let lvmd = Lvmd::start(&classes(wipe));
    wait(async {
        let client = lvmd.connect().await;
        // With something in between that is not to be touched.
        let free = create_filled(&client, "a", 128 * MIB).await;
        run_ok("lvcreate", &["-qy", "-L64m", "-n", "theirs", "myvg1"]);
        write_secret("/dev/myvg1/theirs");
        client.resize("a", 256 * MIB).await.unwrap();
        write_secret("/dev/myvg1/a");
        client.remove("ssd", "a").await.unwrap();
        client.until_free(|now| now == free - 64 * MIB).await;
        assert_eq!(code(client.remove("ssd", "a").await), Code::NotFound);
    });
    assert_eq!(count_secrets("/dev/myvg1/theirs"), 64 << 11);
    assert_eq!(count_secrets_in_next_volume(), 0);
}

fn zeroed_contents_are_nowhere() {
    contents_are_nowhere("zero");
}

fn discarded_contents_are_nowhere() {
    contents_are_nowhere("discard");
}

/// `myvg1` on a disk whose writes can be delayed.
struct SlowDisk {
    _groups: Groups,
    /// Loop device: LVM scans disks and loop devices only.
    device: String,
}

impl SlowDisk {
    fn new() -> Self {
        let groups = Groups::new(&[]);
        let sectors: u64 = run_ok("blockdev", &["--getsz", DISKS[0]]).trim().parse().unwrap();
        // Not from the beginning, so that LVM sees its label in one place only.
        let slow = format!("0 {} delay {1} 2048 0 {1} 2048 0", sectors - 2048, DISKS[0]);
        run_ok("dmsetup", &["create", "--noudevsync", "slow", "--table", &slow]);
        run_ok("dmsetup", &["mknodes", "slow"]);
        let device = run_ok("losetup", &["-f", "--show", "--direct-io=on", "/dev/mapper/slow"]).trim().to_owned();
        let disk = Self { _groups: groups, device };
        run_ok("vgcreate", &["-qy", "myvg1", &disk.device]);
        disk
    }

    /// Sets the delay of each write in milliseconds.
    fn set_delay(milliseconds: &str) {
        let table = run_ok("dmsetup", &["table", "slow"]);
        let (before, _) = table.trim().rsplit_once(' ').unwrap();
        run_ok("dmsetup", &["suspend", "--noudevsync", "slow"]);
        run_ok("dmsetup", &["load", "slow", "--table", &format!("{before} {milliseconds}")]);
        run_ok("dmsetup", &["resume", "--noudevsync", "slow"]);
    }
}

impl Drop for SlowDisk {
    fn drop(&mut self) {
        drop(run("vgremove", &["-ffqy", "myvg1"]));
        drop(run("losetup", &["-d", &self.device]));
        drop(run("dmsetup", &["remove", "--noudevsync", "--retry", "slow"]));
        // Later tests would find contents that are not wiped.
        drop(run("blkdiscard", &["-z", DISKS[0]]));
    }
}

/// Returns name and tags of the only volume.
fn only_volume() -> (String, String) {
    let left = run_ok("lvs", &["--noheadings", "--separator", " ", "-o", "lv_name,lv_tags", "myvg1"]);
    let (name, tags) = left.trim().split_once(' ').unwrap();
    (name.to_owned(), tags.to_owned())
}

fn killed_while_wiping() {
    let _disk = SlowDisk::new();
    let size = 640 * MIB;
    let lvmd = Lvmd::start(&classes("zero"));
    let free = wait(async {
        let client = lvmd.connect().await;
        let free = create_filled(&client, "a", size).await;
        SlowDisk::set_delay("500");
        client.remove("ssd", "a").await.unwrap();
        assert_eq!(client.list().await, []);
        assert_eq!(client.free().await, free - size, "its space is not offered before it is wiped");
        assert_eq!(code(client.create("b", free).await), Code::ResourceExhausted);
        assert_eq!(code(client.remove("ssd", "a").await), Code::NotFound);
        let (name, tags) = only_volume();
        assert!(name.starts_with("topolvm.wiping."), "{name}");
        assert!(tags.contains("topolvm.io/wiping=zero:") && tags.contains(":/run/topolvm-test/lvmd.sock"), "{tags}");
        // Its name is free all the same.
        client.create("a", 4 * MIB).await.unwrap();
        client.remove("ssd", "a").await.unwrap();
        free
    });
    // By SIGKILL.
    drop(lvmd);
    let wiping = run_ok("lvs", &["--noheadings", "-o", "lv_path", "-S", "lv_size>=64m", "myvg1"]);
    assert!(count_secrets(wiping.trim()) > 0, "it was quicker than the test");
    SlowDisk::set_delay("0");
    let lvmd = Lvmd::start(&classes("none"));
    wait(async { lvmd.connect().await.until_free(|now| now == free).await });
    assert_eq!(count_secrets_in_next_volume(), 0);
}

fn ends_quickly_while_wiping() {
    let _disk = SlowDisk::new();
    let mut lvmd = Lvmd::start(&classes("zero"));
    wait(async {
        let client = lvmd.connect().await;
        create_filled(&client, "a", 640 * MIB).await;
        SlowDisk::set_delay("500");
        client.remove("ssd", "a").await.unwrap();
    });
    let start = std::time::Instant::now();
    assert_eq!(lvmd.terminate().code(), Some(0));
    // Half a second for each step of 32 MiB: the whole volume would take ten
    assert!(start.elapsed() < Duration::from_secs(8), "{:?}", start.elapsed());
    assert!(only_volume().0.starts_with("topolvm.wiping."));
    SlowDisk::set_delay("0");
}

fn wipes_nothing_that_is_open() {
    let _groups = Groups::one();
    let lvmd = Lvmd::start(&classes("zero"));
    wait(async {
        let client = lvmd.connect().await;
        let free = create_filled(&client, "a", 64 * MIB).await;
        let open = File::open("/dev/myvg1/a").unwrap();
        assert_eq!(code(client.remove("ssd", "a").await), Code::FailedPrecondition);
        drop(open);
        run_ok("mkfs.ext4", &["-qF", "/dev/myvg1/a"]);
        let mount_point = tempfile::tempdir().unwrap();
        let path = mount_point.path().to_str().unwrap();
        run_ok("mount", &["/dev/myvg1/a", path]);
        fs::write(mount_point.path().join("file"), SECRET).unwrap();
        assert_eq!(code(client.remove("ssd", "a").await), Code::FailedPrecondition);
        assert_eq!(fs::read(mount_point.path().join("file")).unwrap(), SECRET);
        run_ok("umount", &[path]);
        client.remove("ssd", "a").await.unwrap();
        client.until_free(|now| now == free).await;
    });
    assert_eq!(count_secrets_in_next_volume(), 0);
}
