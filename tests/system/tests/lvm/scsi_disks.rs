//! SCSI disks in memory that are connected, disconnected, reconnected and extended, by the kernel's module
//! `scsi_debug`: a host adapter with one disk each.

use std::fs::{self, File};
use std::io::Read as _;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::fixture::{LocalSettings, run, run_ok};

/// Bytes of a disk, unless it has grown.
pub(crate) const SIZE: usize = 16 << 20;
/// Size in GiB of all disks after [`ScsiDisks::grow`].
const GROWN: &str = "1";
const ADAPTERS: &str = "/sys/bus/pseudo/devices";
const DRIVER: &str = "/sys/bus/pseudo/drivers/scsi_debug";
/// The driver's option to answer commands with busy, so that the kernel retries.
const BUSY: &str = "0x8000";
/// Jiffies in a second (`HZ` of User-Mode Linux), in which the driver has its delay.
const JIFFIES: u64 = 100;
/// Has LVM see these disks and those of the guest.
const FILTER: &str = r#"devices/global_filter=["a|^/dev/ubd|","a|^/dev/sd|","r|.*|"]"#;
const LONG: Duration = Duration::from_mins(3);

/// Disks that are removed with all that is on them.
pub(crate) struct ScsiDisks {
    groups: Vec<&'static str>,
    /// Directory of the host adapters.
    adapters: PathBuf,
    settings: LocalSettings,
}

impl ScsiDisks {
    /// Plugs in so many blank disks. The volume groups of these names are removed at the end.
    pub(crate) fn new(count: usize, groups: &[&'static str]) -> Self {
        Self::of_size(SIZE >> 20, count, groups)
    }

    /// Does the same with disks of so many MiB.
    pub(crate) fn of_size(mib: usize, count: usize, groups: &[&'static str]) -> Self {
        let settings = LocalSettings::of_all();
        settings.write(FILTER);
        run_ok("modprobe", &["sd_mod"]);
        let count_of_hosts = format!("add_host={count}");
        let size = format!("dev_size_mb={mib}");
        let options = [&*size, "per_host_store=1", "max_luns=1", "num_tgts=1", "delay=0", "removable=0"];
        run_ok("modprobe", &[&["scsi_debug", &count_of_hosts], &options[..]].concat());
        let disks = Self { groups: groups.to_vec(), adapters: ADAPTERS.into(), settings };
        for index in 0..count {
            disks.device(index);
        }
        disks
    }

    /// Returns the device of a disk, for example `/dev/sda`, when it exists.
    pub(crate) fn device(&self, index: usize) -> String {
        until(&format!("disk {index}"), || self.find(index))
    }

    /// Returns the device of a disk if it exists.
    pub(crate) fn find(&self, index: usize) -> Option<String> {
        let target = self.host(index)?.join(format!("target{0}:0:0/{0}:0:0:0/block", self.host_number(index)?));
        let name = fs::read_dir(target).ok()?.next()?.ok()?.file_name();
        let device = format!("/dev/{}", name.to_string_lossy());
        // The device node may exist a moment before it can be opened
        File::open(&device).is_ok().then_some(device)
    }

    /// Plugs in one blank disk more, which gets the next number.
    pub(crate) fn plug_new() {
        fs::write(format!("{DRIVER}/add_host"), "1").unwrap();
    }

    /// Pulls a disk out.
    pub(crate) fn pull(&self, index: usize) {
        let device = self.device(index);
        fs::write(format!("/sys/block/{}/device/delete", name(&device)), "1").unwrap();
        until("the end of a disk", || self.find(index).is_none().then_some(()));
    }

    /// Puts a disk back that was pulled out.
    pub(crate) fn put_back(&self, index: usize) {
        let host = self.host_number(index).unwrap();
        fs::write(format!("/sys/class/scsi_host/host{host}/scan"), "- - -").unwrap();
        self.device(index);
    }

    /// Extends all disks, and has the kernel rescan this one.
    pub(crate) fn grow(&self, index: usize) {
        fs::write(format!("{DRIVER}/virtual_gb"), GROWN).unwrap();
        let device = self.device(index);
        fs::write(format!("/sys/block/{}/device/rescan", name(&device)), "1").unwrap();
    }

    /// Has all disks answer each read and write after so long, while the kernel waits for them.
    pub(crate) fn slow_down(&self, delay: Duration) {
        let patience = (2 * delay + LONG).as_secs().to_string();
        for index in (0..).take_while(|index| self.host(*index).is_some()) {
            fs::write(format!("/sys/block/{}/device/timeout", name(&self.device(index))), &patience).unwrap();
        }
        Self::set_delay(delay.as_secs() * JIFFIES);
    }

    /// Has all disks answer at once again. Pending commands are answered after their delay, and later commands wait for
    /// them: the driver accepts no other delay while commands are pending.
    pub(crate) fn speed_up() {
        for (file, value) in [("opts", BUSY), ("every_nth", "1")] {
            fs::write(format!("{DRIVER}/{file}"), value).unwrap();
        }
        Self::set_delay(0);
        for file in ["every_nth", "opts"] {
            fs::write(format!("{DRIVER}/{file}"), "0").unwrap();
        }
    }

    /// Has LVM read all disks for each command, also those that it does not need.
    pub(crate) fn disable_hints(&self) {
        self.settings.write(&format!("{FILTER}\ndevices/hints=\"none\""));
    }

    fn set_delay(jiffies: u64) {
        until("another delay", || fs::write(format!("{DRIVER}/delay"), jiffies.to_string()).ok());
    }

    fn host(&self, index: usize) -> Option<PathBuf> {
        let adapter = self.adapters.join(format!("adapter{index}"));
        let entries = fs::read_dir(adapter).ok()?.filter_map(Result::ok);
        entries.map(|entry| entry.path()).find(|path| name(&path.to_string_lossy()).starts_with("host"))
    }

    fn host_number(&self, index: usize) -> Option<String> {
        let host = self.host(index)?;
        Some(name(&host.to_string_lossy()).trim_start_matches("host").to_owned())
    }
}

impl Drop for ScsiDisks {
    fn drop(&mut self) {
        for group in &self.groups {
            drop(run("vgremove", &["-ffqy", group]));
        }
        // A program of an lvmd that was killed may have a disk open for a moment
        until("the end of the module", || run("modprobe", &["-r", "scsi_debug"]).status.success().then_some(()));
    }
}

/// Returns the last part of a path.
fn name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// Waits until `find` returns a value.
pub(crate) fn until<T>(what: &str, mut find: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + LONG;
    loop {
        if let Some(found) = find() {
            return found;
        }
        assert!(Instant::now() < end, "{what} did not come");
        sleep(Duration::from_millis(20));
    }
}

/// Returns the bytes of a disk, without those by which it has grown.
pub(crate) fn contents(device: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut first = File::open(device).unwrap().take(u64::try_from(SIZE).unwrap());
    first.read_to_end(&mut bytes).unwrap();
    bytes
}
