//! Evacuation of a disk with unreadable sectors: all other volumes are moved, and the one with these sectors stays
//! unchanged. And a target disk with write errors: no data is moved there.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use tonic::Code;
use topolvm_proto::lvmd::{DiskVolume, WatchStorageResponse};

use crate::daemon::{Client, Lvmd, signed};
use crate::evacuation::{
    BLOCK, CONFIG, GROUP, Writer, contents, devices_of, evacuate, members, stop, until_evacuation, until_reported,
    until_state,
};
use crate::fixture::{DISKS, EXTENT, FailingDisk, Groups, run_ok, wait};
use crate::scsi_disks::until;
use crate::vacated::{WIPING, until_all_is_as_before, volumes};

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("evacuation_of_bad_sectors_leaves_only_the_affected_volume", bad_sectors),
    ("evacuation_keeps_data_when_the_target_disk_fails", dead_target),
    ("aborted_move_leaves_nothing_where_it_has_copied_to", aborted_move_is_wiped),
    ("hanging_move_holds_up_no_other_volume", hanging_move),
    ("evacuation_keeps_data_that_is_unreadable_on_the_target", target_that_fails_at_the_end),
];

const EXTENTS: u64 = 20;
/// Bytes from the beginning of a disk that have all volumes of these tests.
const LARGEST: u64 = 400 << 20;
/// Time in which lvmd answers requests that do not wait for a disk.
const PROMPT: Duration = Duration::from_secs(15);
/// The block of the volume that cannot be read, in its eleventh extent.
const BAD: u64 = 10 * EXTENT / 4096 + 7;

fn bad_sectors() {
    let failing = FailingDisk::new();
    let _group = Groups::on(GROUP, &[failing.device()]);
    run_ok("vgchange", &["-q", "--addtag", "topolvm.io/disk-group=leaving", GROUP]);
    let lvmd = Lvmd::start(CONFIG);
    wait(async {
        let client = lvmd.connect().await;
        for name in ["a", "b", "c"] {
            create(&client, name).await;
        }
        fill("b");
        fill("c");
        run_ok("vgextend", &["-qy", GROUP, DISKS[0]]);
        until_reported(&client, |reported| {
            reported.volume_groups.iter().any(|group| group.physical_volumes.len() == 2)
        })
        .await;
        let uuid = run_ok("pvs", &["--noheadings", "-o", "pv_uuid", failing.device()]).trim().to_owned();
        FailingDisk::fail_sectors(first_sector_of("b") + BAD * 8, 8);
        let writer = Writer::start("/dev/leaving/a", EXTENTS * EXTENT);
        evacuate(&client, uuid.clone(), 4 * EXTENT, true).await.unwrap();

        let blocked = until_state(&client, &uuid, "blocked").await;
        assert!(blocked.message.contains("cannot be read") && blocked.message.contains("b ("), "{blocked:?}");
        // The others leave the disk all the same
        let only_b = |remaining: u64| remaining > 0 && remaining <= EXTENTS * EXTENT;
        let last = until_evacuation(&client, &uuid, |reported| {
            reported.is_some_and(|reported| only_b(reported.remaining_bytes) && reported.state == "blocked")
                && ["^a$", "^c$"].iter().all(|volume| !devices_of(volume).contains(failing.device()))
        })
        .await;
        assert!(last.message.contains("b (") && !last.message.contains("c ("), "{last:?}");
        assert!(devices_of("^b$").contains(failing.device()), "{}", devices_of("^b$"));
        let volumes = |reported: &WatchStorageResponse| {
            let pvs = reported.volume_groups.iter().flat_map(|group| &group.physical_volumes);
            pvs.filter(|pv| pv.uuid == uuid).flat_map(|pv| pv.volumes.clone()).collect::<Vec<_>>()
        };
        let only_b = DiskVolume { name: "b".to_owned(), state: "failing".to_owned() };
        until_reported(&client, |reported| volumes(reported) == [only_b.clone()]).await;
        writer.check();
        assert!(wrong_blocks("c").is_empty());
        assert_eq!(wrong_blocks("b"), [BAD]);
        assert_eq!(members().len(), 2, "a disk with a volume on it has left");
        assert!(!has_move());
        // It can still be removed, and then the disk leaves
        client.remove(GROUP, "b").await.unwrap();
        until("the end of the evacuation", || (members() == [DISKS[0]]).then_some(()));
        assert!(wrong_blocks("c").is_empty());
    });
}

/// A group of the first disk with a full volume that is written to all the time, to which a disk comes that cannot be
/// written in some sectors.
struct BadTarget {
    // Ends first
    lvmd: Lvmd,
    uuid: String,
    _group: Groups,
    failing: FailingDisk,
}

impl BadTarget {
    fn with_bad_sectors(config: &str, first: u64, count: u64) -> Self {
        let failing = FailingDisk::new();
        // Data of former volumes
        run_ok("blkdiscard", &["-fz", "-l", &LARGEST.to_string(), failing.device()]);
        let group = Groups::on(GROUP, &[DISKS[0]]);
        run_ok("vgchange", &["-q", "--addtag", "topolvm.io/disk-group=leaving", GROUP]);
        let uuid = run_ok("pvs", &["--noheadings", "-o", "pv_uuid", DISKS[0]]).trim().to_owned();
        let lvmd = Lvmd::start(config);
        wait(async {
            let client = lvmd.connect().await;
            create(&client, "b").await;
            fill("b");
            run_ok("vgextend", &["-qy", GROUP, failing.device()]);
            until_reported(&client, |reported| {
                reported.volume_groups.iter().any(|group| group.physical_volumes.len() == 2)
            })
            .await;
        });
        // Where the first volume comes: behind the first MiB, in which the metadata is
        FailingDisk::fail_sectors(2048 + first, count);
        Self { lvmd, uuid, _group: group, failing }
    }

    async fn until_blocked(&self) -> String {
        let client = self.lvmd.connect().await;
        evacuate(&client, self.uuid.clone(), 0, true).await.unwrap();
        let blocked = until_state(&client, &self.uuid, "blocked").await;
        until("the end of the move", || (!has_move()).then_some(()));
        blocked.message
    }
}

const THROTTLE: &str = "/sys/module/dm_mirror/parameters/raid1_resync_throttle";

/// Slows down moves: the kernel discards the failure of a device when the copy is complete.
fn slow_down_moves() {
    run_ok("modprobe", &["dm-mirror"]);
    fs::write(THROTTLE, "2").unwrap();
}

fn aborted_move_is_wiped() {
    slow_down_moves();
    let setup = BadTarget::with_bad_sectors(WIPING, EXTENT / 512, 8);
    wait(async {
        setup.until_blocked().await;
        until("the copy", || volumes().iter().any(|name| name.starts_with("topolvm.wiping.")).then_some(()));
        stop(&setup.lvmd.connect().await, setup.uuid.clone()).await.unwrap();
        FailingDisk::repair();
        fs::write(THROTTLE, "100").unwrap();
        until_all_is_as_before();
        assert_eq!(volumes(), ["b"]);
        assert!(wrong_blocks("b").is_empty());
        run_ok("lvcreate", &["-qy", "-Wn", "-Zn", "-l60", "-n", "next", GROUP, setup.failing.device()]);
        let next = fs::read("/dev/leaving/next").unwrap();
        assert!(next.iter().all(|byte| *byte == 0), "a copy is still there");
    });
}

fn dead_target() {
    slow_down_moves();
    let setup = BadTarget::with_bad_sectors(CONFIG, EXTENT / 512, 8);
    wait(async {
        let reported = setup.until_blocked().await;
        assert!(reported.contains("a disk failed while a part of leaving/b was moved"), "{reported}");
        assert!(!devices_of("^b$").contains(setup.failing.device()), "{}", devices_of("^b$"));
        assert!(wrong_blocks("b").is_empty());
        // After the other disk is repaired its volumes can be changed, and the evacuation continues
        FailingDisk::repair();
        fs::write(THROTTLE, "100").unwrap();
        evacuate(&setup.lvmd.connect().await, setup.uuid.clone(), 0, true).await.unwrap();
        until("the end of the evacuation", || (members() == [setup.failing.device()]).then_some(()));
        assert!(wrong_blocks("b").is_empty());
    });
}

fn hanging_move() {
    let failing = FailingDisk::new();
    let _group = Groups::on(GROUP, &[DISKS[0]]);
    run_ok("vgchange", &["-q", "--addtag", "topolvm.io/disk-group=leaving", GROUP]);
    let uuid = run_ok("pvs", &["--noheadings", "-o", "pv_uuid", DISKS[0]]).trim().to_owned();
    let lvmd = Lvmd::start(CONFIG);
    wait(async {
        let client = lvmd.connect().await;
        for volume in ["b", "c"] {
            create(&client, volume).await;
        }
        fill("b");
        run_ok("vgextend", &["-qy", GROUP, failing.device()]);
        until_reported(&client, |reported| {
            reported.volume_groups.iter().any(|group| group.physical_volumes.len() == 2)
        })
        .await;
        FailingDisk::hang_writes(2048 + EXTENT / 512);
        evacuate(&client, uuid, 0, true).await.unwrap();
        until("a move", || has_move().then_some(()));
        let start = Instant::now();
        client.remove(GROUP, "c").await.unwrap();
        assert!(start.elapsed() < PROMPT, "{:?}", start.elapsed());
        let refused = client.resize_in(GROUP, "b", (EXTENTS + 1) * EXTENT).await.unwrap_err();
        assert_eq!(refused.code(), Code::Unavailable);
        assert!(refused.message().contains("a part of b has been moving from") && refused.message().contains(DISKS[0]));
        assert!(start.elapsed() < 4 * PROMPT && has_move(), "{:?}", start.elapsed());
        FailingDisk::repair();
        until("the end of the evacuation", || (members() == [failing.device()]).then_some(()));
        assert!(wrong_blocks("b").is_empty());
    });
}

fn target_that_fails_at_the_end() {
    let mut setup = BadTarget::with_bad_sectors(CONFIG, EXTENTS * EXTENT / 512 - 8, 8);
    let last = EXTENTS * EXTENT / 4096 - 1;
    wait(async {
        let reported = setup.until_blocked().await;
        let expected = format!("cannot be read there: {}", std::io::Error::from_raw_os_error(5));
        assert!(reported.contains("leaving/b was moved") && reported.contains(&expected), "{reported}");
        assert!(reported.contains("in the extents 0 to 19"), "{reported}");
        assert_eq!(wrong_blocks("b"), [last]);
        // The disk keeps its data and stays in the group, also after a restart of lvmd
        until("the changed request", || {
            run_ok("pvs", &["--noheadings", "-o", "pv_tags", DISKS[0]]).contains("evacuate=keep").then_some(())
        });
        setup.lvmd.kill();
        setup.lvmd = Lvmd::start(CONFIG);
        until_state(&setup.lvmd.connect().await, &setup.uuid, "empty").await;
        assert_eq!(members().len(), 2);
        let disk = File::open(DISKS[0]).unwrap();
        assert_eq!(read_block(&disk, (1 << 20) / 4096 + last).unwrap(), contents(last));
    });
}

fn has_move() -> bool {
    run_ok("lvs", &["-a", "--noheadings", "-o", "lv_name", GROUP]).contains("pvmove")
}

async fn create(client: &Client, name: &str) {
    let request = topolvm_proto::lvmd::CreateLvRequest {
        name: name.to_owned(),
        device_class: GROUP.to_owned(),
        size_bytes: signed(EXTENTS * EXTENT),
        ..Default::default()
    };
    client.create_with(request).await.unwrap();
}

/// Returns where on its disk a volume of one piece begins.
fn first_sector_of(volume: &str) -> u64 {
    let fields = ["--segments", "--noheadings", "--units=s", "--nosuffix", "-o", "pe_start,pvseg_start"];
    let listed = run_ok("pvs", &[&fields[..], &["-S", &format!("lv_name={volume}")]].concat());
    let numbers: Vec<u64> = listed.split_whitespace().map(|number| number.parse().unwrap()).collect();
    let [start, extent] = numbers[..] else { panic!("{listed}") };
    start + extent * EXTENT / 512
}

/// Writes its number to each block of a volume.
fn fill(volume: &str) {
    let device = OpenOptions::new().write(true).open(format!("/dev/{GROUP}/{volume}")).unwrap();
    for block in 0..EXTENTS * EXTENT / 4096 {
        device.write_all_at(&contents(block), block * 4096).unwrap();
    }
    device.sync_all().unwrap();
}

/// Returns the blocks that are unreadable or have wrong contents, with direct I/O.
fn wrong_blocks(volume: &str) -> Vec<u64> {
    let flags = i32::try_from(OFlags::DIRECT.bits()).unwrap();
    let device = OpenOptions::new().read(true).custom_flags(flags).open(format!("/dev/{GROUP}/{volume}")).unwrap();
    let is_wrong = |block: &u64| {
        let read = read_block(&device, *block);
        read.is_none_or(|bytes| bytes != contents(*block))
    };
    (0..EXTENTS * EXTENT / 4096).filter(is_wrong).collect()
}

/// Reads a block into memory that is aligned for direct I/O.
fn read_block(device: &File, block: u64) -> Option<Vec<u8>> {
    let mut buffer = vec![0; 2 * BLOCK];
    let start = buffer.as_ptr().align_offset(BLOCK);
    let bytes = &mut buffer[start..start + BLOCK];
    device.read_exact_at(bytes, block * 4096).ok()?;
    Some(bytes.to_vec())
}
