//! I/O limits with cgroup v1: the agent's interface to the kernel, on a real hierarchy of the controller blkio, where
//! the limits apply to each container separately.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use linux_mount::{DeviceNumber, Mounter as _, PodLimits, SystemMounter};
use rustix::fs::{major, minor};
use system_tests::io_rate;
use topolvm_api::{IoLimit, IoLimits};

use crate::fixture::{Groups, MIB, run, run_ok, wait};

pub(crate) const TESTS: &[(&str, fn())] =
    &[("cgroup_v1_io_limits_apply_to_each_container", each_container_has_the_limits)];

const HIERARCHY: &str = "/run/blkio";
const POD: &str = "0a1b2c3d-1111-2222-3333-444455556666";

/// The hierarchy of blkio. The guest also has a cgroup v2 hierarchy, from which the controller is removed.
struct Blkio;

impl Blkio {
    fn mount() -> Self {
        fs::create_dir_all(HIERARCHY).unwrap();
        run_ok("mount", &["-t", "cgroup", "-o", "blkio", "blkio", HIERARCHY]);
        Self
    }
}

impl Drop for Blkio {
    fn drop(&mut self) {
        drop(run("find", &[HIERARCHY, "-mindepth", "1", "-depth", "-type", "d", "-exec", "rmdir", "{}", ";"]));
        drop(run("umount", &[HIERARCHY]));
    }
}

/// A container that writes to a volume with direct I/O until it is dropped.
struct Container {
    process: Child,
    cgroup: PathBuf,
}

impl Container {
    fn start(pod: &Path, name: &str, device: &str) -> Self {
        let cgroup = pod.join(name);
        fs::create_dir_all(&cgroup).unwrap();
        let script = "echo $$ >$1/cgroup.procs; exec dd if=/dev/zero of=$2 bs=64k oflag=direct";
        let mut command = Command::new("sh");
        command.args(["-euc", script, "sh"]).arg(&cgroup).arg(device).stderr(Stdio::null());
        Self { process: command.spawn().unwrap(), cgroup }
    }

    /// Returns the bytes that it has written.
    fn written(&self) -> u64 {
        let counts = fs::read_to_string(self.cgroup.join("blkio.throttle.io_service_bytes")).unwrap();
        let words = counts.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        words.filter(|words| words.get(1) == Some(&"Write")).map(|words| words[2].parse::<u64>().unwrap()).sum()
    }

    /// Measures the bytes that it writes in a second, from the first second for four more.
    fn rate(&self, expected: u64) -> u64 {
        let wait_for = |bytes: u64| {
            let begun = Instant::now();
            while self.written() < bytes {
                assert!(begun.elapsed() < Duration::from_mins(1), "{} bytes are written", self.written());
                sleep(Duration::from_millis(20));
            }
            (self.written(), Instant::now())
        };
        let (first, begun) = wait_for(self.written() + expected);
        let (last, ended) = wait_for(first + 4 * expected);
        (last - first) * 1000 / u64::try_from((ended - begun).as_millis()).unwrap()
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        fs::remove_dir(&self.cgroup).unwrap();
    }
}

fn each_container_has_the_limits() {
    let _groups = Groups::one();
    run_ok("lvcreate", &["-qy", "-L512m", "-n", "v1", "myvg1"]);
    let (_blkio, volume) = (Blkio::mount(), "/dev/myvg1/v1");
    let pod = Path::new(HIERARCHY).join("kubepods/burstable").join(format!("pod{POD}"));
    let number = fs::metadata(volume).unwrap().rdev();
    let device = DeviceNumber { major: major(number), minor: minor(number) };
    let limits = IoLimits::default().with(IoLimit::WriteBytes, Some(MIB));
    let agent = SystemMounter::new();
    let expected = vec![PodLimits { pod: POD.to_owned(), device, limits: limits.clone() }];
    let check_rate = |container: &Container| {
        let rate = io_rate::check_rate(MIB, || io_rate::number(container.rate(MIB))).unwrap();
        println!("{rate} bytes/s with a limit of {MIB}");
    };
    wait(async {
        let first = Container::start(&pod, "c1", volume);
        let in_force = agent.limit_io(POD, device, &limits).await.unwrap();
        assert!(in_force.limits == limits && in_force.exception.unwrap().contains("version 1"));
        check_rate(&first);
        assert_eq!(agent.find_lost_limits(expected.clone()).await.unwrap(), []);

        let second = Container::start(&pod, "c2", volume);
        assert_eq!(agent.find_lost_limits(expected.clone()).await.unwrap(), expected);
        agent.limit_io(POD, device, &limits).await.unwrap();
        check_rate(&second);
        check_rate(&first);

        agent.limit_io(POD, device, &IoLimits::default()).await.unwrap();
        let free = second.rate(8 * MIB);
        assert!(free > 8 * MIB, "{free} bytes/s without a limit");
    });
}
