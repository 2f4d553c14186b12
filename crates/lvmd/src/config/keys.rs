//! The keys of the configuration file, for the parser and for the generated part of docs/lvmd.md.

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
pub(super) const DEVICE_CLASSES: Key = key("device-classes", "", "a list; at least one");
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

pub(super) const OPTION_CLASS_NAME: Key =
    key("name", "", "what a request calls it; of two with the same name the last counts");
pub(super) const OPTIONS: Key = key("options", "", "a list of options for `lvcreate`, one word each");

impl Key {
    /// The keys of the file.
    pub const FILE: &[Self] =
        &[SOCKET_NAME, DEVICE_CLASSES, OPTION_CLASSES, ALLOWED_UIDS, ALLOWED_GIDS, LVM_COMMAND_PREFIX];
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
    pub const THIN_POOL: &[Self] = &[POOL_NAME, OVERPROVISION_RATIO];
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
        let said = Config::parse("f", &file).unwrap_err().to_string();
        let groups = [Key::FILE, Key::DEVICE_CLASS, Key::THIN_POOL, Key::OPTION_CLASS];
        let given = ["device-classes", "lvcreate-option-classes", "type", "thin-pool"];
        for key in groups.concat().iter().filter(|key| !given.contains(&key.name)) {
            assert!(said.contains(&format!("{} must be", key.name)), "{} in {said}", key.name);
        }
    }

    #[test]
    fn the_documented_spare_is_the_real_one() {
        assert_eq!(SPARE_GB.default, DEFAULT_SPARE_GIB.to_string());
    }
}
