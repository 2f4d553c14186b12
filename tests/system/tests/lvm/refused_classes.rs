//! Device classes in which LVM creates no volumes although space is free.

use tonic::Code;

use crate::daemon::{Lvmd, code};
use crate::fixture::{DISKS, Groups, LocalSettings, MIB, run, run_ok, wait};

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("class_at_the_limit_of_volumes_publishes_nothing", publishes_nothing_at_the_limit_of_volumes),
    ("class_whose_pool_cannot_be_activated_recovers", recovers_when_the_pool_can_be_activated),
    ("class_whose_pool_has_an_active_part_recovers", recovers_from_an_active_part),
    ("class_with_metadata_that_cannot_grow_recovers", recovers_when_there_are_metadata_again),
    ("mirror_with_unproven_options_offers_that_of_a_mirror", offers_that_of_a_mirror),
];

const THICK: &str = "device-classes: [{name: ssd, volume-group: myvg1, default: true, spare-gb: 0}]";
const THIN: &str = "device-classes: [{name: thin, volume-group: myvg1, default: true, spare-gb: 0, type: thin,
  thin-pool: {name: pool, overprovision-ratio: 5.0}}]";
/// Fails every activation of a thin pool, like a missing or failing thin_check.
const NO_ACTIVATION: &str = "global {\n thin_check_executable=\"/bin/false\"\n}";

fn publishes_nothing_at_the_limit_of_volumes() {
    let _groups = Groups::one();
    run_ok("vgchange", &["-q", "-l2", "myvg1"]);
    let lvmd = Lvmd::start(THICK);
    wait(async {
        let client = lvmd.connect().await;
        client.create("a", 8 * MIB).await.unwrap();
        client.create("b", 8 * MIB).await.unwrap();
        assert_eq!(client.free().await, 0);
        assert_eq!(code(client.create("c", 8 * MIB).await), Code::ResourceExhausted);
        client.resize("a", 16 * MIB).await.unwrap();
        run_ok("vgchange", &["-q", "-l0", "myvg1"]);
        client.until_free(|free| free > 0).await;
        client.create("c", 8 * MIB).await.unwrap();
    });
}

fn recovers_when_the_pool_can_be_activated() {
    let _groups = Groups::one();
    run_ok("lvcreate", &["-qy", "-T", "myvg1/pool", "-L128m"]);
    run_ok("vgchange", &["-qq", "-an", "myvg1"]);
    let settings = LocalSettings::of_all();
    settings.write(NO_ACTIVATION);
    let mut lvmd = Lvmd::start(THIN);
    lvmd.until_logged("LVM refuses new volumes in the device class");
    wait(async {
        let client = lvmd.connect().await;
        assert_eq!(client.free().await, 0);
        let refused = client.create("a", 8 * MIB).await.unwrap_err();
        assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
        settings.write("");
        client.until_free(|free| free == 640 * MIB).await;
        client.create("a", 8 * MIB).await.unwrap();
    });
    assert_eq!(run_ok("lvs", &["--noheadings", "-o", "lv_name", "-S", "lv_name=~probe", "myvg1"]), "");
}

/// LVM that is killed while it activates a pool leaves a part of the pool active, and then does not activate the pool.
/// A part that an administrator has activated is not deactivated.
fn recovers_from_an_active_part() {
    let _groups = Groups::one();
    run_ok("lvcreate", &["-qy", "-T", "myvg1/pool", "-L128m"]);
    let table = run_ok("dmsetup", &["table", "myvg1-pool_tmeta"]);
    let uuid = run_ok("dmsetup", &["info", "-c", "--noheadings", "-o", "uuid", "myvg1-pool_tmeta"]);
    run_ok("vgchange", &["-qq", "-an", "myvg1"]);
    run_ok("dmsetup", &["create", "myvg1-pool_tmeta", "-u", uuid.trim(), "--table", table.trim()]);
    let mut lvmd = Lvmd::start(THIN);
    lvmd.until_logged("deactivated a part of a thin pool");
    wait(async {
        let client = lvmd.connect().await;
        client.until_free(|free| free == 640 * MIB).await;
        client.create("a", 8 * MIB).await.unwrap();
        client.remove("thin", "a").await.unwrap();
        run_ok("vgchange", &["-qq", "-an", "myvg1"]);
        run_ok("lvchange", &["-qqy", "-ay", "myvg1/pool_tmeta"]);
        let refused = client.create("a", 8 * MIB).await.unwrap_err();
        assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
        assert!(refused.message().contains("run `lvchange -an myvg1/pool_tmeta`"), "{refused}");
        assert_eq!(client.free().await, 0);
        run_ok("lvchange", &["-qq", "-an", "myvg1/pool_tmeta"]);
        client.until_free(|free| free == 640 * MIB).await;
        client.create("a", 8 * MIB).await.unwrap();
    });
}

/// LVM keeps two copies of its metadata side by side, and refuses metadata that does not fit.
fn recovers_when_there_are_metadata_again() {
    let _groups = Groups::on_small_metadata();
    let lvmd = Lvmd::start(THICK);
    wait(async {
        let client = lvmd.connect().await;
        let tag = |length: usize, number: usize| format!("{}-{length}-{number}", "x".repeat(length));
        for length in [1000, 100, 10] {
            let is_added = |tag: &str| run("vgchange", &["-q", "--addtag", tag, "myvg1"]).status.success();
            assert!((0..2000).any(|number| !is_added(&tag(length, number))), "the metadata never get full");
        }
        let refused = client.create("a", 8 * MIB).await.unwrap_err();
        assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
        assert_eq!(client.free().await, 0);
        for number in 0..4 {
            run_ok("vgchange", &["-q", "--deltag", &tag(1000, number), "myvg1"]);
        }
        client.until_free(|free| free > 0).await;
        client.create("a", 8 * MIB).await.unwrap();
    });
}

fn offers_that_of_a_mirror() {
    let _groups = Groups::new(&[("myvg1", &DISKS[..2])]);
    let options = "lvcreate-options: [--type=raid1, --config, devices/issue_discards=1]";
    let lvmd = Lvmd::start(&THICK.replace("spare-gb: 0", &format!("spare-gb: 0, {options}")));
    wait(async {
        let client = lvmd.connect().await;
        client.until_free(|free| free > 0).await;
        let free = client.free().await;
        assert!(free < 1024 * MIB, "{free}");
        client.create("all", free).await.unwrap();
    });
}
