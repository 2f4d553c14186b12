//! An interrupted pvmove leaves devices and metadata that LVM cannot resume; the next lvmd cleans them up.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use testbed::suite;
use topolvm_proto::lvmd::CreateLvRequest;

use crate::daemon::{Client, Lvmd, signed};
use crate::evacuation::{BLOCK, GROUP, LoopDisks, contents, devices_of};
use crate::evacuation_cut::activate;
use crate::fixture::{EXTENT, LocalSettings, Random, run, run_ok, runs, seed, wait};
use crate::scsi_disks::until;

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("thin_pool_is_usable_after_a_power_cut_during_its_move", pool_is_cut),
    ("volumes_are_usable_after_a_killed_pvmove", killed_anywhere),
];

const CONFIG: &str = "
device-classes:
- {name: thick, volume-group: leaving, default: true, spare-gb: 0}
- {name: thin, volume-group: leaving, type: thin, spare-gb: 0, thin-pool: {name: pool, overprovision-ratio: 5.0}}
lvcreate-option-classes: [{name: mirrored, options: [--type=raid1, -m1, --nosync]}]
";
/// Bytes of each volume. Moved data stays in the memory of the guest.
const SIZE: u64 = 2 * EXTENT;
const BLOCKS: u64 = SIZE / 4096;
/// Lines of lvmlocal.conf with which LVM reports the hidden volume of a move like all others, for odd rounds.
const SETTINGS: [&str; 2] = ["", "report { mark_hidden_devices=0 }"];

/// Starts to move a volume from one disk to another. LVM polls the move at this interval in seconds, and with a plus
/// only after the first interval.
fn begin_move(volume: &str, from: &str, to: &str, interval: &str) -> Child {
    let words = ["--config", "global/use_lvmpolld=0", "-i", interval, "-n", volume, from, to];
    Command::new("pvmove").args(words).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

fn kill(mut moving: Child) {
    moving.kill().unwrap();
    moving.wait().unwrap();
}

/// Returns the lines of hidden volumes of moves with their segment types.
fn moves() -> String {
    run_ok("lvs", &["-a", "--noheadings", "-o", "lv_name,segtype", "-S", "lv_name=~pvmove", GROUP])
}

/// Returns the devices of moves, and those that are suspended or have another table loaded.
fn devices_of_moves() -> Vec<String> {
    let listed = run_ok("dmsetup", &["info", "-c", "--noheadings", "--separator", " ", "-o", "name,attr"]);
    // (L)ive, (I)nactive, (s)uspended, (r)ead-only or (w)ritable
    let is_left = |line: &&str| *line != "No devices found" && (line.contains("pvmove") || !line.contains(" L--"));
    listed.lines().filter(is_left).map(str::to_owned).collect()
}

/// Waits until nothing is left of a move. On a timeout the test fails with the leftovers and the log of lvmd.
fn wait_until_cleared_up(mut lvmd: Lvmd, moved: &str) -> Lvmd {
    let deadline = Instant::now() + Duration::from_mins(1);
    loop {
        let (moves, devices) = (moves(), devices_of_moves());
        if moves.is_empty() && devices.is_empty() {
            return lvmd;
        }
        assert!(Instant::now() < deadline, "after {moved}: {moves} {devices:?}\n{}", lvmd.end().join("\n"));
        thread::sleep(Duration::from_millis(50));
    }
}

async fn create(client: &Client, class: &str, option_class: &str, name: &str) {
    let request = CreateLvRequest {
        name: name.to_owned(),
        device_class: class.to_owned(),
        lvcreate_option_class: option_class.to_owned(),
        size_bytes: signed(SIZE),
        ..CreateLvRequest::default()
    };
    client.create_with(request).await.unwrap();
}

/// Writes numbers that begin with this one to the blocks of a volume.
fn write(volume: &str, first: u64) {
    let device = File::options().write(true).open(format!("/dev/leaving/{volume}")).unwrap();
    for block in 0..BLOCKS {
        device.write_all_at(&contents(first + block), block * 4096).unwrap();
    }
    device.sync_all().unwrap();
}

fn check(volume: &str, first: u64) {
    let device = File::open(format!("/dev/leaving/{volume}")).unwrap();
    let mut found = vec![0; BLOCK];
    for block in 0..BLOCKS {
        device.read_exact_at(&mut found, block * 4096).unwrap();
        assert!(found == contents(first + block), "{volume}: block {block}");
    }
}

fn pool_is_cut() {
    let settings = LocalSettings::new();
    for (part, setting) in ["pool_tmeta", "pool_tdata"].into_iter().zip(SETTINGS) {
        settings.write(setting);
        let disks = LoopDisks::with_group(2);
        run_ok("lvcreate", &["-qy", "-T", "leaving/pool", "-l", "4", "--poolmetadatasize", "4m"]);
        disks.add_others();
        let lvmd = Lvmd::start(CONFIG);
        wait(async { create(&lvmd.connect().await, "thin", "", "a").await });
        write("a", 1);
        drop(lvmd);
        let moving = begin_move(part, disks.device(0), disks.device(1), "+60");
        until("a move", || (!devices_of_moves().is_empty() && moves().contains("mirror")).then_some(()));
        kill(moving);
        assert!(moves().contains("mirror"), "{}", moves());
        // As after a boot without an activation, or with a failed one
        run_ok("vgchange", &["-qan", GROUP]);
        if part == "pool_tmeta" {
            assert_ne!(run("vgchange", &["-qay", GROUP]).status.code(), Some(0), "LVM itself can do this now");
        }
        let lvmd = Lvmd::start(CONFIG);
        // As at the removal of the last volume in a pool, also of one that lvmd creates to verify a class
        until("a move by lvmd", || (!devices_of_moves().is_empty() || moves().is_empty()).then_some(()));
        run("lvchange", &["-qan", "leaving/pool"]);
        let lvmd = wait_until_cleared_up(lvmd, part);
        wait(async { activate(&lvmd.connect().await, "thin", "a", SIZE).await });
        check("a", 1);
        let devices = devices_of(part);
        assert!(devices.contains(disks.device(1)), "{part} is on {devices}");
    }
}

/// Kills moves at random moments: LVM loads tables, suspends devices, writes its metadata and resumes, at the beginning
/// of a move and at its end. Volumes are usable after any of them as soon as lvmd runs.
fn killed_anywhere() {
    let mut random = Random(seed("what_a_move_has_left"));
    let disks = LoopDisks::with_group(3);
    run_ok("lvcreate", &["-qy", "-T", "leaving/pool", "-l", "4", "--poolmetadatasize", "4m"]);
    disks.add_others();
    let lvmd = Lvmd::start(CONFIG);
    wait(async {
        let client = lvmd.connect().await;
        create(&client, "thin", "", "a").await;
        create(&client, "thick", "", "b").await;
        create(&client, "thick", "mirrored", "m").await;
    });
    drop(lvmd);
    let (mut kills, mut left) = (0, 0);
    // Milliseconds that a move takes on this machine, which the first shows
    let mut whole = 1;
    let settings = LocalSettings::new();
    for number in 0..runs(if suite::is_soak() { 20 } else { 6 }) {
        settings.write(if number % 2 == 0 { SETTINGS[0] } else { SETTINGS[1] });
        let part = *random.one_of(&["pool_tmeta", "pool_tdata", "b", "m_rimage_0"]);
        let is_on = |part: &str, disk: usize| devices_of(part).contains(disks.device(disk));
        let from = (0..3).find(|disk| is_on(part, *disk)).unwrap();
        // The images of a mirror stay on different disks
        let to = (0..3).filter(|disk| *disk != from && !(part.starts_with('m') && is_on("m_rimage_1", *disk)));
        let to = *random.one_of(&to.collect::<Vec<_>>());
        let begun = Instant::now();
        let mut moving = begin_move(part, disks.device(from), disks.device(to), "0");
        if number == 0 {
            moving.wait().unwrap();
            whole = u64::try_from(begun.elapsed().as_millis()).unwrap();
        }
        thread::sleep(Duration::from_millis(random.below(whole)));
        kills += u32::from(moving.try_wait().unwrap().is_none());
        kill(moving);
        left += u32::from(!devices_of_moves().is_empty());
        let mut lvmd = wait_until_cleared_up(Lvmd::start(CONFIG), &format!("move {number}, of {part}"));
        for volume in ["a", "b", "m"] {
            if number > 0 {
                check(volume, (number - 1) * BLOCKS);
            }
            write(volume, number * BLOCKS);
            check(volume, number * BLOCKS);
        }
        lvmd.terminate();
    }
    println!("{kills} moves were killed, {left} left a device");
    assert!(left > 0, "no move was killed in a bad moment");
}
