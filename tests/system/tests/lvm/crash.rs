//! Kills lvmd at every step of creating a volume: no unfinished volume is ever given to a client, and none stays
//! behind.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tonic::Code;
use topolvm_proto::lvmd::vg_service_client::VgServiceClient;
use topolvm_proto::lvmd::{CreateLvSnapshotRequest, Empty};

use crate::daemon::{Client, Lvmd, code, signed};
use crate::fixture::{MIB, every, run, run_ok, wait};
use crate::snapshot::snapshot;
use crate::thin::{CLASSES, pools, request};
use crate::two_daemons::NoticeTimeout;

/// Tests that a soak runs as well.
pub(crate) const LONG_TESTS: &[(&str, fn())] =
    &[("lvmd_killed_while_making_leaves_nothing_after_its_next_start", leaves_nothing_after_the_next_start)];

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("lvmd_killed_in_creation_creates_the_volume_on_retry", creates_the_volume_on_retry),
    ("lvmd_never_returns_a_volume_with_unwiped_contents", never_returns_old_contents),
    ("lvmd_resumes_a_volume_left_suspended_by_a_killed_lvm", resumes_a_suspended_volume),
    ("lvmd_removes_an_unused_thin_device_left_by_a_killed_lvm", removes_a_thin_device_that_no_volume_has),
    ("lvmd_never_reuses_a_thin_device_left_by_a_killed_lvm", never_reuses_a_thin_device),
    ("lvmd_keeps_a_thin_device_with_data_and_names_the_commands", keeps_a_thin_device_that_may_hold_data),
    ("thin_pool_transaction_id_mismatch_is_named_and_repairable", names_a_transaction_id_mismatch),
    ("lvmd_takes_volumes_that_topolvm_made_and_leaves_others_alone", takes_volumes_that_topolvm_made),
];

/// An `lvm` that kills lvmd, which started it, before or after it does the work of one command. It kills once.
/// `lvcreate-late` creates the volume `late`, and `lvchange-several` changes more than one.
pub(crate) struct Killer {
    dir: tempfile::TempDir,
}

impl Killer {
    pub(crate) fn new() -> Self {
        let killer = Self { dir: tempfile::tempdir().unwrap() };
        let plan = killer.plan();
        // Commands come as lines for LVM's shell, and are run one by one.
        let script = format!(
            r#"#!/bin/sh
act() {{
    name=$1
    shift
    case $(cat {0} 2>/dev/null) in
        "before $name") rm {0}; kill -9 $PPID; exit ;;
        "after $name") rm {0}; "$@"; kill -9 $PPID; exit ;;
        "unwiped $name") rm {0}; line=$(echo "$line" | sed 's/-W y/-W n -Z n/'); "$@"; kill -9 $PPID; exit ;;
        *) "$@" ;;
    esac
}}
say() {{ printf '%s\n' "$line" | lvm; }}
if [ $# -gt 0 ]; then act "$1" lvm "$@"; exit; fi
while IFS= read -r line; do
    name=${{line%% *}}
    case $line in
        "lvcreate "*" -n late "*) name=lvcreate-late ;;
        "lvchange "*" myvg1/"*" myvg1/"*) name=lvchange-several ;;
    esac
    act "$name" say
done
"#,
            plan.display()
        );
        fs::write(killer.lvm(), script).unwrap();
        fs::set_permissions(killer.lvm(), fs::Permissions::from_mode(0o755)).unwrap();
        killer
    }

    pub(crate) fn lvm(&self) -> PathBuf {
        self.dir.path().join("lvm")
    }

    pub(crate) fn plan(&self) -> PathBuf {
        self.dir.path().join("plan")
    }

    pub(crate) fn start(&self) -> Lvmd {
        Lvmd::start(&format!("lvm-command-prefix: [{}]\n{CLASSES}", self.lvm().display()))
    }

    /// Starts lvmd, kills it during this request, and returns the tags of the volume that it left.
    async fn kill_during(&self, when: &str, make: Make) -> String {
        let lvmd = self.start();
        fs::write(self.plan(), when).unwrap();
        let made = make.send(&lvmd.connect().await).await;
        assert!(made.is_err() && !self.plan().exists(), "{when}: {made:?}");
        drop(lvmd);
        tags("x")
    }
}

/// Kind of the volume that is created under the name `x` when lvmd is killed.
#[derive(Clone, Copy, Debug)]
enum Make {
    Thick,
    Thin,
    /// Larger than its source.
    Snapshot,
}

impl Make {
    fn class(self) -> &'static str {
        if matches!(self, Self::Thick) { "thick" } else { "thin" }
    }

    async fn send(self, client: &Client) -> Result<i64, tonic::Status> {
        let made = match self {
            Self::Thick | Self::Thin => client.create_with(request(self.class(), "x", 16 * MIB)).await?,
            Self::Snapshot => {
                let wanted =
                    CreateLvSnapshotRequest { device_class: "thin".to_owned(), ..snapshot("x", "a", "ro", 32 * MIB) };
                client.snapshot(wanted).await?
            }
        };
        Ok(made.size_bytes)
    }

    fn expected(self) -> i64 {
        signed(if matches!(self, Self::Snapshot) { 32 * MIB } else { 16 * MIB })
    }
}

/// Moments at which lvmd is killed, and true for those that leave an unfinished volume.
const KILLS: &[(Make, &str, bool)] = &[
    (Make::Thick, "before lvcreate", false),
    (Make::Thick, "after lvcreate", true),
    (Make::Thick, "before lvchange", true),
    (Make::Thick, "after lvchange", false),
    (Make::Thin, "after lvcreate", true),
    (Make::Thin, "before lvchange", true),
    (Make::Thin, "after lvchange", false),
    (Make::Snapshot, "after lvcreate", true),
    (Make::Snapshot, "before lvextend", true),
    (Make::Snapshot, "after lvextend", true),
    (Make::Snapshot, "before lvchange", true),
    (Make::Snapshot, "after lvchange", false),
];

pub(crate) fn tags(name: &str) -> String {
    String::from_utf8(run("lvs", &["--noheadings", "-o", "lv_tags", &format!("myvg1/{name}")]).stdout).unwrap()
}

pub(crate) fn exists(name: &str) -> bool {
    run("lvs", &[&format!("myvg1/{name}")]).status.success()
}

fn leaves_nothing_after_the_next_start() {
    let _groups = pools();
    run_ok("lvcreate", &["-qy", "-T", "myvg1/pool", "-V16m", "-n", "a"]);
    let killer = Killer::new();
    for &(make, when, is_half_made) in KILLS.iter().filter(|(_, _, is_half_made)| *is_half_made) {
        wait(async {
            let left = killer.kill_during(when, make).await;
            assert_eq!(left.contains("topolvm.io/making="), is_half_made, "{make:?} {when}: {left:?}");
            let lvmd = killer.start();
            let mut watch = VgServiceClient::new(lvmd.connect().await.0).watch(Empty {}).await.unwrap().into_inner();
            let gone = async {
                while exists("x") {
                    watch.message().await.unwrap().unwrap();
                }
            };
            tokio::time::timeout(Duration::from_secs(30), gone).await.unwrap();
        });
    }
}

fn creates_the_volume_on_retry() {
    let _groups = pools();
    run_ok("lvcreate", &["-qy", "-T", "myvg1/pool", "-V16m", "-n", "a"]);
    let killer = Killer::new();
    for &(make, when, _) in every(2, KILLS) {
        wait(async {
            killer.kill_during(when, make).await;
            let lvmd = killer.start();
            let client = lvmd.connect().await;
            assert_eq!(make.send(&client).await.unwrap(), make.expected(), "{make:?} {when}");
            let seen = tags("x");
            assert!(seen.contains("topolvm.io/managed-by=lvmd") && !seen.contains("making"), "{make:?} {when}: {seen}");
            client.remove(make.class(), "x").await.unwrap();
        });
    }
}

/// Kills lvcreate before it wipes: the volume begins with the contents of a former one, and mkfs would be skipped and
/// another tenant's files be mounted.
fn never_returns_old_contents() {
    let _groups = pools();
    let killer = Killer::new();
    let has_filesystem = |name: &str| run("blkid", &["-p", &format!("/dev/myvg1/{name}")]).status.success();
    wait(async {
        run_ok("lvcreate", &["-qy", "-L16m", "-n", "old", "myvg1"]);
        run_ok("mkfs.ext4", &["-q", "/dev/myvg1/old"]);
        run_ok("lvremove", &["-qf", "myvg1/old"]);
        killer.kill_during("unwiped lvcreate", Make::Thick).await;
        assert!(has_filesystem("x"), "these contents must not be returned");

        let lvmd = killer.start();
        let client = lvmd.connect().await;
        Make::Thick.send(&client).await.unwrap();
        assert!(Path::new("/dev/myvg1/x").exists() && !has_filesystem("x"));
    });
}

fn resumes_a_suspended_volume() {
    let _groups = pools();
    let lvmd = Lvmd::start(CLASSES);
    wait(async {
        let client = lvmd.connect().await;
        client.create("a", 16 * MIB).await.unwrap();
        client.create_with(request("thick", "b", 16 * MIB)).await.unwrap();
        run_ok("lvcreate", &["-qy", "-L4m", "-n", "theirs", "myvg1"]);
    });
    drop(lvmd);
    for name in ["a", "b", "theirs"] {
        run_ok("dmsetup", &["suspend", &format!("myvg1-{name}")]);
    }
    let suspended = || {
        let list = run_ok("dmsetup", &["info", "-c", "--noheadings", "-o", "name,suspended"]);
        let names = list.lines().filter_map(|line| line.strip_suffix(":Suspended").map(str::to_owned));
        names.collect::<Vec<_>>()
    };
    let _lvmd = Lvmd::start(CLASSES);
    wait(async {
        let patience = NoticeTimeout::now();
        patience.until("what LVM left suspended", async || suspended() == ["myvg1-theirs"]).await;
    });
    run_ok("dmsetup", &["resume", "myvg1-theirs"]);
}

/// Leaves a thin device as LVM does when it is killed between the kernel's snapshot and its own metadata, in the way of
/// the next snapshot.
fn removes_a_thin_device_that_no_volume_has() {
    let _groups = pools();
    let lvmd = Lvmd::start(CLASSES);
    wait(async {
        let client = lvmd.connect().await;
        leave_snapshot_of_a(&client).await;
        client.snapshot(snapshot("s", "a", "ro", 24 * MIB)).await.unwrap();
        // It has no data, whenever it was created
        pool_message("create_thin 4");
        client.create("b", 16 * MIB).await.unwrap();
        client.snapshot(snapshot("t", "a", "ro", 16 * MIB)).await.unwrap();
        assert_eq!(thin_ids(), ["a", "1", "b", "3", "s", "2", "t", "4"]);
        assert!(
            run_ok("dmsetup", &["status", "myvg1-pool-tpool"]).contains(" - rw "),
            "the metadata snapshot is released"
        );
    });
}

/// Leaves such a thin device, from which LVM would create a new volume with the old contents.
fn never_reuses_a_thin_device() {
    let _groups = pools();
    let lvmd = Lvmd::start(CLASSES);
    wait(async {
        let client = lvmd.connect().await;
        leave_snapshot_of_a(&client).await;
        let refused = client.create("b", 16 * MIB).await.unwrap_err();
        assert_eq!(refused.code(), Code::Unavailable, "{refused}");
        assert!(
            refused.message().contains("the device belonged to no volume, and was removed; try again"),
            "{refused}"
        );
        client.create("b", 16 * MIB).await.unwrap();
        assert_eq!(byte_of("b"), 0);
        assert_eq!(thin_ids(), ["a", "1", "b", "2"]);
    });
}

/// Checks that a volume of older metadata, which resembles one that LVM left, keeps its contents.
fn keeps_a_thin_device_that_may_hold_data() {
    let _groups = pools();
    let lvmd = Lvmd::start(CLASSES);
    wait(async {
        let client = lvmd.connect().await;
        client.create("a", 16 * MIB).await.unwrap();
        for id in ["3", "4"] {
            pool_message(&format!("create_thin {id}"));
            with_thin_device(id, |device| device.write_all_at(&[7; 4096], MIB).unwrap());
        }
        client.create("b", 16 * MIB).await.unwrap();

        let refused = client.snapshot(snapshot("s", "a", "ro", 16 * MIB)).await.unwrap_err();
        for part in [
            "already contain thin device with device_id 3",
            "it may be a volume of older metadata",
            "`dmsetup message myvg1-POOL-tpool 0 'delete 3'`",
        ] {
            assert!(refused.message().contains(part), "{refused}");
        }
        with_thin_device("3", |device| {
            let mut bytes = [0; 4096];
            device.read_exact_at(&mut bytes, MIB).unwrap();
            assert_eq!(bytes, [7; 4096]);
        });
        pool_message("delete 3");
        client.snapshot(snapshot("s", "a", "ro", 16 * MIB)).await.unwrap();

        let refused = client.create("c", 16 * MIB).await.unwrap_err();
        let (_, kept) = refused.message().split_once("it is kept as myvg1/").unwrap();
        let (kept, _) = kept.split_once(": remove it if it is not needed").unwrap();
        assert_eq!(byte_of(kept), 7);
        client.create("c", 16 * MIB).await.unwrap();
        assert_eq!(byte_of("c"), 0);
    });
}

/// Creates the volume `a`, with data, and has the kernel create a snapshot of it that is not in LVM's metadata: device
/// 2.
async fn leave_snapshot_of_a(client: &Client) {
    client.create("a", 16 * MIB).await.unwrap();
    File::options().write(true).open("/dev/myvg1/a").unwrap().write_all_at(&[7; 4096], MIB).unwrap();
    run_ok("dmsetup", &["suspend", "myvg1-a"]);
    pool_message("create_snap 2 1");
    run_ok("dmsetup", &["resume", "myvg1-a"]);
}

fn byte_of(name: &str) -> u8 {
    let mut byte = [0];
    File::open(format!("/dev/myvg1/{name}")).unwrap().read_exact_at(&mut byte, MIB).unwrap();
    byte[0]
}

fn pool_message(message: &str) {
    run_ok("dmsetup", &["message", "myvg1-pool-tpool", "0", message]);
}

/// Lists names and device ids of the volumes in the pool.
fn thin_ids() -> Vec<String> {
    let listed = run_ok("lvs", &["--noheadings", "-o", "lv_name,thin_id", "-S", "pool_lv=pool", "myvg1"]);
    listed.split_whitespace().map(str::to_owned).collect()
}

/// Runs a function with a thin device of the pool, without LVM.
fn with_thin_device(id: &str, use_it: impl FnOnce(&File)) {
    let pool = run_ok("dmsetup", &["info", "-c", "--noheadings", "-o", "blkdevname", "myvg1-pool-tpool"]);
    run_ok("dmsetup", &["create", "theirs", "--table", &format!("0 32768 thin /dev/{} {id}", pool.trim())]);
    let device = run_ok("dmsetup", &["info", "-c", "--noheadings", "-o", "blkdevname", "theirs"]);
    use_it(&File::options().read(true).write(true).open(format!("/dev/{}", device.trim())).unwrap());
    run_ok("dmsetup", &["remove", "theirs"]);
}

/// Checks the message, and the repair in docs/limits.md, for LVM metadata with a volume that the kernel does not have.
fn names_a_transaction_id_mismatch() {
    let _groups = pools();
    let lvmd = Lvmd::start(CLASSES);
    wait(async {
        let client = lvmd.connect().await;
        client.create("a", 16 * MIB).await.unwrap();
        client.create("b", 16 * MIB).await.unwrap();
        run_ok("dmsetup", &["remove", "myvg1-b"]);
        run_ok("dmsetup", &["message", "myvg1-pool-tpool", "0", "delete 2"]);
        run_ok("dmsetup", &["message", "myvg1-pool-tpool", "0", "set_transaction_id 2 1"]);
        let refused = client.create("c", 16 * MIB).await.unwrap_err();
        assert!(refused.message().contains("unexpected transaction id 1, expecting 2"), "{refused}");
        assert!(refused.message().contains("vgcfgrestore --force --yes"), "{refused}");
        assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");

        run_ok("vgcfgbackup", &["-f", "/tmp/myvg1", "myvg1"]);
        let backup = fs::read_to_string("/tmp/myvg1").unwrap();
        let (before, rest) = backup.split_once("\t\tb {\n").unwrap();
        let (_, after) = rest.split_once("\n\t\t}\n").unwrap();
        let repaired = [&before.replace("transaction_id = 2", "transaction_id = 1"), after].concat();
        fs::write("/tmp/myvg1", repaired).unwrap();
        run_ok("vgcfgrestore", &["--force", "--yes", "-f", "/tmp/myvg1", "myvg1"]);

        let patience = NoticeTimeout::now();
        patience.until("the volume that there is", async || client.list().await.len() == 1).await;
        client.create("c", 16 * MIB).await.unwrap();
        client.remove("", "a").await.unwrap();
    });
}

fn takes_volumes_that_topolvm_made() {
    let _groups = pools();
    run_ok("lvcreate", &["-qy", "-Wy", "-L16m", "-n", "x", "myvg1"]);
    run_ok("lvcreate", &["-qy", "-T", "myvg1/pool", "-V16m", "-n", "y"]);
    run_ok("lvcreate", &["-q", "-s", "-kn", "-n", "z", "myvg1/y"]);
    // A foreign tag has no meaning for lvmd.
    run_ok("lvcreate", &["-qy", "-L4m", "-n", "theirs", "--addtag", "topolvm.io/making=another", "myvg1"]);
    let uuids = || run_ok("lvs", &["--noheadings", "-o", "lv_name,lv_uuid", "myvg1"]);
    let before = uuids();
    let lvmd = Lvmd::start(CLASSES);
    wait(async {
        let client = lvmd.connect().await;
        client.create_with(request("thick", "x", 16 * MIB)).await.unwrap();
        client.create("y", 16 * MIB).await.unwrap();
        client.snapshot(snapshot("z", "y", "rw", 0)).await.unwrap();
        assert_eq!(code(client.snapshot(snapshot("z", "y", "ro", 0)).await), Code::AlreadyExists);
    });
    assert_eq!(uuids(), before);
}
