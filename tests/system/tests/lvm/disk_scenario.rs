//! A random scenario with the disks of a disk group: they are connected, disconnected, reconnected, extended and
//! evacuated, volumes are created, and lvmd is killed. No byte of a disk with data and no byte of a volume may change.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::thread::sleep;
use std::time::Duration;

use tonic::{Code, Status};
use topolvm_proto::lvmd::disk_service_client::DiskServiceClient;
use topolvm_proto::lvmd::{CreateLvRequest, DiskRequest, EvacuateDiskRequest};

use crate::daemon::{Client, Lvmd, signed};
use crate::disk_groups::{group, members};
use crate::fixture::{EXTENT, Random, run, run_ok, runs, seed, wait};
use crate::lvm_processes::lvm_processes;
use crate::scsi_disks::{ScsiDisks, contents, until};
use crate::signatures::SIGNATURES;

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("random_disk_changes_and_kills_overwrite_nothing", || random_scenario(false)),
    ("random_disk_changes_and_kills_lose_no_volume", || random_scenario(true)),
];

const GROUP: &str = "scsi";
/// Most disks that are plugged in, and of those with volumes, which are larger: they are in the guest's memory.
const MANY: usize = 20;
const MANY_LARGE: usize = 8;
/// Most volumes.
const MANY_VOLUMES: usize = 12;

/// Disks with volumes do not grow: those of the driver have no more bytes then, and wrap around.
fn random_scenario(has_volumes: bool) {
    let mut scenario = Scenario::begin(has_volumes);
    for step in 0..runs(200) {
        let done = scenario.advance();
        scenario.history.push(format!("{step}: {done}"));
        scenario.check("then");
    }
    scenario.end();
}

struct Scenario {
    /// Ends before the disks go.
    lvmd: Lvmd,
    random: Random,
    has_volumes: bool,
    disks: ScsiDisks,
    /// Disks that were ever plugged in.
    count: usize,
    /// The disk that is pulled out.
    is_out: Option<usize>,
    /// Disks with foreign data: number, kind of data, and the bytes.
    marked: Vec<(usize, &'static str, Vec<u8>)>,
    /// The volumes, with the byte that each is full of.
    volumes: BTreeMap<String, u8>,
    /// UUIDs of physical volumes that have left the group.
    left: BTreeSet<String>,
    made: u64,
    /// All that was done.
    history: Vec<String>,
    evacuations: u64,
}

impl Scenario {
    fn begin(has_volumes: bool) -> Self {
        let random = Random(seed(if has_volumes { "random disks with volumes" } else { "random disks" }));
        let disks = if has_volumes { ScsiDisks::of_size(48, 2, &[GROUP]) } else { ScsiDisks::new(2, &[GROUP]) };
        let lvmd = Lvmd::start(&group("auto"));
        Self {
            random,
            has_volumes,
            disks,
            count: 2,
            is_out: None,
            marked: Vec::new(),
            volumes: BTreeMap::new(),
            left: BTreeSet::new(),
            made: 0,
            history: Vec::new(),
            evacuations: 0,
            lvmd,
        }
    }

    /// Runs a random step, and returns its description.
    fn advance(&mut self) -> String {
        match self.random.below(11) {
            0 | 1 if self.count < if self.has_volumes { MANY_LARGE } else { MANY } => self.plug_in(),
            // Without the only disk of a group there is none, and a new one of its name would meet it again
            2 if self.is_out.is_none() && members(GROUP).len() > 1 => {
                let index = usize::try_from(self.random.below(u64::try_from(self.count).unwrap())).unwrap();
                self.disks.pull(index);
                self.is_out = Some(index);
                format!("disk {index} was pulled out")
            }
            3 => self.put_back(),
            4 => {
                self.restart();
                "lvmd was killed".to_owned()
            }
            5 if self.is_out.is_none() && !self.has_volumes => {
                self.disks.grow(0);
                "a disk has grown".to_owned()
            }
            5..=7 if self.has_volumes && self.volumes.len() < MANY_VOLUMES => self.make_volume(),
            8 | 9 => self.evacuate(),
            10 => self.stop_evacuation(),
            _ => {
                sleep(Duration::from_millis(self.random.below(1500)));
                "nothing was done".to_owned()
            }
        }
    }

    fn restart(&mut self) {
        self.lvmd.kill();
        self.lvmd = Lvmd::start(&group("auto"));
    }

    /// Plugs in a disk, blank or with data. One with data is written while lvmd is stopped: no program is faster than a
    /// uevent.
    fn plug_in(&mut self) -> String {
        let signature = self.random.one_of(SIGNATURES);
        let has_data = self.random.below(3) == 0;
        if has_data {
            self.lvmd.kill();
            // Its LVM commands continue, with the path of a disk that is still blank
            until("the end of LVM", || lvm_processes().is_empty().then_some(()));
        }
        ScsiDisks::plug_new();
        let device = self.disks.device(self.count);
        if has_data {
            signature.make(&device);
            self.marked.push((self.count, signature.name, contents(&device)));
            self.lvmd = Lvmd::start(&group("auto"));
        }
        self.count += 1;
        format!("{device} was plugged in with {}", if has_data { signature.name } else { "nothing" })
    }

    /// Reconnects the disk, and runs the commands of docs/node-maintenance.md.
    fn put_back(&mut self) -> String {
        let Some(index) = self.is_out.take() else { return "no disk was out".to_owned() };
        self.disks.put_back(index);
        // LVM may or may not have written metadata without it
        drop(run("vgextend", &["-q", "--restoremissing", GROUP, &self.disks.device(index)]));
        drop(run("lvchange", &["-q", "--refresh", GROUP]));
        format!("disk {index} was put back")
    }

    /// Has lvmd create a volume, which it refuses without free space or while a disk is missing, and fills it.
    fn make_volume(&mut self) -> String {
        let name = format!("v{}", self.made);
        self.made += 1;
        let bytes = EXTENT * (1 + self.random.below(4));
        let made = self.ask(async |client| {
            let request = CreateLvRequest {
                name: name.clone(),
                device_class: GROUP.to_owned(),
                size_bytes: signed(bytes),
                ..CreateLvRequest::default()
            };
            client.create_with(request).await.map(drop)
        });
        if let Err(why) = made {
            return format!("no volume was made: {why}");
        }
        let byte = u8::try_from(1 + self.random.below(255)).unwrap();
        let mut device = OpenOptions::new().write(true).open(format!("/dev/{GROUP}/{name}")).unwrap();
        device.write_all(&vec![byte; usize::try_from(bytes).unwrap()]).unwrap();
        device.sync_all().unwrap();
        let said = format!("{name} was made");
        self.volumes.insert(name, byte);
        said
    }

    fn evacuate(&mut self) -> String {
        let Some(uuid) = self.choose(&uuids("vg_name=scsi")) else { return "there is no disk".to_owned() };
        let remove = self.random.below(2) == 0;
        let bytes_per_second = *self.random.one_of(&[0, EXTENT]);
        let asked = self.ask(async |client| {
            let request =
                EvacuateDiskRequest { volume_group: GROUP.to_owned(), uuid: uuid.clone(), bytes_per_second, remove };
            DiskServiceClient::new(client.0.clone()).evacuate_disk(request).await.map(drop)
        });
        self.evacuations += u64::from(asked.is_ok());
        format!("{uuid} was to be emptied, remove: {remove}: {asked:?}")
    }

    fn stop_evacuation(&mut self) -> String {
        let Some(uuid) = self.choose(&leaving()) else { return "no disk is emptied".to_owned() };
        let asked = self.ask(async |client| stop(client, uuid.clone()).await);
        format!("{uuid} was not to be emptied any more: {asked:?}")
    }

    /// Sends lvmd a request that it may refuse temporarily.
    fn ask<T>(&self, request: impl AsyncFnOnce(&Client) -> Result<T, Status>) -> Result<T, String> {
        let answer = wait(async { request(&self.lvmd.connect().await).await });
        answer.map_err(|status| {
            let may_be =
                [Code::ResourceExhausted, Code::FailedPrecondition, Code::NotFound, Code::Unavailable, Code::Internal];
            assert!(may_be.contains(&status.code()), "{status}");
            status.message().to_owned()
        })
    }

    /// Returns one of these UUIDs.
    fn choose(&mut self, uuids: &BTreeSet<String>) -> Option<String> {
        let uuids: Vec<_> = uuids.iter().cloned().collect();
        (!uuids.is_empty()).then(|| self.random.one_of(&uuids).clone())
    }

    /// Checks that nothing has changed that must not. Of a group that lacks a disk nothing can be read for certain.
    fn check(&mut self, when: &str) {
        let context = format!("{}\n{when}", self.history.join("\n"));
        for (index, name, before) in self.marked.iter().filter(|(index, ..)| Some(*index) != self.is_out) {
            let device = self.disks.device(*index);
            assert!(contents(&device) == *before, "{context}: {name} on {device} was overwritten");
        }
        let of_group = uuids("vg_name=scsi");
        assert!(self.left.is_disjoint(&of_group), "{context}: a disk that had left was added: {:?}", self.left);
        self.left.extend(uuids("vg_name=\"\"&&pv_uuid!=\"\""));
        if self.is_out.is_none() {
            for (name, byte) in &self.volumes {
                check_volume(name, *byte, &context);
            }
        }
    }

    /// Reconnects all disks, and checks the state.
    fn end(mut self) {
        self.put_back();
        for uuid in leaving() {
            // It may leave just now
            drop(self.ask(async |client| stop(client, uuid.clone()).await));
        }
        let is_marked = |index: &usize| self.marked.iter().any(|(marked, ..)| marked == index);
        let blank: Vec<_> = (0..self.count).filter(|index| !is_marked(index)).collect();
        until(&format!("{}\nall {} disks that were blank", self.history.join("\n"), blank.len()), || {
            let listed = run_ok("pvs", &["--noheadings", "-o", "pv_name"]);
            let taken: BTreeSet<_> = listed.split_whitespace().map(str::to_owned).collect();
            blank.iter().all(|index| taken.contains(&self.disks.device(*index))).then_some(())
        });
        self.check("in the end");
        until("the end of all moves", || {
            (!run_ok("lvs", &["-a", "--noheadings", "-o", "lv_name", GROUP]).contains("pvmove")).then_some(())
        });
        self.check("when nothing is moved any more");
        self.lvmd.kill();
        until("the end of LVM", || lvm_processes().is_empty().then_some(()));
        println!("{} volumes, {} evacuations, {} disks left", self.volumes.len(), self.evacuations, self.left.len());
    }
}

async fn stop(client: &Client, uuid: String) -> Result<(), Status> {
    let request = DiskRequest { volume_group: GROUP.to_owned(), uuid };
    DiskServiceClient::new(client.0.clone()).stop_evacuation(request).await.map(drop)
}

/// Returns the UUIDs of the physical volumes of a selection that LVM finds.
fn uuids(selection: &str) -> BTreeSet<String> {
    list(selection, |missing, _| missing.is_empty())
}

/// Returns the UUIDs of the disks that are to be emptied.
fn leaving() -> BTreeSet<String> {
    list("vg_name=scsi", |_, tags| tags.contains("topolvm.io/evacuate="))
}

/// Returns the UUIDs of the physical volumes of a selection of which this holds: whether they are missing, and their
/// tags.
fn list(selection: &str, is_wanted: impl Fn(&str, &str) -> bool) -> BTreeSet<String> {
    let fields = ["--noheadings", "--separator=|", "-o", "pv_uuid,pv_missing,pv_tags", "-S", selection];
    let listed = String::from_utf8(run("pvs", &fields).stdout).unwrap();
    let read = |line: &str| {
        let [uuid, missing, tags] = line.trim().split('|').collect::<Vec<_>>()[..] else { panic!("{line}") };
        is_wanted(missing, tags).then(|| uuid.to_owned())
    };
    listed.lines().filter_map(read).collect()
}

fn check_volume(name: &str, byte: u8, context: &str) {
    let mut bytes = Vec::new();
    let read = File::open(format!("/dev/{GROUP}/{name}")).and_then(|mut device| device.read_to_end(&mut bytes));
    let wrong = bytes.iter().position(|found| *found != byte);
    let lies_on = || run_ok("lvs", &["-a", "-o", "lv_name,lv_attr,devices", GROUP]);
    let is_right = read.is_ok() && wrong.is_none();
    assert!(is_right, "{context}: {name} is not what it was: {read:?}, byte {wrong:?}\n{}", lies_on());
}
