//! The node agent with a link in /dev that leads to another volume.

use tonic::Code;
use topolvm_proto::csi::volume_capability::{AccessType, BlockVolume, MountVolume};

use crate::fixture::{Groups, run_ok, wait};
use crate::node_agent::{NodeAgent, TARGET};

pub(crate) const TESTS: &[(&str, fn())] =
    &[("device_link_to_another_volume_is_refused_and_not_written", a_link_to_another_volume)];

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
