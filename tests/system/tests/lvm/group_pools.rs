//! The thin pools of disk groups on real LVM: created, extended, finished after a kill, and not changed if they are
//! foreign.

use std::fs;

use topolvm_proto::lvmd::EvacuateDiskRequest;
use topolvm_proto::lvmd::disk_service_client::DiskServiceClient;

use crate::crash::Killer;
use crate::daemon::Lvmd;
use crate::disk_groups::members;
use crate::evacuation::until_state;
use crate::fixture::{Groups, MIB, run, run_ok, wait};
use crate::scsi_disks::{ScsiDisks, until};
use crate::thin::request;

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("lvmd_creates_the_thin_pool_of_a_disk_group_and_extends_it", makes_and_extends),
    ("disk_under_a_full_thin_pool_is_replaced_by_the_next_disk", replaces_a_disk),
    ("lvmd_killed_in_thin_pool_creation_or_extension_finishes_it", finishes_after_a_kill),
    ("lvmd_does_not_change_a_thin_pool_that_it_did_not_make", leaves_others_alone),
];

/// Returns fields of a logical volume, between blanks; nothing if it is not there.
pub(crate) fn fields(volume: &str, fields: &str) -> Vec<String> {
    let options = ["--noheadings", "--units=m", "--nosuffix", "--separator= ", "-o", fields, volume];
    let output = run("lvs", &options);
    String::from_utf8(output.stdout).unwrap().split_whitespace().map(str::to_owned).collect()
}

/// Returns the size of the data of a pool in MiB.
pub(crate) fn size(volume: &str) -> f64 {
    fields(volume, "lv_size").first().map_or(0.0, |size| size.parse().unwrap())
}

/// Writes random bytes to a device, and returns their sum.
fn fill(device: &str, mib: u64) -> String {
    run_ok("dd", &["if=/dev/urandom", &format!("of={device}"), "bs=1M", &format!("count={mib}"), "oflag=direct"]);
    sum(device)
}

fn sum(device: &str) -> String {
    run_ok("sha256sum", &[device]).split_whitespace().next().unwrap().to_owned()
}

fn makes_and_extends() {
    let disks = ScsiDisks::of_size(128, 1, &["scsi"]);
    let config = "rescan-interval: 0\nsettle-time: 0\ndisk-groups:\n  \
                  - {name: scsi, mode: auto, paths: ['/dev/sd[a-z]+'], thin-pool: {overprovision-ratio: 3}}";
    let lvmd = Lvmd::start(config);
    until("the pool", || (size("scsi/pool") > 0.0).then_some(()));
    let made = fields("scsi/pool", "zero,discards,lv_when_full,chunk_size,lv_tags");
    assert_eq!(made, ["zero", "passdown", "queue", "0.06", "topolvm.io/disk-group=scsi"]);
    let first = size("scsi/pool");
    let check_share = |disks: u32| {
        let free = run_ok("vgs", &["--noheadings", "--units=m", "--nosuffix", "-o", "vg_free,vg_size", "scsi"]);
        let [free, whole] = free.split_whitespace().map(|size| size.parse::<f64>().unwrap()).collect::<Vec<_>>()[..]
        else {
            panic!("{free}")
        };
        // 95 percent in whole extents of 4 MiB
        assert!(free >= whole * 0.05 && free < whole * 0.05 + 4.0 * f64::from(disks + 1), "{free} of {whole}");
    };
    check_share(1);
    wait(async {
        let client = lvmd.connect().await;
        until_offered(&client).await;
        let made = client.create_with(request("scsi", "a", 32 * MIB)).await.unwrap();
        let before = fill(&made.path, 32);
        ScsiDisks::plug_new();
        disks.device(1);
        until("the growth", || (size("scsi/pool") > 1.8 * first).then_some(()));
        check_share(2);
        assert_eq!(sum(&made.path), before);
        client.remove("scsi", "a").await.unwrap();
    });
}

fn replaces_a_disk() {
    let disks = ScsiDisks::of_size(128, 2, &["scsi"]);
    let [old, other] = [0, 1].map(|index| disks.device(index));
    let config = "rescan-interval: 0\nsettle-time: 0\ndisk-groups:\n  \
                  - {name: scsi, mode: auto, paths: ['/dev/sd[a-z]+'], thin-pool: {overprovision-ratio: 3}}";
    let lvmd = Lvmd::start(config);
    // 95 percent of both
    until("the pool", || (size("scsi/pool") > 200.0).then_some(()));
    let before = fields("scsi/pool", "lv_size");
    wait(async {
        let client = lvmd.connect().await;
        until_offered(&client).await;
        let made = client.create_with(request("scsi", "a", 160 * MIB)).await.unwrap();
        let written = fill(&made.path, 160);
        let uuid = run_ok("pvs", &["--noheadings", "-o", "pv_uuid", &old]).trim().to_owned();
        let evacuation = EvacuateDiskRequest {
            volume_group: "scsi".to_owned(),
            uuid: uuid.clone(),
            bytes_per_second: 0,
            remove: true,
        };
        DiskServiceClient::new(client.0.clone()).evacuate_disk(evacuation).await.unwrap();
        let waits = until_state(&client, &uuid, "blocked").await;
        assert!(waits.message.contains("add a disk"), "{waits:?}");
        ScsiDisks::plug_new();
        let new = disks.device(2);
        until("the end of the evacuation", || (members("scsi") == [&*other, &*new]).then_some(()));
        assert_eq!(sum(&made.path), written);
        assert_eq!(fields("scsi/pool", "lv_size"), before, "the pool has grown into what its own disk left");
        client.remove("scsi", "a").await.unwrap();
    });
}

/// Waits until the class `scsi` has free space.
async fn until_offered(client: &crate::daemon::Client) {
    let mut watch = client.watch().await;
    let offered = async {
        loop {
            let message = watch.message().await.unwrap().unwrap();
            if message.items.iter().any(|item| item.device_class == "scsi" && item.thin_pool.is_some()) {
                return;
            }
        }
    };
    tokio::time::timeout(std::time::Duration::from_mins(1), offered).await.unwrap();
}

/// Returns a configuration with the pool of `myvg1`, for no disk, so that only the pool is maintained.
fn of_myvg1(pool: &str) -> String {
    format!(
        "disk-groups: [{{name: myvg1, mode: auto, paths: [/dev/no-disk], \
         thin-pool: {{{pool}overprovision-ratio: 3}}}}]"
    )
}

/// Tags `myvg1` as the group of the disk group.
fn tagged() -> Groups {
    let groups = Groups::one();
    run_ok("vgchange", &["-q", "--addtag", "topolvm.io/disk-group=myvg1", "myvg1"]);
    groups
}

fn finishes_after_a_kill() {
    let killer = Killer::new();
    let config = |pool: &str| format!("lvm-command-prefix: [{}]\n{}", killer.lvm().display(), of_myvg1(pool));
    for when in ["before lvcreate", "after lvcreate", "before lvchange", "after lvchange"] {
        let groups = tagged();
        fs::write(killer.plan(), when).unwrap();
        let lvmd = Lvmd::start(&config("size-percent: 40, "));
        until(when, || (!killer.plan().exists()).then_some(()));
        drop(lvmd);
        let lvmd = Lvmd::start(&config("size-percent: 40, "));
        let is_whole = || fields("myvg1/pool", "lv_attr,lv_tags") == ["twi-a-tz--", "topolvm.io/disk-group=myvg1"];
        until(&format!("the pool after a kill {when}"), || is_whole().then_some(()));
        drop(lvmd);
        let first = size("myvg1/pool");
        // The same while it is extended
        for when in ["before lvextend", "after lvextend"] {
            fs::write(killer.plan(), when).unwrap();
            let percent = if when == "before lvextend" { "size-percent: 60, " } else { "size-percent: 80, " };
            let lvmd = Lvmd::start(&config(percent));
            until(when, || (!killer.plan().exists()).then_some(()));
            drop(lvmd);
            let _lvmd = Lvmd::start(&config(percent));
            let least = if when == "before lvextend" { 1.4 } else { 1.9 };
            until(&format!("the pool after a kill {when}"), || (size("myvg1/pool") > least * first).then_some(()));
        }
        assert_eq!(fields("myvg1", "lv_name"), ["pool"]);
        drop(groups);
    }
    // LVM killed in the middle leaves a plain volume of that name, with the tags of the pool
    let _groups = tagged();
    let making = "topolvm.io/making=/run/topolvm-test/lvmd.sock#1.0";
    let tags = ["--addtag", making, "--addtag", "topolvm.io/disk-group=myvg1"];
    run_ok("lvcreate", &[&["-qy", "-Wn", "-Zn", "-n", "pool", "-L4m"], &tags[..], &["myvg1"]].concat());
    let _lvmd = Lvmd::start(&config(""));
    let is_whole = || fields("myvg1/pool", "lv_attr,lv_tags") == ["twi-a-tz--", "topolvm.io/disk-group=myvg1"];
    until("the pool in the place of a leftover", || is_whole().then_some(()));
}

fn leaves_others_alone() {
    let _groups = tagged();
    run_ok("lvcreate", &["-qy", "-T", "myvg1/pool", "-L64m"]);
    let thick = "\ndevice-classes: [{name: rest, volume-group: myvg1, spare-gb: 0, default: true}]";
    let lvmd = Lvmd::start(&format!("{}{thick}", of_myvg1("")));
    let before = fields("myvg1/pool", "lv_size,lv_tags,lv_metadata_size,zero,discards");
    wait(async {
        let client = lvmd.connect().await;
        assert_eq!(client.free_in("myvg1").await.unwrap(), 192 * MIB);
        client.create_with(request("myvg1", "a", 16 * MIB)).await.unwrap();
        // The free space of the group is checked again when it is extended
        let free = client.free().await;
        run_ok("vgextend", &["-qy", "myvg1", "/dev/ubdb"]);
        client.until_free(|bytes| bytes > free).await;
        client.remove("myvg1", "a").await.unwrap();
        client.until_free(|bytes| bytes > free).await;
    });
    assert_eq!(fields("myvg1/pool", "lv_size,lv_tags,lv_metadata_size,zero,discards"), before);
}
