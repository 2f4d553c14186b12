//! The LVM tag with which a volume group of a device class names another group: one that no class uses any more and
//! that still contains volumes of lvmd.
//!
//! While that group is absent, "not found" proves nothing about the volumes in it. The tag survives a restart of lvmd
//! and of the machine.

use lvm::{InvalidName, Tag, VolumeGroup};

/// Begins the tag; the name and LVM's UUID of the other group follow.
const FORMER_GROUP: &str = "topolvm.io/former-group=";

/// A volume group that lvmd had volumes in when its last device class got another group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FormerGroup {
    /// The name that it had then.
    pub name: String,
    /// LVM's identity of it.
    pub uuid: String,
}

impl FormerGroup {
    /// Returns the groups that the tags of a group name.
    pub fn named_by(group: &VolumeGroup) -> impl Iterator<Item = Self> {
        group.tags.iter().filter_map(|tag| {
            let (name, uuid) = tag.strip_prefix(FORMER_GROUP)?.rsplit_once(':')?;
            Some(Self { name: name.to_owned(), uuid: uuid.to_owned() })
        })
    }

    /// Returns what names this group.
    pub fn of(group: &VolumeGroup) -> Self {
        Self { name: group.name.to_string(), uuid: group.uuid.clone() }
    }

    /// Returns the tag that names it.
    pub fn tag(&self) -> Result<Tag, InvalidName> {
        format!("{FORMER_GROUP}{}:{}", self.name, self.uuid).parse()
    }
}
