//! The keys of the configuration file, for the parser and for the generated part of docs/lvmd-config.md.

/// A key of the configuration file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    /// Its name.
    pub name: &'static str,
    /// Its default; empty for none.
    pub default: &'static str,
    /// Its meaning, in Markdown.
    pub meaning: &'static str,
}

const fn key(name: &'static str, default: &'static str, meaning: &'static str) -> Key {
    Key { name, default, meaning }
}

pub(super) const SOCKET_NAME: Key = key(
    "socket-name",
    super::DEFAULT_SOCKET,
    "path of the socket. Its directory gets mode 0700 if it is for sockets alone; the socket has mode 0600. Ignored \
     by an embedded lvmd",
);
pub(super) const DEVICE_CLASSES: Key =
    key("device-classes", "", "a list; at least one, unless there are disk groups, which create their own");
pub(super) const OPTION_CLASSES: Key =
    key("lvcreate-option-classes", "", "a list of sets of `lvcreate` options that a StorageClass can select by name");
pub(super) const ALLOWED_UIDS: Key = key(
    "allowed-uids",
    "",
    "a list of numbers: users that may use the socket in addition to root. Ignored by an embedded lvmd",
);
pub(super) const ALLOWED_GIDS: Key = key("allowed-gids", "", "the same for groups");
pub(super) const LVM_COMMAND_PREFIX: Key = key(
    "lvm-command-prefix",
    "",
    "a list: the arguments before the LVM subcommand, **including** the `lvm` program, for example `[\"/sbin/lvm\"]`. \
     By default `nsenter` into the namespaces of process 1 and then `/sbin/lvm`",
);

pub(super) const DISK_GROUPS: Key =
    key("disk-groups", "", "a list: volume groups to which disks are added, see [Disk groups](disk-groups.md)");
pub(super) const RESCAN_INTERVAL: Key = key(
    "rescan-interval",
    "300",
    "seconds between two scans of all disks, if there are disk groups; 0 to scan only when the kernel reports a disk",
);
pub(super) const SETTLE_TIME: Key = key(
    "settle-time",
    "60",
    "seconds for which a disk must stay blank and unused before it is added to a disk group with mode `auto`",
);

pub(super) const GROUP_NAME: Key = key("name", "", "the name of the volume group, which does not need to exist");
pub(super) const GROUP_CLASS: Key = key(
    "device-class",
    "",
    "the device class that lvmd creates for the group; by default the name of the group. Not allowed if a class under \
     `device-classes` uses the volume group",
);
pub(super) const MODE: Key = key(
    "mode",
    "report",
    "`report`: lvmd reports what it would do with each disk. `auto`: lvmd adds blank disks to the volume group",
);
pub(super) const PATHS: Key = key(
    "paths",
    "",
    "a list of patterns of `/dev/NAME` and `/dev/disk/by-path/NAME`. A pattern is a regular expression for the \
     **whole** text",
);
pub(super) const BY_ID: Key = key("by-id", "", "a list of patterns of names in `/dev/disk/by-id`");
pub(super) const MODELS: Key = key("models", "", "a list of patterns of the model");
pub(super) const SERIALS: Key = key("serials", "", "a list of patterns of the serial number");
pub(super) const TRANSPORTS: Key = key(
    "transports",
    "",
    "a list of `nvme`, `sata`, `sas`, `virtio`, `mmc`, `usb`, `xen`, `hyperv`, `scsi` (any other SCSI), `iscsi`, `fc`, \
     `nvme-tcp`, `nvme-rdma`, `nvme-fc`, `nvme-loop`. Network disks, USB disks and removable disks are only added to a \
     group that lists their transport",
);
pub(super) const ROTATIONAL: Key = key("rotational", "", "`true` for rotational disks (HDD), `false` for flash (SSD)");
pub(super) const MIN_SIZE_GB: Key = key("min-size-gb", "", "smallest size in GiB");
pub(super) const MAX_SIZE_GB: Key = key("max-size-gb", "", "largest size in GiB");
pub(super) const NODE_LABELS: Key = key(
    "node-labels",
    "",
    "a list of Node labels, `KEY=VALUE` or `KEY` for any value: the group applies to nodes that match one entry of \
     each key, see [Nodes](disk-groups.md#one-file-for-different-nodes). By default it applies to all nodes",
);
pub(super) const MAX_DISKS: Key = key("max-disks", "", "maximum number of disks in the group; no limit by default");
pub(super) const GROUP_SPARE_GB: Key = key(
    "spare-gb",
    "10",
    "`spare-gb` of the device class that lvmd creates for the group. The default is 0 for a thin class",
);

pub(super) const GROUP_POOL: Key = key(
    "thin-pool",
    "",
    "the thin pool that lvmd creates in the volume group, see [Disk groups](disk-groups.md#a-thin-pool). The device \
     class of the group is then thin",
);

pub(super) const GROUP_POOL_NAME: Key = key("name", "pool", "name of the pool in the volume group");
pub(super) const SIZE_PERCENT: Key = key(
    "size-percent",
    "95",
    "percentage of the volume group for the pool and its metadata; the pool grows with the group and never shrinks",
);
pub(super) const METADATA_SIZE_MB: Key = key(
    "metadata-size-mb",
    "",
    "metadata size in MiB, 2 to 16192. By default it is calculated from the size and the chunk size of the pool",
);
pub(super) const CHUNK_SIZE_KB: Key = key(
    "chunk-size-kb",
    "64",
    "chunk size in KiB, the unit of allocation and of copy-on-write: a multiple of 64 up to 1048576. The chunk size of \
     an existing pool does not change",
);

pub(super) const CLASS_NAME: Key =
    key("name", "", "at most 63 letters, digits, `-`, `_` and `.`; begins and ends with a letter or digit");
pub(super) const VOLUME_GROUP: Key = key(
    "volume-group",
    "",
    "volume group of its volumes. It must exist before lvmd starts, unless the class is `optional`. One thick class \
     and any number of thin classes, each with its own pool, can share it",
);
pub(super) const OPTIONAL: Key = key(
    "optional",
    "false",
    "whether the volume group may be missing. lvmd then starts without it and offers the class while the group exists, \
     so machines with different disks can share one file",
);
pub(super) const DEFAULT: Key =
    key("default", "false", "whether requests without a class use this one; at most one class");
pub(super) const SPARE_GB: Key = key(
    "spare-gb",
    "10",
    "GiB that are never allocated: of the volume group, or of the capacity of the thin pool. The default is 0 for a \
     thin class",
);
pub(super) const STRIPE: Key = key(
    "stripe",
    "",
    "number of physical volumes over which a volume is striped. No effect on thin volumes: stripe their pool",
);
pub(super) const STRIPE_SIZE: Key = key(
    "stripe-size",
    "",
    "size of one stripe in the format of `lvcreate --stripesize`; by default the default of LVM",
);
pub(super) const LVCREATE_OPTIONS: Key =
    key("lvcreate-options", "", "a list of additional `lvcreate` options, one argument each");
/// A key that is refused, unless its value means nothing.
pub(super) const OVERHEAD_FACTOR: Key = key("overhead-factor", "", "");
pub(super) const WIPE: Key = key(
    "wipe",
    "none",
    "`none`, `discard` or `zero`: how the contents of a removed volume are wiped before its extents are reused, see \
     [Wiping](#wiping)",
);
pub(super) const TYPE: Key = key("type", "thick", "`thick` or `thin`");
pub(super) const THIN_POOL: Key =
    key("thin-pool", "", "the thin pool; required for thin classes, ignored for thick classes");

pub(super) const POOL_NAME: Key =
    key("name", "", "name of a thin pool that exists in the volume group before lvmd starts");
pub(super) const OVERPROVISION_RATIO: Key = key(
    "overprovision-ratio",
    "",
    "ratio of the provisionable capacity to the size of the pool: 1.0 or more, with up to six decimal digits",
);
pub(super) const GROW_AT_PERCENT: Key = key(
    "grow-at-percent",
    "",
    "usage of data or metadata in percent, 1 to 99, at which lvmd extends the pool. By default lvmd does not extend \
     it, see [Thin pools that grow](#thin-pools-that-grow)",
);
pub(super) const GROW_BY_PERCENT: Key = key(
    "grow-by-percent",
    "20",
    "percentage of its size by which the pool is extended, 1 to 100. lvmd adds more where that is not enough",
);
pub(super) const MAXIMUM_SIZE_GB: Key =
    key("maximum-size-gb", "", "maximum data size in GiB up to which lvmd extends the pool; no limit by default");

pub(super) const OPTION_CLASS_NAME: Key =
    key("name", "", "name of the option class in requests; if two have the same name, the last one applies");
pub(super) const OPTIONS: Key = key("options", "", "a list of `lvcreate` options, one argument each");

impl Key {
    /// The keys of the file.
    pub const FILE: &[Self] = &[
        SOCKET_NAME,
        DEVICE_CLASSES,
        OPTION_CLASSES,
        DISK_GROUPS,
        RESCAN_INTERVAL,
        SETTLE_TIME,
        ALLOWED_UIDS,
        ALLOWED_GIDS,
        LVM_COMMAND_PREFIX,
    ];
    /// The keys of a disk group.
    pub const DISK_GROUP: &[Self] = &[
        GROUP_NAME,
        GROUP_CLASS,
        MODE,
        PATHS,
        BY_ID,
        MODELS,
        SERIALS,
        TRANSPORTS,
        ROTATIONAL,
        MIN_SIZE_GB,
        MAX_SIZE_GB,
        NODE_LABELS,
        MAX_DISKS,
        GROUP_SPARE_GB,
        GROUP_POOL,
    ];
    /// The keys of the thin pool of a disk group.
    pub const GROUP_POOL: &[Self] = &[
        GROUP_POOL_NAME,
        SIZE_PERCENT,
        METADATA_SIZE_MB,
        CHUNK_SIZE_KB,
        OVERPROVISION_RATIO,
        GROW_AT_PERCENT,
        GROW_BY_PERCENT,
        MAXIMUM_SIZE_GB,
    ];
    /// The keys of a device class.
    pub const DEVICE_CLASS: &[Self] = &[
        CLASS_NAME,
        VOLUME_GROUP,
        OPTIONAL,
        DEFAULT,
        SPARE_GB,
        STRIPE,
        STRIPE_SIZE,
        LVCREATE_OPTIONS,
        WIPE,
        TYPE,
        THIN_POOL,
    ];
    /// The keys of a thin pool.
    pub const THIN_POOL: &[Self] = &[POOL_NAME, OVERPROVISION_RATIO, GROW_AT_PERCENT, GROW_BY_PERCENT, MAXIMUM_SIZE_GB];
    /// The keys of a class of lvcreate options.
    pub const OPTION_CLASS: &[Self] = &[OPTION_CLASS_NAME, OPTIONS];
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, DEFAULT_SPARE_GIB};

    /// A mapping with all these keys and a value that none of them takes.
    fn all(keys: &[Key]) -> String {
        let entries: Vec<String> = keys.iter().map(|key| format!("{}: {{}}", key.name)).collect();
        format!("{{{}}}", entries.join(", "))
    }

    #[test]
    fn every_documented_key_is_read() {
        let class = all(Key::DEVICE_CLASS).replace("type: {}", "type: thin");
        let class = class.replace("thin-pool: {}", &format!("thin-pool: {}", all(Key::THIN_POOL)));
        let file = all(Key::FILE).replace("device-classes: {}", &format!("device-classes: [{class}]"));
        let options = format!("lvcreate-option-classes: [{}]", all(Key::OPTION_CLASS));
        let file = file.replace("lvcreate-option-classes: {}", &options);
        let pool = format!("thin-pool: {}", all(Key::GROUP_POOL));
        // Of a group without a name no more is read
        let group = all(Key::DISK_GROUP).replacen("name: {}", "name: ssd", 1).replace("thin-pool: {}", &pool);
        let file = file.replace("disk-groups: {}", &format!("disk-groups: [{group}]"));
        let said = Config::parse("f", &file).unwrap_err().to_string();
        let groups =
            [Key::FILE, Key::DEVICE_CLASS, Key::THIN_POOL, Key::OPTION_CLASS, Key::DISK_GROUP, Key::GROUP_POOL];
        let given = ["device-classes", "lvcreate-option-classes", "disk-groups", "type", "thin-pool"];
        for key in groups.concat().iter().filter(|key| !given.contains(&key.name)) {
            assert!(said.contains(&format!("{} must be", key.name)), "{} in {said}", key.name);
        }
    }

    #[test]
    fn the_documented_spare_is_the_real_one() {
        assert_eq!(SPARE_GB.default, DEFAULT_SPARE_GIB.to_string());
        assert_eq!(GROUP_SPARE_GB.default, DEFAULT_SPARE_GIB.to_string());
    }
}
