//! Layouts of cgroups as kubelet, container runtimes and distributions make them, in a temporary directory, with files
//! that take commands as the kernel does.

use std::collections::BTreeMap;
use std::fs;

use rstest::rstest;
use tempfile::TempDir;
use topolvm_api::IoLimit;

use super::*;

const UID: &str = "0a1b2c3d-1111-2222-3333-444455556666";
const OTHER: &str = "ffffffff-1111-2222-3333-444455556666";
const DEVICE: DeviceNumber = DeviceNumber { major: 253, minor: 7 };
const NEIGHBOUR: DeviceNumber = DeviceNumber { major: 253, minor: 70 };

const UNIFIED: &str = "30 25 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";
const BLKIO: &str = "31 25 0:27 / /sys/fs/cgroup/blkio rw,nosuid - cgroup cgroup rw,blkio\n";
const HYBRID: &str = "30 25 0:26 / /sys/fs/cgroup/unified rw,nosuid - cgroup2 cgroup2 rw\n\
                      32 25 0:28 / /sys/fs/cgroup/memory rw,nosuid - cgroup cgroup rw,memory\n";

const BLKIO_FILES: [&str; 4] = [
    "blkio.throttle.read_bps_device",
    "blkio.throttle.write_bps_device",
    "blkio.throttle.read_iops_device",
    "blkio.throttle.write_iops_device",
];

/// Takes commands as the kernel does.
#[derive(Debug, Default)]
struct FakeKernel {
    /// Refuses to enable controllers.
    refuses: bool,
    /// Takes limits and does not set them.
    forgets: bool,
    writes: Mutex<Vec<String>>,
    /// Names of the files that were read.
    reads: Mutex<Vec<String>>,
}

impl CgroupFiles for FakeKernel {
    fn read(&self, path: &Path) -> io::Result<String> {
        self.reads.lock().push(path.file_name().unwrap().to_str().unwrap().to_owned());
        fs::read_to_string(path)
    }

    fn write(&self, path: &Path, line: &str) -> io::Result<()> {
        let name = path.file_name().unwrap().to_str().unwrap();
        self.writes.lock().push(format!("{name}: {line}"));
        let before = fs::read_to_string(path)?;
        if name == "cgroup.subtree_control" {
            assert_eq!(line, "+io");
            if self.refuses {
                return Err(io::ErrorKind::PermissionDenied.into());
            }
            fs::write(path, format!("{} io", before.trim()))?;
            for child in fs::read_dir(path.parent().unwrap())?.flatten().filter(|child| child.path().is_dir()) {
                fs::write(child.path().join("io.max"), "")?;
            }
            return Ok(());
        }
        let (device, keys) = line.split_once(' ').unwrap();
        let mut lines: BTreeMap<&str, &str> = before.lines().filter_map(|line| line.split_once(' ')).collect();
        if keys == "0" || keys.split(' ').all(|key| key.ends_with("=max")) {
            lines.remove(device);
        } else {
            lines.insert(device, keys);
        }
        if !self.forgets {
            fs::write(
                path,
                lines.iter().map(|(device, keys)| format!("{device} {keys}\n")).collect::<Vec<_>>().concat(),
            )?;
        }
        Ok(())
    }
}

/// A machine with cgroups.
struct Machine {
    directory: TempDir,
    kernel: Arc<FakeKernel>,
    cgroups: Cgroups,
}

impl Machine {
    fn new(mounts: &str, kernel: FakeKernel) -> Self {
        let directory = TempDir::new().unwrap();
        let kernel = Arc::new(kernel);
        fs::write(directory.path().join("mountinfo"), mounts).unwrap();
        let files: Arc<dyn CgroupFiles> = kernel.clone();
        let cgroups = Cgroups::new(directory.path().to_owned(), files);
        Self { directory, kernel, cgroups }
    }

    /// Makes a machine with version 2, and the cgroup at this path below its root.
    fn unified(path: &str) -> Self {
        let machine = Self::new(UNIFIED, FakeKernel::default());
        machine.make("sys/fs/cgroup", path, "cpu io memory", true);
        machine
    }

    fn path(&self, path: &str) -> PathBuf {
        self.directory.path().join("root").join(path)
    }

    /// Makes a cgroup of version 2 and those above it. Their controllers are enabled, or only those of the root.
    fn make(&self, root: &str, path: &str, controllers: &str, is_enabled: bool) {
        let root = self.path(root);
        fs::create_dir_all(root.join(path)).unwrap();
        let below = root.join(path);
        for directory in below.ancestors().take_while(|directory| directory.starts_with(&root)) {
            fs::write(directory.join("cgroup.controllers"), controllers).unwrap();
            fs::write(directory.join("cgroup.subtree_control"), if is_enabled { controllers } else { "cpu" }).unwrap();
            fs::write(directory.join("cgroup.events"), "populated 1\nfrozen 0\n").unwrap();
            if is_enabled && controllers.contains("io") && directory != root {
                fs::write(directory.join("io.max"), "").unwrap();
            }
        }
    }

    /// Makes a cgroup of version 1 with the files of blkio.
    fn make_blkio(&self, path: &str) {
        let directory = self.path("sys/fs/cgroup/blkio").join(path);
        fs::create_dir_all(&directory).unwrap();
        for file in BLKIO_FILES {
            fs::write(directory.join(file), "").unwrap();
        }
    }

    fn read(&self, path: &str) -> String {
        fs::read_to_string(self.path("sys/fs/cgroup").join(path)).unwrap()
    }

    fn limit(&self, requested: &IoLimits) -> Result<LimitsInForce, LimitError> {
        self.cgroups.limit(UID, DEVICE, requested)
    }
}

fn limits() -> IoLimits {
    IoLimits::default().with(IoLimit::WriteBytes, Some(10 << 20)).with(IoLimit::ReadOperations, Some(500))
}

fn as_asked(limits: IoLimits) -> LimitsInForce {
    LimitsInForce { limits, exception: None }
}

#[rstest]
#[case::systemd(
    "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod0a1b2c3d_1111_2222_3333_444455556666.slice"
)]
#[case::systemd_guaranteed("kubepods.slice/kubepods-pod0a1b2c3d_1111_2222_3333_444455556666.slice")]
#[case::systemd_custom_root(
    "a.slice/a-b.slice/a-b-kubepods.slice/a-b-kubepods-besteffort.slice/\
     a-b-kubepods-besteffort-pod0a1b2c3d_1111_2222_3333_444455556666.slice"
)]
#[case::cgroupfs("kubepods/besteffort/pod0a1b2c3d-1111-2222-3333-444455556666")]
#[case::cgroupfs_guaranteed("kubepods/pod0a1b2c3d-1111-2222-3333-444455556666")]
#[case::cgroupfs_custom_root("machine/k8s/kubepods/burstable/pod0a1b2c3d-1111-2222-3333-444455556666")]
#[case::kind(
    "kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/\
     kubelet-kubepods-burstable-pod0a1b2c3d_1111_2222_3333_444455556666.slice"
)]
#[case::kind_seen_from_its_machine(
    "system.slice/docker-5b.scope/kubelet.slice/kubelet-kubepods.slice/\
     kubelet-kubepods-pod0a1b2c3d_1111_2222_3333_444455556666.slice"
)]
fn the_cgroup_of_a_pod_is_found_by_its_uid_in_any_layout(#[case] path: &str) {
    let machine = Machine::unified(path);
    machine.make("sys/fs/cgroup", "kubepods/besteffort/pod0a1b2c3d-1111-2222-3333-44445555666", "io", true);
    machine.make("sys/fs/cgroup", &format!("kubepods/burstable/pod{OTHER}"), "io", true);
    assert_eq!(machine.limit(&limits()).unwrap(), as_asked(limits()));
    let line = "253:7 rbps=max wbps=10485760 riops=500 wiops=max\n";
    assert_eq!(machine.read(&format!("{path}/io.max")), line);
    assert_eq!(machine.read(&format!("kubepods/burstable/pod{OTHER}/io.max")), "");
    assert_eq!(machine.kernel.writes.lock().len(), 1);
}

#[test]
fn io_limits_of_one_device_change_and_those_of_others_stay() {
    let path = format!("kubepods/burstable/pod{UID}");
    let machine = Machine::unified(&path);
    machine.cgroups.limit(UID, NEIGHBOUR, &limits()).unwrap();
    let other = "253:70 rbps=max wbps=10485760 riops=500 wiops=max\n";
    for (requested, line) in [
        (limits(), "253:7 rbps=max wbps=10485760 riops=500 wiops=max\n"),
        (limits().with(IoLimit::ReadOperations, None), "253:7 rbps=max wbps=10485760 riops=max wiops=max\n"),
        (limits().with(IoLimit::WriteBytes, Some(1)), "253:7 rbps=max wbps=1 riops=500 wiops=max\n"),
        (IoLimits::default(), ""),
    ] {
        for _ in 0..2 {
            assert_eq!(machine.limit(&requested).unwrap(), as_asked(requested.clone()));
            let lines = machine.read(&format!("{path}/io.max"));
            assert_eq!(lines.replace(other, ""), line);
            assert!(lines.contains(other));
        }
    }
    // What is in force already is not written again
    assert_eq!(machine.kernel.writes.lock().len(), 5);
}

#[test]
fn a_pod_that_is_elsewhere_by_now_is_found_there() {
    let machine = Machine::unified(&format!("kubepods/pod{UID}"));
    machine.limit(&limits()).unwrap();
    // As after a restart of kubelet with another driver: what is left behind is empty
    fs::write(machine.path(&format!("sys/fs/cgroup/kubepods/pod{UID}/cgroup.events")), "populated 0\n").unwrap();
    let slice = format!("kubepods.slice/kubepods-pod{}.slice", UID.replace('-', "_"));
    machine.make("sys/fs/cgroup", &slice, "io memory", true);
    machine.limit(&limits()).unwrap();
    assert!(machine.read(&format!("{slice}/io.max")).contains("wbps=10485760"));
    fs::remove_dir_all(machine.path("sys/fs/cgroup/kubepods")).unwrap();
    assert_eq!(machine.limit(&IoLimits::default()).unwrap(), LimitsInForce::default());
    assert_eq!(machine.read(&format!("{slice}/io.max")), "");
}

#[test]
fn io_controller_is_enabled_down_to_the_pod_if_limits_are_set() {
    let path = format!("kubepods/burstable/pod{UID}");
    let machine = Machine::new(UNIFIED, FakeKernel::default());
    machine.make("sys/fs/cgroup", &path, "cpu io memory", false);
    assert_eq!(machine.limit(&IoLimits::default()).unwrap(), LimitsInForce::default());
    assert!(machine.kernel.writes.lock().is_empty());
    assert_eq!(machine.limit(&limits()).unwrap(), as_asked(limits()));
    let writes = machine.kernel.writes.lock().clone();
    assert_eq!(writes.iter().filter(|write| *write == "cgroup.subtree_control: +io").count(), 3, "{writes:?}");
    assert!(machine.read(&format!("{path}/io.max")).starts_with("253:7 "));
}

#[test]
fn lost_io_limits_are_found_unless_the_pod_is_gone() {
    let path = format!("kubepods/pod{UID}");
    let machine = Machine::unified(&path);
    let expected = vec![PodLimits { pod: UID.to_owned(), device: DEVICE, limits: limits() }];
    let lost = || machine.cgroups.find_lost(expected.clone()).unwrap();
    machine.limit(&limits()).unwrap();
    assert_eq!(lost(), []);
    let file = machine.path(&format!("sys/fs/cgroup/{path}/io.max"));
    fs::write(&file, "253:7 rbps=max wbps=1 riops=500 wiops=max\n").unwrap();
    assert_eq!(lost(), expected);
    fs::remove_file(&file).unwrap();
    assert_eq!(lost(), expected);
    fs::remove_dir_all(file.parent().unwrap()).unwrap();
    assert_eq!(lost(), []);
}

#[test]
fn check_of_io_limits_in_force_reads_one_file_of_each_pod() {
    let path = format!("kubepods/pod{UID}");
    let machine = Machine::unified(&path);
    machine.make("sys/fs/cgroup", &format!("kubepods/pod{OTHER}"), "io memory", true);
    let expected: Vec<_> =
        [UID, OTHER].map(|pod| PodLimits { pod: pod.to_owned(), device: DEVICE, limits: limits() }).into();
    for PodLimits { pod, device, limits } in &expected {
        machine.cgroups.limit(pod, *device, limits).unwrap();
    }
    let reads = |machine: &Machine| {
        machine.kernel.reads.lock().clear();
        assert_eq!(machine.cgroups.find_lost(expected.clone()).unwrap(), []);
        machine.kernel.reads.lock().clone()
    };
    assert!(reads(&machine).iter().any(|name| name == "mountinfo"));
    assert_eq!(reads(&machine), ["io.max", "io.max"]);
    // A limit that is lost is found at the next check
    fs::write(machine.path(&format!("sys/fs/cgroup/{path}/io.max")), "").unwrap();
    assert_eq!(machine.cgroups.find_lost(expected.clone()).unwrap(), expected[..1]);
}

#[test]
fn lost_io_limits_of_a_moved_pod_are_found_within_15_checks() {
    let machine = Machine::unified(&format!("kubepods/pod{UID}"));
    machine.limit(&limits()).unwrap();
    let expected = vec![PodLimits { pod: UID.to_owned(), device: DEVICE, limits: limits() }];
    let lost = || machine.cgroups.find_lost(expected.clone()).unwrap();
    assert_eq!(lost(), []);
    fs::write(machine.path(&format!("sys/fs/cgroup/kubepods/pod{UID}/cgroup.events")), "populated 0\n").unwrap();
    let slice = format!("kubepods.slice/kubepods-pod{}.slice", UID.replace('-', "_"));
    machine.make("sys/fs/cgroup", &slice, "io memory", true);
    assert!((0..known_directories::CHECKS_UNTIL_SEARCH).any(|_| lost() == expected));
    machine.limit(&limits()).unwrap();
    assert_eq!(lost(), []);
}

#[test]
fn cgroup_v1_container_that_starts_lacks_limits_until_reapplied() {
    let machine = Machine::new(BLKIO, FakeKernel::default());
    let pod = format!("kubepods/pod{UID}");
    machine.make_blkio(&pod);
    let expected = vec![PodLimits { pod: UID.to_owned(), device: DEVICE, limits: limits() }];
    let lost = || machine.cgroups.find_lost(expected.clone()).unwrap();
    machine.limit(&limits()).unwrap();
    assert_eq!(lost(), []);
    machine.make_blkio(&format!("{pod}/c1"));
    assert_eq!(lost(), expected);
    machine.limit(&limits()).unwrap();
    assert_eq!(lost(), []);
}

#[test]
fn io_controller_enablement_error_names_the_file() {
    let machine = Machine::new(UNIFIED, FakeKernel { refuses: true, ..FakeKernel::default() });
    machine.make("sys/fs/cgroup", &format!("kubepods/pod{UID}"), "cpu io memory", false);
    let error = machine.limit(&limits()).unwrap_err();
    assert!(matches!(error, LimitError::NotEnabled { .. }), "{error:?}");
    assert!(error.to_string().contains("/sys/fs/cgroup/cgroup.subtree_control"), "{error}");
}

#[test]
fn what_the_kernel_does_not_show_is_not_in_force() {
    let machine = Machine::new(UNIFIED, FakeKernel { forgets: true, ..FakeKernel::default() });
    machine.make("sys/fs/cgroup", &format!("kubepods/pod{UID}"), "io memory", true);
    let error = machine.limit(&limits()).unwrap_err();
    assert!(matches!(error, LimitError::NotInForce(_)), "{error:?}");
}

#[test]
fn write_limits_have_page_cache_exception_without_memory_cgroup() {
    let machine = Machine::new(UNIFIED, FakeKernel::default());
    machine.make("sys/fs/cgroup", &format!("kubepods/pod{UID}"), "cpu io", true);
    let in_force = machine.limit(&limits()).unwrap();
    assert_eq!(in_force.limits, limits());
    assert!(in_force.exception.unwrap().contains("page cache"));
    let reads = IoLimits::default().with(IoLimit::ReadBytes, Some(1));
    assert_eq!(machine.limit(&reads).unwrap(), as_asked(reads));
}

#[rstest]
#[case::version_1(BLKIO.to_owned())]
#[case::hybrid(format!("{HYBRID}{BLKIO}"))]
fn in_version_1_each_container_gets_the_limits(#[case] mounts: String) {
    let machine = Machine::new(&mounts, FakeKernel::default());
    machine.make("sys/fs/cgroup/unified", "", "", true);
    let pod = format!("kubepods/burstable/pod{UID}");
    for path in ["kubepods", &pod, &format!("{pod}/c1"), &format!("kubepods/burstable/pod{OTHER}")] {
        machine.make_blkio(path);
    }
    let in_force = machine.limit(&limits()).unwrap();
    assert_eq!(in_force.limits, limits());
    assert!(in_force.exception.unwrap().contains("version 1"));
    let shown = |path: &str| BLKIO_FILES.map(|file| machine.read(&format!("blkio/{path}/{file}")));
    let expected = ["", "253:7 10485760\n", "253:7 500\n", ""].map(str::to_owned);
    assert_eq!((shown(&pod), shown(&format!("{pod}/c1"))), (expected.clone(), expected.clone()));
    for path in ["kubepods", &format!("kubepods/burstable/pod{OTHER}")] {
        assert_eq!(shown(path), [const { String::new() }; 4]);
    }
    // A container that starts later
    machine.make_blkio(&format!("{pod}/c2"));
    machine.limit(&limits()).unwrap();
    assert_eq!(shown(&format!("{pod}/c2")), expected);
    assert_eq!(machine.limit(&IoLimits::default()).unwrap(), LimitsInForce::default());
    for path in [&pod, &format!("{pod}/c1"), &format!("{pod}/c2")] {
        assert_eq!(shown(path), [const { String::new() }; 4]);
    }
}

#[test]
fn a_pod_without_a_cgroup_cannot_be_limited_and_has_no_limits() {
    let machine = Machine::unified(&format!("kubepods/pod{OTHER}"));
    assert!(matches!(machine.limit(&limits()), Err(LimitError::NoPod(uid)) if uid == UID));
    assert!(matches!(machine.cgroups.limit("", DEVICE, &limits()), Err(LimitError::NoPod(_))));
    assert_eq!(machine.limit(&IoLimits::default()).unwrap(), LimitsInForce::default());
}

#[rstest]
#[case::nothing("")]
#[case::no_io(UNIFIED)]
#[case::other_controllers(HYBRID)]
fn a_machine_without_the_controller_says_so(#[case] mounts: &str) {
    let machine = Machine::new(mounts, FakeKernel::default());
    machine.make("sys/fs/cgroup", &format!("kubepods/pod{UID}"), "cpu memory", true);
    assert!(matches!(machine.limit(&limits()), Err(LimitError::NoController)));
    assert_eq!(machine.limit(&IoLimits::default()).unwrap(), LimitsInForce::default());
}
