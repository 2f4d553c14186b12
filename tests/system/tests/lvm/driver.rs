//! The lvm crate: its assumptions about LVM hold.

use std::fs::{self, File};
use std::num::NonZeroU32;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::time::Duration;

use futures::future::join_all;
use lvm::{
    Devices as _, Error, Host as _, Lvm, NewVolume, State, Striping, SystemRunner, Tag, Version, VolumeGroup,
    VolumeType,
};
use rustix::fs::{FlockOperation, flock, major, minor};

use crate::fixture::{DISKS, EXTENT, Groups, MIB, create, creation_tag, lv, lvm, myvg1, run, run_ok, vg, wait};

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("a_volume_is_created_seen_resized_and_removed", a_volume_is_created_seen_resized_and_removed),
    ("tags_of_every_allowed_character_and_length_are_kept", tags_of_every_allowed_character_and_length_are_kept),
    ("names_that_we_accept_are_accepted_by_lvm", names_that_we_accept_are_accepted_by_lvm),
    ("names_that_we_refuse_are_refused_by_lvm", names_that_we_refuse_are_refused_by_lvm),
    ("stripes_and_options_reach_lvm", stripes_and_options_reach_lvm),
    ("the_last_extent_can_be_used_and_not_one_more", the_last_extent_can_be_used_and_not_one_more),
    ("errors_have_their_kinds", errors_have_their_kinds),
    ("a_group_that_cannot_be_read_is_not_found", a_group_that_cannot_be_read_is_not_found),
    ("a_group_with_a_missing_disk_is_incomplete", a_group_with_a_missing_disk_is_incomplete),
    ("thin_snapshot_and_inactive_volumes_are_distinguished", volumes_are_distinguished),
    ("several_groups_come_in_one_report", several_groups_come_in_one_report),
    ("reports_and_changes_at_the_same_time_agree", reports_and_changes_at_the_same_time_agree),
    ("lock_wait_ends_at_the_deadline_and_changes_nothing_later", waiting_for_a_lock_ends_at_the_deadline),
    ("metadata_on_disk_shows_every_change_without_lvm", metadata_shows_every_change),
    ("device_mapper_reports_devices_and_thin_pool_usage", device_mapper_reports),
];

/// Makes more changes than fit into the ring buffer of the metadata area, so that it wraps around.
fn metadata_shows_every_change() {
    let _groups = Groups::new(&[("myvg1", &DISKS)]);
    let (lvm, devices) = (lvm(), SystemRunner::new(SystemRunner::DEFAULT_PREFIX).unwrap().devices());
    wait(async {
        create(&lvm, "a", 4096).await.unwrap();
        let seen = |group: &VolumeGroup| group.pvs.iter().map(|pv| devices.version(pv).unwrap()).collect::<Vec<_>>();
        let mut group = myvg1(&lvm).await;
        let long = "x".repeat(1000);
        for round in 0..60 {
            let tags: [Tag; 4] = [0, 1, 2, 3].map(|tag| format!("{long}{round}.{tag}").parse().unwrap());
            let changed = lvm.change_tags(&vg("myvg1"), &lv("a"), &tags, &[]).await;
            changed.done.unwrap();
            let before = group.seqno;
            group = changed.group.unwrap();
            assert!(group.seqno > before);
            let expected = Version { vg_uuid: group.uuid.clone(), seqno: group.seqno };
            assert_eq!(seen(&group), [Some(expected.clone()), Some(expected)], "{round}");
            // As much text as this fills an eighth of the area, so that all rounds together fill it more than three
            // times.
            if round % 30 == 29 {
                let tags: Vec<_> = group.volume("a").unwrap().tags.iter().map(|tag| tag.parse().unwrap()).collect();
                for tags in tags.chunks(25) {
                    group = lvm.change_tags(&vg("myvg1"), &lv("a"), &[], tags).await.group.unwrap();
                }
            }
        }
        run_ok("vgremove", &["-qff", "myvg1"]);
        assert_eq!(seen(&group), [None, None]);
    });
}

fn device_mapper_reports() {
    let _groups = Groups::one();
    let (lvm, devices) = (lvm(), SystemRunner::new(SystemRunner::DEFAULT_PREFIX).unwrap().devices());
    wait(async {
        run_ok("lvcreate", &["-qy", "-T", "myvg1/my-pool", "-L64m"]);
        run_ok("lvcreate", &["-qy", "-T", "myvg1/my-pool", "-V128m", "-n", "thin-volume"]);
        run_ok("dd", &["if=/dev/urandom", "of=/dev/myvg1/thin-volume", "bs=1M", "count=16", "oflag=direct"]);
        // Within a second after a write the kernel commits the metadata of the pool, which then takes less space
        tokio::time::sleep(Duration::from_secs(3)).await;
        let group = myvg1(&lvm).await;
        let mapped = devices.mapped().unwrap();
        for volume in &group.volumes {
            assert_eq!(mapped.get(&volume.mapper_name(&group.name)).copied(), volume.device, "{}", volume.name);
        }
        let pool = group.volume("my-pool").unwrap();
        let status = devices.status(&group, pool).unwrap().unwrap();
        let (data, metadata) = status.fill.unwrap();
        assert!((data - pool.data_percent.unwrap()).abs() < 0.011, "{data} {pool:?}");
        assert!((metadata - pool.metadata_percent.unwrap()).abs() < 0.011, "{metadata} {pool:?}");
        assert!(data > 20.0 && status.condition.starts_with("rw"), "{status:?}");

        let thin = group.volume("thin-volume").unwrap();
        assert_eq!(devices.status(&group, thin).unwrap().unwrap().open_count, 0);
        let open = File::open("/dev/myvg1/thin-volume").unwrap();
        assert_eq!(devices.status(&group, thin).unwrap().unwrap().open_count, 1);
        drop(open);
        run_ok("lvchange", &["-qan", "myvg1/thin-volume"]);
        assert_eq!(devices.status(&group, thin).unwrap(), None);
        assert_eq!(devices.mapped().unwrap().get(&thin.mapper_name(&group.name)), None);
    });
}

fn a_volume_is_created_seen_resized_and_removed() {
    let _groups = Groups::one();
    let lvm = lvm();
    wait(async {
        let before = myvg1(&lvm).await;
        assert_eq!((before.free, before.extent_size, before.volumes.len()), (before.size, EXTENT, 0));

        create(&lvm, "a", 4096).await.unwrap();
        let group = myvg1(&lvm).await;
        assert_eq!(group.free, before.free - EXTENT);
        let volume = group.volume("a").unwrap();
        assert_eq!((volume.size, &*volume.path, volume.tags.len()), (EXTENT, "/dev/myvg1/a", 0));
        assert_eq!((volume.attr.volume_type(), volume.attr.state()), (VolumeType::Plain, State::Active));
        assert_eq!(volume.attr.problem(), None);
        let node = fs::metadata(&*volume.path).unwrap();
        assert!(node.file_type().is_block_device());
        let device = volume.device.unwrap();
        assert_eq!((device.major, device.minor), (major(node.rdev()), minor(node.rdev())));

        lvm.resize(&vg("myvg1"), &lv("a"), 3 * EXTENT).await.done.unwrap();
        assert_eq!(myvg1(&lvm).await.volume("a").unwrap().size, 3 * EXTENT);
        lvm.resize(&vg("myvg1"), &lv("a"), 3 * EXTENT).await.done.unwrap();
        // LVM gets no confirmation, so it does not reduce the volume.
        lvm.resize(&vg("myvg1"), &lv("a"), EXTENT).await.done.unwrap();
        assert_eq!(myvg1(&lvm).await.volume("a").unwrap().size, 3 * EXTENT);

        lvm.remove(&vg("myvg1"), &lv("a")).await.done.unwrap();
        let after = myvg1(&lvm).await;
        assert_eq!(VolumeGroup { seqno: before.seqno, ..after }, before);
    });
}

fn tags_of_every_allowed_character_and_length_are_kept() {
    let _groups = Groups::one();
    let lvm = lvm();
    let tags: Vec<Tag> =
        ["a_+.-/=!:&#Z09", "topolvm.io/pvc=default/my-claim", &"x".repeat(1024)].map(|tag| tag.parse().unwrap()).into();
    wait(async {
        let (vg, name) = (vg("myvg1"), lv("a"));
        let marked: Vec<_> = tags.iter().cloned().chain([creation_tag()]).collect();
        let volume =
            NewVolume { vg: &vg, pool: None, name: &name, bytes: 4096, tags: &marked, striping: None, options: &[] };
        lvm.create(&volume, &creation_tag()).await.done.unwrap();
        let sorted = |tags: &[Box<str>]| {
            let mut tags = tags.to_vec();
            tags.sort();
            tags
        };
        let mut expected: Vec<_> = tags.iter().map(|tag| Box::from(tag.as_str())).collect();
        expected.sort();
        assert_eq!(sorted(&myvg1(&lvm).await.volume("a").unwrap().tags), expected);

        lvm.change_tags(&vg, &name, &["new".parse().unwrap()], &tags).await.done.unwrap();
        assert_eq!(myvg1(&lvm).await.volume("a").unwrap().tags[..], ["new".into()]);
    });
}

fn names_that_we_accept_are_accepted_by_lvm() {
    let _groups = Groups::one();
    let lvm = lvm();
    let long = "n".repeat(100);
    wait(async {
        for name in ["0b5a2f4e-8d54-4f5c-9a0e-7d8f6f3c2b1a", "A+_.-z", "+", "..a", "_", &long] {
            create(&lvm, name, 4096).await.unwrap();
            assert!(myvg1(&lvm).await.volume(name).is_some(), "{name}");
        }
    });
}

/// Checks that LVM refuses all names that we refuse: else we would refuse a volume that is possible.
fn names_that_we_refuse_are_refused_by_lvm() {
    let _groups = Groups::one();
    let long = "n".repeat(128);
    for name in [
        "",
        "-y",
        ".",
        "..",
        "a b",
        "a:b",
        "snapshot1",
        "pvmove0",
        "x_tdata",
        "x_mimage",
        "x_pmspare",
        "x_rmeta",
        &long,
    ] {
        assert!(name.parse::<lvm::LvName>().is_err(), "{name}");
        assert!(!run("lvcreate", &["-qy", "-n", name, "-L4m", "myvg1"]).status.success(), "{name}");
    }
    for tag in ["", "a,b", "a b", "a@b", "ü"] {
        assert!(tag.parse::<Tag>().is_err(), "{tag}");
        assert!(!run("lvcreate", &["-qy", "-n", "a", "-L4m", "--addtag", tag, "myvg1"]).status.success(), "{tag}");
    }
}

fn stripes_and_options_reach_lvm() {
    let _groups = Groups::new(&[("myvg1", &DISKS)]);
    let lvm = lvm();
    wait(async {
        let striping = Striping { stripes: NonZeroU32::new(2).unwrap(), stripe_size: Some("128k".to_owned()) };
        let volume = NewVolume {
            vg: &vg("myvg1"),
            pool: None,
            name: &lv("striped"),
            bytes: EXTENT,
            tags: &[creation_tag()],
            striping: Some(&striping),
            options: &["--readahead=16".to_owned()],
        };
        lvm.create(&volume, &creation_tag()).await.done.unwrap();
        // Rounded up to a whole extent on each disk.
        assert_eq!(myvg1(&lvm).await.volume("striped").unwrap().size, 2 * EXTENT);
        let seen = run_ok(
            "lvs",
            &["--noheadings", "--nosuffix", "--units=s", "-o", "stripes,stripe_size,lv_read_ahead", "myvg1/striped"],
        );
        assert_eq!(seen.split_whitespace().collect::<Vec<_>>(), ["2", "256", "16"]);

        let mirrored = NewVolume {
            name: &lv("mirrored"),
            striping: None,
            options: &["--type=raid1".to_owned(), "-m1".to_owned()],
            ..volume
        };
        lvm.create(&mirrored, &creation_tag()).await.done.unwrap();
        let group = myvg1(&lvm).await;
        let kind = group.volume("mirrored").unwrap().attr.volume_type();
        assert!(matches!(kind, VolumeType::Raid | VolumeType::RaidUnsynced), "{kind:?}");
        // Two images with an extent of metadata each, in addition to the striped volume.
        assert_eq!(group.free, group.size - 6 * EXTENT);
    });
}

fn the_last_extent_can_be_used_and_not_one_more() {
    let _groups = Groups::one();
    let lvm = lvm();
    wait(async {
        let free = myvg1(&lvm).await.free;
        assert!(matches!(create(&lvm, "a", free + EXTENT).await, Err(Error::NoSpace { .. })));
        create(&lvm, "a", free - EXTENT).await.unwrap();
        assert!(matches!(lvm.resize(&vg("myvg1"), &lv("a"), free + EXTENT).await.done, Err(Error::NoSpace { .. })));
        assert!(matches!(create(&lvm, "b", 2 * EXTENT).await, Err(Error::NoSpace { .. })));
        create(&lvm, "b", EXTENT).await.unwrap();
        assert_eq!(myvg1(&lvm).await.free, 0);
        assert!(matches!(create(&lvm, "c", 4096).await, Err(Error::NoSpace { .. })));
    });
}

fn errors_have_their_kinds() {
    let _groups = Groups::one();
    let lvm = lvm();
    let (myvg, none) = (vg("myvg1"), vg("none"));
    wait(async {
        create(&lvm, "a", 4096).await.unwrap();
        assert!(matches!(create(&lvm, "a", 4096).await, Err(Error::AlreadyExists { .. })));
        assert!(matches!(lvm.remove(&myvg, &lv("b")).await.done, Err(Error::VolumeNotFound { .. })));
        assert!(matches!(lvm.resize(&myvg, &lv("b"), EXTENT).await.done, Err(Error::VolumeNotFound { .. })));
        assert!(matches!(
            lvm.change_tags(&myvg, &lv("b"), &["t".parse().unwrap()], &[]).await.done,
            Err(Error::VolumeNotFound { .. })
        ));
        assert!(matches!(lvm.volume_group(&none).await, Err(Error::GroupNotFound(_))));
        assert!(matches!(lvm.remove(&none, &lv("a")).await.done, Err(Error::GroupNotFound(_))));
        assert!(matches!(lvm.resize(&none, &lv("a"), EXTENT).await.done, Err(Error::GroupNotFound(_))));

        let open = File::open("/dev/myvg1/a").unwrap();
        assert!(myvg1(&lvm).await.volume("a").unwrap().attr.is_open());
        assert!(matches!(lvm.remove(&myvg, &lv("a")).await.done, Err(Error::Busy { .. })));
        drop(open);

        run_ok("mkfs.ext4", &["-q", "/dev/myvg1/a"]);
        fs::create_dir_all("/mnt/a").unwrap();
        run_ok("mount", &["/dev/myvg1/a", "/mnt/a"]);
        assert!(matches!(lvm.remove(&myvg, &lv("a")).await.done, Err(Error::Busy { .. })));
        run_ok("umount", &["/mnt/a"]);
        lvm.remove(&myvg, &lv("a")).await.done.unwrap();

        let options = ["--no-such-option".to_owned()];
        let volume = NewVolume {
            vg: &myvg,
            pool: None,
            name: &lv("a"),
            bytes: 4096,
            tags: &[creation_tag()],
            striping: None,
            options: &options,
        };
        assert!(matches!(lvm.create(&volume, &creation_tag()).await.done, Err(Error::Exit { .. })));
        let striping = Striping { stripes: NonZeroU32::new(9).unwrap(), stripe_size: None };
        let volume = NewVolume { striping: Some(&striping), options: &[], ..volume };
        assert!(matches!(lvm.create(&volume, &creation_tag()).await.done, Err(Error::Exit { .. })));
    });
}

/// Checks that an unreadable group is not reported as empty: the data is all there.
fn a_group_that_cannot_be_read_is_not_found() {
    let _groups = Groups::one();
    let lvm = lvm();
    wait(async {
        create(&lvm, "a", 4096).await.unwrap();
        run_ok("vgchange", &["-qan", "myvg1"]);
        run_ok("vgrename", &["-q", "myvg1", "other"]);
        assert!(matches!(lvm.volume_group(&vg("myvg1")).await, Err(Error::GroupNotFound(_))));
        assert!(matches!(lvm.remove(&vg("myvg1"), &lv("a")).await.done, Err(Error::GroupNotFound(_))));
        run_ok("vgrename", &["-q", "other", "myvg1"]);
        assert!(myvg1(&lvm).await.volume("a").is_some());
    });
}

fn a_group_with_a_missing_disk_is_incomplete() {
    let _groups = Groups::new(&[("myvg1", &DISKS)]);
    let lvm = lvm();
    let one_disk = Lvm::new(
        SystemRunner::new(&[
            "/bin/sh",
            "-c",
            r#"[ $# -gt 0 ] || exit 3; command=$1; shift; exec lvm "$command" "$0" "$@""#,
            "--devices=/dev/ubda",
        ])
        .unwrap(),
    );
    wait(async {
        create(&lvm, "a", 4096).await.unwrap();
        let group = myvg1(&one_disk).await;
        assert_eq!(group.missing_pvs, 1);
        assert!(group.volume("a").is_some(), "the volumes are still known");
        assert!(matches!(create(&one_disk, "b", 4096).await, Err(Error::Incomplete { .. })));
        assert_eq!(myvg1(&lvm).await.missing_pvs, 0);
    });
}

fn volumes_are_distinguished() {
    let _groups = Groups::one();
    let lvm = lvm();
    wait(async {
        run_ok("lvcreate", &["-qy", "-T", "myvg1/pool", "-L64m"]);
        run_ok("lvcreate", &["-qy", "-T", "myvg1/pool", "-V128m", "-n", "thin"]);
        run_ok("lvcreate", &["-qy", "-s", "-n", "thin-snapshot", "myvg1/thin"]);
        run_ok("lvcreate", &["-qy", "-L16m", "-n", "thick", "myvg1"]);
        run_ok("lvcreate", &["-qy", "-s", "-L8m", "-n", "cow", "myvg1/thick"]);
        run_ok("lvcreate", &["-qy", "-L4m", "-n", "off", "-an", "-Zn", "myvg1"]);
        let group = myvg1(&lvm).await;
        let names: Vec<_> = group.volumes.iter().map(|volume| &*volume.name).collect();
        assert_eq!(names, ["cow", "off", "pool", "thick", "thin", "thin-snapshot"], "hidden volumes stay hidden");
        let volume = |name| group.volume(name).unwrap();

        assert!(volume("pool").attr.is_thin_pool() && volume("pool").attr.holds_volumes());
        assert!(volume("pool").data_percent.is_some() && volume("pool").metadata_percent.is_some());
        assert!(volume("thin").attr.is_thin());
        assert_eq!((volume("thin").pool.as_deref(), volume("thin").size), (Some("pool"), 128 * MIB));
        assert_eq!(volume("thin-snapshot").origin.as_deref(), Some("thin"));
        assert!(volume("thin-snapshot").attr.skips_activation());
        assert_eq!(volume("thin-snapshot").visible_size(), 128 * MIB);
        assert_eq!(volume("thick").attr.volume_type(), VolumeType::Origin);
        assert_eq!(
            (volume("cow").attr.volume_type(), volume("cow").size, volume("cow").visible_size()),
            (VolumeType::Snapshot, 8 * MIB, 16 * MIB)
        );
        assert_eq!(group.snapshots_of("thick").collect::<Vec<_>>(), ["cow"]);
        assert_eq!(group.snapshots_of("thin").count(), 0);
        assert_eq!((volume("off").attr.state(), volume("off").device), (State::Inactive, None));
    });
}

fn several_groups_come_in_one_report() {
    let _groups = Groups::new(&[("myvg1", &DISKS[..1]), ("myvg2", &DISKS[1..])]);
    let lvm = lvm();
    wait(async {
        create(&lvm, "a", 4096).await.unwrap();
        let found = lvm.volume_groups(&[vg("myvg2"), vg("none"), vg("myvg1")]).await;
        let [Ok(second), Err(Error::GroupNotFound(_)), Ok(first)] = &found[..] else { panic!("{found:?}") };
        assert_eq!((first.volumes.len(), second.volumes.len()), (1, 0));
        let found = lvm.volume_groups(&[vg("myvg2"), vg("myvg1")]).await;
        let [Ok(second), Ok(first)] = &found[..] else { panic!("{found:?}") };
        assert_eq!((first.name.as_str(), second.name.as_str()), ("myvg1", "myvg2"));
    });
}

fn reports_and_changes_at_the_same_time_agree() {
    let _groups = Groups::one();
    let lvm = lvm();
    let names: Vec<_> = (0..20).map(|number| format!("v{number}")).collect();
    wait(async {
        let size = myvg1(&lvm).await.size;
        let changes = join_all(names.iter().map(|name| create(&lvm, name, 4096)));
        let reports = join_all((0..20).map(|_| async {
            let group = myvg1(&lvm).await;
            let used: u64 = group.volumes.iter().map(|volume| volume.size).sum();
            assert_eq!(group.free, size - used, "a report is of one moment");
        }));
        let (changes, _) = tokio::join!(changes, reports);
        assert!(changes.iter().all(Result::is_ok), "{changes:?}");
        assert_eq!(myvg1(&lvm).await.volumes.len(), 20);
    });
}

fn waiting_for_a_lock_ends_at_the_deadline() {
    let _groups = Groups::one();
    let short = Duration::from_millis(500);
    let hurried = Lvm::new(SystemRunner::new(SystemRunner::DEFAULT_PREFIX).unwrap().with_deadlines(short, short));
    wait(async {
        let lock = File::create("/run/lock/lvm/V_myvg1").unwrap();
        flock(&lock, FlockOperation::LockExclusive).unwrap();
        assert!(matches!(create(&hurried, "a", 4096).await, Err(Error::Timeout { .. })));
        assert!(matches!(hurried.volume_group(&vg("myvg1")).await, Err(Error::Timeout { .. })));
        drop(lock);
        // The waiting lvm is killed too, with nsenter that had started it: nothing is created afterwards.
        assert_eq!(myvg1(&lvm()).await.volumes.len(), 0);
        assert!(!run("pidof", &["lvm"]).status.success());
    });
}
