//! Behaviour of lvmd on which clients written for TopoLVM's lvmd rely, thick and thin.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use tonic::Code;
use topolvm_proto::lvmd::{CreateLvRequest, CreateLvSnapshotRequest};

use crate::daemon::{Lvmd, code, signed};
use crate::fixture::{DISKS, EXTENT, Groups, MIB, run_ok, wait};
use crate::snapshot::snapshot;
use crate::thin::{CLASSES, pools, request};

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("lvmd_reports_changes_once_to_each_watcher_and_no_refusals", reports_changes_once),
    ("lvmd_lists_thick_and_thin_volumes_apart_with_their_tags", lists_thick_and_thin_volumes_apart),
    ("lvmd_keeps_the_spare_of_a_thin_class", keeps_the_spare_of_a_thin_class),
    ("lvmd_creates_a_read_only_snapshot_larger_than_its_source", makes_a_larger_read_only_snapshot),
    ("lvmd_takes_multiples_of_4096_bytes_alone", takes_multiples_of_4096_bytes_alone),
    ("lvmd_takes_stripe_sizes_in_every_notation", takes_stripe_sizes_in_every_notation),
    ("lvmd_answers_questions_without_starting_lvm", answers_questions_without_starting_lvm),
];

fn reports_changes_once() {
    let _groups = pools();
    let lvmd = Lvmd::start(CLASSES);
    wait(async {
        let client = lvmd.connect().await;
        // One of them goes away in between, which is nothing to the others.
        let (mut first, mut second, mut third) = (client.watch().await, client.watch().await, client.watch().await);
        for watch in [&mut first, &mut second, &mut third] {
            watch.message().await.unwrap().unwrap();
        }
        drop(second);
        // Of the classes thin and thick, in the order of the configuration.
        let (thin, thick) = (client.free_in("thin").await.unwrap(), client.free_in("thick").await.unwrap());
        let mut last = (thin, thick);
        let mut next = async || {
            loop {
                let message = first.message().await.unwrap().unwrap();
                assert_eq!(third.message().await.unwrap().unwrap(), message);
                let pool = message.items[0].thin_pool.as_ref().unwrap();
                let free = (pool.overprovision_bytes, message.items[2].free_bytes);
                // The usage of the pool may be reported at any time
                if std::mem::replace(&mut last, free) != free {
                    return free;
                }
            }
        };
        for class in ["thick", "thin"] {
            let after = |bytes| if class == "thin" { (thin - bytes, thick) } else { (thin, thick - bytes) };
            let too_large = client.create_with(request(class, "b", 4 << 30)).await;
            assert_eq!(code(too_large), Code::ResourceExhausted);
            client.create_with(request(class, "a", 2 * EXTENT)).await.unwrap();
            assert_eq!(next().await, after(2 * EXTENT));

            assert_eq!(code(client.resize_in(class, "a", 4 << 30).await), Code::ResourceExhausted);
            assert_eq!(client.resize_in(class, "a", EXTENT).await.unwrap(), signed(2 * EXTENT), "never smaller");
            client.resize_in(class, "a", 3 * EXTENT).await.unwrap();
            assert_eq!(next().await, after(3 * EXTENT));

            client.remove(class, "a").await.unwrap();
            assert_eq!(next().await, (thin, thick));
        }
        client.create("a", EXTENT).await.unwrap();
        next().await;
        client.snapshot(snapshot("s", "a", "ro", 0)).await.unwrap();
        assert_eq!(next().await, (thin - 2 * EXTENT, thick));
    });
}

fn lists_thick_and_thin_volumes_apart() {
    let _groups = pools();
    let lvmd = Lvmd::start(CLASSES);
    wait(async {
        let client = lvmd.connect().await;
        for (class, count) in [("thick", 2), ("thin", 3)] {
            for number in 0..count {
                let tags = vec![format!("number{number}"), "both".to_owned()];
                let request = CreateLvRequest { tags, ..request(class, &format!("{class}{number}"), EXTENT) };
                client.create_with(request).await.unwrap();
            }
        }
        for (class, count) in [("thick", 2), ("thin", 3), ("exact", 0)] {
            let listed = client.list_of(class).await.unwrap();
            assert_eq!(listed.len(), count, "{class}");
            for (number, volume) in listed.iter().enumerate() {
                let expected = [&format!("number{number}"), "both", "topolvm.io/managed-by=lvmd"];
                let tags: BTreeSet<_> = volume.tags.iter().map(String::as_str).collect();
                assert_eq!(tags, BTreeSet::from(expected.map(AsRef::as_ref)));
                assert_eq!(volume.path, format!("/dev/myvg1/{class}{number}"));
                let attr = run_ok("lvs", &["--noheadings", "-o", "lv_attr", &format!("myvg1/{}", volume.name)]);
                assert_eq!(volume.attr, attr.trim());
            }
        }
    });
}

fn keeps_the_spare_of_a_thin_class() {
    let _groups = pools();
    // 128 MiB times 9, less 1 GiB.
    let lvmd = Lvmd::start(&CLASSES.replace(
        "spare-gb: 0, type: thin, thin-pool: {name: pool, overprovision-ratio: 5.0}",
        "spare-gb: 1, type: thin, thin-pool: {name: pool, overprovision-ratio: 9}",
    ));
    wait(async {
        let client = lvmd.connect().await;
        assert_eq!(client.free().await, 128 * MIB);
        assert_eq!(code(client.create("a", 128 * MIB + EXTENT).await), Code::ResourceExhausted);
        client.create("a", 64 * MIB).await.unwrap();
        assert_eq!(code(client.snapshot(snapshot("s", "a", "ro", 64 * MIB + EXTENT)).await), Code::ResourceExhausted);
        assert_eq!(code(client.resize("a", 128 * MIB + 1).await), Code::ResourceExhausted);
        client.resize("a", 128 * MIB).await.unwrap();
        assert_eq!(client.free().await, 0);
    });
}

fn makes_a_larger_read_only_snapshot() {
    let _groups = pools();
    let lvmd = Lvmd::start(CLASSES);
    wait(async {
        let client = lvmd.connect().await;
        client.create("a", 16 * MIB).await.unwrap();
        let wanted = CreateLvSnapshotRequest { tags: vec!["t".to_owned()], ..snapshot("s", "a", "ro", 24 * MIB) };
        let made = client.snapshot(wanted).await.unwrap();
        assert_eq!((made.size_bytes, &made.attr[..5]), (signed(24 * MIB), "Vri-a"));
        assert!(made.tags.contains(&"t".to_owned()) && made.dev_major > 0);
        // A snapshot without a size has that of its source.
        let restored = client.snapshot(snapshot("r", "s", "rw", 0)).await.unwrap();
        assert_eq!((restored.size_bytes, &restored.attr[..5]), (signed(24 * MIB), "Vwi-a"));
    });
}

fn takes_multiples_of_4096_bytes_alone() {
    let _groups = pools();
    let lvmd = Lvmd::start(CLASSES);
    wait(async {
        let client = lvmd.connect().await;
        for class in ["thick", "thin"] {
            for wrong in [0, 1, 4095, 4097, 8191] {
                let refused = client.create_with(request(class, "a", wrong)).await;
                assert_eq!(code(refused), Code::InvalidArgument, "{class} {wrong}");
            }
            let made = client.create_with(request(class, "a", 5 * 4096)).await.unwrap();
            assert_eq!(made.size_bytes, signed(EXTENT));
            // The size of an expansion need not be a multiple of 4096.
            assert_eq!(client.resize_in(class, "a", EXTENT + 1).await.unwrap(), signed(2 * EXTENT));
            client.remove(class, "a").await.unwrap();
        }
    });
}

fn takes_stripe_sizes_in_every_notation() {
    let _groups = Groups::new(&[("myvg1", &DISKS)]);
    for (written, kib) in [("4", "4"), ("8k", "8"), ("64K", "64"), ("1m", "1024"), ("8192b", "8"), ("32s", "16")] {
        let lvmd = Lvmd::start(&format!(
            "device-classes: [{{name: ssd, volume-group: myvg1, default: true, spare-gb: 0, \
             stripe: 2, stripe-size: {written}}}]"
        ));
        wait(async {
            lvmd.connect().await.create("a", 2 * EXTENT).await.unwrap_or_else(|status| panic!("{written}: {status}"));
        });
        let size = run_ok("lvs", &["--noheadings", "--nosuffix", "--units=k", "-o", "stripe_size", "myvg1/a"]);
        assert_eq!(size.trim(), format!("{kib}.00"), "{written}");
        run_ok("lvremove", &["-qfy", "myvg1/a"]);
    }
}

/// Counts LVM processes during reads: kubelet queries every volume every minute.
fn answers_questions_without_starting_lvm() {
    let _groups = pools();
    let dir = tempfile::tempdir().unwrap();
    let (lvm, started) = (dir.path().join("lvm"), dir.path().join("started"));
    fs::write(&lvm, format!("#!/bin/sh\necho >>{}\nexec lvm \"$@\"\n", started.display())).unwrap();
    fs::set_permissions(&lvm, fs::Permissions::from_mode(0o755)).unwrap();
    let count = || fs::read_to_string(&started).unwrap().len();
    let lvmd = Lvmd::start(&format!("lvm-command-prefix: [{}]\n{CLASSES}", lvm.display()));
    wait(async {
        let client = lvmd.connect().await;
        client.create_with(request("thick", "a", EXTENT)).await.unwrap();
        client.create("b", EXTENT).await.unwrap();
        let before = count();
        for _ in 0..100 {
            for class in ["thick", "thin", "exact"] {
                client.list_of(class).await.unwrap();
                client.free_in(class).await.unwrap();
            }
            client.watch().await.message().await.unwrap().unwrap();
        }
        // At most one for a change that lvmd noticed: the pool is in use now.
        assert!(count() <= before + 1, "{} processes for 700 questions", count() - before);
    });
}
