//! Disks that leave their volume group: lvmd moves their data to the others, despite kills.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::fs::OFlags;
use rustix::process::{Pid, Signal, kill_process};
use testbed::suite;
use tonic::{Code, Status};
use topolvm_proto::lvmd::disk_service_client::DiskServiceClient;
use topolvm_proto::lvmd::storage_service_client::StorageServiceClient;
use topolvm_proto::lvmd::{
    CreateLvRequest, DiskRequest, Empty, EvacuateDiskRequest, Evacuation, PhysicalVolumeItem, WatchStorageResponse,
};

use crate::daemon::{Client, Lvmd, code, signed};
use crate::fixture::{EXTENT, Random, run, run_ok, runs, seed, wait};
use crate::scsi_disks::until;

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("evacuation_under_a_writer_survives_kills_of_lvmd_and_pvmove", emptied_under_a_writer),
    ("evacuation_requires_free_space_and_a_managed_group", refused),
    ("evacuation_that_is_stopped_keeps_what_was_moved", stopped),
    ("a_thin_pool_and_its_spare_are_moved_while_it_gets_volumes", thin_pool_is_moved),
    ("an_image_of_a_mirror_is_moved_to_a_disk_without_another", mirror_is_moved),
    ("evacuation_without_space_resumes_when_space_is_freed", resumes_with_space),
];

/// Bytes of a disk: 64 extents, one of which LVM uses for its metadata.
const SIZE: u64 = 64 * EXTENT;
pub(crate) const GROUP: &str = "leaving";
pub(crate) const CONFIG: &str = "
disk-groups: [{name: leaving, paths: [/dev/none], spare-gb: 0}]
lvcreate-option-classes: [{name: mirrored, options: [--type=raid1, -m1, --nosync]}]
";
/// The rate at which a piece has two extents.
pub(crate) const SLOW: u64 = EXTENT;
pub(crate) const BLOCK: usize = 4096;

/// Loop devices, of which the first ones are in the group.
pub(crate) struct LoopDisks(Vec<String>);

impl LoopDisks {
    pub(crate) fn new(count: usize) -> Self {
        let make = |index| {
            let file = format!("/run/leaving{index}");
            File::create(&file).unwrap().set_len(SIZE).unwrap();
            run_ok("losetup", &["-f", "--show", &file]).trim().to_owned()
        };
        Self((0..count).map(make).collect())
    }

    /// Creates the group on the first disk.
    pub(crate) fn with_group(count: usize) -> Self {
        let disks = Self::new(count);
        run_ok("vgcreate", &["-qy", "--addtag", "topolvm.io/disk-group=leaving", GROUP, disks.device(0)]);
        disks
    }

    /// Adds the other disks to the group.
    pub(crate) fn add_others(&self) {
        let others: Vec<_> = self.0.iter().skip(1).map(String::as_str).collect();
        run_ok("vgextend", &[&["-qy", GROUP], &others[..]].concat());
    }

    /// Takes the disks away, with the group's devices.
    pub(crate) fn unplug(&self) {
        run_ok("vgchange", &["-q", "-an", GROUP]);
        for device in &self.0 {
            run_ok("losetup", &["-d", device]);
        }
    }

    /// Brings the disks back.
    pub(crate) fn plug(&self) {
        for (index, device) in self.0.iter().enumerate() {
            run_ok("losetup", &[device, &format!("/run/leaving{index}")]);
        }
    }

    pub(crate) fn device(&self, index: usize) -> &str {
        &self.0[index]
    }

    pub(crate) fn uuid(&self, index: usize) -> String {
        run_ok("pvs", &["--noheadings", "-o", "pv_uuid", self.device(index)]).trim().to_owned()
    }
}

impl Drop for LoopDisks {
    fn drop(&mut self) {
        drop(run("vgremove", &["-ffqy", GROUP]));
        drop(fs::remove_dir_all(format!("/dev/{GROUP}")));
        for (index, device) in self.0.iter().enumerate() {
            drop(run("losetup", &["-d", device]));
            drop(fs::remove_file(format!("/run/leaving{index}")));
        }
    }
}

/// Returns the devices of the group's disks.
pub(crate) fn members() -> Vec<String> {
    let listed = run_ok("pvs", &["--noheadings", "-o", "pv_name", "-S", "vg_name=leaving", "-O", "pv_name"]);
    listed.split_whitespace().map(str::to_owned).collect()
}

/// Returns the devices on which a volume lies, with its hidden parts.
pub(crate) fn devices_of(volume: &str) -> String {
    run_ok("lvs", &["-a", "--noheadings", "-o", "devices", "-S", &format!("lv_name=~{volume}"), GROUP])
}

pub(crate) async fn evacuate(client: &Client, uuid: String, rate: u64, remove: bool) -> Result<(), Status> {
    let request = EvacuateDiskRequest { volume_group: GROUP.to_owned(), uuid, bytes_per_second: rate, remove };
    DiskServiceClient::new(client.0.clone()).evacuate_disk(request).await.map(drop)
}

pub(crate) async fn stop(client: &Client, uuid: String) -> Result<(), Status> {
    let request = DiskRequest { volume_group: GROUP.to_owned(), uuid };
    DiskServiceClient::new(client.0.clone()).stop_evacuation(request).await.map(drop)
}

pub(crate) async fn create(client: &Client, name: &str, bytes: u64, option_class: &str) -> Result<(), Status> {
    let request = CreateLvRequest {
        name: name.to_owned(),
        device_class: GROUP.to_owned(),
        lvcreate_option_class: option_class.to_owned(),
        size_bytes: signed(bytes),
        ..CreateLvRequest::default()
    };
    client.create_with(request).await.map(drop)
}

/// Waits until lvmd reports this state of its storage.
pub(crate) async fn until_reported(
    client: &Client,
    is_so: impl Fn(&WatchStorageResponse) -> bool,
) -> WatchStorageResponse {
    let mut watch = StorageServiceClient::new(client.0.clone()).watch(Empty {}).await.unwrap().into_inner();
    let reported = async {
        loop {
            let reported = watch.message().await.unwrap().unwrap();
            if is_so(&reported) {
                return reported;
            }
        }
    };
    tokio::time::timeout(Duration::from_mins(2), reported).await.unwrap()
}

/// Waits until lvmd reports this state of the evacuation of a disk.
pub(crate) async fn until_evacuation(
    client: &Client,
    uuid: &str,
    is_so: impl Fn(Option<&Evacuation>) -> bool,
) -> Evacuation {
    let pv = |reported: &WatchStorageResponse| -> Option<PhysicalVolumeItem> {
        let groups = reported.volume_groups.iter().flat_map(|group| &group.physical_volumes);
        groups.into_iter().find(|pv| pv.uuid == uuid).cloned()
    };
    let is_reported = |reported: &WatchStorageResponse| is_so(pv(reported).and_then(|pv| pv.evacuation).as_ref());
    pv(&until_reported(client, is_reported).await).and_then(|pv| pv.evacuation).unwrap_or_default()
}

/// Waits until lvmd reports that an evacuation is in this state.
pub(crate) async fn until_state(client: &Client, uuid: &str, state: &str) -> Evacuation {
    until_evacuation(client, uuid, |evacuation| evacuation.is_some_and(|found| found.state == state)).await
}

/// A thread that writes to a volume continuously, and records the expected contents.
pub(crate) struct Writer {
    device: String,
    is_over: Arc<AtomicBool>,
    writing: JoinHandle<Vec<u64>>,
}

impl Writer {
    /// Begins to write to blocks all over the first bytes of a volume.
    pub(crate) fn start(device: &str, bytes: u64) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let (over, path) = (Arc::clone(&is_over), device.to_owned());
        let writing = thread::spawn(move || {
            let flags = i32::try_from(OFlags::DSYNC.bits()).unwrap();
            let file = OpenOptions::new().write(true).custom_flags(flags).open(path).unwrap();
            let blocks = bytes / 4096;
            let mut written = vec![0; usize::try_from(blocks).unwrap()];
            let mut random = Random(blocks);
            for number in 1.. {
                if over.load(Ordering::Relaxed) {
                    break;
                }
                let block = random.below(blocks);
                file.write_all_at(&contents(number), block * 4096).unwrap();
                written[usize::try_from(block).unwrap()] = number;
            }
            written
        });
        Self { device: device.to_owned(), is_over, writing }
    }

    /// Ends writing and checks each block.
    pub(crate) fn check(self) {
        self.is_over.store(true, Ordering::Relaxed);
        let written = self.writing.join().unwrap();
        let (count, file) = (written.iter().filter(|number| **number > 0).count(), File::open(&self.device).unwrap());
        assert!(count > 100, "only {count} blocks were written to");
        let mut block = vec![0; BLOCK];
        for (index, number) in written.into_iter().enumerate().filter(|(_, number)| *number > 0) {
            file.read_exact_at(&mut block, u64::try_from(index * BLOCK).unwrap()).unwrap();
            assert!(block == contents(number), "block {index} is not what was written last");
        }
    }
}

pub(crate) fn contents(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(BLOCK / 8)
}

/// Kills the pvmove that is running, if one is. Returns whether one was.
fn kill_pvmove() -> bool {
    let processes = fs::read_dir("/proc").unwrap().filter_map(|entry| entry.unwrap().file_name().into_string().ok());
    let is_pvmove = |process: &String| {
        let command = fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
        let words: Vec<_> = command.split(|byte| *byte == 0).collect();
        words.first().is_some_and(|word| word.ends_with(b"lvm")) && words.get(1) == Some(&&b"pvmove"[..])
    };
    let mut pids = processes.filter(is_pvmove).filter_map(|process| Pid::from_raw(process.parse().ok()?));
    pids.any(|pid| kill_process(pid, Signal::KILL).is_ok())
}

fn emptied_under_a_writer() {
    let disks = LoopDisks::with_group(3);
    let mut random = Random(seed("evacuation_under_a_writer"));
    let mut lvmd = Lvmd::start(CONFIG);
    let (size, uuid) = (40 * EXTENT, disks.uuid(0));
    let writer = wait(async {
        let client = lvmd.connect().await;
        create(&client, "a", size, "").await.unwrap();
        disks.add_others();
        let writer = Writer::start("/dev/leaving/a", size);
        // lvmd must have seen the new disks
        until_reported(&client, |reported| {
            reported.volume_groups.iter().any(|group| group.physical_volumes.len() == 3)
        })
        .await;
        evacuate(&client, uuid.clone(), SLOW, true).await.unwrap();
        evacuate(&client, uuid.clone(), SLOW, true).await.unwrap();
        until_state(&client, &uuid, "moving").await;
        // The volume that is moved is extended, and another is created on the other disks
        client.resize_in(GROUP, "a", size + EXTENT).await.unwrap();
        create(&client, "b", 2 * EXTENT, "").await.unwrap();
        assert!(!devices_of("^b$").contains(disks.device(0)), "a new volume is on the disk that leaves");
        writer
    });
    let mut kills = 0;
    for number in 0..runs(if suite::is_soak() { 10 } else { 4 }) {
        thread::sleep(Duration::from_millis(random.below(1500)));
        if number % 3 != 0 {
            kills += u32::from(kill_pvmove());
        }
        if number % 3 != 1 {
            lvmd.kill();
            lvmd = Lvmd::start(CONFIG);
        }
    }
    println!("killed {kills} times in the middle of a move");
    // The rest as quickly as it can
    wait(async { evacuate(&lvmd.connect().await, uuid.clone(), 0, true).await.unwrap() });
    let others = [disks.device(1).to_owned(), disks.device(2).to_owned()];
    until("the end of the evacuation", || (members() == others).then_some(()));
    writer.check();
    wait(async {
        let client = lvmd.connect().await;
        until_evacuation(&client, &uuid, |evacuation| evacuation.is_none()).await;
        assert_eq!(code(evacuate(&client, uuid.clone(), 0, true).await), Code::NotFound);
        // It stays a physical volume: a blank disk would be added again
        assert_eq!(run_ok("pvs", &["--noheadings", "-o", "vg_name", disks.device(0)]).trim(), "");
        client.remove(GROUP, "a").await.unwrap();
        client.remove(GROUP, "b").await.unwrap();
        let hidden = run_ok("lvs", &["-a", "--noheadings", "-o", "lv_name", GROUP]);
        assert_eq!(hidden.trim(), "");
    });
}

fn refused() {
    let disks = LoopDisks::with_group(2);
    let lvmd = Lvmd::start(CONFIG);
    wait(async {
        let client = lvmd.connect().await;
        create(&client, "a", 60 * EXTENT, "").await.unwrap();
        let uuid = disks.uuid(0);
        let is_as_before = || {
            let settings = run_ok("pvs", &["--noheadings", "-o", "pv_allocatable", "-S", "vg_name=leaving"]);
            assert!(settings.split_whitespace().all(|word| word == "allocatable"), "{settings}");
            assert!(!devices_of("^a$").contains(disks.device(1)), "a piece was moved");
        };
        evacuate(&client, uuid.clone(), 0, true).await.unwrap();
        let waits = until_state(&client, &uuid, "blocked").await;
        assert!(waits.message.contains("only disk"), "{waits:?}");
        is_as_before();
        stop(&client, uuid.clone()).await.unwrap();
        disks.add_others();
        run_ok("lvcreate", &["-qy", "-l", "10", "-n", "b", GROUP, disks.device(1)]);
        evacuate(&client, uuid.clone(), 0, true).await.unwrap();
        let waits = until_state(&client, &uuid, "blocked").await;
        // 63 extents in all, of which 53 are free
        assert!(waits.message.contains(&format!("need {} more free bytes", 7 * EXTENT)), "{waits:?}");
        is_as_before();
        stop(&client, uuid).await.unwrap();
        let not_there = evacuate(&client, "no-such-disk".to_owned(), 0, true).await;
        assert_eq!(code(not_there), Code::NotFound);
        run_ok("lvremove", &["-qfy", "leaving/b"]);
        run_ok("lvcreate", &["-qy", "-s", "-l", "2", "-n", "cow", "leaving/a"]);
        let refused = evacuate(&client, disks.uuid(0), 0, true).await.unwrap_err();
        assert_eq!(refused.code(), Code::FailedPrecondition);
        assert!(refused.message().contains("lvmd cannot move"), "{refused}");
        run_ok("lvremove", &["-qfy", "leaving/cow"]);
        run_ok("vgchange", &["-q", "--deltag", "topolvm.io/disk-group=leaving", GROUP]);
        let refused = evacuate(&client, disks.uuid(0), 0, true).await.unwrap_err();
        assert_eq!(refused.code(), Code::FailedPrecondition);
        assert!(refused.message().contains("vgchange --addtag topolvm.io/disk-group=leaving leaving"), "{refused}");
        let settings = run_ok("pvs", &["--noheadings", "-o", "pv_tags,pv_allocatable", "-S", "vg_name=leaving"]);
        assert_eq!(settings.split_whitespace().collect::<Vec<_>>(), ["allocatable", "allocatable"]);
    });
}

fn stopped() {
    let disks = LoopDisks::with_group(2);
    let lvmd = Lvmd::start(CONFIG);
    wait(async {
        let client = lvmd.connect().await;
        create(&client, "a", 40 * EXTENT, "").await.unwrap();
        disks.add_others();
        let uuid = disks.uuid(0);
        evacuate(&client, uuid.clone(), SLOW, true).await.unwrap();
        let is_half_way = |found: Option<&Evacuation>| found.is_some_and(|found| found.remaining_bytes < 40 * EXTENT);
        until_evacuation(&client, &uuid, is_half_way).await;
        // Free space of a disk that is evacuated is not offered
        let free = client.free_in(GROUP).await.unwrap();
        assert!(free <= 63 * EXTENT, "{free}");
        stop(&client, uuid.clone()).await.unwrap();
        stop(&client, uuid.clone()).await.unwrap();
        until_evacuation(&client, &uuid, |evacuation| evacuation.is_none()).await;
        let devices = devices_of("^a$");
        assert!(devices.contains(disks.device(0)) && devices.contains(disks.device(1)), "{devices}");
        let settings = run_ok("pvs", &["--noheadings", "-o", "pv_tags,pv_allocatable", disks.device(0)]);
        assert_eq!(settings.trim(), "allocatable");
        // But for a piece that is still being moved
        let free = client.free_in(GROUP).await.unwrap();
        assert!(free >= 84 * EXTENT, "the space of the disk is offered again: {free}");
        // It is emptied without being taken out, as quickly as it can
        evacuate(&client, uuid.clone(), 0, false).await.unwrap();
        let empty = until_state(&client, &uuid, "empty").await;
        assert_eq!((empty.remaining_bytes, empty.remove, members().len()), (0, false, 2));
        // And then it leaves
        evacuate(&client, uuid.clone(), 0, true).await.unwrap();
        until("the end", || (members() == [disks.device(1)]).then_some(()));
    });
}

fn thin_pool_is_moved() {
    let disks = LoopDisks::with_group(2);
    run_ok("lvcreate", &["-qy", "-T", "leaving/pool", "-l", "30", "--poolmetadatasize", "4m"]);
    let config = "
device-classes:
- {name: thin, volume-group: leaving, type: thin, default: true, spare-gb: 0,
   thin-pool: {name: pool, overprovision-ratio: 5.0}}";
    let lvmd = Lvmd::start(config);
    wait(async {
        let client = lvmd.connect().await;
        client.create("a", 20 * EXTENT).await.unwrap();
        disks.add_others();
        until_reported(&client, |reported| {
            reported.volume_groups.iter().any(|group| group.physical_volumes.len() == 2)
        })
        .await;
        let (writer, uuid) = (Writer::start("/dev/leaving/a", 20 * EXTENT), disks.uuid(0));
        evacuate(&client, uuid.clone(), SLOW, true).await.unwrap();
        until_state(&client, &uuid, "moving").await;
        for number in 0..5 {
            let name = format!("new{number}");
            client.create(&name, EXTENT).await.unwrap();
            client.resize(&name, 2 * EXTENT).await.unwrap();
            client.remove("", &name).await.unwrap();
        }
        until("the end of the evacuation", || (members() == [disks.device(1)]).then_some(()));
        writer.check();
        client.create("last", EXTENT).await.unwrap();
    });
}

fn mirror_is_moved() {
    let disks = LoopDisks::with_group(3);
    run_ok("vgextend", &["-qy", GROUP, disks.device(1)]);
    let lvmd = Lvmd::start(CONFIG);
    wait(async {
        let client = lvmd.connect().await;
        create(&client, "m", 20 * EXTENT, "mirrored").await.unwrap();
        let uuid = disks.uuid(0);
        evacuate(&client, uuid.clone(), SLOW, true).await.unwrap();
        let waits = until_state(&client, &uuid, "blocked").await;
        assert!(waits.message.contains("m_r"), "{waits:?}");
        let writer = Writer::start("/dev/leaving/m", 20 * EXTENT);
        run_ok("vgextend", &["-qy", GROUP, disks.device(2)]);
        let others = [disks.device(1).to_owned(), disks.device(2).to_owned()];
        until("the end of the evacuation", || (members() == others).then_some(()));
        writer.check();
        for image in ["0", "1"] {
            let devices = devices_of(&format!("m_r.*_{image}"));
            let on = |index: usize| devices.contains(disks.device(index));
            assert!(on(1) != on(2), "image {image} is on {devices}");
        }
    });
}

fn resumes_with_space() {
    let disks = LoopDisks::with_group(2);
    let lvmd = Lvmd::start(CONFIG);
    wait(async {
        let client = lvmd.connect().await;
        create(&client, "a", 40 * EXTENT, "").await.unwrap();
        disks.add_others();
        let uuid = disks.uuid(0);
        evacuate(&client, uuid.clone(), SLOW, true).await.unwrap();
        until_state(&client, &uuid, "moving").await;
        // Another program uses the free space
        run_ok("lvcreate", &["-qy", "-l", "100%FREE", "-n", "b", GROUP]);
        let blocked = until_state(&client, &uuid, "blocked").await;
        assert!(blocked.remaining_bytes > 0 && blocked.message.contains("add a disk"), "{blocked:?}");
        client.remove(GROUP, "b").await.unwrap();
        until("the end of the evacuation", || (members() == [disks.device(1)]).then_some(()));
    });
}
