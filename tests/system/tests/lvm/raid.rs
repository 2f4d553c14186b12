//! Capacity of RAID and striped volumes: the largest size that we compute is the largest that LVM makes.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;

use lvm::Layout;

use crate::bench::{must, run};

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

/// A volume group on disks of its own.
struct Group {
    disks: Vec<String>,
    extent_size: u64,
    /// Free areas have so many extents at most.
    longest: u64,
}

fn the_largest_volume_of_each_layout() {
    let group = Group::new(&[6, 6, 6, 5, 4, 3], 128 << 10);
    group.check(LAYOUTS, 12, 0x1234_5678);
}

fn metadata_of_raid_takes_more_than_one_small_extent() {
    let group = Group::new(&[2, 2, 2, 2], 4 << 10);
    let layouts = ["--type=raid1", "-m2 --alloc=cling", "--type=raid5", "--type=raid10", "--type=raid0_meta"];
    group.check(&layouts, 6, 0x8765_4321);
}

fn checksums_of_raid_are_beside_each_image() {
    // They take 8 MiB at least.
    let mut group = Group::new(&[16, 14, 13, 12, 12], 512 << 10);
    group.longest = 24;
    let layouts = ["--type=raid1 --raidintegrity y", "--type=raid5 --raidintegrity=y", "-m1 -i2 --raidintegrity y"];
    group.check(&layouts, 8, 0xfeed_cafe);
}

fn options_that_we_take_for_wrong_are_refused_by_lvm() {
    let _group = Group::new(&[6; 5], 128 << 10);
    for wrong in [
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
    ] {
        let layout = parse(wrong);
        assert!(matches!(layout, Layout::Unknown { .. }), "{wrong}: {layout}");
        assert!(!create(wrong, 12), "{wrong}");
    }
}

impl Group {
    fn new(mib: &[u64], extent_size: u64) -> Self {
        let disks = mib.iter().enumerate().map(|(number, mib)| {
            let file = format!("/run/disk{number}");
            fs::File::create(&file).unwrap().set_len(mib << 20).unwrap();
            must("losetup", &["-f", "--show", &file]).trim().to_owned()
        });
        let group = Self { disks: disks.collect(), extent_size, longest: 12 };
        let disks: Vec<&str> = group.disks.iter().map(String::as_str).collect();
        must("vgcreate", &[&["-qy", "-s", &format!("{extent_size}b"), "raid"], &disks[..]].concat());
        group
    }

    /// Tries the layouts on random free areas.
    fn check(&self, layouts: &[&str], cases: usize, seed: u64) {
        let mut random = Random(seed);
        let mut wrong = Vec::new();
        for _ in 0..cases {
            let free = self.fill(&mut random);
            let wanted = layouts.iter().map(|words| (*words, parse(words)));
            let wanted: Vec<(&str, u64)> = wanted
                .map(|(words, layout)| match layout {
                    Layout::Known(_) => (words, layout.largest(self.extent_size, &free)),
                    Layout::Unknown { reason } => panic!("{words}: {reason}"),
                })
                .collect();
            // One process for all; it stops at the first volume that is refused.
            let quick = create_all(&wanted);
            for &(words, largest) in &wanted {
                if largest > 0 && !quick && !create(words, largest) {
                    wrong.push(format!("{words}: {largest} extents are refused with {free:?} free"));
                }
                if create(words, largest + parse(words).step()) {
                    wrong.push(format!("{words}: more than {largest} extents are possible with {free:?} free"));
                }
            }
            must("lvremove", &["-qqfy", "raid"]);
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    /// Takes extents away at random. The lengths of the areas that are left are given by disk.
    fn fill(&self, random: &mut Random) -> Vec<Vec<u64>> {
        let (mut ranges, mut taken, mut free) = (Vec::new(), 0, Vec::new());
        for disk in &self.disks {
            let total: u64 = must("pvs", &["--noheadings", "-o", "pv_pe_count", disk]).trim().parse().unwrap();
            let (mut areas, mut at) = (Vec::new(), 0);
            for _ in 0..random.below(4) {
                let start = at + 1 + random.below(4);
                let length = 1 + random.below(self.longest);
                if start + length >= total {
                    break;
                }
                ranges.push(format!("{disk}:{at}-{}", start - 1));
                taken += start - at;
                areas.push(length);
                at = start + length;
            }
            ranges.push(format!("{disk}:{at}-{}", total - 1));
            taken += total - at;
            free.push(areas);
        }
        let taken = taken.to_string();
        let mut args = vec!["-qqy", "-an", "-Zn", "-Wn", "-n", "full", "-l", &taken, "raid"];
        args.extend(ranges.iter().map(String::as_str));
        must("lvcreate", &args);
        free
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        drop(run("vgremove", &["-qqffy", "raid"]));
        for disk in &self.disks {
            drop(run("losetup", &["-d", disk]));
        }
    }
}

const LIST: &str = "lvs -a --noheadings -o lv_name,seg_pe_ranges raid";

/// Makes a volume that nobody activates.
fn lvcreate(name: &str, words: &str, extents: u64) -> String {
    format!("lvcreate -qqy -an -Zn -Wn -n {name} -l {extents} {words} raid")
}

/// Whether LVM makes the volume, each image on a disk of its own, as it does since 2.03.23.
fn create(words: &str, extents: u64) -> bool {
    let run = |command: &str| {
        let words: Vec<&str> = command.split_whitespace().collect();
        run("lvm", &words)
    };
    if !run(&lvcreate("x", words, extents)).status.success() {
        return false;
    }
    let list = run(LIST);
    assert!(run("lvremove -qqfy raid/x").status.success() && list.status.success());
    words.contains("anywhere") || images_are_apart(&String::from_utf8(list.stdout).unwrap())
}

/// Whether LVM makes all these volumes, one after the other, each image on a disk of its own. One process does it: most of
/// the time of a command is its start.
fn create_all(volumes: &[(&str, u64)]) -> bool {
    let mut script = "#!/sbin/lvm\n".to_owned();
    for (number, (words, extents)) in volumes.iter().filter(|(_, extents)| *extents > 0).enumerate() {
        let name = format!("{}{number}", if words.contains("anywhere") { "anywhere" } else { "x" });
        writeln!(script, "{}\n{LIST}\nlvremove -qqfy raid/{name}", lvcreate(&name, words, *extents)).unwrap();
    }
    fs::write("/run/script", script).unwrap();
    let output = run("lvm", &["/run/script"]);
    output.status.success() && images_are_apart(&String::from_utf8(output.stdout).unwrap())
}

/// Whether no disk holds parts of two images of a volume, or the metadata of two.
fn images_are_apart(list: &str) -> bool {
    let mut seen = BTreeMap::new();
    list.lines().filter_map(|line| line.trim().split_once(' ')).all(|(name, ranges)| {
        let name = name.trim_matches(['[', ']']);
        let parts = ["_rimage_", "_rmeta_"].iter().find_map(|part| Some((*part, name.split_once(part)?)));
        let Some((kind, (volume, image))) = parts.filter(|_| !name.starts_with("anywhere")) else { return true };
        // What belongs to an image follows its number: _imeta, _iorig.
        let image = image.split('_').next().unwrap();
        let disk = ranges.trim().split(':').next().unwrap();
        *seen.entry((volume, kind, disk)).or_insert(image) == image
    })
}

fn parse(words: &str) -> Layout {
    let words: Vec<String> = words.split_whitespace().map(str::to_owned).collect();
    Layout::parse(&words, None)
}

/// Numbers that look random and are the same each time: `SplitMix64`.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }
}
