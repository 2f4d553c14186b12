//! Installation, upgrade and removal of the Debian package.

use std::fs::{self, File};
use std::io::{Seek as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::scope;

use crate::node::{
    CLASSES, CONFIG, Held, Node, create, dpkg, held_lvm, install, is_whole, list, main_process, main_process_file,
    package, property, run, run_ok, systemctl, wait_until,
};

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("package_starts_lvmd_only_after_the_administrator_enables_it", starts_after_it_is_enabled),
    ("package_upgrade_restarts_lvmd_without_disturbing_writes", upgrades_under_a_writing_program),
    ("package_removal_and_purge_keep_volumes", leaves_volumes_when_it_is_removed),
];

const WANTED_AT_BOOT: &str = "/etc/systemd/system/multi-user.target.wants/lvmd.service";

/// Runs a program and returns the exit status, and all output.
fn run_with_output(program: &str, args: &[&str]) -> (Option<i32>, String) {
    let output = run(program, args);
    (output.status.code(), String::from_utf8([output.stdout, output.stderr].concat()).unwrap())
}

fn starts_after_it_is_enabled() {
    let _node = Node::bare();
    install(1);
    assert_eq!(run_with_output("systemctl", &["is-enabled", "lvmd"]).1.trim(), "disabled");
    assert_eq!(property("ActiveState"), "inactive");

    // Started without a configuration it prints the required change, and is not restarted.
    let (status, hint) = run_with_output("lvmd", &["check-config"]);
    assert!(status == Some(64) && hint.contains("add at least one to device-classes"), "{hint}");
    assert!(!run("systemctl", &["start", "lvmd"]).status.success());
    let state = ["ActiveState", "ExecMainStatus", "NRestarts"].map(property);
    assert_eq!(state, ["failed", "64", "0"]);

    fs::write(CONFIG, CLASSES).unwrap();
    run_ok("systemctl", &["enable", "--now", "lvmd"]);
    assert_eq!(list("thick").as_deref(), Ok(&[][..]), "it serves when systemctl returns");
    assert!(Path::new(WANTED_AT_BOOT).exists());
    let state = ["ActiveState", "SubState", "Type", "NotifyAccess", "StatusText"].map(property);
    assert_eq!(state, ["active", "running", "notify", "main", "LVM works"]);
    assert_eq!(fs::read_link(main_process_file("exe")).unwrap(), Path::new("/usr/sbin/lvmd"));
    run_ok("lvmd", &["health"]);
    // Not checked on the node, which may be configured to install no documentation
    let contents = run_ok("dpkg-deb", &["--contents", &package(1)]);
    let documents =
        ["copyright", "changelog.gz", "lvmd.md.gz", "THIRD-PARTY-NOTICES.gz"].map(|name| format!("doc/lvmd/{name}"));
    for file in ["man/man8/lvmd.8.gz".to_owned()].into_iter().chain(documents) {
        assert!(contents.contains(&format!(" ./usr/share/{file}\n")), "{file}: {contents}");
    }
}

/// Creates a filesystem on a volume and mounts it at /mnt.
fn mount_volume() {
    create("thin", "data").unwrap();
    run_ok("mkfs.ext4", &["-q", "/dev/myvg1/data"]);
    run_ok("mount", &["/dev/myvg1/data", "/mnt"]);
}

/// Returns the line of /mnt in mountinfo, with its number, which changes when it is mounted again.
fn mount_line() -> String {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    mounts.lines().find(|line| line.contains(" /mnt ")).unwrap().to_owned()
}

fn upgrades_under_a_writing_program() {
    let _node = Node::new(&held_lvm());
    mount_volume();
    let (before, old) = (mount_line(), main_process());
    let directory = fs::metadata("/run/topolvm").unwrap().ino();
    let (stop, writes) = (AtomicBool::new(false), AtomicU32::new(0));
    scope(|threads| {
        let writer = threads.spawn(|| {
            let mut file = File::create("/mnt/file").unwrap();
            while !stop.load(Ordering::Relaxed) {
                file.rewind()?;
                file.write_all(&writes.load(Ordering::Relaxed).to_be_bytes())?;
                file.sync_all()?;
                writes.fetch_add(1, Ordering::Relaxed);
            }
            std::io::Result::Ok(())
        });
        wait_until("a write", || writes.load(Ordering::Relaxed) > 0);
        let held = Held::start("meanwhile");
        let at_start = writes.load(Ordering::Relaxed);
        let upgrade = threads.spawn(|| install(2));
        wait_until("lvmd is stopping", || property("ActiveState") == "deactivating");
        assert!(old.is_alive(), "it waits for LVM");
        assert!(held.resume().is_ok(), "a client is answered");
        upgrade.join().unwrap();
        let at_end = writes.load(Ordering::Relaxed);
        wait_until("another write", || writes.load(Ordering::Relaxed) > at_end);
        stop.store(true, Ordering::Relaxed);
        writer.join().unwrap().unwrap();
        assert!(at_end > at_start);
    });
    assert_eq!(run_ok("dpkg-query", &["--show", "--showformat=${Version}", "lvmd"]).rsplit('-').next(), Some("2"));
    assert_eq!(["ActiveState", "UnitFileState", "NRestarts"].map(property), ["active", "enabled", "0"]);
    assert!(!old.is_alive() && main_process().is_alive());
    assert_eq!(mount_line(), before);
    assert_eq!(fs::metadata("/run/topolvm").unwrap().ino(), directory, "topolvm-node has it mounted");
    assert_eq!(fs::read_to_string(CONFIG).unwrap(), held_lvm(), "the administrator's own");
    assert!(is_whole("meanwhile"));
    assert_eq!(list("thin").unwrap(), ["data", "meanwhile"]);
    let last = u32::from_be_bytes(fs::read("/mnt/file").unwrap().try_into().unwrap());
    assert_eq!(last + 1, writes.into_inner());
}

fn leaves_volumes_when_it_is_removed() {
    let _node = Node::new(CLASSES);
    systemctl("stop");
    install(2);
    assert_eq!(["ActiveState", "UnitFileState"].map(property), ["inactive", "enabled"], "an upgrade starts nothing");
    systemctl("start");
    mount_volume();
    let (before, lvmd) = (mount_line(), main_process());
    let volumes = || run_ok("lvs", &["--noheadings", "-o", "lv_name,lv_uuid,lv_attr", "myvg1"]);
    let made = volumes();
    dpkg(&["--remove", "lvmd"]);
    assert!(!lvmd.is_alive());
    assert!(!Path::new("/usr/sbin/lvmd").exists());
    assert_eq!(fs::read_to_string(CONFIG).unwrap(), CLASSES);
    assert_eq!((mount_line(), volumes()), (before.clone(), made.clone()));

    dpkg(&["--purge", "lvmd"]);
    assert!(!Path::new("/etc/topolvm").exists());
    assert!(fs::symlink_metadata(WANTED_AT_BOOT).is_err());
    assert_eq!(property("LoadState"), "not-found");
    assert_eq!((mount_line(), volumes()), (before, made));
    fs::write("/mnt/file", "still there").unwrap();
    File::open("/mnt/file").unwrap().sync_all().unwrap();
}
