//! I/O limits in the cgroups that a real systemd creates for a pod: the slices that kubelet requests with the cgroup
//! driver systemd, and the scopes that runc requests for containers. The agent is the real one, with a fake API server.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::fs::{major, minor};
use serde_json::json;
use system_tests::fake_api_server::{serve, write_kubeconfig};
use system_tests::io_rate;
use testbed::topolvm::{NODE, TopolvmSpec};
use tokio::runtime::{self, Runtime};
use topolvm_proto::csi::node_client::NodeClient;
use topolvm_proto::csi::volume_capability::access_mode::Mode;
use topolvm_proto::csi::volume_capability::{AccessMode, AccessType, MountVolume};
use topolvm_proto::csi::{NodePublishVolumeRequest, NodeUnpublishVolumeRequest, VolumeCapability};
use topolvm_runtime::CancellationToken;
use topolvm_testkit::ApiServer;
use topolvm_testkit::fixtures::logical_volume;

use crate::node::{Node, SOCKET, THICK, call_at, run, run_ok, wait_until};

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("io_limits_survive_systemd_reloads_and_agent_restarts", survive),
    ("io_limits_removed_by_systemd_are_restored_within_seconds", restore_limits),
];

const MIB: u64 = 1 << 20;
/// Time in which a change is to be in force.
const IN_FORCE: Duration = Duration::from_secs(5);
const WRITE_BYTES: &str = "topolvm.io/write-bytes-per-second";
const LV: &str = "logicalvolumes.topolvm.io";
const VOLUME: &str = "pvc-1";
/// UID of the LogicalVolume, which is the name of its LV.
const VOLUME_UID: &str = "aaaaaaaa-1111-2222-3333-444455556666";
const POD_UID: &str = "0a1b2c3d-1111-2222-3333-444455556666";
/// Slices of a burstable pod, as kubelet names them, from the topmost one.
const SLICES: [&str; 3] =
    ["kubepods.slice", "kubepods-burstable.slice", "kubepods-burstable-pod0a1b2c3d_1111_2222_3333_444455556666.slice"];
/// Settings of the slices and scopes that runc's library requests from systemd.
const ACCOUNTING: [&str; 4] = ["CPUAccounting=yes", "MemoryAccounting=yes", "IOAccounting=yes", "TasksAccounting=yes"];
const KUBELET: &str = "/run/kubelet";
const CSI_SOCKET: &str = "/run/kubelet/plugins/topolvm.io/node/csi-topolvm.sock";
const AGENT: &str = "topolvm-node.service";

/// The node with lvmd as a service, an API server with a volume and its pod, the agent as a service, and the slices of
/// the pod.
struct Setup {
    api: ApiServer,
    target: PathBuf,
    shutdown: CancellationToken,
    _runtime: Runtime,
    _node: Node,
}

impl Setup {
    /// Starts it with a limit of bytes written, and publishes the volume to the pod. The slices of the pod have these
    /// settings.
    fn start(limit: &str, settings: &[&str]) -> Self {
        let node = Node::new(THICK);
        let runtime = runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (api, shutdown) = (ApiServer::new(), CancellationToken::new());
        let address = serve(&runtime, &api, &shutdown).unwrap();
        let volume = logical_volume(VOLUME).uid(VOLUME_UID).class("thick").sized("64Mi").annotation(WRITE_BYTES, limit);
        api.apply_json(volume.build());
        api.apply_json(json!({
            "apiVersion": "v1", "kind": "Pod", "spec": {"nodeName": "n1"},
            "metadata": {"name": "web-0", "namespace": "default", "uid": POD_UID},
        }));
        let target = Path::new(KUBELET).join(format!("pods/{POD_UID}/volumes/kubernetes.io~csi/{VOLUME}/mount"));
        fs::create_dir_all(target.parent().unwrap()).unwrap();
        fs::create_dir_all(Path::new(CSI_SOCKET).parent().unwrap()).unwrap();
        let setup = Self { api, target, shutdown, _runtime: runtime, _node: node };
        start_agent(&address);
        for slice in SLICES {
            run_ok("systemctl", &["start", slice]);
            if !settings.is_empty() {
                run_ok("systemctl", &[&["set-property", "--runtime", slice], settings].concat());
            }
        }
        wait_until("the volume is made", || {
            let volume = setup.api.get_json(LV, "", VOLUME).unwrap();
            volume.pointer("/status/volumeID").is_some_and(|id| id == VOLUME_UID)
        });
        let publish = NodePublishVolumeRequest {
            volume_id: VOLUME_UID.to_owned(),
            target_path: setup.target.display().to_string(),
            volume_capability: Some(VolumeCapability {
                access_type: Some(AccessType::Mount(MountVolume::default())),
                access_mode: Some(AccessMode { mode: Mode::SingleNodeWriter.into() }),
            }),
            volume_context: [("pod.name", "web-0"), ("pod.namespace", "default"), ("pod.uid", POD_UID)]
                .map(|(key, value)| (format!("csi.storage.k8s.io/{key}"), value.to_owned()))
                .into(),
            ..NodePublishVolumeRequest::default()
        };
        call_at(CSI_SOCKET, |agent| async { NodeClient::new(agent).node_publish_volume(publish).await }).unwrap();
        setup
    }

    /// Sets or removes the limit that the volume requests.
    fn request_limit(&self, limit: Option<&str>) {
        let annotations = limit.map_or_else(|| json!({}), |limit| json!({WRITE_BYTES: limit}));
        self.api.edit(LV, "", VOLUME, |volume| {
            volume
                .pointer_mut("/metadata")
                .unwrap()
                .as_object_mut()
                .unwrap()
                .insert("annotations".to_owned(), annotations);
        });
    }

    /// Starts a container that writes past the page cache for as long as it runs.
    fn start_writer(&self, name: &str, settings: &[&str]) {
        let file = self.target.join(name);
        let write = format!("dd if=/dev/zero of={} bs=64k count=64 oflag=direct conv=notrunc", file.display());
        start_container(name, settings, &format!("while :; do {write}; done"));
    }
}

impl Drop for Setup {
    fn drop(&mut self) {
        // Leftovers of a failed test must not affect the next one
        drop(run("systemctl", &["stop", SLICES[0]]));
        let request = NodeUnpublishVolumeRequest {
            volume_id: VOLUME_UID.to_owned(),
            target_path: self.target.display().to_string(),
        };
        let unpublish = |agent| async { NodeClient::new(agent).node_unpublish_volume(request).await };
        if call_at(CSI_SOCKET, unpublish).is_err() {
            eprintln!("{}", log_of_agent());
        }
        drop(run("systemctl", &["stop", AGENT]));
        for slice in SLICES {
            drop(run("systemctl", &["revert", slice]));
        }
        drop(run("umount", &["--quiet", &self.target.to_string_lossy()]));
        self.shutdown.cancel();
        drop(fs::remove_dir_all(KUBELET));
    }
}

/// Starts the agent as a service, which is started again whenever it ends.
fn start_agent(api_server: &str) {
    let kubeconfig = Path::new(KUBELET).join("kubeconfig");
    write_kubeconfig(&kubeconfig, api_server).unwrap();
    let program = TopolvmSpec::nodes(0).unwrap().programs.join(NODE);
    let flags = ["--nodename=n1", "--embed=none", "--metrics-bind-address="].map(str::to_owned);
    let paths = [("lvmd-socket", SOCKET), ("csi-socket", CSI_SOCKET), ("kubelet-dir", KUBELET)];
    let paths = paths.map(|(flag, path)| format!("--{flag}={path}"));
    let service = ["--quiet", "--collect", "--unit", AGENT, "--property=Restart=always"].map(str::to_owned);
    let environment = format!("--setenv=KUBECONFIG={}", kubeconfig.display());
    let words = service.into_iter().chain([environment, program.display().to_string()]).chain(flags).chain(paths);
    let words: Vec<String> = words.collect();
    run_ok("systemd-run", &words.iter().map(String::as_str).collect::<Vec<_>>());
    wait_until("the agent serves", || Path::new(CSI_SOCKET).exists());
}

fn log_of_agent() -> String {
    let log = run("journalctl", &["--no-pager", "--output=cat", "--lines=40", "--unit", AGENT]);
    String::from_utf8_lossy(&log.stdout).into_owned()
}

/// Starts a container in the slice of the pod, as runc does for containerd: systemd creates a scope for it.
fn start_container(name: &str, settings: &[&str], command: &str) {
    let settings = settings.iter().map(|setting| format!(" -p {setting}")).collect::<Vec<_>>().concat();
    let scope = format!("cri-containerd-{name}.scope");
    let start = format!("systemd-run --quiet --scope --collect --slice={} --unit={scope}{settings}", SLICES[2]);
    run_ok("sh", &["-c", &format!("exec >/dev/null 2>&1 </dev/null; {start} sh -c '{command}' &")]);
    wait_until("the container runs", || run("systemctl", &["is-active", "--quiet", &scope]).status.success());
}

/// Returns the file with the limits of the pod.
fn io_max() -> PathBuf {
    SLICES.iter().fold(PathBuf::from("/sys/fs/cgroup"), |path, slice| path.join(slice)).join("io.max")
}

/// Returns major and minor number of the volume.
fn device() -> String {
    let number = fs::metadata(Path::new("/dev/myvg1").join(VOLUME_UID)).unwrap().rdev();
    format!("{}:{}", major(number), minor(number))
}

/// Returns the limits of the pod on the volume, as the kernel shows them; nothing where it has none.
fn in_force() -> String {
    let (limits, device) = (fs::read_to_string(io_max()).unwrap_or_default(), device());
    limits.lines().find_map(|line| line.strip_prefix(&format!("{device} "))).unwrap_or_default().to_owned()
}

fn written_at_most(bytes: u64) -> String {
    format!("rbps=max wbps={bytes} riops=max wiops=max")
}

/// Waits until the kernel shows these limits, within the time in which they must be enforced. Returns the inode number
/// of their file: the kernel creates another one when the controller is disabled and enabled again.
fn wait_in_force(limits: &str) -> u64 {
    let begun = Instant::now();
    while in_force() != limits {
        assert!(begun.elapsed() < IN_FORCE, "{:?} is in force, and not {limits:?}\n{}", in_force(), log_of_agent());
        sleep(Duration::from_millis(20));
    }
    eprintln!("in force after {} ms: {limits:?}", begun.elapsed().as_millis());
    fs::metadata(io_max()).map_or(0, |file| file.ino())
}

/// Returns the bytes that the pod has written to the volume, by the kernel's count. The writes of ext4, such as its
/// tables after mkfs, are only in the count of the device.
fn written() -> u64 {
    let (counts, device) = (fs::read_to_string(io_max().with_file_name("io.stat")).unwrap_or_default(), device());
    let line = counts.lines().find(|line| line.split(' ').next() == Some(&device)).unwrap_or_default();
    line.split(' ').find_map(|pair| pair.strip_prefix("wbytes=")).map_or(0, |bytes| bytes.parse().unwrap())
}

/// Measures the bytes written per second, after the allowance of one second is used up, over five seconds.
fn rate(expected: u64) -> u64 {
    let wait_for = |bytes: u64| {
        wait_until("enough is written", || written() >= bytes);
        (written(), Instant::now())
    };
    let (first, begun) = wait_for(written() + expected);
    let (last, ended) = wait_for(first + 5 * expected);
    (last - first) * 1000 / u64::try_from((ended - begun).as_millis()).unwrap()
}

fn check_rate(limit: u64) {
    let rate = io_rate::check_rate(limit, || io_rate::number(rate(limit))).unwrap();
    eprintln!("{rate} bytes/s with a limit of {limit}");
}

fn survive() {
    let setup = Setup::start("2Mi", &ACCOUNTING);
    let limits = written_at_most(2 * MIB);
    let file = wait_in_force(&limits);
    let of_runc = [&ACCOUNTING[..], &["Delegate=yes"]].concat();
    setup.start_writer("a", &of_runc);
    check_rate(2 * MIB);
    let disturb: [(&str, &[&str]); 4] = [
        ("a reload", &["daemon-reload"]),
        ("another systemd", &["daemon-reexec"]),
        // As kubelet does with the requests of its pods
        ("other shares of the CPU", &["set-property", "--runtime", SLICES[2], "CPUWeight=50"]),
        ("the end of a container", &["stop", "cri-containerd-b.scope"]),
    ];
    start_container("b", &of_runc, "sleep 1000");
    for (what, arguments) in disturb {
        run_ok("systemctl", arguments);
        assert_eq!((in_force(), fs::metadata(io_max()).unwrap().ino()), (limits.clone(), file), "after {what}");
    }
    check_rate(2 * MIB);

    // No other program maintains them
    let main_process = || run_ok("systemctl", &["show", "--property=MainPID", "--value", AGENT]);
    let before = main_process();
    run_ok("systemctl", &["kill", "--signal=KILL", AGENT]);
    assert_eq!(in_force(), limits);
    wait_until("another agent", || !["0\n", &before].contains(&main_process().as_str()));
    setup.request_limit(Some("1Mi"));
    // The time in which a change is to be in force is that of an agent that runs
    wait_until("the limit is in force", || in_force() == written_at_most(MIB));
    check_rate(MIB);
    setup.request_limit(None);
    wait_in_force("");
    let free = rate(4 * MIB);
    assert!(free > 4 * MIB, "{free} bytes/s without a limit");
}

/// Units without I/O accounting: systemd does not know that the io controller is used, and disables it at the next
/// opportunity, which removes the limits.
fn restore_limits() {
    let setup = Setup::start("1Mi", &[]);
    let limits = written_at_most(MIB);
    setup.start_writer("a", &[]);
    let mut file = wait_in_force(&limits);
    check_rate(MIB);
    let disturb: [(&str, &[&str]); 2] = [
        ("a reload", &["daemon-reload"]),
        ("other shares of the CPU", &["set-property", "--runtime", SLICES[2], "CPUWeight=50"]),
    ];
    for (what, arguments) in disturb {
        run_ok("systemctl", arguments);
        wait_until(&format!("{what} removes the limits"), || {
            !fs::metadata(io_max()).is_ok_and(|now| now.ino() == file)
        });
        file = wait_in_force(&limits);
        check_rate(MIB);
    }
    setup.request_limit(None);
    wait_in_force("");
}
