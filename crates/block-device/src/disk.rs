//! A disk as sysfs describes it.

use crate::Use;

/// Number of a block device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Number {
    /// Number of the driver.
    pub major: u32,
    /// Number of the device among those of the driver.
    pub minor: u32,
}

/// A disk. The texts are those of the disk or its driver, without blanks around them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disk {
    /// The kernel's name, for example `sdb`.
    pub name: String,
    /// Its device in `/dev`.
    pub path: String,
    /// Its number.
    pub number: Number,
    /// A number that no other disk has had since the machine was booted; 0 on kernels before 5.15.
    pub sequence: u64,
    /// Size in bytes.
    pub size: u64,
    /// True if the kernel refuses to write to it.
    pub read_only: bool,
    /// True for a rotational disk (HDD), false for others; `None` if its driver does not report it.
    pub rotational: Option<bool>,
    /// True if it or its medium can be taken out while the machine runs.
    pub removable: bool,
    /// Its model.
    pub model: Option<String>,
    /// Its serial number.
    pub serial: Option<String>,
    /// Its world-wide identity, the same on all paths to it.
    pub wwid: Option<String>,
    /// The way in which it is attached, one of [`TRANSPORTS`](crate::TRANSPORTS).
    pub transport: Option<&'static str>,
    /// Its names in `/dev/disk/by-id`, sorted.
    pub ids: Vec<String>,
    /// Its names in `/dev/disk/by-path`, sorted.
    pub bus_paths: Vec<String>,
    /// Everything that uses it or a part of it.
    pub uses: Vec<Use>,
}

impl Disk {
    /// Returns a name that stays the same when the machine is booted again, if udev gave it one. Names made of model
    /// and serial number go before world-wide numbers.
    pub fn stable_name(&self) -> Option<&str> {
        let is_number = |id: &&String| ["wwn-", "nvme-eui.", "nvme-uuid."].iter().any(|prefix| id.starts_with(prefix));
        self.ids.iter().find(|id| !is_number(id)).or_else(|| self.ids.first()).map(String::as_str)
    }

    /// Returns the path of that name.
    pub fn stable_path(&self) -> Option<String> {
        self.stable_name().map(|name| format!("/dev/disk/by-id/{name}"))
    }
}
