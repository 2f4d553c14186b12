//! A node of a test: one volume group, the package installed, lvmd with a given configuration.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread::{sleep, spawn};
use std::time::{Duration, Instant};

use testbed::process::Process;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};
use topolvm_proto::lvmd::lv_service_client::LvServiceClient;
use topolvm_proto::lvmd::vg_service_client::VgServiceClient;
use topolvm_proto::lvmd::{
    CreateLvRequest, CreateLvSnapshotRequest, GetLvListRequest, RemoveLvRequest, ResizeLvRequest,
};

pub(crate) const MIB: i64 = 1 << 20;
pub(crate) const CONFIG: &str = "/etc/topolvm/lvmd.yaml";
pub(crate) const SOCKET: &str = "/run/topolvm/lvmd.sock";
/// Timeout that is longer than any step takes on a slow machine.
pub(crate) const LONG: Duration = Duration::from_mins(1);
const UNIT: &str = "lvmd.service";
const DROP_INS: &str = "/run/systemd/system/lvmd.service.d";

/// Configuration with a thick class.
pub(crate) const THICK: &str = "
device-classes:
  - {name: thick, volume-group: myvg1, default: true, spare-gb: 0}
";

/// Configuration with a thick and a thin class.
pub(crate) const CLASSES: &str = "
device-classes:
  - {name: thick, volume-group: myvg1, default: true, spare-gb: 0}
  - {name: thin, volume-group: myvg1, spare-gb: 0, type: thin, thin-pool: {name: pool, overprovision-ratio: 5}}
";

/// Runs a program that must succeed.
pub(crate) fn run_ok(program: &str, args: &[&str]) -> String {
    let output = run(program, args);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {args:?}: {said}{}", journal());
    String::from_utf8(output.stdout).unwrap()
}

/// Runs a program.
pub(crate) fn run(program: &str, args: &[&str]) -> Output {
    Command::new(program).args(args).output().unwrap()
}

/// Returns the journal of the service, with the messages of systemd and lvmd.
pub(crate) fn journal() -> String {
    let output = run("journalctl", &["--no-pager", "--output=cat", "--unit", UNIT]);
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Polls a condition until it holds.
pub(crate) fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < LONG, "never: {what}\n{}", journal());
        sleep(Duration::from_millis(50));
    }
}

/// Returns the path of the package of a revision, as `cargo xtask deb --debug` has built it.
pub(crate) fn package(revision: u32) -> String {
    let target = std::env::current_exe().unwrap().ancestors().nth(3).unwrap().join("debian-test");
    let suffix = format!("-{revision}_{}.deb", run_ok("dpkg", &["--print-architecture"]).trim());
    let packages = fs::read_dir(&target).into_iter().flatten().map(|entry| entry.unwrap().path());
    let mut packages = packages.filter(|path| path.to_string_lossy().ends_with(&suffix)).collect::<Vec<PathBuf>>();
    assert!(packages.len() == 1, "run cargo xtask deb --debug first: {} has {packages:?}", target.display());
    packages.remove(0).into_os_string().into_string().unwrap()
}

/// Installs or upgrades to a revision.
pub(crate) fn install(revision: u32) {
    dpkg(&["--install", &package(revision)]);
}

fn is_installed() -> bool {
    Path::new("/usr/sbin/lvmd").exists()
}

/// Runs dpkg without steps that take time and prove nothing: no file of a guest outlives it, and the index of all
/// manual pages is not ours.
pub(crate) fn dpkg(args: &[&str]) -> String {
    run_ok("dpkg", &[&["--force-unsafe-io", "--no-triggers"], args].concat())
}

/// Returns a property of the service.
pub(crate) fn property(name: &str) -> String {
    run_ok("systemctl", &["show", "--property", name, "--value", UNIT]).trim().to_owned()
}

/// Returns lvmd's process.
pub(crate) fn main_process() -> Process {
    Process::of(property("MainPID").parse().unwrap()).unwrap()
}

/// Returns the path of a file in /proc about that process.
pub(crate) fn main_process_file(name: &str) -> PathBuf {
    Path::new("/proc").join(property("MainPID")).join(name)
}

pub(crate) fn systemctl(action: &str) -> String {
    run_ok("systemctl", &[action, UNIT])
}

/// Adds lines to the section `[Service]` of the unit.
pub(crate) fn drop_in(lines: &str) {
    fs::create_dir_all(DROP_INS).unwrap();
    fs::write(Path::new(DROP_INS).join("test.conf"), format!("[Service]\n{lines}\n")).unwrap();
    run_ok("systemctl", &["daemon-reload"]);
}

/// The volume group `myvg1` with a thin pool. When it is dropped nothing is left of it, and lvmd does not run. The
/// package stays installed, because dpkg takes longer than most tests.
pub(crate) struct Node;

impl Node {
    /// Creates a node without the package.
    pub(crate) fn bare() -> Self {
        if is_installed() {
            dpkg(&["--purge", "lvmd"]);
        }
        Self::with_storage()
    }

    fn with_storage() -> Self {
        run_ok("vgcreate", &["-qy", "myvg1", "/dev/ubda"]);
        run_ok("lvcreate", &["-qy", "-T", "-L64m", "myvg1/pool"]);
        Self
    }

    /// Creates a node with lvmd started.
    pub(crate) fn new(config: &str) -> Self {
        let node = Self::with_storage();
        if !is_installed() {
            install(1);
        }
        fs::write(CONFIG, config).unwrap();
        run_ok("systemctl", &["enable", "--now", UNIT]);
        node
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // Leftovers of a failed test must not affect the next one.
        drop(fs::remove_file(HELD));
        drop(run("umount", &["--quiet", "/mnt"]));
        drop(run("systemctl", &["disable", UNIT]));
        drop(run("systemctl", &["stop", UNIT]));
        drop(run("systemctl", &["reset-failed", UNIT]));
        if fs::remove_dir_all(DROP_INS).is_ok() {
            drop(run("systemctl", &["daemon-reload"]));
        }
        drop(run("vgremove", &["-ffqy", "myvg1"]));
    }
}

/// File during whose presence the LVM of [`held_lvm`] waits before each `lvcreate`.
const HELD: &str = "/run/held";
/// File that exists while it waits.
const WAITS: &str = "/run/waits";

/// Returns a configuration whose LVM can be delayed.
pub(crate) fn held_lvm() -> String {
    const LVM: &str = "/usr/local/sbin/held-lvm";
    // Commands come as lines for LVM's shell.
    let script = format!(
        "#!/bin/sh\n[ $# = 0 ] || exec lvm \"$@\"\nwhile IFS= read -r line; do\n\
         case $line in lvcreate*) while [ -e {HELD} ]; do : >{WAITS}; sleep 0.05; done; rm -f {WAITS} ;; esac\n\
         printf '%s\\n' \"$line\" | lvm\ndone\n"
    );
    fs::write(LVM, script).unwrap();
    fs::set_permissions(LVM, fs::Permissions::from_mode(0o755)).unwrap();
    format!("lvm-command-prefix: [{LVM}]\n{CLASSES}")
}

/// An LVM that waits in the middle of creating a volume, and the client that requested it.
pub(crate) struct Held(std::thread::JoinHandle<Result<(), Status>>);

impl Held {
    /// Requests a volume, and returns when LVM has begun.
    pub(crate) fn start(name: &'static str) -> Self {
        fs::write(HELD, "").unwrap();
        let client = spawn(move || create("thin", name));
        wait_until("LVM begins", || Path::new(WAITS).exists());
        Self(client)
    }

    /// Resumes LVM, and returns the client's result.
    pub(crate) fn resume(self) -> Result<(), Status> {
        fs::remove_file(HELD).unwrap();
        self.0.join().unwrap()
    }
}

/// Runs a request with a connection to lvmd.
fn call<T, F: Future<Output = Result<T, Status>>>(ask: impl FnOnce(Channel) -> F) -> Result<T, Status> {
    call_at(SOCKET, ask)
}

/// Runs a request with a connection to the program behind a socket.
pub(crate) fn call_at<T, F: Future<Output = Result<T, Status>>>(
    socket: &str,
    ask: impl FnOnce(Channel) -> F,
) -> Result<T, Status> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let endpoint = Endpoint::try_from(format!("unix:{socket}")).unwrap();
        let channel = endpoint.connect().await.map_err(|error| Status::unavailable(error.to_string()))?;
        ask(channel).await
    })
}

/// Creates a volume of 16 MiB.
pub(crate) fn create(class: &str, name: &str) -> Result<(), Status> {
    let request = CreateLvRequest {
        name: name.to_owned(),
        device_class: class.to_owned(),
        size_bytes: 16 * MIB,
        ..CreateLvRequest::default()
    };
    call(|lvmd| async { LvServiceClient::new(lvmd).create_lv(request).await }).map(drop)
}

/// Expands a volume to 32 MiB.
pub(crate) fn grow(class: &str, name: &str) -> Result<(), Status> {
    let request = ResizeLvRequest { name: name.to_owned(), device_class: class.to_owned(), size_bytes: 32 * MIB };
    call(|lvmd| async { LvServiceClient::new(lvmd).resize_lv(request).await }).map(drop)
}

/// Creates a snapshot of a thin volume.
pub(crate) fn snapshot(name: &str, source: &str) -> Result<(), Status> {
    let request = CreateLvSnapshotRequest {
        name: name.to_owned(),
        device_class: "thin".to_owned(),
        source_volume: source.to_owned(),
        access_type: "ro".to_owned(),
        ..CreateLvSnapshotRequest::default()
    };
    call(|lvmd| async { LvServiceClient::new(lvmd).create_lv_snapshot(request).await }).map(drop)
}

pub(crate) fn remove(class: &str, name: &str) -> Result<(), Status> {
    let request = RemoveLvRequest { name: name.to_owned(), device_class: class.to_owned() };
    call(|lvmd| async { LvServiceClient::new(lvmd).remove_lv(request).await }).map(drop)
}

/// Returns the names of the volumes of a class, sorted; or the gRPC code of lvmd's refusal.
pub(crate) fn list(class: &str) -> Result<Vec<String>, Code> {
    let request = GetLvListRequest { device_class: class.to_owned(), name: String::new() };
    let volumes = call(|lvmd| async { VgServiceClient::new(lvmd).get_lv_list(request).await });
    let volumes = volumes.map_err(|status| status.code())?.into_inner().volumes;
    let mut names: Vec<String> = volumes.into_iter().map(|volume| volume.name).collect();
    names.sort();
    Ok(names)
}

/// Returns true if LVM has a volume of this name whose creation is finished.
pub(crate) fn is_whole(name: &str) -> bool {
    let tags = run("lvs", &["--noheadings", "-o", "lv_tags", &format!("myvg1/{name}")]);
    tags.status.success() && !String::from_utf8_lossy(&tags.stdout).contains("making")
}
