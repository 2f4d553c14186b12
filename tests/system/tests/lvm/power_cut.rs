//! Cuts the power while lvmd works, and boots again with the same disks: in the end exactly the volumes that were
//! acknowledged to the client exist. The notes of the client are on a disk that keeps synced data.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;
use std::thread::sleep;
use std::time::Duration;

use libtest_mimic::Trial;
use testbed::size::GIB;
use testbed::suite;

use crate::daemon::Lvmd;
use crate::fixture::{Random, run, runs, seed, wait};
use crate::kills::{Counts, Kept, Request, Scenario};
use crate::power_cycles::{LONG, PowerCycles};
use crate::thin::{CLASSES, pools};

/// Argument before the directory of the notes on the command line of the part that runs in the guest.
pub(crate) const ROLE: &str = "power-cut";
const NOTES: &str = "notes";

pub(crate) fn tests() -> Vec<Trial> {
    vec![suite::panicking_test("power_cut_at_any_moment_leaks_and_adopts_nothing", power_is_cut)]
}

fn power_is_cut() {
    let test = "power_cut_at_any_moment";
    let (cuts, mut random) = (runs(200) / 10, Random(seed(test)));
    let machine = PowerCycles::new(ROLE, &[GIB, GIB]);
    fs::write(machine.notes().join("seed"), random.below(u64::MAX).to_string()).unwrap();
    for number in 0..=cuts {
        let guest = machine.boot();
        if let Err(error) = guest.wait_for_stdout("everything is there", LONG) {
            let said = guest.wait().map(|guest| String::from_utf8_lossy(&guest.stderr).into_owned());
            panic!("after {number} power cuts: {error:#}\n{}", said.unwrap_or_else(|error| format!("{error:#}")));
        }
        sleep(Duration::from_millis(random.below(1500)));
        guest.kill();
    }
    println!("{test}: {cuts} power cuts, 0 leaked, 0 adopted half made");
}

/// Checks the state after the last boot, then sends one request after the other until the power is cut.
pub(crate) fn work(directory: &Path) -> ExitCode {
    let notes = directory.join(NOTES);
    let mut random = Random(fs::read_to_string(directory.join("seed")).unwrap().parse().unwrap());
    let before = fs::read_to_string(&notes).ok().map(|text| Notes::parse(&text));
    let groups = if before.is_some() {
        // As a machine does when it boots: LVM may refuse one volume, and the others are active
        println!("activation: {:?}", run("vgchange", &["-qay"]));
        None
    } else {
        Some(pools())
    };
    let mut number = before.as_ref().map_or(0, |notes| notes.number);
    // Not the same requests on each boot
    random.0 ^= number;
    wait(async {
        let Notes { kept, pending, written, .. } = before.unwrap_or_default();
        let mut scenario = Scenario {
            random,
            kept,
            lvmd: Lvmd::start(CLASSES),
            groups,
            counts: Counts::default(),
            usual: Duration::ZERO,
            next_written: written,
            may_be_written: true,
        };
        if let Some(request) = pending {
            let context = format!("power was cut in {request:?}");
            assert!(
                scenario.finish(&request, &context).await,
                "{context}: the pool needs a person: {:?}",
                run("lvs", &["-a"])
            );
        }
        println!("everything is there");
        scenario.may_be_written = false;
        loop {
            number += 1;
            scenario.next_written = u8::try_from(1 + scenario.random.below(255)).unwrap();
            let request = scenario.request(number);
            let (kept, written) = (scenario.kept.clone(), scenario.next_written);
            Notes { number, kept, pending: Some(request.clone()), written }.save(directory);
            assert!(scenario.finish(&request, &format!("{request:?}")).await);
        }
    })
}

/// State of the client that survives a power cut.
#[derive(Debug, Default)]
struct Notes {
    number: u64,
    kept: BTreeMap<String, Kept>,
    pending: Option<Request>,
    written: u8,
}

impl Notes {
    /// Writes the notes to disk atomically.
    fn save(&self, directory: &Path) {
        let mut text = format!("number {} {}\n", self.number, self.written);
        for (name, Kept { class, bytes, read_only, written }) in &self.kept {
            writeln!(text, "kept {name} {class} {bytes} {read_only} {written}").unwrap();
        }
        let pending = self.pending.as_ref().map(|request| match request {
            Request::Create { class, name, bytes } => format!("create {class} {name} {bytes}"),
            Request::Snapshot { name, source, access, bytes } => format!("snapshot {name} {source} {access} {bytes}"),
            Request::Resize { class, name, bytes } => format!("resize {class} {name} {bytes}"),
            Request::Remove { class, name } => format!("remove {class} {name}"),
        });
        writeln!(text, "{}", pending.unwrap_or_default()).unwrap();
        let new = directory.join("new");
        let mut file = File::create(&new).unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file.sync_all().unwrap();
        fs::rename(new, directory.join(NOTES)).unwrap();
    }

    fn parse(text: &str) -> Self {
        let class = |word: &str| if word == "thin" { "thin" } else { "thick" };
        let access = |word: &str| if word == "ro" { "ro" } else { "rw" };
        let number = |word: &str| word.parse::<u64>().unwrap();
        let mut notes = Self::default();
        for line in text.lines() {
            let name = |word: &str| word.to_owned();
            match line.split(' ').collect::<Vec<_>>()[..] {
                ["number", of, written] => (notes.number, notes.written) = (number(of), written.parse().unwrap()),
                ["kept", of, in_class, bytes, read_only, written] => {
                    let (read_only, written) = (read_only == "true", written.parse().unwrap());
                    let kept = Kept { class: class(in_class), bytes: number(bytes), read_only, written };
                    notes.kept.insert(name(of), kept);
                }
                ["create", in_class, of, bytes] => {
                    notes.pending =
                        Some(Request::Create { class: class(in_class), name: name(of), bytes: number(bytes) });
                }
                ["snapshot", of, source, mode, bytes] => {
                    let (name, source, access) = (name(of), name(source), access(mode));
                    notes.pending = Some(Request::Snapshot { name, source, access, bytes: number(bytes) });
                }
                ["resize", in_class, of, bytes] => {
                    notes.pending =
                        Some(Request::Resize { class: class(in_class), name: name(of), bytes: number(bytes) });
                }
                ["remove", in_class, of] => {
                    notes.pending = Some(Request::Remove { class: class(in_class), name: name(of) });
                }
                _ => assert!(line.is_empty(), "{line}"),
            }
        }
        notes
    }
}
