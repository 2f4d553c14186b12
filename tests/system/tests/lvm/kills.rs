//! Kills lvmd, LVM or both at random moments of random requests, while LVM also finds metadata that is not the
//! machine's: in the end exactly the volumes that were acknowledged to the client exist.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};

use system_tests::lvm_settings::LVM_SETTINGS;
use tonic::{Code, Status};
use topolvm_proto::lvmd::{CreateLvSnapshotRequest, LogicalVolume};

use crate::daemon::{Client, Lvmd, signed};
use crate::fixture::{EXTENT, Groups, LocalSettings, Random, run, run_ok, runs, seed, wait};
use crate::foreign_metadata::{self, ForeignMetadata, LATE_CLASS};
use crate::listed_volumes::Listed;
use crate::lvm_processes::{is_lvm_idle, kill_lvm};
use crate::pool_repair::{can_create_in_pool, is_pool_complaint, repair_pool, resume_all};
use crate::snapshot::snapshot;
use crate::thin::{CLASSES, pools, request};

pub(crate) const TESTS: &[(&str, fn())] =
    &[("lvmd_killed_at_random_moments_leaks_and_adopts_nothing", killed_at_random_moments)];

/// Bytes at the beginning of a volume that must not be another tenant's.
const BEGINNING: usize = 4096;
/// Number of volumes above which there is no free space.
const MANY: usize = 9;
/// Number of attempts of a client before the test fails.
const TRIES: u32 = 20;

/// A volume that was returned to the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Kept {
    pub(crate) class: &'static str,
    pub(crate) bytes: u64,
    pub(crate) read_only: bool,
    /// The byte of which its beginning consists.
    pub(crate) written: u8,
}

/// A request during which a process is killed.
#[derive(Clone, Debug)]
pub(crate) enum Request {
    Create { class: &'static str, name: String, bytes: u64 },
    Snapshot { name: String, source: String, access: &'static str, bytes: u64 },
    Resize { class: &'static str, name: String, bytes: u64 },
    Remove { class: &'static str, name: String },
}

impl Request {
    pub(crate) fn name(&self) -> &str {
        let (Self::Create { name, .. }
        | Self::Snapshot { name, .. }
        | Self::Resize { name, .. }
        | Self::Remove { name, .. }) = self;
        name
    }

    fn is_about(&self, volume: &str) -> bool {
        self.name() == volume || matches!(self, Self::Snapshot { source, .. } if source == volume)
    }

    pub(crate) async fn send(&self, client: &Client) -> Result<(), Status> {
        match self {
            Self::Create { class, name, bytes } => {
                client.create_with(request(class, name, *bytes)).await.map(|made| check_made(&made, *bytes, false))
            }
            Self::Snapshot { name, source, access, bytes } => {
                let wanted = CreateLvSnapshotRequest {
                    device_class: "thin".to_owned(),
                    ..snapshot(name, source, access, *bytes)
                };
                client.snapshot(wanted).await.map(|made| check_made(&made, *bytes, *access == "ro"))
            }
            Self::Resize { class, name, bytes } => {
                client.resize_in(class, name, *bytes).await.map(|size| assert!(size >= signed(*bytes)))
            }
            Self::Remove { class, name } => match client.remove(class, name).await {
                Err(status) if status.code() == Code::NotFound => Ok(()),
                other => other,
            },
        }
    }
}

/// Checks that a volume that a client is given is complete.
fn check_made(made: &LogicalVolume, bytes: u64, read_only: bool) {
    assert!(made.size_bytes >= signed(bytes), "{made:?}");
    assert!(!made.tags.iter().any(|tag| tag.starts_with("topolvm.io/making")), "{made:?}");
    assert_eq!(made.attr.as_bytes()[1] == b'r', read_only, "{made:?}");
    assert!(made.dev_major > 0, "{made:?}");
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Victim {
    /// Only lvmd; the LVM that it started continues.
    Lvmd,
    Both,
    /// Only LVM; lvmd continues.
    Lvm,
}

#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Kills before the request was answered.
    in_the_middle: BTreeMap<Victim, u32>,
    /// Kills after which there was an unfinished volume.
    half_made: u32,
    cancelled: u32,
    most_tries: u32,
    /// Pools that LVM, killed in the middle of changing the kernel's state, could not use until they were repaired.
    pub(crate) repaired_by_hand: u32,
    /// Pools that the documented repair did not help.
    pub(crate) broken_by_lvm: u32,
    /// Runs during which LVM found metadata that is not the machine's.
    foreign: foreign_metadata::Counts,
}

pub(crate) struct Scenario {
    pub(crate) random: Random,
    pub(crate) kept: BTreeMap<String, Kept>,
    pub(crate) lvmd: Lvmd,
    /// Volume groups, removed after lvmd has exited.
    pub(crate) groups: Option<Groups>,
    pub(crate) counts: Counts,
    /// Usual duration of a request on this machine at the moment.
    pub(crate) usual: Duration,
    /// The byte that is written into the next volume.
    pub(crate) next_written: u8,
    /// True if the next volume may have that byte already, because its tenant was interrupted.
    pub(crate) may_be_written: bool,
}

fn config() -> String {
    format!("{CLASSES}{LATE_CLASS}")
}

fn killed_at_random_moments() {
    let test = "lvmd_killed_at_random_moments";
    let (runs, random) = (runs(200), Random(seed(test)));
    let groups = Some(pools());
    wait(async {
        let lvmd = Lvmd::start(&config());
        let start = Instant::now();
        let client = lvmd.connect().await;
        client.create("v", EXTENT).await.unwrap();
        client.remove("thin", "v").await.unwrap();
        let usual = start.elapsed() / 2;
        let mut scenario = Scenario {
            random,
            kept: BTreeMap::new(),
            lvmd,
            groups,
            counts: Counts::default(),
            usual,
            next_written: 1,
            may_be_written: false,
        };
        let own_settings = LocalSettings::of_tests();
        own_settings.write(foreign_metadata::UNSEEN);
        let settings = LocalSettings::new();
        for number in 0..runs {
            let setting = if number % 2 == 0 { "" } else { scenario.random.one_of(&LVM_SETTINGS) };
            settings.write(setting);
            scenario.run(number, setting).await;
        }
        println!("{test}: {runs} runs, 0 leaked, 0 adopted half made; {:?}", scenario.counts);
        if runs >= 15 {
            assert!(scenario.counts.in_the_middle.len() > 1, "the kills came too late or too early to prove anything");
        }
        if runs >= 50 {
            assert_eq!(scenario.counts.foreign.len(), 2, "not each kind of foreign metadata was there");
        }
    });
}

impl Scenario {
    async fn run(&mut self, number: u64, setting: &str) {
        self.next_written = u8::try_from(1 + self.random.below(255)).unwrap();
        let request = self.request(number);
        let victim = *self.random.one_of(&[Victim::Lvmd, Victim::Both, Victim::Lvm]);
        let latest = u64::try_from(self.usual.as_micros()).unwrap();
        let moment = Duration::from_micros(self.random.below(latest));
        let before = self.kept.clone();
        let mut foreign = self.disturb(&request);
        let context = format!(
            "run {number}: {request:?}, {victim:?} killed after {moment:?}; lvm.conf: {setting:?}; {:?} of a {:?}",
            foreign.as_ref().map(|foreign| foreign.group),
            foreign.as_ref().map(|foreign| foreign.kind),
        );

        let client = self.lvmd.connect().await;
        let asked = async {
            let asked = request.send(&client);
            tokio::pin!(asked);
            let start = Instant::now();
            if let Ok(early) = tokio::time::timeout(moment, &mut asked).await {
                self.usual = (3 * self.usual + start.elapsed()) / 4;
                return early;
            }
            self.usual += self.usual / 16;
            *self.counts.in_the_middle.entry(victim).or_default() += 1;
            if victim != Victim::Lvm {
                self.lvmd.kill();
            }
            if victim != Victim::Lvmd {
                kill_lvm();
            }
            asked.await
        };
        let answer = asked.await;
        if victim == Victim::Both {
            let marked = run_ok("lvs", &["--noheadings", "-o", "lv_tags", "myvg1"]);
            self.counts.half_made += u32::from(marked.contains("topolvm.io/making="));
        }
        let restarts = victim != Victim::Lvm || self.random.below(2) == 0;
        if restarts {
            self.lvmd.kill();
            self.lvmd = Lvmd::start(&config());
        }
        // A volume is gone only if all groups of the configuration can be searched
        if answer.is_err()
            && matches!(request, Request::Remove { .. })
            && let Some(foreign) = foreign.take()
        {
            foreign.end(&self.lvmd.connect().await, &context).await;
        }
        let gives_up = answer.is_err() && restarts && self.random.below(4) == 0;
        if gives_up {
            self.counts.cancelled += 1;
        }
        let is_done = gives_up || answer.is_ok() || self.send_until_done(&request, &context).await;
        if !is_done || !self.wait_and_record(&request, gives_up, &context).await {
            assert!(victim != Victim::Lvmd, "{context}: LVM was not killed, and its pool is broken");
            self.counts.broken_by_lvm += 1;
            drop(foreign);
            return self.recreate_pools();
        }
        if let Some(foreign) = foreign {
            foreign.end(&self.lvmd.connect().await, &context).await;
        }
        let after = self.kept.clone();
        check_volumes(&before, &after, &request, &context);
    }

    /// Has LVM find metadata that is not the machine's, or not. A tenant writes into a volume that the request is not
    /// about.
    fn disturb(&mut self, request: &Request) -> Option<ForeignMetadata> {
        let is_other = |name: &String, kept: &Kept| !kept.read_only && !request.is_about(name);
        let foreign = match self.random.below(4) {
            0 => ForeignMetadata::of_disk(&mut self.random),
            1 | 2 => {
                let (volume, _) = self.kept.iter().find(|(name, kept)| is_other(name, kept))?;
                ForeignMetadata::of_tenant(&mut self.random, volume)
            }
            _ => return None,
        };
        *self.counts.foreign.entry(foreign.kind).or_default() += 1;
        Some(foreign)
    }

    /// Repeats a request until it succeeds and checks all volumes, also when it was interrupted in a process of lvmd on
    /// an earlier boot. Returns true if LVM can still use the pool.
    pub(crate) async fn finish(&mut self, request: &Request, context: &str) -> bool {
        let before = self.kept.clone();
        if !self.send_until_done(request, context).await || !self.wait_and_record(request, false, context).await {
            return false;
        }
        check_volumes(&before, &self.kept, request, context);
        true
    }

    pub(crate) fn request(&mut self, number: u64) -> Request {
        let name = format!("v{number}");
        let bytes = EXTENT * (1 + self.random.below(6));
        let class = *self.random.one_of(&["thick", "thin"]);
        let sources: Vec<_> = self.kept.iter().filter(|(_, kept)| kept.class == "thin").collect();
        let all: Vec<_> = self.kept.iter().map(|(name, kept)| (name.clone(), kept.clone())).collect();
        let kind = self.random.below(10);
        if all.len() >= MANY || (kind < 2 && !all.is_empty()) {
            let (name, Kept { class, .. }) = self.random.one_of(&all).clone();
            return Request::Remove { class, name };
        }
        if kind < 4
            && let Some((name, kept)) = all.iter().find(|(_, kept)| !kept.read_only)
        {
            return Request::Resize { class: kept.class, name: name.clone(), bytes: kept.bytes + EXTENT };
        }
        if kind < 7 && !sources.is_empty() {
            let (source, kept) = *self.random.one_of(&sources);
            // As large as its source, or larger.
            let bytes = *self.random.one_of(&[kept.bytes, kept.bytes + 2 * EXTENT]);
            let access = *self.random.one_of(&["ro", "rw"]);
            return Request::Snapshot { name, source: source.clone(), access, bytes };
        }
        Request::Create { class, name, bytes }
    }

    /// Repeats a request until it succeeds. Returns false if LVM refuses it because the pool needs a repair that the
    /// documented steps do not achieve.
    async fn send_until_done(&mut self, request: &Request, context: &str) -> bool {
        let client = self.lvmd.connect().await;
        let mut again = tokio::time::interval(Duration::from_millis(100));
        let mut tries = 1;
        while let Err(status) = request.send(&client).await {
            let is_refused = status.message().starts_with("LVM refuses new volumes");
            let is_passing =
                is_refused || [Code::Unavailable, Code::Internal, Code::FailedPrecondition].contains(&status.code());
            if is_passing && tries > 3 && is_pool_complaint(status.message()) && !can_create_in_pool() {
                println!("{context}: {}", status.message());
                repair_pool(status.message());
                if !can_create_in_pool() {
                    return false;
                }
                self.counts.repaired_by_hand += 1;
            }
            assert!(is_passing && tries < TRIES, "{context}: after {tries} tries {status}");
            tries += 1;
            again.tick().await;
        }
        self.counts.most_tries = self.counts.most_tries.max(tries);
        true
    }

    /// Replaces the volume group and its pools by new ones.
    pub(crate) fn recreate_pools(&mut self) {
        self.lvmd.kill();
        self.kept.clear();
        resume_all();
        self.groups = None;
        drop(run("dmsetup", &["remove_all", "--force"]));
        self.groups = Some(pools());
        self.lvmd = Lvmd::start(&config());
    }

    /// Waits until no volume is unfinished and lvmd lists what LVM has, and records the result of the request. Returns
    /// true if LVM can still use the pool.
    async fn wait_and_record(&mut self, request: &Request, gave_up: bool, context: &str) -> bool {
        let client = self.lvmd.connect().await;
        let start = Instant::now();
        let mut again = tokio::time::interval(Duration::from_millis(50));
        let there = loop {
            let there = Listed::read_from_lvm();
            let listed = Listed::read_from_lvmd(&client).await;
            // An LVM that outlived lvmd may still be at work.
            if !there.is_half_made && is_lvm_idle() && there == listed && there == Listed::read_from_lvm() {
                break there;
            }
            if start.elapsed() > Duration::from_secs(20) {
                assert!(gave_up && !can_create_in_pool(), "{context}: there is {there:?}, lvmd lists {listed:?}");
                return false;
            }
            again.tick().await;
        };
        let name = request.name();
        let size = there.volumes.get(name).copied();
        match (request, size) {
            (Request::Remove { .. }, None) => drop(self.kept.remove(name)),
            (Request::Remove { class, .. }, Some(bytes)) => {
                assert!(gave_up, "{context}: it is still there");
                // LVM deactivates a volume before it removes it. The next publish activates it, with this request.
                let publish = Request::Resize { class, name: name.to_owned(), bytes };
                publish.send(&client).await.unwrap_or_else(|status| panic!("{context}: {status}"));
            }
            (Request::Resize { bytes, .. }, Some(size)) => {
                let kept = self.kept.get_mut(name).unwrap();
                assert!(size == *bytes || gave_up && size == kept.bytes, "{context}: {size} bytes");
                kept.bytes = size;
            }
            (Request::Create { .. } | Request::Snapshot { .. }, Some(size)) => {
                self.use_new_volume(request, size, &client, context).await;
            }
            (Request::Resize { .. } | Request::Create { .. } | Request::Snapshot { .. }, None) => {
                assert!(gave_up && !self.kept.contains_key(name), "{context}: it is not there");
            }
        }
        let expected: BTreeMap<_, _> = self.kept.iter().map(|(name, kept)| (name.clone(), kept.bytes)).collect();
        assert_eq!(there.volumes, expected, "{context}: leaked or lost");
        true
    }

    /// Reads and writes a new volume as its tenant would.
    async fn use_new_volume(&mut self, request: &Request, size: u64, client: &Client, context: &str) {
        // A volume whose request was not repeated must also be complete.
        request.send(client).await.unwrap_or_else(|status| panic!("{context}: {status}"));
        let kept = match request {
            Request::Snapshot { name, source, access, bytes } => {
                let source = &self.kept[source];
                assert_eq!(read_beginning(name), [source.written; BEGINNING], "{context}: not what was in the source");
                assert_eq!(size, *bytes, "{context}");
                Kept { class: "thin", bytes: size, read_only: *access == "ro", written: source.written }
            }
            Request::Create { class, name, bytes } => {
                let written = self.next_written;
                let is_ours = self.may_be_written && read_beginning(name) == [written; BEGINNING];
                assert!(is_ours || read_beginning(name) == [0; BEGINNING], "{context}: another tenant's data");
                assert_eq!(size, *bytes, "{context}");
                let device = File::options().write(true).open(format!("/dev/myvg1/{name}")).unwrap();
                device.write_all_at(&[written; BEGINNING], 0).unwrap();
                device.sync_all().unwrap();
                Kept { class, bytes: size, read_only: false, written }
            }
            Request::Resize { .. } | Request::Remove { .. } => return,
        };
        self.kept.insert(request.name().to_owned(), kept);
    }
}

/// Checks that the kernel's devices match, and that no volume but that of the request has changed.
fn check_volumes(before: &BTreeMap<String, Kept>, after: &BTreeMap<String, Kept>, request: &Request, context: &str) {
    for (name, kept) in before.iter().filter(|(name, _)| *name != request.name()) {
        assert_eq!(after.get(name), Some(kept), "{context}: {name} is another");
    }
    let mut devices = Vec::new();
    for line in run_ok("dmsetup", &["info", "-c", "--noheadings", "-o", "name,suspended"]).lines() {
        let (name, suspended) = line.split_once(':').unwrap();
        assert_ne!(suspended, "Suspended", "{context}: {name} hangs");
        devices.extend(name.strip_prefix("myvg1-v").map(|name| format!("v{name}")));
    }
    devices.sort();
    assert_eq!(devices, after.keys().cloned().collect::<Vec<_>>(), "{context}: devices");
    for (name, kept) in after {
        assert_eq!(read_beginning(name), [kept.written; BEGINNING], "{context}: the data of {name}");
    }
}

fn read_beginning(name: &str) -> [u8; BEGINNING] {
    let mut bytes = [0; BEGINNING];
    File::open(format!("/dev/myvg1/{name}")).unwrap().read_exact(&mut bytes).unwrap();
    bytes
}
