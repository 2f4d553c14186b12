//! Changes of a volume group by another lvmd or an administrator, which lvmd notices within two seconds.

use std::time::{Duration, Instant};

use futures::future::join_all;
use testbed::suite;
use tonic::Code;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use crate::daemon::{Client, Lvmd, code};
use crate::fixture::{DISKS, EXTENT, FailingDisk, Groups, MIB, lv, lvm, myvg1, run, run_ok, vg, wait};
use crate::snapshot::snapshot;
use crate::thin::{CLASSES, pools, request};

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("two_lvmds_see_each_others_changes_within_two_seconds", see_each_others_changes),
    ("two_lvmds_at_once_lose_nothing_and_fail_nothing", at_once_lose_nothing),
    ("volume_completed_just_before_its_removal_stays", completed_volume_stays),
    ("lvmd_notices_within_two_seconds_what_an_administrator_does", notices_an_administrator),
    ("lvmd_notices_within_two_seconds_that_a_thin_pool_fills_up", notices_a_pool_that_fills_up),
    ("lvmd_notices_a_failed_disk_and_reports_no_volume_as_removed", notices_a_disk_that_disappears),
];

const OTHER_SOCKET: &str = "/run/topolvm-test/other.sock";

/// Configuration with the default class `ssd` on all of `myvg1`.
const CLASS: &str = "device-classes: [{name: ssd, volume-group: myvg1, default: true, spare-gb: 0}]";

/// Timeout for noticing a change: two seconds, and the time of some commands on this machine at the moment.
pub(crate) struct NoticeTimeout(Duration);

impl NoticeTimeout {
    pub(crate) fn now() -> Self {
        let start = Instant::now();
        // The result does not matter: a disk may be missing
        run("vgs", &["--noheadings", "myvg1"]);
        Self(Duration::from_secs(2) + 10 * start.elapsed())
    }

    /// Polls a condition until it holds.
    pub(crate) async fn until(&self, what: &str, is_so: impl AsyncFn() -> bool) {
        let start = Instant::now();
        let mut again = tokio::time::interval(Duration::from_millis(20));
        while !is_so().await {
            // The machine may have become slower
            let is_late = start.elapsed() > self.0 && start.elapsed() > Self::now().0;
            assert!(!is_late, "{what} is not known after {:?}", start.elapsed());
            again.tick().await;
        }
    }
}

async fn names(client: &Client) -> Vec<String> {
    client.list().await.into_iter().map(|volume| volume.name).collect()
}

fn see_each_others_changes() {
    let _groups = Groups::one();
    let (one, two) = (Lvmd::start(CLASS), Lvmd::start_at(OTHER_SOCKET, CLASS));
    wait(async {
        let patience = NoticeTimeout::now();
        let (one, two) = (one.connect().await, two.connect().await);
        for (this, that) in [(&one, &two), (&two, &one)] {
            let mut watch = that.watch().await;
            let free = watch.message().await.unwrap().unwrap().free_bytes;
            // The watch reports it, and other calls return the same.
            let mut known = async |expected: u64, names_expected: &[&str]| {
                let reported = async { while watch.message().await.unwrap().unwrap().free_bytes != expected {} };
                assert!(
                    tokio::time::timeout(patience.0, reported).await.is_ok(),
                    "{expected} free bytes are not reported"
                );
                assert_eq!((that.free().await, names(that).await), (expected, owned(names_expected)));
            };
            this.create("a", EXTENT).await.unwrap();
            known(free - EXTENT, &["a"]).await;
            this.resize("a", 3 * EXTENT).await.unwrap();
            known(free - 3 * EXTENT, &["a"]).await;
            this.remove("ssd", "a").await.unwrap();
            known(free, &[]).await;
        }
    });
}

/// Finishes a volume in one lvmd after another has read it as unfinished and is about to remove it.
fn completed_volume_stays() {
    let _groups = Groups::one();
    wait(async {
        let lvm = lvm();
        let mark = "topolvm.io/making=/run/topolvm-test/lvmd.sock#1.0";
        let make = |name: &str| {
            run_ok("lvcreate", &["-qy", "-L8m", "-n", name, "--addtag", mark, "--addtag", "other", "myvg1"])
        };
        for name in ["ready", "half-made", "another"] {
            make(name);
        }
        let seen = myvg1(&lvm).await;
        let uuid = |name: &str| seen.volume(name).unwrap().uuid.clone();
        run_ok("lvchange", &["-q", "--deltag", mark, "myvg1/ready"]);
        // Another client recreates it: another volume of the same name, with the same tag.
        run_ok("lvremove", &["-qfy", "myvg1/another"]);
        make("another");

        let remove = async |name: &str| lvm.remove_if(&vg("myvg1"), &lv(name), &uuid(name), Some(mark)).await;
        assert!(matches!(remove("ready").await.done, Err(lvm::Error::Changed { .. })));
        remove("another").await.done.unwrap();
        let after = remove("half-made").await;
        after.done.unwrap();
        let left: Vec<_> = after.group.unwrap().volumes.into_iter().map(|volume| volume.name).collect();
        assert_eq!(left, ["another".into(), "ready".into()].map(|name: Box<str>| name));
        // Without a tag, and an open volume.
        let ready = uuid("ready");
        run_ok("mkfs.ext4", &["-q", "/dev/myvg1/ready"]);
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().to_str().unwrap();
        run_ok("mount", &["/dev/myvg1/ready", dir]);
        let removed = lvm.remove_if(&vg("myvg1"), &lv("ready"), &ready, None).await;
        assert!(matches!(removed.done, Err(lvm::Error::Busy { .. })), "{removed:?}");
        run_ok("umount", &[dir]);
        lvm.remove_if(&vg("myvg1"), &lv("ready"), &ready, None).await.done.unwrap();
        lvm.remove_if(&vg("myvg1"), &lv("ready"), &ready, None).await.done.unwrap();
    });
}

fn owned(names: &[&str]) -> Vec<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

fn at_once_lose_nothing() {
    let _groups = pools();
    let (one, two) = (Lvmd::start(CLASSES), Lvmd::start_at(OTHER_SOCKET, CLASSES));
    wait(async {
        let patience = NoticeTimeout::now();
        let clients = [one.connect().await, two.connect().await];
        let [one, two] = &clients;
        one.create("source", 16 * MIB).await.unwrap();
        let names: Vec<_> = (0..if suite::is_soak() { 40 } else { 16 }).map(|number| format!("v{number:02}")).collect();
        let class = |number: usize| if number.is_multiple_of(2) { "thick" } else { "thin" };
        // Plain and thin volumes, and every eighth a snapshot, half of each through either.
        let made = join_all(names.iter().enumerate().map(async |(number, name)| {
            let client = if number % 4 < 2 { one } else { two };
            match number % 8 {
                7 => client.snapshot(snapshot(name, "source", "rw", 0)).await,
                _ => client.create_with(request(class(number), name, EXTENT)).await,
            }
        }));
        for (name, made) in names.iter().zip(made.await) {
            assert!(made.is_ok(), "{name}: {made:?}");
        }
        for client in &clients {
            let all = async || {
                let listed = [client.list_of("thick").await.unwrap(), client.list_of("thin").await.unwrap()];
                let mut listed: Vec<_> = listed.into_iter().flatten().map(|volume| volume.name).collect();
                listed.retain(|name| name != "source");
                listed.sort();
                listed == names
            };
            patience.until("what both made", all).await;
            assert!(!run_ok("lvs", &["--noheadings", "-o", "lv_tags", "myvg1"]).contains("making"));
        }
        // Each expands or removes volumes of the other.
        let changed = join_all(names.iter().enumerate().map(async |(number, name)| {
            let client = if number % 4 < 2 { two } else { one };
            match number % 3 {
                0 => client.resize_in(class(number), name, 6 * EXTENT).await.map(drop),
                _ => client.remove(class(number), name).await,
            }
        }));
        for (name, changed) in names.iter().zip(changed.await) {
            assert!(changed.is_ok(), "{name}: {changed:?}");
        }
        let left = run_ok("lvs", &["--noheadings", "--units=b", "--nosuffix", "-o", "lv_name,lv_size", "myvg1"]);
        let expected = names.iter().step_by(3).map(|name| (name.as_str(), (6 * EXTENT).to_string()));
        let mut left: Vec<_> = left.split_whitespace().collect();
        left.retain(|word| !word.starts_with("pool"));
        let left: Vec<_> = left.chunks(2).filter(|pair| pair[0].starts_with('v')).collect();
        assert_eq!(left, expected.clone().map(|(name, size)| [name.to_owned(), size]).collect::<Vec<_>>());
        let removed = join_all(expected.enumerate().map(|(number, (name, _))| {
            let client = &clients[number % 2];
            client.remove(class(3 * number), name)
        }));
        assert!(removed.await.iter().all(Result::is_ok));
    });
}

fn notices_an_administrator() {
    let _groups = Groups::one();
    let lvmd = Lvmd::start(CLASS);
    wait(async {
        let patience = NoticeTimeout::now();
        let client = lvmd.connect().await;
        let free = client.free().await;
        client.create("a", EXTENT).await.unwrap();

        run_ok("vgextend", &["-qy", "myvg1", DISKS[1]]);
        patience.until("vgextend", async || client.free().await > free + free / 2).await;
        let free = client.free().await;

        run_ok("lvresize", &["-qy", "-L16m", "myvg1/a"]);
        patience.until("lvresize", async || client.free().await == free - 3 * EXTENT).await;
        assert_eq!(client.list().await[0].size_bytes, 16 << 20);

        // The free space does not change.
        run_ok("lvrename", &["-q", "myvg1", "a", "b"]);
        patience.until("lvrename", async || names(&client).await == ["b"]).await;
        assert_eq!(client.list().await[0].path, "/dev/myvg1/b");

        run_ok("lvchange", &["-q", "--addtag", "theirs", "myvg1/b"]);
        let is_tagged = async || client.list().await[0].tags.iter().any(|tag| tag == "theirs");
        patience.until("a tag", is_tagged).await;

        run_ok("lvremove", &["-qfy", "myvg1/b"]);
        patience.until("lvremove", async || client.list().await.is_empty()).await;
        assert_eq!(client.free().await, free + EXTENT);

        run_ok("vgreduce", &["-q", "myvg1", DISKS[1]]);
        patience.until("vgreduce", async || client.free().await < free).await;
    });
}

fn notices_a_pool_that_fills_up() {
    let _groups = pools();
    let lvmd = Lvmd::start(CLASSES);
    wait(async {
        let patience = NoticeTimeout::now();
        let client = lvmd.connect().await;
        let created = client.create("a", 120 * MIB).await.unwrap();
        let mut watch = client.watch().await;
        watch.message().await.unwrap().unwrap();
        for (mib, percent) in [(32, 24.0), (96, 74.0)] {
            let output = format!("of={}", created.path);
            run_ok("dd", &["if=/dev/zero", &output, "bs=1M", &format!("count={mib}"), "oflag=direct"]);
            let reported = async {
                loop {
                    let message = watch.message().await.unwrap().unwrap();
                    if message.items.first().unwrap().thin_pool.as_ref().unwrap().data_percent > percent {
                        break;
                    }
                }
            };
            assert!(tokio::time::timeout(patience.0, reported).await.is_ok(), "{percent} percent are not reported");
        }
    });
}

async fn health(client: &Client) -> i32 {
    let request = HealthCheckRequest { service: "proto.LVService".to_owned() };
    HealthClient::new(client.0.clone()).check(request).await.unwrap().into_inner().status
}

fn notices_a_disk_that_disappears() {
    // The only disk of the group, then one of two.
    for number_of_disks in [1, 2] {
        let failing = FailingDisk::new();
        let disks = [failing.device(), DISKS[0]];
        let _groups = Groups::on("myvg1", &disks[..number_of_disks]);
        let lvmd = Lvmd::start(CLASS);
        wait(async {
            let patience = NoticeTimeout::now();
            let client = lvmd.connect().await;
            client.create("a", EXTENT).await.unwrap();
            let free = client.free().await;
            assert!(free > 0);
            let before = health(&client).await;

            FailingDisk::fail();
            // LVM tries each path again before it believes it.
            let is_noticed = async || match client.free_in("").await {
                Ok(now) => now < free || health(&client).await != before,
                Err(status) => status.code() == Code::FailedPrecondition,
            };
            patience.until("a failing disk", is_noticed).await;
            // It was not removed, and must not be reported as removed.
            match client.list_of("").await {
                Ok(volumes) => assert_eq!(volumes.len(), 1, "the group was not read as empty"),
                Err(status) => assert_eq!(status.code(), Code::FailedPrecondition),
            }
            assert_ne!(code(client.remove("ssd", "never-there").await), Code::Ok);
            if number_of_disks == 1 {
                assert_ne!(code(client.remove("ssd", "a").await), Code::NotFound);
            }
            assert!(client.create("b", EXTENT).await.is_err(), "nothing is made in half a group");

            FailingDisk::repair();
            if number_of_disks == 2 {
                // No device was added, so LVM continues without the disk until the next scan.
                run_ok("pvscan", &["--cache"]);
                client.create("b", EXTENT).await.unwrap();
                client.remove("ssd", "b").await.unwrap();
            }
            patience.until("a repaired disk", async || client.free_in("").await.is_ok_and(|now| now == free)).await;
            assert_eq!(names(&client).await, ["a"]);
            assert_eq!(health(&client).await, before);
            client.remove("ssd", "a").await.unwrap();
        });
    }
}
