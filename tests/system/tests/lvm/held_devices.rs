//! LVs that are held by a frozen filesystem, by other devices, or by other programs.

use std::path::Path;

use linux_mount::{Mounter as _, SystemMounter};
use tonic::Code;
use topolvm_proto::csi::volume_capability::{AccessType, MountVolume};

use crate::fixture::{Groups, MIB, every, run, run_ok, wait};
use crate::node_agent::{NodeAgent, TARGET};

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("frozen_filesystem_is_thawed_when_it_is_unmounted", thaw_at_unmount),
    ("frozen_filesystem_without_a_mount_is_thawed_on_publish", thaw_at_publish),
    ("growth_of_frozen_filesystem_does_not_lock_its_volume", grow_frozen),
    ("holders_of_an_lv_are_named_with_the_command_that_lets_go", name_holders),
    ("mounts_and_processes_that_hold_an_lv_are_named", name_mounts_and_processes),
    ("files_that_keep_a_volume_mounted_are_named", name_files),
];

const DEVICE: &str = "/dev/myvg1/v1";

fn mount(filesystem: &str) -> AccessType {
    AccessType::Mount(MountVolume { fs_type: filesystem.to_owned(), ..MountVolume::default() })
}

fn create() {
    run_ok("lvcreate", &["-qy", "-L320m", "-n", "v1", "myvg1"]);
}

/// Removes the LV, which nothing may hold any more.
fn remove() {
    run_ok("lvremove", &["-qqy", "myvg1/v1"]);
}

fn freeze() {
    run_ok("fsfreeze", &["--freeze", TARGET]);
}

fn word() -> String {
    format!("{TARGET}/word")
}

/// Returns the reasons of the Events.
fn reasons(agent: &NodeAgent) -> Vec<String> {
    let events = agent.api.list_json("events.events.k8s.io");
    events.iter().map(|event| event["reason"].as_str().unwrap().to_owned()).collect()
}

fn thaw_at_unmount() {
    for filesystem in ["ext4", "xfs", "btrfs"] {
        let _groups = Groups::one();
        create();
        wait(async {
            let agent = NodeAgent::start("320Mi").await;
            agent.publish(mount(filesystem)).await.unwrap();
            std::fs::write(word(), "kept").unwrap();
            freeze();
            agent.unpublish().await.unwrap();
            assert_eq!(reasons(&agent), ["FilesystemThawed"]);
            agent.publish(mount(filesystem)).await.unwrap();
            assert_eq!(std::fs::read_to_string(word()).unwrap(), "kept");
            agent.unpublish().await.unwrap();
            remove();
            agent.stop().await;
        });
    }
}

fn thaw_at_publish() {
    for filesystem in ["ext4", "xfs", "btrfs"] {
        let _groups = Groups::one();
        create();
        wait(async {
            let agent = NodeAgent::start("320Mi").await;
            agent.publish(mount(filesystem)).await.unwrap();
            std::fs::write(word(), "kept").unwrap();
            freeze();
            run_ok("umount", &[TARGET]);
            assert!(!run("lvremove", &["-qqy", "myvg1/v1"]).status.success(), "the kernel keeps it");
            agent.publish(mount(filesystem)).await.unwrap();
            assert_eq!(reasons(&agent), ["FilesystemThawed"]);
            assert_eq!(std::fs::read_to_string(word()).unwrap(), "kept");
            std::fs::write(word(), "written").unwrap();
            agent.unpublish().await.unwrap();
            remove();
            agent.stop().await;
        });
    }
}

fn grow_frozen() {
    for &filesystem in every(3, &["ext4", "xfs", "btrfs"]) {
        let _groups = Groups::one();
        create();
        wait(async {
            let agent = NodeAgent::start("480Mi").await;
            agent.publish(mount(filesystem)).await.unwrap();
            freeze();
            run_ok("lvextend", &["-qq", "-L480m", "myvg1/v1"]);
            for _ in 0..2 {
                let status = loop {
                    let status = agent.expand(i64::try_from(480 * MIB).unwrap()).await.unwrap_err();
                    // lvmd notices changes of others within a second
                    if !status.message().contains("through the controller") {
                        break status;
                    }
                };
                assert_eq!(status.code(), Code::Unavailable, "{status}");
                assert!(status.message().contains(&format!("fsfreeze --unfreeze {TARGET}")), "{status}");
            }
            // The program that waits has the filesystem open until it is thawed
            while let Err(status) = agent.unpublish().await {
                assert!(status.message().contains("in use"), "{status}");
            }
            agent.publish(mount(filesystem)).await.unwrap();
            agent.expand(i64::try_from(480 * MIB).unwrap()).await.unwrap();
            let size = run_ok("df", &["--block-size=1M", "--output=size", TARGET]);
            let size: u64 = size.lines().nth(1).unwrap().trim().parse().unwrap();
            assert!(size > 380, "{filesystem} has {size} MiB");
            agent.unpublish().await.unwrap();
            remove();
            agent.stop().await;
        });
    }
}

/// Returns the holders of the LV, as in messages.
async fn holders() -> Vec<String> {
    let machine = SystemMounter::new();
    let number = machine.block_device(Path::new(DEVICE)).await.unwrap().number;
    let found = machine.find_device_holders(number, Path::new(DEVICE)).await.unwrap();
    found.iter().map(ToString::to_string).collect()
}

/// Commands that stack something on the LV, and how the command begins that lets go.
const STACKS: [(&str, &str); 4] = [
    ("losetup /dev/loop7 /dev/myvg1/v1", "losetup --detach /dev/loop7"),
    ("dmsetup create held --table '0 2048 linear /dev/myvg1/v1 0'", "dmsetup remove held"),
    ("mkswap /dev/myvg1/v1; swapon /dev/myvg1/v1", "swapoff "),
    (
        "modprobe raid1; echo md7 >/sys/module/md_mod/parameters/new_array; cd /sys/block/md7/md; \
         echo none >metadata_version; echo raid1 >level; echo 1 >raid_disks; \
         dmsetup info -c --noheadings --separator : -o major,minor /dev/myvg1/v1 >new_dev",
        "mdadm --stop /dev/md7",
    ),
];
/// Does what mdadm does, which not every machine has.
const MDADM: &str = "mdadm() { echo clear >/sys/block/md7/md/array_state; }";

fn name_holders() {
    let _groups = Groups::one();
    create();
    wait(async {
        for (hold, release) in STACKS {
            run_ok("sh", &["-ec", hold]);
            let found = holders().await;
            let [holder] = &found[..] else { panic!("{hold}: {found:?}") };
            assert!(holder.contains(release), "{hold}: {holder}");
            assert!(!run("lvremove", &["-qqy", "myvg1/v1"]).status.success(), "{hold} holds it");
            let (_, command) = holder.split_once(release).unwrap();
            let rest = command.split(')').next().unwrap();
            run_ok("sh", &["-ec", &format!("{MDADM}; {release}{rest}")]);
            assert_eq!(holders().await, [""; 0], "{release}");
        }
    });
    remove();
}

/// Starts a program that becomes `sleep`, and prints its process.
const START: &str = "start() { setsid \"$@\" >/dev/null 2>&1 & \
                     until grep -q sleep /proc/$!/comm; do sleep 0.1; done; echo $!; }";
/// Scripts that hold the LV, what is said then with the process that they print, and what ends it.
const MOUNTS_AND_PROCESSES: [(&str, &str, &str); 4] = [
    // A single directory
    (
        "mount /dev/myvg1/v1 /run/held; mkdir /run/held/part; mount --bind /run/held/part /run/bound; umount /run/held",
        "mounted at /run/bound",
        "umount /run/bound",
    ),
    (
        "mount /dev/myvg1/v1 /run/held; start unshare -m sleep 1000; umount /run/held",
        "mounted at /run/held for process PID (sleep)",
        "kill PID",
    ),
    ("start sh -c 'exec sleep 1000 </dev/myvg1/v1'", "open in process PID (sleep)", "kill PID"),
    // The mount goes with its directory, and the filesystem stays for the process
    (
        "mount /dev/myvg1/v1 /run/held; start unshare -m sh -c 'cd /run/held; exec sleep 1000'; \
         umount /run/held; rmdir /run/held",
        "still used by process PID (sleep)",
        "kill PID",
    ),
];

fn name_mounts_and_processes() {
    let _groups = Groups::one();
    create();
    run_ok("mkfs.ext4", &["-qF", DEVICE]);
    run_ok("mkdir", &["/run/held", "/run/bound"]);
    wait(async {
        for (hold, words, release) in MOUNTS_AND_PROCESSES {
            let process = run_ok("sh", &["-ec", &format!("{START}; {hold}")]);
            assert!(!run("lvremove", &["-qqy", "myvg1/v1"]).status.success(), "{hold} does not hold it");
            let found = holders().await;
            let [holder] = &found[..] else { panic!("{hold}: {found:?}") };
            assert!(holder.contains(&words.replace("PID", process.trim())), "{hold}: {holder}");
            run_ok("sh", &["-ec", &release.replace("PID", process.trim())]);
            while !holders().await.is_empty() {}
        }
    });
    remove();
}

fn name_files() {
    let _groups = Groups::one();
    create();
    wait(async {
        let agent = NodeAgent::start("320Mi").await;
        agent.publish(mount("ext4")).await.unwrap();
        let file = word();
        run_ok("dd", &["if=/dev/zero", &format!("of={file}"), "bs=1M", "count=8", "status=none"]);
        run_ok("chmod", &["600", &file]);
        run_ok("mkswap", &[&file]);
        for (hold, release) in [
            (format!("losetup /dev/loop7 {file}"), "losetup --detach /dev/loop7".to_owned()),
            (format!("swapon {file}"), format!("swapoff {file}")),
        ] {
            run_ok("sh", &["-ec", &hold]);
            let status = agent.unpublish().await.unwrap_err();
            assert!(status.message().contains(&format!("({release})")), "{hold}: {status}");
            run_ok("sh", &["-ec", &release]);
        }
        agent.unpublish().await.unwrap();
        remove();
        agent.stop().await;
    });
}
