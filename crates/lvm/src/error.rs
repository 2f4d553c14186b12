//! Errors of LVM, read from its exit status and its English messages.
//!
//! The runner sets `LC_ALL=C`, so that the messages are these.

use std::fmt;
use std::time::Duration;

use crate::report::ReportError;
use crate::{FullName, LvName, LvmCommand, Output, RunError, VgName, VolumeGroup};

/// LVM's exit status for "the command failed" (`ECMD_FAILED`); a wrong command line gives 3.
const EXIT_FAILED: i32 = 5;
/// Exit status of LVM's shell, whatever became of the commands in it.
const EXIT_SHELL: i32 = 0;
/// Error texts travel in gRPC headers, which have a limit; LVM can repeat one warning a thousand times.
const MAX_STDERR: usize = 1500;

/// Error of an LVM operation. `stderr` is LVM's standard error, on one line and of bounded length.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// LVM found no volume group of this name. Its devices may be missing or unreadable: this does not mean that the
    /// data is lost.
    #[error("volume group {0} not found")]
    GroupNotFound(VgName),
    /// LVM read the volume group, and the logical volume is not in it.
    #[error("logical volume {0} not found")]
    VolumeNotFound(FullName),
    /// The logical volume to change has been replaced or changed by another process. Nothing was done.
    #[error("logical volume {0} was changed by another program at the same time")]
    Changed(FullName),
    /// There is a volume of this name already.
    #[error("{0}")]
    AlreadyExists(Refusal),
    /// The volume group has not enough free extents, or not where the layout needs them.
    #[error("{0}")]
    NoSpace(Refusal),
    /// The volume is open or mounted, or another LVM command holds the lock of the volume group.
    #[error("{0}")]
    Busy(Refusal),
    /// The volume is being moved to another physical volume, or a part of it.
    #[error("{0}")]
    Locked(Refusal),
    /// LVM refuses changes because physical volumes of the group are missing.
    #[error("{0}")]
    Incomplete(Refusal),
    /// LVM finds two volume groups of this name, and reads and changes neither.
    #[error(
        "LVM finds two volume groups with the name {vg} and uses neither ({stderr}); list them with `vgs -o \
         vg_uuid,vg_name,pv_name`, then rename one with `vgrename UUID NAME`, or detach its disks"
    )]
    DuplicateName {
        /// The name.
        vg: VgName,
        /// LVM's standard error.
        stderr: String,
    },
    /// A physical volume of the group lies on a logical volume: it belongs to the tenant or administrator who uses that
    /// volume.
    #[error(
        "physical volume {disk} of volume group {vg} is on logical volume {volume} and is ignored; lvmd does not \
         change volume groups that users create inside volumes"
    )]
    OnVolume {
        /// The group.
        vg: VgName,
        /// Device file of the physical volume.
        disk: String,
        /// The volume, as `GROUP/VOLUME`.
        volume: String,
    },
    /// It is not known on what a physical volume of the group lies.
    #[error(
        "cannot determine the underlying device of physical volume {disk} of volume group {vg}, so the volume group is \
         ignored; the backing file of a loop device must exist in the mount namespace in which LVM runs"
    )]
    UnknownDisk {
        /// The group.
        vg: VgName,
        /// Device file of the physical volume.
        disk: String,
        /// The reason.
        source: std::io::Error,
    },
    /// The group belongs to another machine (lvmsystemid(7)).
    #[error(
        "volume group {vg} has the system ID {system_id} of another machine and is ignored; if it belongs to this \
         machine, run `vgchange --systemid \"$(lvm systemid | cut -d: -f2)\" --config \
         'local/extra_system_ids=[\"{system_id}\"]' {vg}`"
    )]
    ForeignGroup {
        /// The group.
        vg: VgName,
        /// Its system ID.
        system_id: String,
    },
    /// Another machine works in the group: it sees the same disks, or these are a copy.
    #[error(
        "volume group {vg} belongs to another machine (tag {tag}) and is ignored; if no other machine uses it any \
         more, run `vgchange --deltag {tag} {vg}`"
    )]
    OtherMachine {
        /// The group.
        vg: VgName,
        /// The tag of the other machine.
        tag: String,
        /// The report.
        group: Box<VolumeGroup>,
    },
    /// The group was exported to be moved to another machine.
    #[error("volume group {0} is exported and is ignored; to use it on this machine, run `vgimport {0}`")]
    ExportedGroup(VgName),
    /// The kernel has a thin device with the id that LVM chose for a new volume, which no volume has: an LVM that was
    /// killed left it.
    #[error("{command}: {stderr}; {}", thin_device_remedy(vg, *id))]
    ThinDeviceExists {
        /// The LVM command's name.
        command: String,
        /// The group.
        vg: VgName,
        /// Id of the device within its pool.
        id: u32,
        /// LVM's standard error.
        stderr: String,
    },
    /// LVM does not activate a volume, because a part of it is active without it: an LVM that was killed left it so, or
    /// an administrator has activated it.
    #[error("{command}: {stderr}; unless you need it, run `lvchange -an {vg}/{part}`")]
    PartIsActive {
        /// The LVM command's name.
        command: String,
        /// The group.
        vg: VgName,
        /// Name of the part, such as that of a pool's metadata.
        part: String,
        /// LVM's standard error.
        stderr: String,
    },
    /// LVM cannot suspend a volume, because its filesystem is frozen already and the kernel freezes it only once.
    #[error(
        "{command}: {stderr}; the filesystem on the volume is frozen, and before Linux 6.8 LVM cannot freeze it a \
         second time for a snapshot: remove hooks that freeze it, and if a backup tool left it frozen, run `fsfreeze \
         --unfreeze DIRECTORY` on the node"
    )]
    Frozen {
        /// The LVM command's name.
        command: String,
        /// LVM's standard error.
        stderr: String,
    },
    /// The filesystems of several volumes cannot be frozen together.
    #[error(
        "cannot freeze the filesystems for snapshots of one moment: {stderr}; if a backup tool left one frozen, run \
         `fsfreeze --unfreeze DIRECTORY` on the node; take snapshots of raw block volumes that are in use one by one"
    )]
    NotFrozen {
        /// Standard error of the programs that freeze.
        stderr: String,
    },
    /// The kernel freezes a filesystem only once, and LVM needs to freeze it a second time.
    #[error("snapshots of one moment need Linux 6.8 or later on the node; take snapshots of single volumes")]
    FreezesOnce,
    /// Filesystems were thawed before LVM had taken the snapshots of all volumes, or a device was opened.
    #[error(
        "volumes in volume group {vg} may have been written to between their snapshots of one moment, for which they \
         are frozen {} s at most; no snapshot is kept: try again, or take snapshots of fewer volumes at a time",
        .limit.as_secs()
    )]
    ThawedEarly {
        /// The group.
        vg: VgName,
        /// The time limit.
        limit: Duration,
    },
    /// LVM did not end in time.
    #[error("{command} did not end within {} s and was stopped", .after.as_secs())]
    Timeout {
        /// The LVM command's name.
        command: String,
        /// Its deadline.
        after: Duration,
    },
    /// LVM could not be started, or its output not be read.
    #[error("cannot run {command}")]
    Run {
        /// The LVM command's name.
        command: String,
        /// The reason.
        source: RunError,
    },
    /// Any other failure.
    #[error("{command} failed{}: {stderr}", exit(*.code))]
    Exit {
        /// The LVM command's name.
        command: String,
        /// Exit status; `None` when a signal ended it, 0 when it was one of several in a process.
        code: Option<i32>,
        /// LVM's standard error.
        stderr: String,
    },
    /// LVM ended well but its report makes no sense.
    #[error("cannot parse the report of {command}")]
    Report {
        /// The LVM command's name.
        command: String,
        /// The reason.
        source: ReportError,
    },
}

/// The message with which LVM refused a command.
#[derive(Debug)]
pub struct Refusal {
    /// The LVM command's name.
    pub command: String,
    /// LVM's standard error.
    pub stderr: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.command, self.stderr)
    }
}

fn exit(code: Option<i32>) -> String {
    match code {
        None => " (terminated by a signal)".to_owned(),
        Some(0) => String::new(),
        Some(code) => format!(" (exit status {code})"),
    }
}

impl Error {
    pub(crate) fn from_run(commands: &[LvmCommand], error: RunError) -> Self {
        let command = commands.first().map_or("lvm", LvmCommand::name).to_owned();
        match error {
            RunError::Timeout(after) => Self::Timeout { command, after },
            source @ (RunError::Spawn { .. } | RunError::Read(_)) => Self::Run { command, source },
        }
    }

    /// Returns an error of which no more is known than LVM's standard error.
    pub(crate) fn failed(command: &LvmCommand, output: &Output) -> Self {
        Self::Exit { command: command.name().to_owned(), code: output.code, stderr: on_one_line(&output.stderr) }
    }

    /// Returns whether LVM metadata that a tenant wrote into its volume may be the reason.
    pub(crate) fn may_be_forged(&self) -> bool {
        matches!(
            self,
            Self::GroupNotFound(_)
                | Self::DuplicateName { .. }
                | Self::OnVolume { .. }
                | Self::UnknownDisk { .. }
                | Self::ForeignGroup { .. }
                | Self::ExportedGroup(_)
                | Self::OtherMachine { .. }
        )
    }

    /// Returns whether LVM works, and the group alone cannot be used until an administrator changes something.
    pub fn is_unusable_group(&self) -> bool {
        self.may_be_forged() && !matches!(self, Self::GroupNotFound(_))
    }

    /// Returns whether this means that the volume does not exist.
    pub(crate) fn means_not_found(&self, group: &VgName, volume: &LvName) -> bool {
        matches!(self, Self::VolumeNotFound(name) if *name == FullName::new(group, volume))
    }

    /// Returns the error of a failed command about this group, and possibly this volume in it.
    pub(crate) fn from_output(command: &LvmCommand, vg: &VgName, name: Option<&LvName>, output: &Output) -> Self {
        // Both mean "not found" only if LVM itself ran to its end; a message alone may be about something else.
        let is_from_lvm = matches!(output.code, Some(EXIT_FAILED | EXIT_SHELL));
        let has_message = |text: &str| is_from_lvm && output.stderr.lines().any(|line| line.trim() == text);
        if has_message(&format!("Volume group \"{vg}\" not found")) {
            return Self::GroupNotFound(vg.clone());
        }
        if has_message(&format!("Multiple VGs found with the same name: skipping {vg}")) {
            return Self::DuplicateName { vg: vg.clone(), stderr: on_one_line(&output.stderr) };
        }
        if has_message(&format!("Volume group \"{vg}\" is exported"))
            || has_message(&format!("Volume group {vg} is exported"))
        {
            return Self::ExportedGroup(vg.clone());
        }
        if let Some(system_id) = foreign_system_id(&output.stderr, vg).filter(|_| is_from_lvm) {
            return Self::ForeignGroup { vg: vg.clone(), system_id: system_id.to_owned() };
        }
        if let Some(name) = name
            && (has_message(&format!("Failed to find logical volume \"{vg}/{name}\""))
                || has_message(&format!("Logical volume {name} not found in volume group {vg}."))
                || has_message(&format!("Existing logical volume \"{name}\" not found in volume group \"{vg}\"")))
        {
            return Self::VolumeNotFound(FullName::new(vg, name));
        }
        let command = command.name().to_owned();
        let stderr = on_one_line(&output.stderr);
        if let Some(id) = existing_thin_device(&output.stderr) {
            return Self::ThinDeviceExists { command, vg: vg.clone(), id, stderr };
        }
        if let Some(part) = active_part(&output.stderr, vg) {
            return Self::PartIsActive { command, vg: vg.clone(), part: part.to_owned(), stderr };
        }
        if is_suspend_of_frozen(&output.stderr) {
            return Self::Frozen { command, stderr };
        }
        let refused = find_refusal(&output.stderr)
            .map(|refused| refused(Refusal { command: command.clone(), stderr: stderr.clone() }))
            .filter(|error| !(matches!(error, Self::NoSpace(_)) && names_broken_pool(&output.stderr)));
        if let Some(refused) = refused {
            return refused;
        }
        let remedy = pool_remedy(vg, &output.stderr).map(|remedy| format!("; {remedy}")).unwrap_or_default();
        Self::Exit { command, code: output.code, stderr: stderr + &remedy }
    }
}

/// Returns the system ID because of which LVM refuses a group.
fn foreign_system_id<'a>(stderr: &'a str, vg: &VgName) -> Option<&'a str> {
    let refusal = format!("Cannot access VG {vg} with system ID ");
    let (system_id, _) = stderr.lines().find_map(|line| line.trim().strip_prefix(&refusal))?.split_once(" with ")?;
    Some(system_id)
}

/// Returns whether the kernel has refused to suspend a device because the filesystem on it is frozen: it gives EBUSY
/// for nothing else.
fn is_suspend_of_frozen(stderr: &str) -> bool {
    stderr.lines().any(|line| {
        line.trim().starts_with("device-mapper: suspend ioctl on ") && line.ends_with("failed: Device or resource busy")
    })
}

/// Returns the id of the thin device that is in the way of a new volume.
fn existing_thin_device(stderr: &str) -> Option<u32> {
    let (_, rest) = stderr.split_once("already contain thin device with device_id ")?;
    rest.split(|character: char| !character.is_ascii_digit()).next()?.parse().ok()
}

/// Returns the part of a volume that is active without it and for which LVM does not activate the volume.
fn active_part<'a>(stderr: &'a str, vg: &VgName) -> Option<&'a str> {
    let between = format!(" is prohibited while logical volume {vg}/");
    let (_, rest) = stderr.lines().find_map(|line| line.trim().split_once(&between))?;
    rest.strip_suffix(" is active.")
}

fn thin_device_remedy(vg: &VgName, id: u32) -> String {
    let device = vg.as_str().replace('-', "--");
    format!(
        "a killed LVM command left thin device {id}: if `lvs -a -o name,thin_id {vg}` lists no {id} in the pool, \
         repair the pool with `dmsetup message {device}-POOL-tpool 0 'delete {id}'` (docs/limits.md)"
    )
}

/// Returns what helps with a thin pool whose kernel part and whose metadata disagree about the transaction, for which
/// LVM has no command.
fn pool_remedy(vg: &VgName, stderr: &str) -> Option<String> {
    stderr.contains("unexpected transaction id").then(|| {
        format!(
            "a killed LVM command left the pool with a transaction id that differs from the metadata of {vg}: run \
             `vgcfgbackup -f FILE {vg}`, correct transaction_id in FILE, run `vgcfgrestore --force --yes -f FILE {vg}` \
             (step by step in docs/limits.md)"
        )
    })
}

/// A message by which LVM refuses: how the line begins, what is in it, how it ends, and its meaning.
type Message = (&'static str, &'static str, &'static str, fn(Refusal) -> Error);

const REFUSALS: [Message; 15] = [
    ("", "already exists in volume group", "", Error::AlreadyExists),
    ("", "already exists in Volume group", "", Error::AlreadyExists),
    ("", "has insufficient free space (", "", Error::NoSpace),
    ("Insufficient free space:", "", "", Error::NoSpace),
    ("Insufficient suitable ", "", "", Error::NoSpace),
    ("No specified PVs have space available.", "", "", Error::NoSpace),
    ("Not enough free space", "", "", Error::NoSpace),
    ("", "", "new volumes are not allowed.", Error::NoSpace),
    ("", "free space in thin pool ", " reached threshold.", Error::NoSpace),
    ("", "contains a filesystem in use", "", Error::Busy),
    ("Logical volume", "", " in use.", Error::Busy),
    ("Logical volume", " is used by another device", "", Error::Busy),
    ("Can't get lock for ", "", "", Error::Busy),
    ("Can", " locked ", "", Error::Locked),
    ("Cannot change VG ", " while PVs are missing", "", Error::Incomplete),
];

/// Returns the meaning of the first line that is a refusal. Warnings are none.
fn find_refusal(stderr: &str) -> Option<fn(Refusal) -> Error> {
    stderr.lines().map(str::trim).filter(|line| !line.starts_with("WARNING:")).find_map(|line| {
        let is_this =
            |(begin, part, end, _): &&Message| line.starts_with(begin) && line.contains(part) && line.ends_with(end);
        REFUSALS.iter().find(is_this).map(|(.., refused)| *refused)
    })
}

/// Returns whether LVM warns of a thin pool that must be repaired. LVM names a lack of free space as the reason for
/// every refused volume in a pool, but more space does not help a broken pool.
fn names_broken_pool(stderr: &str) -> bool {
    let faults = ["unexpected transaction id", " is failed", " needs check", " is erroring"];
    let mut warnings = stderr.lines().map(str::trim).filter(|line| line.starts_with("WARNING: Thin pool "));
    warnings.any(|line| faults.iter().any(|fault| line.contains(fault)))
}

fn on_one_line(stderr: &str) -> String {
    let mut text = stderr.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ");
    if text.len() > MAX_STDERR {
        // What matters comes last, after the warnings.
        let start = text.ceil_char_boundary(text.len() - MAX_STDERR);
        text.replace_range(..start, "...");
    }
    if text.is_empty() { "no error message".to_owned() } else { text }
}

#[cfg(test)]
mod tests;
