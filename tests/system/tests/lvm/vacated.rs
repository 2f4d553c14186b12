//! Evacuations in a group of which a class wipes: the contents of volumes are nowhere but in the volumes afterwards.

use std::fs;

use testbed::suite;

use crate::crash::Killer;
use crate::daemon::Lvmd;
use crate::evacuation::{
    GROUP, LoopDisks, SLOW, create, devices_of, evacuate, members, stop, until_evacuation, until_reported,
};
use crate::fixture::{EXTENT, run_ok, wait};
use crate::scsi_disks::until;
use crate::wiping::{count_secrets, write_secret};

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("stopped_evacuation_leaves_nothing_where_volumes_were", stopped),
    ("disk_that_leaves_its_group_keeps_nothing_of_its_volumes", removed),
];

pub(crate) const WIPING: &str =
    "device-classes: [{name: leaving, volume-group: leaving, default: true, spare-gb: 0, wipe: zero}]";
/// Extents of the volume that is moved.
const EXTENTS: u64 = 40;
/// Sectors of them.
const SECTORS: usize = 40 << 13;

/// Returns names of the volumes of the group.
pub(crate) fn volumes() -> Vec<String> {
    let listed = run_ok("lvs", &["-a", "--noheadings", "-o", "lv_name", GROUP]);
    listed.split_whitespace().map(str::to_owned).collect()
}

/// Waits until no disk of the group has tags, and each takes new volumes.
pub(crate) fn until_all_is_as_before() {
    until("the end of wiping", || {
        let listed = run_ok("pvs", &["--noheadings", "-o", "pv_tags,pv_allocatable", "-S", "vg_name=leaving"]);
        let is_plain = listed.split_whitespace().all(|word| word == "allocatable");
        (is_plain && !volumes().iter().any(|name| name.starts_with("topolvm.wiping."))).then_some(())
    });
}

/// Starts lvmd with an LVM that kills it as planned, and creates a volume with secrets on the first of two disks.
fn start(killer: &Killer) -> (LoopDisks, Lvmd, String) {
    let disks = LoopDisks::with_group(2);
    let lvmd = Lvmd::start(&format!("lvm-command-prefix: [{}]\n{WIPING}", killer.lvm().display()));
    let uuid = disks.uuid(0);
    wait(async {
        let client = lvmd.connect().await;
        create(&client, "a", EXTENTS * EXTENT, "").await.unwrap();
        write_secret("/dev/leaving/a");
        disks.add_others();
        until_reported(&client, |reported| {
            reported.volume_groups.iter().any(|group| group.physical_volumes.len() == 2)
        })
        .await;
    });
    (disks, lvmd, uuid)
}

/// Waits until lvmd is killed as planned, and starts it again.
fn restart_when_killed(killer: &Killer, lvmd: Lvmd) -> Lvmd {
    until("the kill", || (!killer.plan().exists()).then_some(()));
    drop(lvmd);
    Lvmd::start(WIPING)
}

/// Returns the moments at which lvmd is killed; each takes half a minute, so that all are tried only in a soak.
fn kills<'moments>(all: &'moments [&'moments str]) -> &'moments [&'moments str] {
    if suite::is_soak() { all } else { &all[all.len() - 1..] }
}

fn stopped() {
    let killer = Killer::new();
    for &when in kills(&["", "before lvcreate", "after lvcreate"]) {
        let (disks, mut lvmd, uuid) = start(&killer);
        wait(async {
            let client = lvmd.connect().await;
            evacuate(&client, uuid.clone(), SLOW, true).await.unwrap();
            until_evacuation(&client, &uuid, |found| found.is_some_and(|found| found.remaining_bytes <= 34 * EXTENT))
                .await;
            if !when.is_empty() {
                fs::write(killer.plan(), when).unwrap();
            }
            stop(&client, uuid.clone()).await.unwrap();
        });
        if !when.is_empty() {
            lvmd = restart_when_killed(&killer, lvmd);
        }
        // A volume that is created at once gets none of it, either
        wait(async { create(&lvmd.connect().await, "b", 30 * EXTENT, "").await.unwrap() });
        assert_eq!(count_secrets("/dev/leaving/b"), 0, "{when}");
        until_all_is_as_before();
        let devices = devices_of("^a$");
        assert!(devices.contains(disks.device(0)) && devices.contains(disks.device(1)), "{when}: {devices}");
        run_ok("lvcreate", &["-qy", "-Wn", "-Zn", "-l100%FREE", "-n", "next", GROUP]);
        assert_eq!((count_secrets("/dev/leaving/next"), count_secrets("/dev/leaving/a")), (0, SECTORS), "{when}");
    }
}

fn removed() {
    let killer = Killer::new();
    for &when in kills(&["", "before lvcreate", "after lvcreate", "before vgreduce"]) {
        let (disks, mut lvmd, uuid) = start(&killer);
        if !when.is_empty() {
            fs::write(killer.plan(), when).unwrap();
        }
        wait(async { evacuate(&lvmd.connect().await, uuid, 0, true).await.unwrap() });
        if !when.is_empty() {
            lvmd = restart_when_killed(&killer, lvmd);
        }
        until("the end of the evacuation", || (members() == [disks.device(1)]).then_some(()));
        assert_eq!((count_secrets(disks.device(0)), count_secrets("/dev/leaving/a")), (0, SECTORS), "{when}");
        assert_eq!(volumes(), ["a"], "{when}");
        drop(lvmd);
    }
}
