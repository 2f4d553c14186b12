//! Disturbances of one node, its volume groups or the bytes on its disks, chosen from the seed.

use std::fmt;

use clap::ValueEnum;

use super::class::Class;
use super::foreign_group::ForeignGroup;
use super::remap::Remap;
use system_tests::lvm_settings::LVM_SETTINGS;
use system_tests::random::Random;

/// Kinds of disturbances of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum DisturbanceKind {
    /// lvmd's configuration gives a device class another volume group, moves the default, or omits a class, and is
    /// restored later.
    ClassRemapped,
    /// lvm.conf has a setting that changes what LVM prints.
    LvmConfig,
    /// Processes of LVM are killed, and lvmd is not.
    LvmKilled,
    /// The node loses its power and boots again.
    PowerCut,
    /// The first 4 KiB of a volume that no pod uses are overwritten.
    SignatureDestroyed,
    /// A tenant writes LVM metadata into its raw block volume.
    TenantGroup,
    /// A disk with the volume group of another machine comes.
    ForeignDisk,
    /// LogicalVolumes are deleted by hand, and recreated.
    ObjectsDeleted,
    /// A filesystem is frozen when its pod ends.
    FilesystemFrozen,
    /// A process in another mount namespace has the filesystem of a volume that is deleted.
    VolumeHeld,
    /// The CustomResourceDefinition of LogicalVolumes is deleted, and recreated. Once, at the end of a run.
    DefinitionDeleted,
    /// The Node object is deleted, and later the node registers again. Once, at the end of a run.
    NodeDeleted,
}

impl DisturbanceKind {
    /// Kinds that happen while the sequences run.
    pub(super) const MEANWHILE: [Self; 10] = [
        Self::ClassRemapped,
        Self::LvmConfig,
        Self::LvmKilled,
        Self::PowerCut,
        Self::SignatureDestroyed,
        Self::TenantGroup,
        Self::ForeignDisk,
        Self::ObjectsDeleted,
        Self::FilesystemFrozen,
        Self::VolumeHeld,
    ];

    /// Returns the name of the kind in a report.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::ClassRemapped => "class remapped",
            Self::LvmConfig => "lvm.conf changed",
            Self::LvmKilled => "LVM killed",
            Self::PowerCut => "power cut",
            Self::SignatureDestroyed => "signature destroyed",
            Self::TenantGroup => "tenant's volume group",
            Self::ForeignDisk => "foreign disk",
            Self::ObjectsDeleted => "objects deleted",
            Self::FilesystemFrozen => "filesystem frozen",
            Self::VolumeHeld => "volume held",
            Self::DefinitionDeleted => "definition deleted",
            Self::NodeDeleted => "node deleted",
        }
    }
}

/// A disturbance with its random parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Disturbance {
    ClassRemapped(Remap),
    /// The line in lvmlocal.conf.
    LvmConfig(&'static str),
    /// Milliseconds from the start of LVM to each kill.
    LvmKilled(Vec<u64>),
    PowerCut,
    /// The class of the workload whose volume is damaged.
    SignatureDestroyed(Class),
    /// The group that the tenant creates.
    TenantGroup(ForeignGroup),
    /// The group on the disk.
    ForeignDisk(ForeignGroup),
    ObjectsDeleted,
    /// The class of the workload whose filesystem is frozen.
    FilesystemFrozen(Class),
    VolumeHeld,
}

impl Disturbance {
    /// Returns a random disturbance of a kind; `None` for a kind that does not happen while sequences run.
    pub(super) fn choose(kind: DisturbanceKind, random: &mut Random) -> Option<Self> {
        Some(match kind {
            DisturbanceKind::ClassRemapped => Self::ClassRemapped(random.of(&Remap::ALL).copied()?),
            DisturbanceKind::LvmConfig => Self::LvmConfig(random.of(&LVM_SETTINGS).copied()?),
            DisturbanceKind::LvmKilled => Self::LvmKilled((0..12).map(|_| random.between(0, 80)).collect()),
            DisturbanceKind::PowerCut => Self::PowerCut,
            DisturbanceKind::SignatureDestroyed => {
                Self::SignatureDestroyed(random.of(&[Class::Thick, Class::Thin]).copied()?)
            }
            DisturbanceKind::TenantGroup => Self::TenantGroup(random.of(&ForeignGroup::OF_TENANTS).copied()?),
            DisturbanceKind::ForeignDisk => Self::ForeignDisk(random.of(&ForeignGroup::ON_DISKS).copied()?),
            DisturbanceKind::ObjectsDeleted => Self::ObjectsDeleted,
            DisturbanceKind::FilesystemFrozen => {
                Self::FilesystemFrozen(random.of(&[Class::Thick, Class::Thin]).copied()?)
            }
            DisturbanceKind::VolumeHeld => Self::VolumeHeld,
            DisturbanceKind::DefinitionDeleted | DisturbanceKind::NodeDeleted => return None,
        })
    }

    pub(super) const fn kind(&self) -> DisturbanceKind {
        match self {
            Self::ClassRemapped(_) => DisturbanceKind::ClassRemapped,
            Self::LvmConfig(_) => DisturbanceKind::LvmConfig,
            Self::LvmKilled(_) => DisturbanceKind::LvmKilled,
            Self::PowerCut => DisturbanceKind::PowerCut,
            Self::SignatureDestroyed(_) => DisturbanceKind::SignatureDestroyed,
            Self::TenantGroup(_) => DisturbanceKind::TenantGroup,
            Self::ForeignDisk(_) => DisturbanceKind::ForeignDisk,
            Self::ObjectsDeleted => DisturbanceKind::ObjectsDeleted,
            Self::FilesystemFrozen(_) => DisturbanceKind::FilesystemFrozen,
            Self::VolumeHeld => DisturbanceKind::VolumeHeld,
        }
    }
}

impl fmt::Display for Disturbance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ClassRemapped(remap) => write!(f, "in lvmd's configuration {remap}"),
            Self::LvmConfig(setting) => write!(f, "lvmlocal.conf has {setting}"),
            Self::LvmKilled(pauses) => write!(f, "LVM is killed {} times", pauses.len()),
            Self::PowerCut => f.write_str("the power is cut"),
            Self::SignatureDestroyed(class) => {
                write!(f, "the first 4 KiB of a {class:?} volume without a pod are overwritten")
            }
            Self::TenantGroup(group) => write!(f, "a tenant's raw block volume has {group}"),
            Self::ForeignDisk(group) => write!(f, "a disk has {group}"),
            Self::ObjectsDeleted => f.write_str("LogicalVolumes are deleted by hand"),
            Self::FilesystemFrozen(class) => write!(f, "the filesystem of a {class:?} volume is frozen"),
            Self::VolumeHeld => f.write_str("a process in another mount namespace holds a deleted volume"),
        }
    }
}
