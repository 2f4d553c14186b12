//! Volumes whose class has another volume group than when they were created, or that were created with other options
//! than the class has.

use std::fs;

use tonic::Code;
use topolvm_proto::lvmd::vg_service_client::VgServiceClient;
use topolvm_proto::lvmd::{CreateLvRequest, GetLvListRequest, LogicalVolume};

use crate::daemon::{Client, Lvmd, code, signed};
use crate::evacuation::{GROUP, LoopDisks};
use crate::fixture::{DISKS, EXTENT, Groups, MIB, run, run_ok, wait};
use crate::two_daemons::NoticeTimeout;

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("lvmd_serves_and_wipes_the_volumes_of_a_class_that_has_moved", serves_volumes_of_a_class_that_has_moved),
    ("lvmd_takes_nothing_for_gone_while_a_group_cannot_be_searched", takes_nothing_for_gone),
    ("former_group_that_is_away_after_a_restart_proves_nothing", former_group_that_is_away),
    ("growth_of_a_raid_volume_in_a_plain_class_leaves_the_spare", growth_leaves_the_spare),
];

/// Name of a volume in topolvm-node's form.
const UID: &str = "0b5a2f4e-8d54-4f5c-9a0e-7d8f6f3c2b1a";
/// Another one.
const OTHER: &str = "1c6b3a5f-9e65-4a6d-8b1f-8e9f7a4d3c2b";

/// Returns a configuration with the class `ssd` on one group, with this setting of `wipe`.
fn class(vg: &str, wipe: &str) -> String {
    format!("device-classes: [{{name: ssd, volume-group: {vg}, default: true, spare-gb: 0, wipe: {wipe}}}]")
}

fn two_groups() -> Groups {
    Groups::new(&[("myvg1", &DISKS[..1]), ("myvg2", &DISKS[1..])])
}

async fn find_volume(client: &Client, name: &str) -> Option<LogicalVolume> {
    let request = GetLvListRequest { device_class: "ssd".to_owned(), name: name.to_owned() };
    VgServiceClient::new(client.0.clone()).get_lv_list(request).await.unwrap().into_inner().volumes.pop()
}

fn serves_volumes_of_a_class_that_has_moved() {
    let _groups = two_groups();
    let mut lvmd = Lvmd::start(&class("myvg1", "zero"));
    wait(async {
        let patience = NoticeTimeout::now();
        let made = lvmd.connect().await.create(UID, 2 * EXTENT).await.unwrap();
        fs::write(&made.path, "no other user may read this").unwrap();
        lvmd.terminate();
        // Only the volume records its former class.
        let lvmd = Lvmd::start(&class("myvg2", "none"));
        let client = lvmd.connect().await;
        assert!(client.list_of("ssd").await.unwrap().is_empty());
        assert_eq!(find_volume(&client, UID).await.unwrap(), made);
        assert_eq!(client.resize_in("ssd", UID, 3 * EXTENT).await.unwrap(), signed(3 * EXTENT));
        client.remove("ssd", UID).await.unwrap();
        assert_eq!(code(client.remove("ssd", UID).await), Code::NotFound);
        let is_gone = async || run_ok("lvs", &["--noheadings", "-o", "lv_name", "myvg1"]).trim().is_empty();
        patience.until("a wiped volume", is_gone).await;
        run_ok("lvcreate", &["-qy", "-Wn", "-Zn", "-L12m", "-n", "next", "myvg1"]);
        assert!(!fs::read("/dev/myvg1/next").unwrap().starts_with(b"no other"), "it was not wiped");
        assert_eq!(find_volume(&client, UID).await, None);
    });
}

fn takes_nothing_for_gone() {
    let _groups = two_groups();
    run_ok("lvcreate", &["-qy", "-L8m", "-n", UID, "myvg1"]);
    let lvmd = Lvmd::start(&class("myvg2", "none"));
    wait(async {
        let client = lvmd.connect().await;
        // Neither lvmd's nor in a place of a class.
        let status = client.remove("ssd", UID).await.unwrap_err();
        assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
        let remedy = format!("lvchange --addtag topolvm.io/managed-by=lvmd myvg1/{UID}");
        assert!(status.message().contains(&remedy), "{status}");
        let words: Vec<_> = remedy.split(' ').collect();
        run_ok(words[0], &words[1..]);
        client.remove("ssd", UID).await.unwrap();
        assert!(!run("lvs", &[&format!("myvg1/{UID}")]).status.success());
    });
}

fn former_group_that_is_away() {
    let _groups = Groups::new(&[("myvg2", &DISKS[1..])]);
    let disks = LoopDisks::with_group(1);
    let mut lvmd = Lvmd::start(&class(GROUP, "none"));
    let names_group = async || run_ok("vgs", &["--noheadings", "-o", "vg_tags", "myvg2"]).contains("former-group=");
    wait(async {
        let patience = NoticeTimeout::now();
        for name in [UID, OTHER] {
            lvmd.connect().await.create(name, 2 * EXTENT).await.unwrap();
        }
        lvmd.terminate();
        let mut lvmd = Lvmd::start(&class("myvg2", "none"));
        patience.until("the tag", names_group).await;
        lvmd.terminate();

        disks.unplug();
        let mut lvmd = Lvmd::start(&class("myvg2", "none"));
        let status = lvmd.connect().await.remove("ssd", UID).await.unwrap_err();
        assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
        disks.plug();
        lvmd.connect().await.remove("ssd", UID).await.unwrap();
        assert_eq!(run_ok("lvs", &["--noheadings", "-o", "lv_name", GROUP]).trim(), OTHER);
        lvmd.terminate();

        disks.unplug();
        let lvmd = Lvmd::start(&class("myvg2", "none"));
        let client = lvmd.connect().await;
        let status = client.remove("ssd", OTHER).await.unwrap_err();
        let command = status.message().split('`').nth(1).unwrap().split(' ').collect::<Vec<_>>();
        assert_eq!(command[..2], ["vgchange", "--deltag"], "{status}");
        run_ok(command[0], &command[1..]);
        assert!(!names_group().await);
        patience.until("the changed tags", async || code(client.remove("ssd", OTHER).await) == Code::NotFound).await;
        disks.plug();
    });
}

fn growth_leaves_the_spare() {
    let _groups = Groups::new(&[("myvg1", &DISKS)]);
    let lvmd = Lvmd::start(
        "
device-classes: [{name: plain, volume-group: myvg1, default: true, spare-gb: 1}]
lvcreate-option-classes: [{name: mirrored, options: [--type=raid1]}, {name: striped, options: [-i2]}]
",
    );
    let free = || -> u64 {
        let free = run_ok("vgs", &["--noheadings", "--units=b", "--nosuffix", "-o", "vg_free", "myvg1"]);
        free.trim().parse().unwrap()
    };
    wait(async {
        let client = lvmd.connect().await;
        let create = async |name: &str, option_class: &str, bytes| {
            let request = CreateLvRequest {
                name: name.to_owned(),
                device_class: "plain".to_owned(),
                lvcreate_option_class: option_class.to_owned(),
                size_bytes: signed(bytes),
                ..CreateLvRequest::default()
            };
            client.create_with(request).await
        };
        for (name, option_class) in [("m", "mirrored"), ("s", "striped")] {
            create(name, option_class, 64 * MIB).await.unwrap();
        }
        let before = free();
        // Twice this size is more than the free space minus the spare, but less than the free space.
        let much = 64 * MIB + (before - (1 << 30)) * 3 / 4;
        assert_eq!(code(client.resize("m", much).await), Code::ResourceExhausted);
        assert_eq!(free(), before);
        client.resize("m", 128 * MIB).await.unwrap();
        assert_eq!(free(), before - 2 * 64 * MIB);
        client.resize("s", 128 * MIB).await.unwrap();
        assert_eq!(free(), before - 3 * 64 * MIB);
        assert!(free() >= 1 << 30);
        // The reported size of an option class is the largest volume that can be created with it
        let classes = client.watch().await.message().await.unwrap().unwrap().items.remove(0).option_classes;
        let classes: Vec<_> =
            classes.iter().map(|class| (class.lvcreate_option_class.as_str(), class.free_bytes)).collect();
        let [("", plain), ("mirrored", mirrored), ("striped", striped)] = classes[..] else { panic!("{classes:?}") };
        assert_eq!((striped, mirrored), (plain, plain / 2 / EXTENT * EXTENT - EXTENT));
        for (option_class, largest) in [("striped", striped), ("mirrored", mirrored)] {
            assert_eq!(code(create("x", option_class, largest + EXTENT).await), Code::ResourceExhausted);
            create("x", option_class, largest).await.unwrap();
            client.remove("plain", "x").await.unwrap();
        }
    });
}
