//! The node agent with a link in /dev that leads to another volume, and without the /dev of the node.

use std::process::ExitCode;

use tonic::Code;
use topolvm_proto::csi::volume_capability::{AccessType, BlockVolume, MountVolume};

use crate::fixture::{Groups, run_ok, wait};
use crate::node_agent::{NodeAgent, TARGET};

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("device_link_to_another_volume_is_refused_and_not_written", a_link_to_another_volume),
    ("device_missing_in_the_container_names_the_dev_mount", own_devices),
];

/// First argument of the part that runs in a mount namespace of its own.
pub(crate) const ROLE: &str = "agent-without-dev";
/// Script for it: as in a container with its own /dev, the links of the volume group are absent there, and what is
/// mounted for kubelet reaches the node.
const WITHOUT_DEV: &str = "
    mount --make-rprivate /
    mount -t tmpfs dev /dev/myvg1
    mkdir -p /run/target
    mount --bind /run/target /run/target
    mount --make-shared /run/target
    exec \"$@\"";

fn own_devices() {
    let _groups = Groups::one();
    run_ok("lvcreate", &["-qy", "-L64m", "-n", "v1", "myvg1"]);
    let program = std::env::current_exe().unwrap();
    run_ok("unshare", &["-m", "sh", "-euc", WITHOUT_DEV, "sh", program.to_str().unwrap(), ROLE, "/run"]);
    wait(async {
        let agent = NodeAgent::start("64Mi").await;
        agent.publish(AccessType::Mount(MountVolume::default())).await.unwrap();
        agent.unpublish().await.unwrap();
        agent.stop().await;
    });
}

/// Publishes the volume, whose device is on the node and not here.
pub(crate) fn work() -> ExitCode {
    wait(async {
        let agent = NodeAgent::start("64Mi").await;
        for access_type in [AccessType::Mount(MountVolume::default()), AccessType::Block(BlockVolume {})] {
            let status = agent.publish(access_type).await.unwrap_err();
            assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
            assert!(status.message().contains("a hostPath volume /dev"), "{status}");
        }
        agent.stop().await;
    });
    ExitCode::SUCCESS
}

fn a_link_to_another_volume() {
    let _groups = Groups::one();
    run_ok("lvcreate", &["-qy", "-L64m", "-n", "v1", "myvg1"]);
    run_ok("lvcreate", &["-qy", "-L64m", "-n", "other", "myvg1"]);
    // Data without a known signature, which would be formatted on the right volume
    run_ok("dd", &["if=/dev/urandom", "of=/dev/myvg1/other", "bs=1M", "count=64", "oflag=direct"]);
    let sum = || run_ok("sha256sum", &["/dev/mapper/myvg1-other"]);
    let before = sum();
    wait(async {
        let agent = NodeAgent::start("64Mi").await;
        std::fs::remove_file("/dev/myvg1/v1").unwrap();
        std::os::unix::fs::symlink("/dev/mapper/myvg1-other", "/dev/myvg1/v1").unwrap();
        for access_type in [AccessType::Mount(MountVolume::default()), AccessType::Block(BlockVolume {})] {
            let status = agent.publish(access_type).await.unwrap_err();
            assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
            assert!(status.message().contains("vgmknodes"), "{status}");
        }
        assert_eq!(sum(), before);
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!mounts.contains("/run/target"), "{mounts}");

        // The command of the message
        std::fs::remove_file("/dev/myvg1/v1").unwrap();
        run_ok("vgmknodes", &["-qq", "myvg1"]);
        agent.publish(AccessType::Mount(MountVolume::default())).await.unwrap();
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(mounts.lines().any(|line| line.contains(TARGET) && line.contains(" /dev/myvg1/v1 ")), "{mounts}");
        agent.unpublish().await.unwrap();
        // Nothing holds the device any more
        run_ok("lvremove", &["-qqy", "myvg1/v1"]);
        assert_eq!(sum(), before);
        agent.stop().await;
    });
}
