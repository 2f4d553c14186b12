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
    "where to listen. A missing directory is made with mode 0700; the socket has mode 0600. Without meaning in an \
     embedded lvmd",
);
pub(super) const DEVICE_CLASSES: Key =
    key("device-classes", "", "a list; at least one, unless there are disk groups, which make their own");
pub(super) const OPTION_CLASSES: Key =
    key("lvcreate-option-classes", "", "a list of sets of `lvcreate` options that a StorageClass can choose by name");
pub(super) const ALLOWED_UIDS: Key = key(
    "allowed-uids",
    "",
    "a list of numbers: users that may use the socket besides root. Without meaning in an embedded lvmd",
);
pub(super) const ALLOWED_GIDS: Key = key("allowed-gids", "", "the same for groups");
pub(super) const LVM_COMMAND_PREFIX: Key = key(
    "lvm-command-prefix",
    "",
    "a list: the words before the LVM sub-command, **including** the `lvm` program, as `[\"/sbin/lvm\"]`. Without it \
     `nsenter` into the \
     namespaces of process 1 and then `/sbin/lvm`",
);

pub(super) const DISK_GROUPS: Key =
    key("disk-groups", "", "a list: volume groups to which disks are added, see [Disk groups](disk-groups.md)");
pub(super) const RESCAN_INTERVAL: Key = key(
    "rescan-interval",
    "300",
    "seconds between two looks at all disks, if there are disk groups; 0 for only when the kernel reports a disk",
);
pub(super) const SETTLE_TIME: Key = key(
    "settle-time",
    "60",
    "seconds for which a disk must be seen blank and unused before it is added to a disk group of the mode `auto`",
);

pub(super) const GROUP_NAME: Key = key("name", "", "the name of the volume group, which need not exist");
pub(super) const GROUP_CLASS: Key = key(
    "device-class",
    "",
    "the device class that is made for it, the name of the group without it. Not with a class under `device-classes` \
     that names the volume group",
);
pub(super) const MODE: Key = key(
    "mode",
    "report",
    "`report`: what would be done with each disk is reported. `auto`: it is done, blank disks become a part of the \
     volume group",
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
     `nvme-tcp`, `nvme-rdma`, `nvme-fc`, `nvme-loop`. Disks over a network, by USB or of a kind that is taken \
     out are only added to a group that names their transport",
);
pub(super) const ROTATIONAL: Key = key("rotational", "", "`true` for disks that turn, `false` for flash");
pub(super) const MIN_SIZE_GB: Key = key("min-size-gb", "", "smallest size in GiB");
pub(super) const MAX_SIZE_GB: Key = key("max-size-gb", "", "largest size in GiB");
pub(super) const NODE_LABELS: Key = key(
    "node-labels",
    "",
    "a list of labels of the Node, `KEY=VALUE` or `KEY` for any value: the group is for the nodes that have one of \
     each key, see [Nodes](disk-groups.md#one-file-for-different-nodes). Without it it is for all nodes",
);
pub(super) const MAX_DISKS: Key = key("max-disks", "", "how many disks the group may have; any number without it");
pub(super) const GROUP_SPARE_GB: Key = key(
    "spare-gb",
    "10",
    "`spare-gb` of the device class that is made for the group. A thin one keeps nothing without it",
);

pub(super) const GROUP_POOL: Key = key(
    "thin-pool",
    "",
    "the thin pool that is made in the volume group, see [Disk groups](disk-groups.md#a-thin-pool). The device class \
     of the group is then a thin one",
);

pub(super) const GROUP_POOL_NAME: Key = key("name", "pool", "its name in the volume group");
pub(super) const SIZE_PERCENT: Key = key(
    "size-percent",
    "95",
    "how much of the volume group it takes, with its metadata; it grows when the group does, and never gets smaller",
);
pub(super) const METADATA_SIZE_MB: Key = key(
    "metadata-size-mb",
    "",
    "MiB of its metadata, 2 to 16192. Without it they are reckoned from its size and its chunks",
);
pub(super) const CHUNK_SIZE_KB: Key = key(
    "chunk-size-kb",
    "64",
    "KiB of a chunk, in which it gives out space and copies what a snapshot shares: a multiple of 64 to 1048576. That \
     of a pool stays as it was made",
);

pub(super) const CLASS_NAME: Key =
    key("name", "", "at most 63 letters, digits, `-`, `_` and `.`; begins and ends with a letter or digit");
pub(super) const VOLUME_GROUP: Key = key(
    "volume-group",
    "",
    "where its volumes live. It must exist before lvmd starts, unless the class is `optional`. One thick class and any \
     number of thin ones, each with a pool of its own, can share it",
);
pub(super) const OPTIONAL: Key = key(
    "optional",
    "false",
    "whether a machine may lack the volume group. lvmd then starts without it, and offers the class while the group is \
     there: one file for machines with different disks",
);
pub(super) const DEFAULT: Key =
    key("default", "false", "whether requests without a class mean this one; at most one class");
pub(super) const SPARE_GB: Key = key(
    "spare-gb",
    "10",
    "GiB that are never given away: of the volume group, or of what the thin pool promises. A thin class without it \
     keeps nothing",
);
pub(super) const STRIPE: Key = key(
    "stripe",
    "",
    "over how many physical volumes a volume is striped. Without effect on thin volumes: stripe their pool",
);
pub(super) const STRIPE_SIZE: Key =
    key("stripe-size", "", "size of one stripe as `lvcreate --stripesize` takes it; LVM's own without it");
pub(super) const LVCREATE_OPTIONS: Key =
    key("lvcreate-options", "", "a list of more options for `lvcreate`, one word each");
/// A key that is refused, unless its value means nothing.
pub(super) const OVERHEAD_FACTOR: Key = key("overhead-factor", "", "");
pub(super) const WIPE: Key = key(
    "wipe",
    "none",
    "`none`, `discard` or `zero`: what happens to the contents of a removed volume before its extents are given to \
     others, see [Wiping](#wiping)",
);
pub(super) const TYPE: Key = key("type", "thick", "`thick` or `thin`");
pub(super) const THIN_POOL: Key = key("thin-pool", "", "the thin pool; needed by thin classes, ignored by thick ones");

pub(super) const POOL_NAME: Key = key("name", "", "a thin pool that exists in the volume group before lvmd starts");
pub(super) const OVERPROVISION_RATIO: Key = key(
    "overprovision-ratio",
    "",
    "how many times its size the pool may promise: 1.0 or more, to six digits after the point",
);
pub(super) const GROW_AT_PERCENT: Key = key(
    "grow-at-percent",
    "",
    "the fill of its data or metadata, 1 to 99, from which on it is made larger. Without it it stays as it is, see \
     [Thin pools that grow](#thin-pools-that-grow)",
);
pub(super) const GROW_BY_PERCENT: Key =
    key("grow-by-percent", "20", "by how much of its size, 1 to 100. More is added where that is not enough");
pub(super) const MAXIMUM_SIZE_GB: Key =
    key("maximum-size-gb", "", "GiB of data beyond which it does not grow as it fills up; no limit without it");

pub(super) const OPTION_CLASS_NAME: Key =
    key("name", "", "what a request calls it; of two with the same name the last counts");
pub(super) const OPTIONS: Key = key("options", "", "a list of options for `lvcreate`, one word each");

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
