//! The program lvmd: its process, its client and its basic tests.

use std::collections::{BTreeSet, VecDeque};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use futures::future::join_all;
use rustix::process::{Pid, Signal, kill_process};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status, Streaming};
use topolvm_proto::lvmd::lv_service_client::LvServiceClient;
use topolvm_proto::lvmd::vg_service_client::VgServiceClient;
use topolvm_proto::lvmd::{
    CreateLvRequest, CreateLvSnapshotRequest, Empty, GetFreeBytesRequest, GetLvListRequest, LogicalVolume,
    RemoveLvRequest, ResizeLvRequest, WatchResponse,
};

use crate::fixture::{DISKS, EXTENT, Groups, MIB, run, run_ok, wait};

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("lvmd_creates_lists_resizes_and_removes", creates_lists_resizes_and_removes),
    ("lvmd_keeps_the_spare", keeps_the_spare),
    ("lvmd_gives_parallel_clients_no_more_than_there_is", gives_parallel_clients_no_more_than_there_is),
    ("lvmd_distinguishes_missing_class_group_and_volume", distinguishes_missing_objects),
    ("lvmd_does_not_remove_what_is_in_use_or_has_dependents", does_not_remove_what_is_needed),
    ("lvmd_finishes_requests_that_clients_cancel", finishes_cancelled_requests),
    ("lvmd_uses_options_of_device_and_option_classes", uses_options),
    ("lvmd_reports_every_change_to_watchers", reports_every_change),
    ("lvmd_ends_on_sigterm_while_a_watch_is_open", ends_on_sigterm_while_a_watch_is_open),
    ("lvmd_refuses_to_start_without_its_volume_group", refuses_to_start_without_its_volume_group),
];

/// Path of lvmd's socket, the same for all, so that a restarted lvmd recognizes the volumes that the previous one was
/// creating.
pub(crate) const SOCKET: &str = "/run/topolvm-test/lvmd.sock";

/// Lines of lvmd's log that a failed test shows.
const SHOWN_LINES: usize = 30;

/// A process of lvmd.
pub(crate) struct Lvmd {
    _dir: tempfile::TempDir,
    socket: PathBuf,
    child: Child,
    /// Lines that it logged before it listened.
    early: VecDeque<String>,
    /// Lines of its log. A thread reads them as they come: lvmd would never return from a write to a full pipe.
    log: Receiver<String>,
}

/// Configuration with the default class `ssd` on all of `myvg1`.
pub(crate) const CLASSES: &str = "
device-classes:
  - {name: ssd, volume-group: myvg1, default: true, spare-gb: 0}
lvcreate-option-classes:
  - {name: far-ahead, options: [--readahead=64]}
";

impl Lvmd {
    pub(crate) fn start(config: &str) -> Self {
        Self::start_at(SOCKET, config)
    }

    /// Starts an lvmd that listens on another socket, so that two can run in parallel.
    pub(crate) fn start_at(socket: &str, config: &str) -> Self {
        Self::start_by(&[], socket, config, |_| {})
    }

    /// Starts lvmd by a launcher, and passes each line of its log to a function until it listens.
    pub(crate) fn start_by(launcher: &[&str], socket: &str, config: &str, mut see: impl FnMut(&str)) -> Self {
        let mut lvmd = Self::spawn(launcher, socket, config);
        let listens = lvmd.log.iter().any(|line| {
            see(&line);
            let listens = line.contains("listening");
            lvmd.early.push_back(line);
            listens
        });
        assert!(listens, "lvmd ended: {:?}", lvmd.early);
        lvmd
    }

    /// Waits for this in its log, which it may have written before it listened.
    pub(crate) fn until_logged(&mut self, text: &str) {
        let early = std::iter::from_fn(|| self.early.pop_front());
        let said = early.chain(&self.log).any(|line| line.contains(text));
        assert!(said, "lvmd ended without {text:?}");
    }

    /// Kills it and returns the unread lines of its log.
    pub(crate) fn end(&mut self) -> Vec<String> {
        self.kill();
        self.log.iter().collect()
    }

    /// Returns the number of its threads.
    pub(crate) fn threads(&self) -> usize {
        fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap().count()
    }

    fn spawn(launcher: &[&str], socket: &str, config: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("lvmd.yaml");
        fs::create_dir_all(Path::new(socket).parent().unwrap()).unwrap();
        fs::write(&file, format!("socket-name: {socket}\n{config}")).unwrap();
        let program = std::env::current_exe().unwrap().parent().unwrap().join("../lvmd");
        assert!(program.is_file(), "no {}: run cargo build --workspace first", program.display());
        let words: Vec<_> = launcher.iter().map(OsStr::new).chain([program.as_os_str()]).collect();
        let mut child = Command::new(words[0])
            .args(&words[1..])
            .arg("--config")
            .arg(file)
            .args(["--metrics-bind-address=", "--log-format=text"])
            .env_remove("LVM_SYSTEM_DIR")
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let (sender, log) = mpsc::channel();
        thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| sender.send(line)));
        Self { _dir: dir, socket: socket.into(), child, early: VecDeque::new(), log }
    }

    /// Starts lvmd with a configuration with which it cannot start, and returns its messages.
    pub(crate) fn refusal(config: &str) -> Vec<String> {
        let mut lvmd = Self::spawn(&[], SOCKET, config);
        let messages = lvmd.log.iter().collect();
        assert_eq!(lvmd.child.wait().unwrap().code(), Some(1));
        messages
    }

    pub(crate) async fn connect(&self) -> Client {
        let endpoint = Endpoint::try_from(format!("unix:{}", self.socket.display())).unwrap();
        Client(endpoint.connect().await.unwrap())
    }

    /// Kills lvmd as a crash would. Processes that it started continue.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub(crate) fn terminate(&mut self) -> ExitStatus {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        self.child.wait().unwrap()
    }
}

impl Drop for Lvmd {
    fn drop(&mut self) {
        // It may have ended already.
        drop(self.child.kill());
        drop(self.child.wait());
        if thread::panicking() {
            // What was logged until now; a process that it started may keep the pipe open
            let lines: Vec<_> = self.early.drain(..).chain(self.log.try_iter()).collect();
            println!("last lines of lvmd's log:\n{}", lines[lines.len().saturating_sub(SHOWN_LINES)..].join("\n"));
        }
    }
}

#[derive(Clone)]
pub(crate) struct Client(pub(crate) Channel);

impl Client {
    pub(crate) async fn create(&self, name: &str, bytes: u64) -> Result<LogicalVolume, Status> {
        self.create_in("", name, bytes).await
    }

    pub(crate) async fn create_in(&self, class: &str, name: &str, bytes: u64) -> Result<LogicalVolume, Status> {
        self.create_with(CreateLvRequest {
            device_class: class.to_owned(),
            name: name.to_owned(),
            size_bytes: signed(bytes),
            ..CreateLvRequest::default()
        })
        .await
    }

    pub(crate) async fn create_with(&self, request: CreateLvRequest) -> Result<LogicalVolume, Status> {
        Ok(LvServiceClient::new(self.0.clone()).create_lv(request).await?.into_inner().volume.unwrap())
    }

    pub(crate) async fn snapshot(&self, request: CreateLvSnapshotRequest) -> Result<LogicalVolume, Status> {
        Ok(LvServiceClient::new(self.0.clone()).create_lv_snapshot(request).await?.into_inner().snapshot.unwrap())
    }

    pub(crate) async fn resize(&self, name: &str, bytes: u64) -> Result<i64, Status> {
        self.resize_in("", name, bytes).await
    }

    pub(crate) async fn resize_in(&self, class: &str, name: &str, bytes: u64) -> Result<i64, Status> {
        let request =
            ResizeLvRequest { name: name.to_owned(), device_class: class.to_owned(), size_bytes: signed(bytes) };
        Ok(LvServiceClient::new(self.0.clone()).resize_lv(request).await?.into_inner().size_bytes)
    }

    pub(crate) async fn remove(&self, class: &str, name: &str) -> Result<(), Status> {
        let request = RemoveLvRequest { name: name.to_owned(), device_class: class.to_owned() };
        LvServiceClient::new(self.0.clone()).remove_lv(request).await.map(drop)
    }

    pub(crate) async fn free(&self) -> u64 {
        self.free_in("").await.unwrap()
    }

    /// Waits until Watch reports a matching number of free bytes of the default class.
    pub(crate) async fn until_free(&self, is_wanted: impl Fn(u64) -> bool) {
        let mut watch = VgServiceClient::new(self.0.clone()).watch(Empty {}).await.unwrap().into_inner();
        let seen = async { while !is_wanted(watch.message().await.unwrap().unwrap().free_bytes) {} };
        tokio::time::timeout(Duration::from_mins(2), seen).await.unwrap();
    }

    pub(crate) async fn free_in(&self, class: &str) -> Result<u64, Status> {
        let request = GetFreeBytesRequest { device_class: class.to_owned() };
        Ok(VgServiceClient::new(self.0.clone()).get_free_bytes(request).await?.into_inner().free_bytes)
    }

    /// Waits until a class that is not usable at present has a matching number of free bytes.
    pub(crate) async fn until_free_in(&self, class: &str, is_wanted: impl Fn(u64) -> bool) {
        let asking = async {
            while !self.free_in(class).await.is_ok_and(&is_wanted) {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        tokio::time::timeout(Duration::from_mins(2), asking).await.unwrap();
    }

    pub(crate) async fn list(&self) -> Vec<LogicalVolume> {
        self.list_of("").await.unwrap()
    }

    pub(crate) async fn list_of(&self, class: &str) -> Result<Vec<LogicalVolume>, Status> {
        let request = GetLvListRequest { device_class: class.to_owned(), name: String::new() };
        Ok(VgServiceClient::new(self.0.clone()).get_lv_list(request).await?.into_inner().volumes)
    }

    pub(crate) async fn watch(&self) -> Streaming<WatchResponse> {
        VgServiceClient::new(self.0.clone()).watch(Empty {}).await.unwrap().into_inner()
    }
}

pub(crate) fn signed(bytes: u64) -> i64 {
    bytes.try_into().unwrap()
}

pub(crate) fn code<T: std::fmt::Debug>(result: Result<T, Status>) -> Code {
    result.unwrap_err().code()
}

fn creates_lists_resizes_and_removes() {
    let _groups = Groups::one();
    let lvmd = Lvmd::start(CLASSES);
    wait(async {
        let client = lvmd.connect().await;
        let tags = vec!["topolvm.io/a=b".to_owned(), "c".to_owned()];
        let request = CreateLvRequest { name: "a".to_owned(), size_bytes: 4096, tags, ..CreateLvRequest::default() };
        let created = client.create_with(request).await.unwrap();
        assert_eq!((created.size_bytes, created.path.as_str()), (signed(EXTENT), "/dev/myvg1/a"));
        assert_eq!(
            created.tags.iter().map(String::as_str).collect::<BTreeSet<_>>(),
            BTreeSet::from(["c", "topolvm.io/a=b", "topolvm.io/managed-by=lvmd"])
        );
        assert!(created.dev_major > 0);
        assert_eq!(client.list().await, std::slice::from_ref(&created));
        assert_eq!(client.create("a", 4096).await.unwrap(), created, "again is success");

        assert_eq!(client.resize("a", EXTENT + 1).await.unwrap(), signed(2 * EXTENT));
        assert_eq!(client.resize("a", 1).await.unwrap(), signed(2 * EXTENT));
        assert_eq!(code(client.create("a", 3 * EXTENT).await), Code::AlreadyExists);

        let free = client.free().await;
        client.remove("ssd", "a").await.unwrap();
        assert_eq!(client.free().await, free + 2 * EXTENT);
        assert_eq!(code(client.remove("ssd", "a").await), Code::NotFound);
    });
}

fn keeps_the_spare() {
    let _groups = Groups::new(&[("myvg1", &DISKS)]);
    let lvmd = Lvmd::start("device-classes: [{name: ssd, volume-group: myvg1, default: true, spare-gb: 1}]");
    wait(async {
        let client = lvmd.connect().await;
        let free = client.free().await;
        assert_eq!(code(client.create("a", free + 4096).await), Code::ResourceExhausted);
        client.create("a", free - EXTENT).await.unwrap();
        assert_eq!(code(client.create("b", EXTENT + 4096).await), Code::ResourceExhausted);
        assert_eq!(code(client.resize("a", free + 1).await), Code::ResourceExhausted);
        client.resize("a", free).await.unwrap();
        assert_eq!(client.free().await, 0);
        let left = run_ok("vgs", &["--noheadings", "--units=g", "--nosuffix", "-o", "vg_free", "myvg1"]);
        assert_eq!(left.trim(), "1.00");
    });
}

fn gives_parallel_clients_no_more_than_there_is() {
    let _groups = Groups::one();
    let lvmd = Lvmd::start(CLASSES);
    wait(async {
        let client = lvmd.connect().await;
        let fitting = client.free().await / (64 * MIB);
        let names: Vec<_> = (0..30).map(|number| format!("v{number}")).collect();
        let results = join_all(names.iter().map(|name| client.create(name, 64 * MIB))).await;
        let (made, refused): (Vec<_>, Vec<_>) = results.into_iter().partition(Result::is_ok);
        assert_eq!(made.len(), usize::try_from(fitting).unwrap());
        assert!(refused.into_iter().all(|result| code(result) == Code::ResourceExhausted));
        let removals = client.list().await.into_iter().map(|volume| {
            let client = client.clone();
            async move { client.remove("", &volume.name).await }
        });
        assert!(join_all(removals).await.into_iter().all(|removed| removed.is_ok()));
        assert_eq!(client.list().await, []);
    });
}

fn distinguishes_missing_objects() {
    let _groups = Groups::one();
    let lvmd = Lvmd::start(CLASSES);
    wait(async {
        let client = lvmd.connect().await;
        client.create("a", 4096).await.unwrap();
        run_ok("lvcreate", &["-qy", "-L4m", "-n", "theirs", "myvg1"]);
        assert_eq!(code(client.remove("hdd", "theirs").await), Code::FailedPrecondition);
        client.create("of-former-class", 4096).await.unwrap();
        client.remove("hdd", "of-former-class").await.unwrap();
        assert_eq!(code(client.remove("hdd", "of-former-class").await), Code::FailedPrecondition);
        run_ok("vgchange", &["-qan", "myvg1"]);
        run_ok("vgrename", &["-q", "myvg1", "other"]);
        assert_eq!(code(client.remove("ssd", "a").await), Code::FailedPrecondition);
        run_ok("vgrename", &["-q", "other", "myvg1"]);
        client.remove("ssd", "a").await.unwrap();
        assert_eq!(code(client.remove("ssd", "a").await), Code::NotFound);
    });
}

fn does_not_remove_what_is_needed() {
    let _groups = Groups::one();
    let lvmd = Lvmd::start(CLASSES);
    wait(async {
        let client = lvmd.connect().await;
        client.create("a", 4096).await.unwrap();
        let open = File::open("/dev/myvg1/a").unwrap();
        assert_eq!(code(client.remove("ssd", "a").await), Code::FailedPrecondition);
        drop(open);
        run_ok("lvcreate", &["-qy", "-s", "-L4m", "-n", "backup", "myvg1/a"]);
        assert_eq!(code(client.remove("ssd", "a").await), Code::FailedPrecondition);
        run_ok("lvcreate", &["-qy", "-T", "myvg1/pool", "-L16m", "-V16m", "-n", "thin"]);
        assert_eq!(code(client.remove("ssd", "pool").await), Code::FailedPrecondition);
        let left = run_ok("lvs", &["--noheadings", "-o", "lv_name", "myvg1"]);
        assert_eq!(left.split_whitespace().collect::<Vec<_>>(), ["a", "backup", "pool", "thin"]);
        client.remove("ssd", "backup").await.unwrap();
        client.remove("ssd", "a").await.unwrap();
    });
}

fn finishes_cancelled_requests() {
    let _groups = Groups::one();
    let lvmd = Lvmd::start(CLASSES);
    wait(async {
        let client = lvmd.connect().await;
        let mut watch = VgServiceClient::new(lvmd.connect().await.0).watch(Empty {}).await.unwrap().into_inner();
        let before = watch.message().await.unwrap().unwrap().free_bytes;
        for number in 0..10 {
            let name = format!("v{number}");
            // Cancelled at ten different moments.
            let patience = Duration::from_millis(3 * number);
            drop(tokio::time::timeout(patience, client.create(&name, EXTENT)).await);
        }
        // Each one is complete or was never started; after a retry, all exist.
        for number in 0..10 {
            client.create(&format!("v{number}"), EXTENT).await.unwrap();
        }
        assert_eq!(client.free().await, before - 10 * EXTENT);
        let active = run_ok("lvs", &["--noheadings", "-o", "lv_attr", "myvg1"]);
        assert!(active.split_whitespace().all(|attr| attr == "-wi-a-----"), "{active}");
    });
}

fn uses_options() {
    let _groups = Groups::new(&[("myvg1", &DISKS)]);
    let lvmd = Lvmd::start(
        &CLASSES.replace("spare-gb: 0", "spare-gb: 0, stripe: 2, stripe-size: 64k, lvcreate-options: [--readahead=32]"),
    );
    wait(async {
        let client = lvmd.connect().await;
        client.create("by-device-class", 2 * EXTENT).await.unwrap();
        let by_option_class = CreateLvRequest {
            name: "by-option-class".to_owned(),
            size_bytes: signed(2 * EXTENT),
            lvcreate_option_class: "far-ahead".to_owned(),
            ..CreateLvRequest::default()
        };
        client.create_with(by_option_class).await.unwrap();
    });
    let seen =
        run_ok("lvs", &["--noheadings", "--nosuffix", "--units=s", "-o", "lv_name,stripes,lv_read_ahead", "myvg1"]);
    let seen: Vec<_> = seen.split_whitespace().collect();
    assert_eq!(seen, ["by-device-class", "2", "32", "by-option-class", "1", "64"]);
}

fn reports_every_change() {
    let _groups = Groups::one();
    let lvmd = Lvmd::start(CLASSES);
    wait(async {
        let client = lvmd.connect().await;
        let mut watch = VgServiceClient::new(lvmd.connect().await.0).watch(Empty {}).await.unwrap().into_inner();
        let first = watch.message().await.unwrap().unwrap();
        let [item] = &first.items[..] else { panic!("{first:?}") };
        assert_eq!(
            (item.device_class.as_str(), item.free_bytes, first.free_bytes),
            ("ssd", first.free_bytes, client.free().await)
        );
        client.create("a", EXTENT).await.unwrap();
        assert_eq!(watch.message().await.unwrap().unwrap().free_bytes, first.free_bytes - EXTENT);
        client.resize("a", 3 * EXTENT).await.unwrap();
        assert_eq!(watch.message().await.unwrap().unwrap().free_bytes, first.free_bytes - 3 * EXTENT);
        client.remove("", "a").await.unwrap();
        assert_eq!(watch.message().await.unwrap().unwrap(), first);
    });
}

fn ends_on_sigterm_while_a_watch_is_open() {
    let _groups = Groups::one();
    let mut lvmd = Lvmd::start(CLASSES);
    let socket = Path::new(SOCKET);
    assert_eq!(fs::metadata(socket).unwrap().permissions().mode() & 0o777, 0o600);
    wait(async {
        let client = lvmd.connect().await;
        let mut watch = VgServiceClient::new(client.0.clone()).watch(Empty {}).await.unwrap().into_inner();
        watch.message().await.unwrap().unwrap();
        let start = Instant::now();
        let ending = tokio::task::spawn_blocking(move || lvmd.terminate());
        assert_eq!(code(watch.message().await), Code::Unavailable);
        assert_eq!(ending.await.unwrap().code(), Some(0));
        // Not only when the time for calls that run is over
        assert!(start.elapsed() < Duration::from_secs(7), "{:?}", start.elapsed());
    });
    assert!(!socket.exists());
    assert!(!run("pidof", &["lvm"]).status.success());
}

fn refuses_to_start_without_its_volume_group() {
    let _groups = Groups::one();
    let messages = Lvmd::refusal("device-classes: [{name: ssd, volume-group: nothere}]");
    let sentence =
        "lvmd: device class \"ssd\": there is no volume group nothere; create it with `vgcreate nothere DEVICE...`";
    assert!(messages.iter().any(|line| line.starts_with(sentence)), "{messages:?}");
}
