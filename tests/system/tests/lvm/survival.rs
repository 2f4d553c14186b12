//! Kills lvmd while LVM works for it: LVM still finishes, and the next lvmd waits for that.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use lvm::SystemRunner;
use testbed::suite;

use crate::crash::{exists, tags};
use crate::daemon::{Lvmd, SOCKET};
use crate::fixture::{MIB, run, run_ok, wait};
use crate::lvm_processes::lvm_processes;
use crate::snapshot::snapshot;
use crate::thin::{CLASSES, pools, request};
use crate::two_daemons::NoticeTimeout;

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("lvm_finishes_without_a_reader_when_lvmd_is_killed", finishes_without_readers),
    ("lvm_finishes_when_the_container_of_lvmd_is_killed", finishes_outside_of_a_container),
    ("lvmd_waits_for_the_lvm_that_a_killed_one_left_running", waits_for_what_was_left),
    ("lvmd_killed_at_any_moment_leaves_pools_that_work", leaves_pools_that_work),
];

/// Script in the place of `lvm` that runs an action before its first `lvcreate`.
struct Interrupted {
    dir: tempfile::TempDir,
}

impl Interrupted {
    /// Writes the script; `deed` is a line of shell, run once when the file [`Self::plan`] exists, with lvmd as
    /// `$lvmd`. LVM then writes as much as it can.
    fn new(deed: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let interrupted = Self { dir };
        // Commands come as lines for LVM's shell, and are run one by one.
        let script = format!(
            r#"#!/bin/sh
lvmd=$PPID
[ $# = 0 ] || exec lvm "$@"
while IFS= read -r line; do
    case $line in
        lvcreate*) if [ -e {plan} ]; then rm {plan}; {deed}; line="lvcreate -vvvv ${{line#lvcreate }}"; fi ;;
    esac
    printf '%s\n' "$line" | lvm
done
"#,
            plan = interrupted.plan().display(),
        );
        fs::write(interrupted.lvm(), script).unwrap();
        fs::set_permissions(interrupted.lvm(), fs::Permissions::from_mode(0o755)).unwrap();
        interrupted
    }

    fn lvm(&self) -> PathBuf {
        self.dir.path().join("lvm")
    }

    fn plan(&self) -> PathBuf {
        self.dir.path().join("plan")
    }

    /// Returns the configuration of an lvmd on a host, or in a container that is entered with this command.
    fn config(&self, enters: &[&str]) -> String {
        let lvm = self.lvm().display().to_string();
        let prefix = [enters, &[&lvm]].concat().join(", ");
        format!("lvm-command-prefix: [{prefix}]\n{CLASSES}")
    }
}

/// Action that kills lvmd and waits until its pipes have no readers any more.
const KILL_LVMD: &str = r#"kill -9 $lvmd; while [ -n "$(ls /proc/$lvmd/fd 2>/dev/null)" ]; do :; done"#;

async fn until_lvm_has_ended() {
    let start = Instant::now();
    let mut again = tokio::time::interval(Duration::from_millis(20));
    while !lvm_processes().is_empty() {
        assert!(start.elapsed() < Duration::from_mins(1), "LVM does not end");
        again.tick().await;
    }
}

/// Checks that the volume is complete, and that its pool can be used.
fn assert_whole(name: &str) {
    let left = tags(name);
    assert!(exists(name) && !left.contains("making"), "{name}: {left:?}");
    run_ok("lvcreate", &["-qy", "-T", "myvg1/pool", "-V4m", "-n", "by-hand"]);
    run_ok("lvremove", &["-qfy", "myvg1/by-hand"]);
}

fn finishes_without_readers() {
    let _groups = pools();
    let interrupted = Interrupted::new(KILL_LVMD);
    wait(async {
        for (number, class) in ["thin", "thick", "thin"].into_iter().enumerate() {
            let lvmd = Lvmd::start(&interrupted.config(&[]));
            let name = format!("v{number}");
            fs::write(interrupted.plan(), "").unwrap();
            lvmd.connect().await.create_with(request(class, &name, 16 * MIB)).await.unwrap_err();
            drop(lvmd);
            until_lvm_has_ended().await;
            assert_whole(&name);
        }
        let lvmd = Lvmd::start(CLASSES);
        lvmd.connect().await.snapshot(snapshot("s", "v0", "ro", 0)).await.unwrap();
    });
}

/// The root directory of a container, with all mounts of the guest.
struct Container {
    root: tempfile::TempDir,
}

/// Path of the container's control group.
const POD: &str = "/sys/fs/cgroup/pod";

impl Container {
    fn new() -> Self {
        if !Path::new("/sys/fs/cgroup/cgroup.procs").exists() {
            run_ok("mount", &["-t", "cgroup2", "cgroup2", "/sys/fs/cgroup"]);
        }
        fs::create_dir(POD).unwrap();
        let root = tempfile::tempdir_in("/run").unwrap();
        let path = root.path().to_str().unwrap();
        run_ok("mount", &["-t", "tmpfs", "container", path]);
        for entry in fs::read_dir("/").unwrap() {
            let entry = entry.unwrap();
            let inside = root.path().join(entry.file_name());
            if entry.file_type().unwrap().is_dir() {
                fs::create_dir(&inside).unwrap();
                run_ok("mount", &["--rbind", entry.path().to_str().unwrap(), inside.to_str().unwrap()]);
            } else if entry.file_type().unwrap().is_symlink() {
                std::os::unix::fs::symlink(fs::read_link(entry.path()).unwrap(), inside).unwrap();
            }
        }
        Self { root }
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        drop(run("umount", &["-lR", self.root.path().to_str().unwrap()]));
        drop(run("rmdir", &[POD]));
    }
}

fn finishes_outside_of_a_container() {
    let _groups = pools();
    let container = Container::new();
    let interrupted = Interrupted::new(&format!("echo 1 >{POD}/cgroup.kill; {KILL_LVMD}"));
    let (nsenter, _) = SystemRunner::DEFAULT_PREFIX.split_at(SystemRunner::DEFAULT_PREFIX.len() - 1);
    let join = format!("echo 0 >{POD}/cgroup.procs; exec chroot \"$@\"");
    let launcher = ["sh", "-c", &join, "sh", container.root.path().to_str().unwrap()];
    for enters in [nsenter, &[]] {
        let name = if enters.is_empty() { "inside" } else { "host" };
        wait(async {
            let lvmd = Lvmd::start_by(&launcher, SOCKET, &interrupted.config(enters), |_| {});
            fs::write(interrupted.plan(), "").unwrap();
            lvmd.connect().await.create_with(request("thin", name, 16 * MIB)).await.unwrap_err();
            drop(lvmd);
            until_lvm_has_ended().await;
            assert_whole(name);
        });
    }
}

fn waits_for_what_was_left() {
    let _groups = pools();
    let dir = tempfile::tempdir().unwrap();
    let go = dir.path().join("go");
    run_ok("mkfifo", &[go.to_str().unwrap()]);
    let interrupted = Interrupted::new(&format!("{KILL_LVMD}; read -r go <{}", go.display()));
    wait(async {
        let lvmd = Lvmd::start(&interrupted.config(&[]));
        fs::write(interrupted.plan(), "").unwrap();
        lvmd.connect().await.create_with(request("thin", "v", 16 * MIB)).await.unwrap_err();
        drop(lvmd);
        let mut has_waited = false;
        let lvmd = Lvmd::start_by(&[], SOCKET, CLASSES, |line| {
            if line.contains("waiting for LVM commands") {
                assert!(!exists("v"));
                fs::write(&go, "\n").unwrap();
                has_waited = true;
            }
        });
        assert!(has_waited);
        let listed: Vec<_> = lvmd.connect().await.list().await.into_iter().map(|volume| volume.name).collect();
        assert_eq!(listed, ["v"]);
    });
}

/// Kills only lvmd, like `KillMode=process`, repeatedly while it creates and removes volumes.
fn leaves_pools_that_work() {
    let _groups = pools();
    let usual = wait(async {
        let lvmd = Lvmd::start(CLASSES);
        let client = lvmd.connect().await;
        client.create("source", 16 * MIB).await.unwrap();
        let start = Instant::now();
        client.create("v", 16 * MIB).await.unwrap();
        let usual = start.elapsed();
        client.remove("thin", "v").await.unwrap();
        usual
    });
    let moments = if suite::is_soak() { 24 } else { 8_u32 };
    let mut in_the_middle = 0;
    for moment in 0..moments {
        let mut lvmd = Lvmd::start(CLASSES);
        wait(async {
            let client = lvmd.connect().await;
            let make = async {
                match moment % 2 {
                    0 => client.create("v", 16 * MIB).await.map(drop),
                    _ => client.snapshot(snapshot("v", "source", "rw", 16 * MIB)).await.map(drop),
                }
            };
            in_the_middle += u32::from(tokio::time::timeout(usual * moment / moments, make).await.is_err());
            lvmd.kill();
        });
        let next = Lvmd::start(CLASSES);
        wait(async {
            let client = next.connect().await;
            // A volume of LVM is complete, or lvmd removes it
            let patience = NoticeTimeout::now();
            patience.until("what is half made", async || !tags("v").contains("making")).await;
            client.snapshot(snapshot("probe", "source", "ro", 0)).await.unwrap();
            for name in ["probe", "v"] {
                drop(client.remove("thin", name).await);
            }
            let names: Vec<_> = client.list().await.into_iter().map(|volume| volume.name).collect();
            assert_eq!(names, ["source"], "moment {moment}");
        });
    }
    assert!(in_the_middle > moments / 12, "the kills came too late to prove anything");
}
