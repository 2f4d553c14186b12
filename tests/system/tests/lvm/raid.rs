//! Capacity of RAID and striped volumes: LVM creates every size up to the computed one, and on ordinary disks none
//! above.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::process::Command;

use lvm::Layout;
use testbed::suite;

use crate::fixture::{Random, run, run_ok, runs, seed};

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("raid_capacity_is_the_largest_volume_that_lvm_creates", raid_capacity),
    ("metadata_of_raid_takes_more_than_one_small_extent", metadata_of_raid_takes_more_than_one_small_extent),
    ("options_that_we_take_for_wrong_are_refused_by_lvm", options_that_we_take_for_wrong_are_refused_by_lvm),
];

/// Options of `lvcreate` for each layout, in all spellings.
const LAYOUTS: &[&str] = &[
    "",
    "--type striped -i2",
    "--stripes=3",
    "--type=raid0 -i 2",
    "--type=raid0_meta -Ki3",
    "--type=raid1",
    "-m1",
    "--mirrors 2",
    "--type=raid4",
    "--type raid5",
    "--type=raid5_n --stripes 3 --maxrec 100m",
    "--type=raid6",
    "--type=raid10",
    "-m1 -i3 -I8k",
    "-m 1 --nosync -R4m",
];

/// The lengths in extents of the free areas of each disk.
type Areas = Vec<Vec<u64>>;

/// A volume group on separate disks.
struct Group {
    disks: Vec<Disk>,
    extent_size: u64,
    /// Largest length of a free area, in extents.
    longest: u64,
}

/// Sizes in extents that are tried with a layout on free areas.
struct Tried<'a> {
    /// Names of the volumes of the largest size, of a smaller one, and of a size that is one step larger.
    names: [String; 3],
    words: &'a str,
    smaller: u64,
    largest: u64,
    free: &'a Areas,
    /// True if LVM must refuse a size that is one step larger.
    is_exact: bool,
}

struct Disk {
    device: String,
    extents: u64,
}

fn raid_capacity() {
    let group = Group::new(&[48, 48, 48, 40, 32, 24], 1 << 20);
    // All disks equally free, one shorter, one extent left.
    let special: [&[&[u64]]; 3] = [
        &[&[12], &[12], &[12], &[12], &[12], &[12]],
        &[&[12], &[12], &[7], &[12], &[12], &[12]],
        &[&[1], &[1], &[1], &[1], &[1], &[1]],
    ];
    group.check("raid_capacity", LAYOUTS, &special, 7);
}

fn metadata_of_raid_takes_more_than_one_small_extent() {
    let mut group = Group::new(&[4, 4, 4, 4], 4 << 10);
    group.longest = 200;
    let layouts = ["--type=raid1", "-m2", "--type=raid5", "--type=raid10", "--type=raid0_meta"];
    // Images of raid10 have more metadata than others of their size.
    let special: [&[&[u64]]; 3] = [
        &[&[1, 73, 1], &[82, 1, 82], &[75, 3], &[2, 74]],
        &[&[80, 1, 9], &[81], &[75, 7], &[81, 12]],
        &[&[73], &[74], &[82, 2, 5], &[74, 5]],
    ];
    group.check("metadata_of_raid", &layouts, &special, 3);
}

fn options_that_we_take_for_wrong_are_refused_by_lvm() {
    let _group = Group::new(&[6; 5], 128 << 10);
    let wrong = [
        "--type=raid6 -i2",
        "--type=raid5 -i1",
        "--type=raid5 -m1",
        "--type=raid1 -i2",
        "--type=raid1 -m0",
        "--type=raid10 -m2",
        "--type=raid10 -i1",
        "--type=linear -i2",
        "--type=striped -m1",
        "--type=raid6 --nosync",
        "-i2 -i2",
        "-i0",
        "-R4m",
        "--type=raid0 --raidintegrity y",
        "-m1 --raidintegrity y",
        "-y",
        "-Wn",
        "--noudevsync --noudevsync",
        "--mirr 1",
        "--s 2",
        "--alloc=cling -Cy",
        "--nosync=y",
        "--zero=maybe",
        "-C1",
        "--setautoactivation yes",
        "--setactivationskip q",
        "--monitor 0",
        "--autobackup 3",
        "--persistent 2",
        "--permission x",
        "--readahead x",
        "-m1 --regionsize x",
        "--minor x",
    ];
    let mut shell = Shell::default();
    for (number, words) in wrong.iter().enumerate() {
        let layout = parse(words);
        assert!(matches!(layout, Layout::Unknown { .. }), "{words}: {layout}");
        shell.attempt(&format!("x{number}"), words, 12);
    }
    shell.attempt("right", "", 12);
    let made = shell.run();
    assert!(made.has("right"));
    for (number, words) in wrong.iter().enumerate() {
        assert!(!made.has(&format!("x{number}")), "{words}");
    }
}

impl Group {
    fn new(mib: &[u64], extent_size: u64) -> Self {
        let devices = mib.iter().enumerate().map(|(number, mib)| {
            let file = format!("/run/disk{number}");
            fs::File::create(&file).unwrap().set_len(mib << 20).unwrap();
            run_ok("losetup", &["-f", "--show", &file]).trim().to_owned()
        });
        let devices: Vec<String> = devices.collect();
        let arguments: Vec<&str> = devices.iter().map(String::as_str).collect();
        run_ok("vgcreate", &[&["-qy", "-s", &format!("{extent_size}b"), "raid"], &arguments[..]].concat());
        let extents = run_ok("pvs", &[&["--noheadings", "-o", "pv_pe_count", "--nosuffix"], &arguments[..]].concat());
        let extents = extents.split_whitespace().map(|extents| extents.parse().unwrap());
        let disks = devices.into_iter().zip(extents).map(|(device, extents)| Disk { device, extents });
        Self { disks: disks.collect(), extent_size, longest: 12 }
    }

    /// Tries the layouts on these free areas, and on pseudo-random ones that are the same each time. The soak tries
    /// others.
    fn check(&self, test: &str, layouts: &[&str], special: &[&[&[u64]]], cases: u64) {
        let (rounds, mut random) =
            if suite::is_soak() { (runs(10), Random(seed(test))) } else { (1, Random(0x1234_5678)) };
        let mut wrong = Vec::new();
        for round in 0..rounds {
            let special = special.iter().filter(|_| round == 0);
            let mut free: Vec<Areas> = special.map(|free| free.iter().map(|areas| areas.to_vec()).collect()).collect();
            let cases = if suite::is_soak() { cases } else { cases.div_ceil(3) };
            free.extend((0..cases).map(|_| self.areas(&mut random)));
            if free.is_empty() {
                break;
            }
            wrong.extend(self.disagreements(layouts, &free, &mut random));
        }
        assert!(wrong.is_empty(), "{}:\n{}", wrong.len(), wrong.join("\n"));
    }

    /// Returns the cases in which LVM refuses a computed size, or creates a larger one on ordinary disks.
    fn disagreements(&self, layouts: &[&str], cases: &[Areas], random: &mut Random) -> Vec<String> {
        // One process for all: most of the time of a command is its start.
        let mut shell = Shell::default();
        let mut tried = Vec::new();
        for (case, free) in cases.iter().enumerate() {
            self.leave_free(free, &mut shell);
            for (number, words) in layouts.iter().enumerate() {
                let layout = parse(words);
                assert!(matches!(layout, Layout::Known(_)), "{words}: {layout}");
                let largest = layout.largest(self.extent_size, free);
                let names = ["largest", "smaller", "more"].map(|what| format!("x{case}.{number}.{what}"));
                let is_exact = self.is_ordinary(free);
                let smaller = random.below(largest.max(1));
                for (name, extents) in names.iter().zip([largest, smaller, largest + layout.step()]) {
                    if extents > 0 && (is_exact || extents <= largest) {
                        shell.attempt(name, words, extents);
                    }
                }
                tried.push(Tried { names, words, smaller, largest, free, is_exact });
            }
            shell.say("lvremove -qqfy -An raid");
        }
        let made = shell.run();
        let unknown = made.aborted.iter().filter(|command| command.contains(".largest "));
        assert!(unknown.count() * 10 < tried.len(), "{:#?}", made.aborted);
        let mut wrong = Vec::new();
        for Tried { names: [largest_name, smaller_name, more_name], words, smaller, largest, free, is_exact } in tried {
            for (name, extents) in [(largest_name, largest), (smaller_name, smaller)] {
                let is_aborted = made.aborted.iter().any(|command| command.contains(&format!(" {name} ")));
                if extents > 0 && !made.has(&name) && !is_aborted {
                    wrong.push(format!("{words}: {extents} extents of {largest} are refused with {free:?} free"));
                }
            }
            if is_exact && made.has(&more_name) {
                wrong.push(format!("{words}: more than {largest} extents are possible with {free:?} free"));
            }
        }
        wrong
    }

    /// Returns true if all disks have the same free space, in one piece each, except for one that has less or none. For
    /// extents smaller than an image's metadata the computed size may also be too small there.
    fn is_ordinary(&self, free: &Areas) -> bool {
        let mut sums: Vec<u64> = free.iter().map(|areas| areas.iter().sum()).collect();
        sums.sort_unstable();
        let is_even = sums.windows(2).skip(1).all(|pair| pair[0] == pair[1]);
        let is_in_one_piece = free.iter().all(|areas| areas.len() <= 1);
        is_even && is_in_one_piece && self.extent_size >= 512 << 10
    }

    /// Returns random free areas with gaps between them; every third time those of ordinary disks.
    fn areas(&self, random: &mut Random) -> Areas {
        if random.below(3) == 0 {
            let shortest = self.disks.iter().map(|disk| disk.extents).min().unwrap();
            let length = 1 + random.below(self.longest.min(shortest - 2));
            let mut areas: Areas = self.disks.iter().map(|_| vec![length]).collect();
            let shorter = random.below(length + 1);
            let disk = usize::try_from(random.below(6)).unwrap() % areas.len();
            areas[disk] = if shorter == 0 { Vec::new() } else { vec![shorter] };
            return areas;
        }
        let areas = |disk: &Disk| {
            let (mut areas, mut at) = (Vec::new(), 1);
            for _ in 0..random.below(4) {
                let length = 1 + random.below(self.longest);
                if at + length >= disk.extents {
                    break;
                }
                areas.push(length);
                at += length + 1;
            }
            areas
        };
        self.disks.iter().map(areas).collect()
    }

    /// Allocates all space except these areas.
    fn leave_free(&self, free: &Areas, shell: &mut Shell) {
        let (mut ranges, mut taken) = (String::new(), 0);
        for (Disk { device, extents }, areas) in self.disks.iter().zip(free) {
            let mut at = 0;
            for length in areas {
                write!(ranges, " {device}:{at}-{at}").unwrap();
                at += 1 + length;
            }
            assert!(at < *extents, "{areas:?} on {extents} extents");
            write!(ranges, " {device}:{at}-{}", extents - 1).unwrap();
            taken += extents - areas.iter().sum::<u64>();
        }
        shell.say(&format!("lvcreate -qqy -An -an -Zn -Wn -n full -l {taken} raid{ranges}"));
        shell.say(LIST);
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        drop(run("vgremove", &["-qqffy", "raid"]));
        for disk in &self.disks {
            drop(run("losetup", &["-d", &disk.device]));
        }
    }
}

const LIST: &str = "lvs -a --noheadings --nameprefixes -o lv_name,seg_pe_ranges raid";

/// Commands for LVM's shell, which continues after a failed one.
#[derive(Default)]
struct Shell(Vec<String>);

impl Shell {
    fn say(&mut self, commands: &str) {
        self.0.push(commands.to_owned());
    }

    /// Creates an inactive volume, lists its parts and removes it.
    fn attempt(&mut self, name: &str, words: &str, extents: u64) {
        let create = format!("lvcreate -qqy -An -an -Zn -Wn -n {name} -l {extents} {words} raid");
        self.say(&format!("{create}\n{LIST}\nlvremove -qqfy -An -S lv_name!=full raid"));
    }

    fn run(self) -> Made {
        let (mut made, mut next) = (Made::default(), 0);
        while next < self.0.len() {
            let mut script = String::new();
            for (number, commands) in self.0.iter().enumerate().skip(next) {
                // LVM prints an error for an unknown command, which marks the progress.
                writeln!(script, "{commands}\n{DONE}{number}").unwrap();
            }
            fs::write("/run/commands", script).unwrap();
            let commands = fs::File::open("/run/commands").unwrap();
            let output = Command::new("lvm").stdin(commands).output().unwrap();
            made.read(&String::from_utf8(output.stdout).unwrap());
            let stderr = String::from_utf8(output.stderr).unwrap();
            let done =
                stderr.lines().filter_map(|line| line.split(DONE).nth(1)?.split('\'').next()?.parse().ok()).max();
            // An assertion in LVM's allocator fails occasionally and unpredictably: the script continues after that
            // command.
            next = done.map_or(next, |done: usize| done + 1);
            if let Some(failed) = self.0.get(next) {
                assert!(stderr.contains("Assertion") && failed.contains("-An"), "{failed}: {stderr}");
                made.aborted.push(failed.clone());
                next += 1;
            }
        }
        made
    }
}

const DONE: &str = "done-";

#[derive(Default)]
struct Made {
    /// Parts of all volumes that existed at any time, with their extents.
    parts: Vec<(String, String)>,
    /// Commands at which LVM aborted.
    aborted: Vec<String>,
}

impl Made {
    fn read(&mut self, list: &str) {
        let lines = list.lines().filter(|line| line.trim().starts_with("LVM2_LV_NAME="));
        self.parts.extend(lines.map(|line| {
            let values: Vec<_> = line.split('\'').collect();
            (values[1].trim_matches(['[', ']']).to_owned(), values[3].to_owned())
        }));
    }

    /// Returns true if LVM created the volume, each image on a separate disk, as it does since 2.03.23.
    fn has(&self, volume: &str) -> bool {
        self.parts.iter().any(|(name, _)| name == volume) && self.images_are_apart(volume)
    }

    /// Returns true if no disk holds parts of two images of the volume, or the metadata of two.
    fn images_are_apart(&self, volume: &str) -> bool {
        let mut seen = BTreeMap::new();
        let parts = self.parts.iter().filter_map(|(name, ranges)| Some((name.strip_prefix(volume)?, ranges)));
        parts.into_iter().all(|(part, ranges)| {
            let mut kinds = ["_rimage_", "_rmeta_"].into_iter();
            let Some((kind, image)) = kinds.find_map(|kind| Some((kind, part.strip_prefix(kind)?))) else {
                return true;
            };
            let disk = ranges.trim().split(':').next().unwrap();
            *seen.entry((kind, disk)).or_insert(image) == image
        })
    }
}

fn parse(words: &str) -> Layout {
    let words: Vec<String> = words.split_whitespace().map(str::to_owned).collect();
    Layout::parse(&words, None)
}
