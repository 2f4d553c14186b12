//! Cuts the power while disks are evacuated under writers, and boots again with the same disks: synced data is not
//! lost, and lvmd resumes automatically. The notes of the writers are on a disk that keeps synced data.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle, sleep};
use std::time::Duration;

use libtest_mimic::Trial;
use rustix::fs::OFlags;
use testbed::suite;
use topolvm_proto::lvmd::PhysicalVolumeItem;

use crate::daemon::{Client, Lvmd, signed};
use crate::evacuation::{BLOCK, GROUP, contents, evacuate, members, stop, until_reported, until_state};
use crate::fixture::{EXTENT, MIB, Random, run, run_ok, runs, seed, wait};
use crate::power_cycles::{LONG, PowerCycles};
use crate::scsi_disks::until;

/// Argument before the directory of the notes on the command line of the part that runs in the guest.
pub(crate) const ROLE: &str = "evacuation-power-cut";
const DISKS: [&str; 3] = ["/dev/ubda", "/dev/ubdb", "/dev/ubdc"];
const CONFIG: &str = "
device-classes:
- {name: leaving, volume-group: leaving, default: true, spare-gb: 0}
- {name: thin, volume-group: leaving, type: thin, spare-gb: 0, thin-pool: {name: pool, overprovision-ratio: 1.0}}
lvcreate-option-classes: [{name: mirrored, options: [--type=raid1, -m1, --nosync]}]
";
/// The volumes with class, option class and extents.
const VOLUMES: [(&str, &str, &str, u64); 3] =
    [("plain", GROUP, "", 40), ("mirror", GROUP, "mirrored", 16), ("thin", "thin", "", 16)];
const SECTOR: usize = 512;

// Files in the directory of the notes, in addition to one for each volume.
const BOOT: &str = "boot";
const HALF_MOVED: &str = "half-moved";
const FAILED: &str = "failed";

pub(crate) fn tests() -> Vec<Trial> {
    vec![suite::panicking_test("evacuation_resumes_after_power_cuts_and_keeps_synced_data", power_is_cut)]
}

/// The number of a boot, the seed of its random numbers, and whether it is the last.
struct Boot {
    number: u64,
    seed: u64,
    is_last: bool,
}

impl Boot {
    fn save(&self, directory: &Path) {
        fs::write(directory.join(BOOT), format!("{} {} {}", self.number, self.seed, self.is_last)).unwrap();
    }

    fn load(directory: &Path) -> Self {
        let text = fs::read_to_string(directory.join(BOOT)).unwrap();
        let [number, seed, is_last] = text.split(' ').collect::<Vec<_>>()[..] else { panic!("{text}") };
        Self { number: number.parse().unwrap(), seed: seed.parse().unwrap(), is_last: is_last == "true" }
    }
}

fn power_is_cut() {
    let test = "evacuation_resumes_after_power_cuts";
    let (cuts, mut random) = (runs(5).min(50), Random(seed(test)));
    let machine = PowerCycles::new(ROLE, &[512 * MIB; DISKS.len()]);
    let notes = machine.notes();
    for number in 0..=cuts {
        let boot = Boot { number, seed: random.below(u64::MAX), is_last: number == cuts };
        boot.save(notes);
        let guest = machine.boot();
        let wanted = if boot.is_last { "the disk has left" } else { "a piece is being moved" };
        let outcome = guest.wait_for_stdout(wanted, LONG);
        let failure = fs::read_to_string(notes.join(FAILED)).ok();
        if outcome.is_err() || failure.is_some() || boot.is_last {
            let said = guest.wait().unwrap();
            let [stdout, stderr] = [&said.stdout, &said.stderr].map(|text| String::from_utf8_lossy(text));
            let is_well = outcome.is_ok() && said.status == 0;
            assert!(is_well, "after {number} power cuts: {outcome:?} {failure:?}\n{stdout}\n{stderr}");
            continue;
        }
        sleep(Duration::from_millis(random.below(900)));
        guest.kill();
        let failure = fs::read_to_string(notes.join(FAILED)).ok();
        assert!(failure.is_none(), "before power cut {number}: {failure:?}");
    }
    let half_moved = fs::read_to_string(notes.join(HALF_MOVED)).unwrap_or_default().lines().count();
    let synced: usize = VOLUMES.iter().map(|(name, ..)| Journal::load(notes, name).0.len()).sum();
    println!("{test}: {cuts} power cuts, {half_moved} of them in the middle of a move, {synced} writes, none lost");
    assert!(half_moved > 0 && synced > 100, "{half_moved} moves were cut, {synced} writes");
}

/// Checks the state after the last boot, then evacuates disks under writers until the power is cut, and on the last
/// boot until a disk has left its group.
pub(crate) fn work(directory: &Path) -> ExitCode {
    let boot = Boot::load(directory);
    let mut random = Random(boot.seed);
    if boot.number == 0 {
        let made = [&["-qy", "--addtag", "topolvm.io/disk-group=leaving", GROUP], &DISKS[..]].concat();
        run_ok("vgcreate", &made);
        run_ok("lvcreate", &["-qy", "-T", "leaving/pool", "-l", "20", "--poolmetadatasize", "4m"]);
    } else {
        note_half_moved(directory);
        // As a machine does when it boots. LVM may or may not resume the move in the background
        let poll = *random.one_of(&["y", "n"]);
        println!("activation with --poll {poll}: {:?}", run("vgchange", &["-qay", "--poll", poll]));
    }
    let lvmd = Lvmd::start(CONFIG);
    wait(async {
        let client = lvmd.connect().await;
        if boot.number == 0 {
            create_volumes(&client).await;
        }
        for (volume, class, _, extents) in VOLUMES {
            activate(&client, class, volume, extents * EXTENT).await;
            check(directory, volume);
        }
        println!("everything is there");
        let writers: Vec<_> = VOLUMES
            .iter()
            .map(|(volume, _, _, extents)| Writer::start(directory, volume, extents * EXTENT, random.below(u64::MAX)))
            .collect();
        if !boot.is_last {
            thread::spawn(|| {
                until("a move", || is_moving().then_some(()));
                println!("a piece is being moved");
            });
            loop {
                let uuid = begin_evacuation(&client, &mut random, false).await;
                until_state(&client, &uuid, "empty").await;
                stop(&client, uuid).await.unwrap();
            }
        }
        begin_evacuation(&client, &mut random, true).await;
        until("the end of the evacuation", || (members().len() == DISKS.len() - 1).then_some(()));
        writers.into_iter().for_each(Writer::end);
        for (volume, ..) in VOLUMES {
            check(directory, volume);
        }
        let volumes = run_ok("lvs", &["-a", "--noheadings", "-o", "lv_name", GROUP]);
        assert!(!volumes.contains("pvmove"), "{volumes}");
        let problems = run_ok("lvs", &["-a", "--noheadings", "-o", "lv_health_status", GROUP]);
        if !problems.trim().is_empty() {
            let volumes = run_ok("lvs", &["-a", "-o", "lv_name,lv_attr,lv_health_status,devices", GROUP]);
            panic!("{volumes}\n{}\n{}", run_ok("dmsetup", &["status"]), run_ok("dmesg", &[]));
        }
        println!("the disk has left");
    });
    ExitCode::SUCCESS
}

/// Notes whether the power was cut in the middle of a move.
fn note_half_moved(directory: &Path) {
    let volumes = run_ok("lvs", &["-a", "--noheadings", "-o", "lv_name", GROUP]);
    if volumes.contains("pvmove") {
        let mut notes = OpenOptions::new().create(true).append(true).open(directory.join(HALF_MOVED)).unwrap();
        notes.write_all(b"once\n").unwrap();
        notes.sync_all().unwrap();
    }
}

fn is_moving() -> bool {
    run_ok("dmsetup", &["info", "-c", "--noheadings", "-o", "name"]).contains("leaving-pvmove0")
}

async fn create_volumes(client: &Client) {
    for (name, class, option_class, extents) in VOLUMES {
        let request = topolvm_proto::lvmd::CreateLvRequest {
            name: name.to_owned(),
            device_class: class.to_owned(),
            lvcreate_option_class: option_class.to_owned(),
            size_bytes: signed(extents * EXTENT),
            ..Default::default()
        };
        client.create_with(request).await.unwrap();
    }
}

/// Waits until lvmd has activated a volume, as the node agent has it do for a pod: LVM cannot activate a thin pool with
/// a partly moved component.
pub(crate) async fn activate(client: &Client, class: &str, volume: &str, bytes: u64) {
    let attempts = async {
        while client.resize_in(class, volume, bytes).await.is_err() {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    let done = tokio::time::timeout(Duration::from_mins(1), attempts).await;
    done.unwrap_or_else(|_| panic!("{volume} is not activated: {}", run_ok("lvs", &["-a", GROUP])));
}

/// Evacuates a disk with data, at a random rate, or continues the current evacuation. Returns its UUID.
async fn begin_evacuation(client: &Client, random: &mut Random, remove: bool) -> String {
    let has_all = |pvs: &[PhysicalVolumeItem]| pvs.len() == DISKS.len();
    let reported =
        until_reported(client, |reported| reported.volume_groups.iter().any(|vg| has_all(&vg.physical_volumes))).await;
    let pvs: Vec<_> = reported.volume_groups.into_iter().flat_map(|group| group.physical_volumes).collect();
    let used: Vec<_> = pvs.iter().filter(|pv| pv.free_bytes < pv.size_bytes).collect();
    let leaving = pvs.iter().find(|pv| pv.evacuation.is_some());
    let pv = leaving.unwrap_or_else(|| *random.one_of(&used));
    let rate = if remove { 0 } else { *random.one_of(&[0, 4 * EXTENT, 16 * EXTENT]) };
    evacuate(client, pv.uuid.clone(), rate, remove).await.unwrap();
    pv.uuid.clone()
}

/// Writes that were begun on a volume: number and block of each, in their order. Each was synced before the next was
/// noted.
struct Journal(Vec<(u64, u64)>);

impl Journal {
    fn load(directory: &Path, volume: &str) -> Self {
        let text = fs::read_to_string(directory.join(volume)).unwrap_or_default();
        let parse = |line: &str| {
            let (number, block) = line.split_once(' ').unwrap();
            (number.parse().unwrap(), block.parse().unwrap())
        };
        // A line without its end was not noted
        Self(text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')).map(parse).collect())
    }
}

/// Checks that each block has the last synced data; the write that the power cut interrupted may be missing, partial or
/// complete, and is repeated.
fn check(directory: &Path, volume: &str) {
    let Journal(mut writes) = Journal::load(directory, volume);
    let Some((pending, pending_block)) = writes.pop() else { return };
    let synced: BTreeMap<u64, u64> = writes.into_iter().map(|(number, block)| (block, number)).collect();
    let mut device = open(volume);
    let read = |block: u64| {
        let mut bytes = vec![0; BLOCK];
        device.read_exact_at(&mut bytes, block * 4096).unwrap();
        bytes
    };
    for (block, number) in &synced {
        if *block != pending_block {
            let found = read(*block);
            assert!(found == contents(*number), "{volume}: block {block} is not write {number}: {:?}", &found[..16]);
        }
    }
    let before = synced.get(&pending_block).map_or_else(|| vec![0; BLOCK], |number| contents(*number));
    let (found, after) = (read(pending_block), contents(pending));
    for sector in (0..BLOCK).step_by(SECTOR).map(|start| start..start + SECTOR) {
        let is_known = found[sector.clone()] == before[sector.clone()] || found[sector.clone()] == after[sector];
        assert!(is_known, "{volume}: block {pending_block} is neither write {pending} nor the one before");
    }
    device.write_all_at(&after, pending_block * 4096).unwrap();
    // Reading to the end finds sectors that are nowhere
    let mut bytes = vec![0; 1 << 20];
    while device.read(&mut bytes).unwrap() > 0 {}
}

fn open(volume: &str) -> File {
    let flags = i32::try_from(OFlags::DSYNC.bits()).unwrap();
    let path = format!("/dev/{GROUP}/{volume}");
    OpenOptions::new().read(true).write(true).custom_flags(flags).open(path).unwrap()
}

/// A thread that writes to a volume, syncs each block, and notes it before.
struct Writer {
    is_over: Arc<AtomicBool>,
    writing: JoinHandle<()>,
}

impl Writer {
    fn start(directory: &Path, volume: &'static str, bytes: u64, seed: u64) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let (over, directory) = (Arc::clone(&is_over), directory.to_owned());
        let writing = thread::spawn(move || {
            if let Err(error) = write_until(&over, &directory, volume, bytes, Random(seed)) {
                fs::write(directory.join(FAILED), format!("{volume}: {error}")).unwrap();
                File::open(directory.join(FAILED)).unwrap().sync_all().unwrap();
                std::process::exit(1);
            }
        });
        Self { is_over, writing }
    }

    fn end(self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.writing.join().unwrap();
    }
}

fn write_until(
    is_over: &AtomicBool,
    directory: &Path,
    volume: &str,
    bytes: u64,
    mut random: Random,
) -> std::io::Result<()> {
    let first = Journal::load(directory, volume).0.last().map_or(1, |(number, _)| number + 1);
    let path = directory.join(volume);
    let mut journal = OpenOptions::new().create(true).append(true).open(&path)?;
    let whole = fs::read(&path)?.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    journal.set_len(u64::try_from(whole).map_err(std::io::Error::other)?)?;
    let device = open(volume);
    for number in first.. {
        if is_over.load(Ordering::Relaxed) {
            break;
        }
        let block = random.below(bytes / 4096);
        journal.write_all(format!("{number} {block}\n").as_bytes())?;
        journal.sync_data()?;
        device.write_all_at(&contents(number), block * 4096)?;
    }
    Ok(())
}
