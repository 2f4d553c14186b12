//! The errors of requests. The gRPC code and the reason of each error are in [`code`].

mod code;

use lvm::{FullName, InvalidName, LvName, Tag, VgName};

/// The errors of requests to the engine.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No device class of this name is configured; the empty name means the default class.
    #[error("device-class not found: {0}; see device-classes in the configuration of lvmd on this node")]
    UnknownDeviceClass(String),
    /// No option class of this name is configured.
    #[error(
        "unsupported lvcreate-option-class target: {0}; see lvcreate-option-classes in the configuration of lvmd on \
         this node"
    )]
    UnknownOptionClass(String),
    /// LVM does not find the volume group of a class. Nothing is known of the volumes in it.
    #[error("volume group {0} not found; check that its disks are attached")]
    VolumeGroupMissing(VgName),
    /// A volume group is away in which lvmd had volumes when its class got another group. The wanted volume may be one.
    #[error(
        "volume group {vg} not found; its device class used it before and the volume may be in it; check that its \
         disks are attached, or if they are lost permanently, run `vgchange --deltag {tag} @{tag}`"
    )]
    FormerGroupMissing {
        /// The group that is away.
        vg: String,
        /// The tag of another group that names it.
        tag: Tag,
    },
    /// LVM has not read the volume group since lvmd began. Nothing is known of the volumes in it.
    #[error("volume group {vg} cannot be read: {why}")]
    VolumeGroupUnreadable {
        /// The group.
        vg: VgName,
        /// The message of LVM.
        why: String,
    },
    /// LVM finds the volume group without some of its physical volumes, and changes nothing in it.
    #[error(
        "{missing} physical volumes of volume group {vg} are missing, so LVM creates no volumes in it; attach the \
         disks, or remove them from the group with `vgreduce --removemissing {vg}`"
    )]
    PhysicalVolumesMissing {
        /// The group.
        vg: VgName,
        /// Number of missing physical volumes.
        missing: u64,
    },
    /// The thin pool of a class with `wipe: zero` gives out blocks with their old contents.
    #[error("thin pool {0} does not zero new blocks, but wipe is zero; run `lvchange --zero y {0}`")]
    PoolDoesNotZero(FullName),
    /// The volume is open.
    #[error("logical volume {0} is in use: it is mounted, or open in a process")]
    InUse(FullName),
    /// The volume group exists without the thin pool of a class.
    #[error("thin pool {0} not found; create it with `lvcreate -T {0} -L SIZE`")]
    ThinPoolMissing(FullName),
    /// LVM listed the volume group, and the volume is not in it.
    #[error("logical volume {0} not found")]
    VolumeNotFound(FullName),
    /// There is a volume of this name that cannot be the wanted one.
    #[error("logical volume {0} already exists and {1}")]
    AlreadyExists(FullName, String),
    /// Less is free than was requested. Sizes are bytes; `free` is after the spare.
    #[error("no enough space left on VG: free={free}, requested={requested}")]
    NoSpace {
        /// Free bytes of the class.
        free: u64,
        /// Requested bytes.
        requested: u64,
    },
    /// LVM creates no volumes in a thin pool that is full, or above the threshold of lvm.conf.
    #[error(
        "thin pool {0} accepts no new volumes: {1}; delete data in it, or extend it with `lvextend -L +SIZE {0}` and \
         its metadata with `lvextend --poolmetadatasize +SIZE {0}`"
    )]
    PoolFull(FullName, String),
    /// LVM creates no volumes in a thin pool that has failed or must be repaired.
    #[error("thin pool {0} accepts no new volumes: {1}; repair it, see lvmthin(7)")]
    PoolBroken(FullName, String),
    /// LVM creates no volumes in a device class, whatever is free.
    #[error(
        "LVM refuses new volumes in device class {class}: {why}; lvmd publishes its free space again after LVM creates \
         a volume"
    )]
    ClassRefused {
        /// The class.
        class: String,
        /// The reason.
        why: String,
    },
    /// The volume of this name does not lie where the class has its volumes.
    #[error("logical volume {0} {1}")]
    Elsewhere(FullName, String),
    /// More than one volume of this machine could be the requested one.
    #[error("logical volume {name} is in more than one volume group: {}; remove or rename the copies", .vgs.join(", "))]
    Ambiguous {
        /// The volume.
        name: LvName,
        /// The groups.
        vgs: Vec<String>,
    },
    /// The volume group is not one whose disks lvmd may change.
    #[error(
        "volume group {0} does not belong to a disk group, so lvmd does not change its disks; to assign it, run \
         `vgchange --addtag topolvm.io/disk-group={0} {0}`"
    )]
    GroupNotOurs(VgName),
    /// LVM listed the volume group, and the physical volume is not in it.
    #[error("volume group {vg} has no physical volume with the UUID {uuid}")]
    DiskNotFound {
        /// The group.
        vg: VgName,
        /// LVM's UUID of the physical volume.
        uuid: String,
    },
    /// The disk is not added to a disk group.
    #[error("disk {disk} is not added to a disk group: {why}")]
    DiskNotAdded {
        /// Its device.
        disk: String,
        /// The reason.
        why: String,
    },
    /// LVM changed a physical volume but does not list it afterwards.
    #[error("LVM changed physical volume {uuid} of volume group {vg} but no longer lists it")]
    DiskVanished {
        /// The group.
        vg: VgName,
        /// LVM's UUID of the physical volume.
        uuid: String,
    },
    /// The disk cannot be treated in this way.
    #[error("disk {disk}: {why}")]
    DiskNotAllowed {
        /// Its device.
        disk: String,
        /// The reason.
        why: String,
    },
    /// The other disks of the group have less free space than the disk has allocated.
    #[error(
        "the other disks of volume group {vg} need {lacking} more free bytes for the volumes on {disk}; add a disk to \
         the group, or remove volumes"
    )]
    NoSpaceForDisk {
        /// The group.
        vg: VgName,
        /// The disk that is to be emptied.
        disk: String,
        /// Bytes that are lacking.
        lacking: u64,
    },
    /// No other disk of the group can take a volume, even if there is enough free space in total.
    #[error(
        "no other disk of volume group {vg} can take {volume} of {disk} ({lacking} bytes): each mirror image and each \
         stripe needs a separate disk; add a disk to the group"
    )]
    NoPlaceFor {
        /// The group.
        vg: VgName,
        /// The disk that is to be emptied.
        disk: String,
        /// The volume, or the hidden part of one.
        volume: String,
        /// Bytes of it that are on the disk.
        lacking: u64,
    },
    /// Volumes stay on a disk that is to be emptied because disks fail.
    #[error(
        "cannot move volumes from {disk}: {why}; all other volumes are moved. Copy the files of each of these volumes \
         to a new volume, or restore a backup, then remove the volume; if it is a mirror, detach the disk and replace \
         it as a missing disk"
    )]
    VolumesStay {
        /// Its device.
        disk: String,
        /// The volumes, each with its reason.
        why: String,
    },
    /// A disk has failed while a part of a volume was moved, which stays where it was.
    #[error(
        "a disk failed while a part of {volume} was moved from {from} to {to}; the volume stays on {from} with all \
         data, including recent writes. `dmesg` shows which of the two disks failed; if it is {to}, evacuate that disk \
         as well, so that the volumes are moved to other disks"
    )]
    MoveFailed {
        /// The volume, which may be a hidden one, with its group.
        volume: String,
        /// The device that it is moved from.
        from: String,
        /// The device that it is moved to.
        to: String,
    },
    /// A move has not ended: its volume was deactivated each time that pvmove ran, or another program moves it. The
    /// extents that it vacates are not wiped yet.
    #[error(
        "the move of {volume} of volume group {vg} has not ended; the vacated extents are wiped afterwards. If it does \
         not end, another program deactivates the volume: see `lvs -a -o+devices {vg}`, and restart lvmd, which \
         continues the move"
    )]
    MoveNotEnded {
        /// The group.
        vg: VgName,
        /// The volume of the move.
        volume: String,
    },
    /// The move of a piece does not end in time.
    #[error(
        "a part of {volume} has been moving from {disk} of volume group {vg} for {seconds} s, and LVM cannot change \
         {volume} until the move ends; try again. If it does not end, a disk hangs: see `dmesg`"
    )]
    MoveTakesLong {
        /// The group.
        vg: VgName,
        /// The volume.
        volume: String,
        /// The device that it is moved from.
        disk: String,
        /// Seconds since the beginning.
        seconds: u64,
    },
    /// A part of a volume cannot be read where it was moved to.
    #[error(transparent)]
    MovedIncompletely(IncompleteMove),
    /// The volume is not of the kind that may be changed in this way.
    #[error("logical volume {0} {1}")]
    NotAllowed(FullName, String),
    /// Another lvmd is creating this volume, or died meanwhile.
    #[error(
        "logical volume {0} is being created by another lvmd; try again: leftovers of an interrupted creation are \
         removed after some minutes"
    )]
    BeingMade(FullName),
    /// The volume is in quarantine: its object was missing, and exists again.
    #[error("the volume of this name is in quarantine as {0} and is restored first; try again")]
    Quarantined(FullName),
    /// LVM made a new volume of a thin device that was in the pool already, with data in it. No client got it.
    #[error(
        "LVM reused a leftover thin device with data in thin pool {pool} for the new volume; {}; try again",
        kept.as_ref().map_or_else(
            || "the device belonged to no volume, and was removed".to_owned(),
            |kept| format!(
                "it may be a volume of older LVM metadata, so it is kept as {kept}: remove it if it is not needed"
            ),
        )
    )]
    NotEmpty {
        /// The pool.
        pool: FullName,
        /// The volume with the device, under its new name.
        kept: Option<FullName>,
    },
    /// LVM created a volume and then did not list it.
    #[error("logical volume {0} was created, but LVM does not list it")]
    Vanished(FullName),
    /// LVM failed.
    #[error(transparent)]
    Lvm(lvm::Error),
    /// The task of the request ended too early.
    #[error("the request was aborted")]
    Interrupted(#[source] tokio::task::JoinError),
    /// The process is about to end.
    #[error("lvmd is stopping; try again")]
    Stopping,
    /// Snapshots need thin pools.
    #[error("device class {0} is thick; snapshots require a thin device class")]
    ThickClass(String),
    /// Only thin volumes have snapshots.
    #[error("logical volume {0} is not thin and cannot have snapshots")]
    ThickSource(FullName),
    /// A source of snapshots of one moment is not in the volume group of the others.
    #[error(
        "logical volume {name} is not in volume group {vg}; snapshots of one moment need all sources in one volume \
         group of one node"
    )]
    SourceElsewhere {
        /// The source.
        name: LvName,
        /// The group of the first source.
        vg: VgName,
    },
    /// Of snapshots of one moment some exist and others do not.
    #[error(
        "snapshot {missing} does not exist, and {} of the same group of snapshots do: a snapshot of that moment cannot \
         be created any more; remove those and try again",
        .existing.join(", ")
    )]
    SnapshotGroupIncomplete {
        /// One that does not exist.
        missing: FullName,
        /// Those that exist, with their group.
        existing: Vec<String>,
    },
    /// A snapshot is at least as large as its source. Sizes are bytes.
    #[error("requested size {requested} is smaller than the size of the source, {source_size}")]
    SmallerThanSource {
        /// Requested size.
        requested: u64,
        /// Size of the source.
        source_size: u64,
    },
    /// A name or tag of lvmd's own is not valid for LVM.
    #[error(transparent)]
    Tag(#[from] InvalidName),
}

/// A part of a volume that was moved and cannot be read where it is now.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a part of {volume} was moved from {from} to {to} and cannot be read there: {why}. Its data at the end of the move \
     is still on {from}, in the extents {} to {}, which lvmd does not overwrite while that disk is being evacuated. \
     Stop the pods that use the volume and copy the data from there, or restore a backup, before {from} gets other \
     volumes",
    .extents.0, .extents.1
)]
pub struct IncompleteMove {
    /// The volume, which may be a hidden one, with its group.
    pub volume: String,
    /// The device that it was moved from.
    pub from: String,
    /// The first and the last extent that it had there.
    pub extents: (u64, u64),
    /// The device that it was moved to.
    pub to: String,
    /// The reason for which it cannot be read.
    pub why: String,
}

/// Maps LVM's two "not found" to what they mean here; every other error stays what it is.
impl From<lvm::Error> for Error {
    fn from(error: lvm::Error) -> Self {
        if let lvm::Error::GroupNotFound(vg) = error {
            Self::VolumeGroupMissing(vg)
        } else if let lvm::Error::VolumeNotFound(name) = error {
            Self::VolumeNotFound(name)
        } else {
            Self::Lvm(error)
        }
    }
}
