//! Volume groups, disks and random numbers for the tests.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use lvm::{LvName, Lvm, NewVolume, SystemRunner, Tag, VgName, VolumeGroup};
use testbed::suite;

/// Devices of the guest's two disks.
pub(crate) const DISKS: [&str; 2] = ["/dev/ubda", "/dev/ubdb"];
pub(crate) const MIB: u64 = 1 << 20;
/// Bytes in an extent: LVM's default.
pub(crate) const EXTENT: u64 = 4 * MIB;

/// Runs a program that must succeed.
pub(crate) fn run_ok(program: &str, args: &[&str]) -> String {
    let output = run(program, args);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {args:?}: {stderr}");
    String::from_utf8(output.stdout).unwrap()
}

/// Runs a program.
pub(crate) fn run(program: &str, args: &[&str]) -> Output {
    Command::new(program).args(args).output().unwrap()
}

/// Volume groups that are removed with all their volumes at the end of a test.
pub(crate) struct Groups(Vec<String>);

impl Groups {
    /// Creates one volume group on each of these sets of disks, which are wiped before.
    pub(crate) fn new(groups: &[(&str, &[&str])]) -> Self {
        blank_disks();
        for (name, disks) in groups {
            run_ok("vgcreate", &[&["-qy", name], *disks].concat());
        }
        Self(groups.iter().map(|(name, _)| (*name).to_owned()).collect())
    }

    /// Creates a volume group on disks that were prepared already.
    pub(crate) fn on(name: &str, disks: &[&str]) -> Self {
        run_ok("vgcreate", &[&["-qy", name], disks].concat());
        Self(vec![name.to_owned()])
    }

    /// Creates `myvg1` on the first disk, with a metadata area of the least size.
    pub(crate) fn on_small_metadata() -> Self {
        blank_disks();
        run_ok("pvcreate", &["-qy", "--metadatasize", "4k", "--dataalignment", "64k", DISKS[0]]);
        Self::on("myvg1", &DISKS[..1])
    }

    /// Creates `myvg1` on the first disk.
    pub(crate) fn one() -> Self {
        Self::new(&[("myvg1", &DISKS[..1])])
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        for group in &self.0 {
            // A test may have renamed or removed it; leftovers are wiped before the next test.
            drop(run("vgremove", &["-ffqy", group]));
            // An LVM that was killed leaves links behind, and there is no udev that would remove them.
            drop(std::fs::remove_dir_all(format!("/dev/{group}")));
        }
    }
}

fn blank_disks() {
    for disk in DISKS {
        run_ok("wipefs", &["-aq", disk]);
    }
}

/// A disk that can be switched to I/O errors: the second one, without its first MiB so that LVM does not find the same
/// label twice, behind a device-mapper table and, because LVM scans no such devices, a loop device.
pub(crate) struct FailingDisk(String);

impl FailingDisk {
    pub(crate) fn new() -> Self {
        blank_disks();
        run_ok("dmsetup", &["create", "failing", "--table", &Self::table(Self::GOOD)]);
        let device = run_ok("dmsetup", &["info", "-c", "--noheadings", "-o", "blkdevname", "failing"]);
        // Without direct I/O data would stay in the page cache.
        let device = run_ok("losetup", &["-f", "--show", "--direct-io=on", &format!("/dev/{}", device.trim())]);
        Self(device.trim().to_owned())
    }

    pub(crate) fn device(&self) -> &str {
        &self.0
    }

    pub(crate) fn fail() {
        Self::load_table("error");
    }

    /// Injects errors into this number of sectors of 512 bytes, from this one on.
    pub(crate) fn fail_sectors(first: u64, count: u64) {
        let (end, after) = (Self::sectors(), first + count);
        let parts = [
            format!("0 {first} linear /dev/ubdb 2048"),
            format!("{first} {count} error"),
            format!("{after} {} linear /dev/ubdb {}", end - after, 2048 + after),
        ];
        Self::load(&parts.join("\n"));
    }

    /// Has writes to all sectors from this one on take two minutes.
    pub(crate) fn hang_writes(first: u64) {
        let (count, start) = (Self::sectors() - first, 2048 + first);
        let parts = [
            format!("0 {first} linear /dev/ubdb 2048"),
            format!("{first} {count} delay /dev/ubdb {start} 0 /dev/ubdb {start} 120000"),
        ];
        Self::load(&parts.join("\n"));
    }

    pub(crate) fn repair() {
        Self::load_table(Self::GOOD);
    }

    const GOOD: &str = "linear /dev/ubdb 2048";

    fn sectors() -> u64 {
        run_ok("blockdev", &["--getsz", DISKS[1]]).trim().parse::<u64>().unwrap() - 2048
    }

    fn table(target: &str) -> String {
        format!("0 {} {target}", Self::sectors())
    }

    fn load_table(target: &str) {
        Self::load(&Self::table(target));
    }

    fn load(table: &str) {
        let file = "/run/failing.table";
        std::fs::write(file, format!("{table}\n")).unwrap();
        run_ok("dmsetup", &["suspend", "--noflush", "--nolockfs", "failing"]);
        run_ok("dmsetup", &["load", "failing", file]);
        run_ok("dmsetup", &["resume", "failing"]);
    }
}

impl Drop for FailingDisk {
    fn drop(&mut self) {
        Self::repair();
        drop(run("pvremove", &["-ffqy", &self.0]));
        drop(run("losetup", &["-d", &self.0]));
        drop(run("dmsetup", &["remove", "--retry", "failing"]));
    }
}

/// Directory of the settings of the LVM that the tests run by hand, so that they can read its output with any lvm.conf.
/// lvmd is started without it.
pub(crate) const OWN_LVM_SETTINGS: &str = "/run/lvm-of-the-tests";

/// The file lvmlocal.conf of the guest, which is restored when this is dropped.
pub(crate) struct LocalSettings(Vec<(PathBuf, String)>);

impl LocalSettings {
    const FILE: &str = "lvmlocal.conf";

    /// The settings of lvmd's LVM.
    pub(crate) fn new() -> Self {
        Self::of(&["/etc/lvm"])
    }

    /// The same, and those of the LVM that the tests run by hand.
    pub(crate) fn of_all() -> Self {
        if suite::is_soak() { Self::of(&["/etc/lvm", OWN_LVM_SETTINGS]) } else { Self::new() }
    }

    /// The settings of the LVM that the tests run by hand, in the soak.
    pub(crate) fn of_tests() -> Self {
        Self::of(&[OWN_LVM_SETTINGS])
    }

    fn of(directories: &[&str]) -> Self {
        let file = |directory: &&str| Path::new(directory).join(Self::FILE);
        let read = |path: PathBuf| (path.clone(), std::fs::read_to_string(path).unwrap());
        Self(directories.iter().map(file).map(read).collect())
    }

    /// Writes the original lines and these after them.
    pub(crate) fn write(&self, more: &str) {
        for (file, original) in &self.0 {
            std::fs::write(file, format!("{original}{more}\n")).unwrap();
        }
    }
}

impl Drop for LocalSettings {
    fn drop(&mut self) {
        self.write("");
    }
}

/// Returns all cases in the soak, otherwise the first of every `step` cases.
pub(crate) fn every<T>(step: usize, cases: &[T]) -> impl Iterator<Item = &T> {
    cases.iter().step_by(if suite::is_soak() { 1 } else { step })
}

/// Returns LVM as lvmd uses it unless configured otherwise.
pub(crate) fn lvm() -> Lvm<SystemRunner> {
    Lvm::new(SystemRunner::new(SystemRunner::DEFAULT_PREFIX).unwrap())
}

pub(crate) fn vg(name: &str) -> VgName {
    name.parse().unwrap()
}

pub(crate) fn lv(name: &str) -> LvName {
    name.parse().unwrap()
}

/// Returns the number of repetitions of a random test: `TOPOLVM_RUNS`, or the usual one.
pub(crate) fn runs(usual: u64) -> u64 {
    number("TOPOLVM_RUNS").unwrap_or(usual)
}

/// Returns the seed of a test's random numbers: `TOPOLVM_SEED`, or another one each time. It is printed, so that a run
/// can be repeated as far as its moments allow.
pub(crate) fn seed(test: &str) -> u64 {
    let now = || u64::from(std::time::UNIX_EPOCH.elapsed().unwrap().subsec_nanos());
    let seed = number("TOPOLVM_SEED").unwrap_or_else(now);
    println!("{test}: TOPOLVM_SEED={seed}");
    seed
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|value| value.parse().unwrap())
}

/// Pseudo-random numbers from a seed: `SplitMix64`.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }

    pub(crate) fn one_of<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        let place = self.below(u64::try_from(items.len()).unwrap());
        &items[usize::try_from(place).unwrap()]
    }
}

/// Runs a future to its end.
pub(crate) fn wait<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap().block_on(future)
}

/// Returns the tag of a volume whose creation is not finished.
pub(crate) fn creation_tag() -> Tag {
    "making".parse().unwrap()
}

/// Creates a linear volume in `myvg1`.
pub(crate) async fn create(lvm: &Lvm<SystemRunner>, name: &str, bytes: u64) -> Result<(), lvm::Error> {
    let (vg, name, tags) = (vg("myvg1"), lv(name), [creation_tag()]);
    let volume = NewVolume { vg: &vg, pool: None, name: &name, bytes, tags: &tags, striping: None, options: &[] };
    lvm.create(&volume, &creation_tag()).await.done
}

pub(crate) async fn myvg1(lvm: &Lvm<SystemRunner>) -> VolumeGroup {
    lvm.volume_group(&vg("myvg1")).await.unwrap()
}
