//! Random sequences of requests, crashes and outside changes on a real volume group, the same as with the fake LVM: in
//! the end lvmd lists what LVM has.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};

use proptest::strategy::{Strategy as _, ValueTree as _};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use system_tests::lvm_settings::LVM_SETTINGS;
use tonic::{Code, Status};
use topolvm_proto::lvmd::CreateLvSnapshotRequest;
use topolvm_testkit::lvm::scenario::{CLASSES, COMMANDS, Event, NAMES, POOLS, Request, Step, scenarios};

use crate::daemon::{Client, Lvmd};
use crate::fixture::{DISKS, FailingDisk, Groups, LocalSettings, MIB, Random, run, run_ok, runs, seed, wait};
use crate::lvm_processes::{kill_lvm, lvm_processes};
use crate::snapshot::snapshot;
use crate::thin::request;

pub(crate) const TESTS: &[(&str, fn())] =
    &[("lvmd_lists_what_lvm_has_after_random_scenarios", lvmd_after_random_scenarios)];

/// Bytes for each GiB of the scenarios.
const BYTES_OF_GIB: u64 = 16 * MIB;

const CONFIG: &str = "
device-classes:
  - {name: thick, volume-group: myvg1, spare-gb: 0}
  - name: thin
    volume-group: myvg1
    default: true
    spare-gb: 0
    type: thin
    thin-pool: {name: pool, overprovision-ratio: 1.5}
  - {name: other, volume-group: myvg1, spare-gb: 0, type: thin, thin-pool: {name: pool2, overprovision-ratio: 10}}
";

/// Configurations in which the same classes have other volume groups or pools, or are missing. Volumes that exist must
/// not be reported as gone.
const REMAPPED: [&str; 4] = [
    "
device-classes:
  - {name: thick, volume-group: myvg1, spare-gb: 0}
  - name: thin
    volume-group: myvg1
    default: true
    spare-gb: 0
    type: thin
    thin-pool: {name: pool2, overprovision-ratio: 10}
  - {name: other, volume-group: myvg1, spare-gb: 0, type: thin, thin-pool: {name: pool, overprovision-ratio: 1.5}}
",
    "
device-classes:
  - {name: thick, volume-group: myvg1, default: true, spare-gb: 0}
  - {name: thin, volume-group: myvg1, spare-gb: 0, type: thin, thin-pool: {name: pool, overprovision-ratio: 1.5}}
",
    "
device-classes:
  - name: thin
    volume-group: myvg1
    default: true
    spare-gb: 0
    type: thin
    thin-pool: {name: pool, overprovision-ratio: 1.5}
  - {name: other, volume-group: myvg1, spare-gb: 0, type: thin, thin-pool: {name: pool2, overprovision-ratio: 10}}
",
    "
device-classes:
  - {name: thick, volume-group: myvg1, spare-gb: 0}
",
];

/// Numbers of steps in all scenarios.
#[derive(Debug, Default)]
struct Counts {
    done: u32,
    refused: u32,
    crashes: u32,
    remaps: u32,
    events: u32,
    comparisons: u32,
}

fn lvmd_after_random_scenarios() {
    let test = "lvmd_after_random_scenarios";
    let (runs, seed) = (runs(50), seed(test));
    let mut counts = Counts::default();
    let settings = LocalSettings::new();
    for number in 0..runs {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&(seed + number).to_le_bytes());
        let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
        let mut runner = TestRunner::new_with_rng(Config::default(), rng);
        let steps = scenarios().new_tree(&mut runner).unwrap().current();
        let mut random = Random(seed + number);
        let setting = if random.below(2) == 0 { "" } else { random.one_of(&LVM_SETTINGS) };
        let mut scenario = ScenarioRun::start(random);
        settings.write(setting);
        let outcome =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| scenario.run_steps(&steps, &mut counts)));
        if let Err(panic) = outcome {
            println!("{test}: TOPOLVM_SEED={} TOPOLVM_RUNS=1: lvm.conf {setting:?}: {steps:#?}", seed + number);
            println!("log of the last lvmd:\n{}", scenario.lvmd.end().join("\n"));
            std::panic::resume_unwind(panic);
        }
        drop(scenario);
        settings.write("");
    }
    println!("{test}: {runs} scenarios, lvmd listed everything; {counts:?}");
}

/// A volume group and an lvmd, for one scenario.
struct ScenarioRun {
    lvmd: Lvmd,
    random: Random,
    /// Configuration with which lvmd was started, or will be next.
    config: &'static str,
    /// Open devices by volume.
    open: BTreeMap<&'static str, File>,
    is_hidden: bool,
    is_failing: bool,
    occupants: u32,
    /// Time after the start of the next request at which LVM is killed.
    fault: Option<Duration>,
    _groups: Groups,
    disk: FailingDisk,
}

/// Name, size, tags and device number of each finished volume of a class; and the free bytes.
type Known = (BTreeSet<(String, u64, Vec<String>, (u32, u32))>, u64);

impl ScenarioRun {
    fn start(random: Random) -> Self {
        let disk = FailingDisk::new();
        let groups = Groups::on("myvg1", &DISKS[..1]);
        // A write to a pool that is full must fail: it would wait for a minute.
        for (pool, units) in POOLS.iter().zip([4, 1]) {
            let size = format!("{}b", units * BYTES_OF_GIB);
            run_ok("lvcreate", &["-qy", "--errorwhenfull", "y", "-T", &format!("myvg1/{pool}"), "-L", &size]);
        }
        Self {
            lvmd: Lvmd::start(CONFIG),
            random,
            config: CONFIG,
            open: BTreeMap::new(),
            is_hidden: false,
            is_failing: false,
            occupants: 0,
            fault: None,
            _groups: groups,
            disk,
        }
    }

    fn run_steps(&mut self, steps: &[Step], counts: &mut Counts) {
        for step in steps {
            match step {
                Step::Request(request) => {
                    if self.random.below(4) == 0 {
                        counts.remaps += 1;
                        let config = *self.random.one_of(&REMAPPED);
                        self.configure(config);
                    }
                    let done = wait(self.request(request));
                    *(if done { &mut counts.done } else { &mut counts.refused }) += 1;
                }
                Step::Crash { request, command, after } => {
                    counts.crashes += 1;
                    wait(self.crash(request, approximate_start(command, 1), *after));
                }
                Step::Restart => self.restart(),
                Step::Event(event) => {
                    counts.events += 1;
                    self.apply_event(event);
                }
                Step::Fault { command, nth, .. } => self.fault = Some(approximate_start(command, *nth)),
                Step::Heal => self.fault = None,
                Step::Wait(_) => {
                    if !self.is_hidden && !self.is_failing {
                        counts.comparisons += 1;
                        self.configure(CONFIG);
                        wait(self.wait_until_lvmd_knows());
                    }
                }
            }
        }
        self.apply_event(&Event::Hide(false));
        self.apply_event(&Event::Miss(0));
        self.configure(CONFIG);
        wait(self.wait_until_lvmd_knows());
        self.open.clear();
        self.restart();
        wait(self.wait_until_lvmd_knows());
        let tags = run_ok("lvs", &["--noheadings", "-o", "lv_tags", "myvg1"]);
        assert!(!tags.contains("topolvm.io/making="), "half made: {tags}");
        counts.comparisons += 2;
    }

    /// Restarts lvmd with another configuration, unless it could not start.
    fn configure(&mut self, config: &'static str) {
        if config != self.config && !self.is_hidden && !self.is_failing {
            self.config = config;
            self.restart();
        }
    }

    fn restart(&mut self) {
        if self.is_hidden || self.is_failing {
            // It would not start without its group.
            return;
        }
        self.lvmd.kill();
        self.lvmd = Lvmd::start(self.config);
    }

    /// Sends a request and compares the volumes before and after. Returns true if it succeeded.
    async fn request(&mut self, request: &Request) -> bool {
        let client = self.lvmd.connect().await;
        let before = list_volumes();
        let answered = send_request(&client, request);
        let answered = match self.fault.take() {
            None => answered.await,
            Some(moment) => {
                tokio::pin!(answered);
                if let Ok(early) = tokio::time::timeout(moment, &mut answered).await {
                    early
                } else {
                    kill_lvm();
                    answered.await
                }
            }
        };
        let Some(after) = list_volumes() else { return answered.is_ok() };
        let name = request.name();
        match (request, &answered) {
            (Request::Create { gib, .. } | Request::Snapshot { gib, .. } | Request::Resize { gib, .. }, Ok(size)) => {
                let there = after.get(name).unwrap_or_else(|| panic!("{name} was returned to a client and is missing"));
                assert!(!there.is_half_made && there.size >= gib * BYTES_OF_GIB && there.size == *size, "{there:?}");
            }
            (Request::Remove { .. }, Ok(_)) => assert!(!after.contains_key(name), "{name} was removed and is there"),
            (Request::Remove { .. } | Request::Resize { .. }, Err(status)) if status.code() == Code::NotFound => {
                assert!(!after.contains_key(name), "{name} is there, and not found: {status}");
            }
            (_, Err(status)) => assert_ne!(status.code(), Code::Unknown, "{status}"),
        }
        let others = before.iter().flatten().filter(|(other, volume)| *other != name && !volume.is_half_made);
        for (other, volume) in others {
            assert_eq!(after.get(other), Some(volume), "{other} was touched");
        }
        answered.is_ok()
    }

    /// Kills lvmd in the middle of a request, and LVM with it or not.
    async fn crash(&mut self, request: &Request, moment: Duration, with_lvm: bool) {
        if self.is_hidden || self.is_failing {
            return;
        }
        let client = self.lvmd.connect().await;
        let asked = send_request(&client, request);
        tokio::pin!(asked);
        if tokio::time::timeout(moment, &mut asked).await.is_err() {
            self.lvmd.kill();
            if with_lvm {
                kill_lvm();
            }
            drop(asked.await);
        }
        self.restart();
    }

    fn apply_event(&mut self, event: &Event) {
        // A change that LVM refuses has no effect.
        let lvm = |command: &str| {
            let words: Vec<_> = command.split_whitespace().collect();
            run("lvm", &words).status.success()
        };
        let path = |name: &str| format!("/dev/myvg1/{name}");
        match *event {
            Event::Add { name, pool: Some(pool), gib } => {
                lvm(&format!("lvcreate -qqy -T myvg1/{pool} -V {}b -n {name}", gib * BYTES_OF_GIB));
            }
            Event::Add { name, pool: None, gib } => {
                lvm(&format!("lvcreate -qqy -L {}b -n {name} myvg1", gib * BYTES_OF_GIB));
            }
            Event::Lose { name } => drop(lvm(&format!("lvremove -qqfy myvg1/{name}"))),
            Event::Extend => {
                let disk = self.disk.device();
                if !lvm(&format!("vgextend -qqy myvg1 {disk}")) {
                    lvm(&format!("vgreduce -qq myvg1 {disk}"));
                }
            }
            Event::Activate { name, active } => {
                lvm(&format!("lvchange -qqy -K -a{} myvg1/{name}", if active { 'y' } else { 'n' }));
            }
            Event::Open { name, open: true } => {
                if let Ok(device) = File::open(path(name)) {
                    self.open.insert(name, device);
                }
            }
            Event::Open { name, open: false } => drop(self.open.remove(name)),
            Event::Move { name } => {
                if lvm(&format!("lvchange -qqy -an myvg1/{name}")) {
                    // Something else gets its device number.
                    self.occupants += 1;
                    run_ok("dmsetup", &["create", &format!("occupant{}", self.occupants), "--table", "0 8 zero"]);
                    lvm(&format!("lvchange -qqy -K -ay myvg1/{name}"));
                }
            }
            Event::Fill { pool, percent } => {
                let of = list_volumes().unwrap_or_default();
                if let Some((name, _)) = of.iter().find(|(_, volume)| volume.pool == pool)
                    && let Ok(device) = File::options().write(true).open(path(name))
                {
                    // Refused when it is read-only or the pool is full.
                    drop(device.write_all_at(&[1; 4096], u64::from(percent % 16) * MIB));
                    drop(device.sync_all());
                }
            }
            Event::Hide(hide) if hide != self.is_hidden => {
                let (from, to) = if hide { ("myvg1", "elsewhere") } else { ("elsewhere", "myvg1") };
                // A killed LVM leaves links behind, and LVM accepts no name whose directory exists
                drop(std::fs::remove_dir_all(format!("/dev/{to}")));
                // LVM refuses it while something in the group is not as it should be, and then nothing has happened.
                lvm(&format!("vgrename -qq {from} {to}"));
                self.is_hidden = !run("vgs", &["myvg1"]).status.success();
            }
            Event::Hide(_) => {}
            Event::Miss(missing) => {
                let fails = missing > 0;
                if fails == self.is_failing {
                    return;
                }
                self.is_failing = fails;
                if fails {
                    FailingDisk::fail();
                } else {
                    FailingDisk::repair();
                    let group = if self.is_hidden { "elsewhere" } else { "myvg1" };
                    lvm(&format!("vgextend -qq --restoremissing {group} {}", self.disk.device()));
                }
            }
        }
    }

    /// Waits until lvmd lists what LVM has.
    async fn wait_until_lvmd_knows(&mut self) {
        let client = self.lvmd.connect().await;
        let start = Instant::now();
        let mut again = tokio::time::interval(Duration::from_millis(50));
        loop {
            let idle = lvm_processes().is_empty();
            let there = CLASSES.map(expected_listing);
            let mut known = Vec::new();
            for class in CLASSES {
                known.push(lvmd_listing(&client, class).await);
            }
            if idle && known.iter().zip(&there).all(|(known, there)| known.as_ref().is_ok_and(|known| known == there)) {
                return;
            }
            // Failed reads are retried after one second, then after two; refused creations after 5 seconds, then after
            // 10 and 20.
            assert!(start.elapsed() < Duration::from_mins(1), "lvmd knows {known:#?}, there is {there:#?}");
            again.tick().await;
        }
    }
}

impl Drop for ScenarioRun {
    fn drop(&mut self) {
        self.open.clear();
        if self.is_failing {
            FailingDisk::repair();
        }
        if self.is_hidden {
            drop(run("vgrename", &["-q", "elsewhere", "myvg1"]));
        }
        for number in 1..=self.occupants {
            drop(run("dmsetup", &["remove", "--retry", &format!("occupant{number}")]));
        }
    }
}

/// Returns the approximate time from a request to the run of a command: the fake LVM has the exact time, here it is
/// random.
fn approximate_start(command: &str, nth: usize) -> Duration {
    let place = COMMANDS.iter().position(|other| *other == command).unwrap_or(0);
    Duration::from_millis(u64::try_from(10 * place + 15 * nth).unwrap())
}

async fn send_request(client: &Client, wanted: &Request) -> Result<u64, Status> {
    let size = |bytes: i64| u64::try_from(bytes).unwrap();
    match *wanted {
        Request::Create { class, name, gib } => {
            client.create_with(request(class, name, gib * BYTES_OF_GIB)).await.map(|made| size(made.size_bytes))
        }
        Request::Resize { class, name, gib } => client.resize_in(class, name, gib * BYTES_OF_GIB).await.map(size),
        Request::Snapshot { class, source, name, gib } => {
            let class = class.to_owned();
            let wanted =
                CreateLvSnapshotRequest { device_class: class, ..snapshot(name, source, "rw", gib * BYTES_OF_GIB) };
            client.snapshot(wanted).await.map(|made| size(made.size_bytes))
        }
        Request::Remove { class, name } => client.remove(class, name).await.map(|()| 0),
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Volume {
    size: u64,
    pool: String,
    tags: Vec<String>,
    device: (u32, u32),
    is_half_made: bool,
}

/// Lists all volumes with `lvs`; `None` if it does not find the group.
fn list_volumes() -> Option<BTreeMap<String, Volume>> {
    let fields = "lv_name,lv_size,pool_lv,lv_tags,lv_kernel_major,lv_kernel_minor";
    let list = run("lvs", &["--noheadings", "--units=b", "--nosuffix", "--separator=|", "-o", fields, "myvg1"]);
    if !list.status.success() {
        return None;
    }
    let list = String::from_utf8(list.stdout).unwrap();
    let volumes = list.lines().map(|line| {
        let [name, size, pool, tags, major, minor] = line.trim().split('|').collect::<Vec<_>>()[..] else {
            panic!("{line}")
        };
        let is_half_made = tags.contains("topolvm.io/making=") && tags.contains("topolvm.io/managed-by=lvmd");
        let tags = tags.split(',').filter(|tag| !tag.is_empty()).map(str::to_owned).collect();
        let device = (major.parse().unwrap_or(0), minor.parse().unwrap_or(0));
        (name.to_owned(), Volume { size: size.parse().unwrap(), pool: pool.to_owned(), tags, device, is_half_made })
    });
    Some(volumes.filter(|(name, _)| NAMES.contains(&name.as_str())).collect())
}

fn expected_listing(class: &str) -> Known {
    let pool = match class {
        "thin" => "pool",
        "other" => "pool2",
        _ => "",
    };
    let all = list_volumes().unwrap_or_default();
    let own: Vec<_> = all.into_iter().filter(|(_, volume)| volume.pool == pool).collect();
    let provisioned: u64 = own.iter().map(|(_, volume)| volume.size).sum();
    let free = match class {
        "thin" => (6 * BYTES_OF_GIB).saturating_sub(provisioned),
        "other" => (10 * BYTES_OF_GIB).saturating_sub(provisioned),
        _ => run_ok("vgs", &["--noheadings", "--units=b", "--nosuffix", "-o", "vg_free", "myvg1"])
            .trim()
            .parse()
            .unwrap(),
    };
    let shown = own.into_iter().filter(|(_, volume)| !volume.is_half_made);
    (shown.map(|(name, volume)| (name, volume.size, volume.tags, volume.device)).collect(), free)
}

async fn lvmd_listing(client: &Client, class: &str) -> Result<Known, Status> {
    let listed = client.list_of(class).await?.into_iter().map(|volume| {
        let size = u64::try_from(volume.size_bytes).unwrap();
        (volume.name, size, volume.tags, (volume.dev_major, volume.dev_minor))
    });
    Ok((listed.collect(), client.free_in(class).await?))
}
