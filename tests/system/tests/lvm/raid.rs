//! Capacity of RAID and striped volumes: the largest size that we compute is the largest that LVM makes.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::process::Command;

use lvm::Layout;

use crate::bench::{Random, is_soak, must, run, runs};

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("the_largest_volume_of_each_layout_is_made_and_one_step_more_refused", the_largest_volume_of_each_layout),
    ("metadata_of_raid_takes_more_than_one_small_extent", metadata_of_raid_takes_more_than_one_small_extent),
    ("checksums_of_raid_are_beside_each_image", checksums_of_raid_are_beside_each_image),
    ("options_that_we_take_for_wrong_are_refused_by_lvm", options_that_we_take_for_wrong_are_refused_by_lvm),
];

/// Options of `lvcreate`, in all the ways of writing them.
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
    "--alloc contiguous",
    "-Cy -i2",
    "--alloc=cling",
    "--type=raid5 --alloc=cling",
    "-m 1 --alloc=cling --nosync -R4m",
    "--alloc anywhere -i2",
    "--alloc anywhere --type=raid1",
];

/// Where the random free areas begin. The layer tries one, another one each day; the soak tries them all.
const SEEDS: &[u64] = &[0x1234_5678, 0xfeed_cafe];

/// A volume group on disks of its own.
struct Group {
    disks: Vec<Disk>,
    extent_size: u64,
    /// Free areas have so many extents at most.
    longest: u64,
}

struct Disk {
    device: String,
    extents: u64,
}

fn the_largest_volume_of_each_layout() {
    let group = Group::new(&[6, 6, 6, 5, 4, 3], 128 << 10);
    group.check(LAYOUTS, 12);
}

fn metadata_of_raid_takes_more_than_one_small_extent() {
    let group = Group::new(&[2, 2, 2, 2], 4 << 10);
    let layouts = ["--type=raid1", "-m2 --alloc=cling", "--type=raid5", "--type=raid10", "--type=raid0_meta"];
    group.check_from(&layouts, 6, 0x8765_4321);
}

fn checksums_of_raid_are_beside_each_image() {
    // They take 8 MiB at least.
    let mut group = Group::new(&[16, 14, 13, 12, 12], 512 << 10);
    group.longest = 24;
    let layouts = ["--type=raid1 --raidintegrity y", "--type=raid5 --raidintegrity=y", "-m1 -i2 --raidintegrity y"];
    group.check_from(&layouts, 8, 0xfeed_cafe);
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
        "-y",
        "-Wn",
        "--noudevsync --noudevsync",
        "--mirr 1",
        "--s 2",
        "--alloc=cling -Cy",
        "--nosync=y",
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
            must("losetup", &["-f", "--show", &file]).trim().to_owned()
        });
        let devices: Vec<String> = devices.collect();
        let arguments: Vec<&str> = devices.iter().map(String::as_str).collect();
        must("vgcreate", &[&["-qy", "-s", &format!("{extent_size}b"), "raid"], &arguments[..]].concat());
        let extents = must("pvs", &[&["--noheadings", "-o", "pv_pe_count", "--nosuffix"], &arguments[..]].concat());
        let extents = extents.split_whitespace().map(|extents| extents.parse().unwrap());
        let disks = devices.into_iter().zip(extents).map(|(device, extents)| Disk { device, extents });
        Self { disks: disks.collect(), extent_size, longest: 12 }
    }

    /// Tries the layouts on random free areas.
    fn check(&self, layouts: &[&str], cases: u64) {
        let today = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs() / (24 * 60 * 60);
        let place = today % u64::try_from(SEEDS.len()).unwrap();
        let place = usize::try_from(place).unwrap();
        let many = usize::try_from(runs(if is_soak() { 2 } else { 1 })).unwrap();
        for seed in SEEDS.iter().cycle().skip(place).take(many) {
            self.check_from(layouts, cases, *seed);
        }
    }

    fn check_from(&self, layouts: &[&str], cases: u64, seed: u64) {
        let mut random = Random(seed);
        // One process for all: most of the time of a command is its start.
        let mut shell = Shell::default();
        let mut tried = Vec::new();
        for case in 0..cases {
            let free = self.fill(&mut random, &mut shell);
            for (number, words) in layouts.iter().enumerate() {
                let layout = parse(words);
                assert!(matches!(layout, Layout::Known(_)), "{words}: {layout}");
                let largest = layout.largest(self.extent_size, &free);
                let kind = if words.contains("anywhere") { "anywhere" } else { "x" };
                let name = |what: &str| format!("{kind}{case}.{number}.{what}");
                if largest > 0 {
                    shell.attempt(&name("largest"), words, largest);
                }
                shell.attempt(&name("more"), words, largest + layout.step());
                tried.push((name("largest"), name("more"), *words, largest, free.clone()));
            }
            shell.say("lvremove -qqfy -An raid");
        }
        let made = shell.run();
        let unknown = made.aborted.iter().filter(|command| command.contains(".largest "));
        assert!(unknown.count() * 10 < tried.len(), "{:#?}", made.aborted);
        let mut wrong = Vec::new();
        for (largest_name, more_name, words, largest, free) in tried {
            let is_aborted = made.aborted.iter().any(|command| command.contains(&format!(" {largest_name} ")));
            if largest > 0 && !made.has(&largest_name) && !is_aborted {
                wrong.push(format!("{words}: {largest} extents are refused with {free:?} free"));
            }
            if made.has(&more_name) {
                wrong.push(format!("{words}: more than {largest} extents are possible with {free:?} free"));
            }
        }
        assert!(wrong.is_empty(), "seed {seed:#x}:\n{}", wrong.join("\n"));
    }

    /// Takes extents away at random. The lengths of the areas that are left are given by disk.
    fn fill(&self, random: &mut Random, shell: &mut Shell) -> Vec<Vec<u64>> {
        let (mut ranges, mut taken, mut free) = (String::new(), 0, Vec::new());
        for Disk { device, extents } in &self.disks {
            let (mut areas, mut at) = (Vec::new(), 0);
            for _ in 0..random.below(4) {
                let start = at + 1 + random.below(4);
                let length = 1 + random.below(self.longest);
                if start + length >= *extents {
                    break;
                }
                write!(ranges, " {device}:{at}-{}", start - 1).unwrap();
                taken += start - at;
                areas.push(length);
                at = start + length;
            }
            write!(ranges, " {device}:{at}-{}", extents - 1).unwrap();
            taken += extents - at;
            free.push(areas);
        }
        shell.say(&format!("lvcreate -qqy -An -an -Zn -Wn -n full -l {taken} raid{ranges}"));
        shell.say(LIST);
        free
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

/// Commands for LVM's shell, which goes on after one that fails.
#[derive(Default)]
struct Shell(Vec<String>);

impl Shell {
    fn say(&mut self, commands: &str) {
        self.0.push(commands.to_owned());
    }

    /// Makes a volume that nobody activates, looks at it and removes it.
    fn attempt(&mut self, name: &str, words: &str, extents: u64) {
        let create = format!("lvcreate -qqy -An -an -Zn -Wn -n {name} -l {extents} {words} raid");
        self.say(&format!("{create}\n{LIST}\nlvremove -qqfy -An raid/{name}"));
    }

    fn run(self) -> Made {
        let (mut made, mut next) = (Made::default(), 0);
        while next < self.0.len() {
            let mut script = String::new();
            for (number, commands) in self.0.iter().enumerate().skip(next) {
                // LVM complains about a command that it does not know, and so says how far it came.
                writeln!(script, "{commands}\n{DONE}{number}").unwrap();
            }
            fs::write("/run/commands", script).unwrap();
            let commands = fs::File::open("/run/commands").unwrap();
            let output = Command::new("lvm").stdin(commands).output().unwrap();
            made.read(&String::from_utf8(output.stdout).unwrap());
            let stderr = String::from_utf8(output.stderr).unwrap();
            let done =
                stderr.lines().filter_map(|line| line.split(DONE).nth(1)?.split('\'').next()?.parse().ok()).max();
            // An assertion in LVM's allocator fails now and then, where nobody can know: it goes on behind that.
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
    /// All parts of all volumes that were there at any time, with the extents where they lay.
    parts: Vec<(String, String)>,
    /// Commands at which LVM itself broke down.
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

    /// Whether LVM made the volume, each image on a disk of its own, as it does since 2.03.23.
    fn has(&self, volume: &str) -> bool {
        let is_there = self.parts.iter().any(|(name, _)| name == volume);
        is_there && (volume.starts_with("anywhere") || self.images_are_apart(volume))
    }

    /// Whether no disk holds parts of two images of the volume, or the metadata of two.
    fn images_are_apart(&self, volume: &str) -> bool {
        let mut seen = BTreeMap::new();
        let parts = self.parts.iter().filter_map(|(name, ranges)| Some((name.strip_prefix(volume)?, ranges)));
        parts.into_iter().all(|(part, ranges)| {
            let mut kinds = ["_rimage_", "_rmeta_"].into_iter();
            let Some((kind, image)) = kinds.find_map(|kind| Some((kind, part.strip_prefix(kind)?))) else {
                return true;
            };
            // What belongs to an image follows its number: _imeta, _iorig.
            let image = image.split('_').next().unwrap();
            let disk = ranges.trim().split(':').next().unwrap();
            *seen.entry((kind, disk)).or_insert(image) == image
        })
    }
}

fn parse(words: &str) -> Layout {
    let words: Vec<String> = words.split_whitespace().map(str::to_owned).collect();
    Layout::parse(&words, None)
}
