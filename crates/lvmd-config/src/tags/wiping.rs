//! The LVM tag and the name of removed volumes that are being wiped.
//!
//! The tag stores how the volume is wiped and by which instance of lvmd; the name is unique, so that the old name is
//! free at once. Both are in LVM's metadata: if lvmd stops, its next process finishes the work.

use lvm::{InvalidName, LogicalVolume, LvName, PhysicalVolume, Tag, Wipe};

use super::{InstanceId, MANAGED, is_managed};

/// Begins the tag; the method and the instance follow, separated by a colon.
const WIPING: &str = "topolvm.io/wiping=";
/// Begins the name; LVM's UUID of the volume follows.
const NAME_PREFIX: &str = "topolvm.wiping.";

impl InstanceId {
    /// Returns the tags of a volume that this instance is to wipe.
    pub fn wiping_tags(&self, how: Wipe) -> Result<[Tag; 2], InvalidName> {
        Ok([MANAGED.parse()?, format!("{WIPING}{how}:{}", self.in_tags()).parse()?])
    }

    /// Returns whether this instance is to wipe the volume, in this process or an earlier one.
    pub fn is_wiping(&self, volume: &LogicalVolume) -> bool {
        tag_value(volume).and_then(|value| value.split_once(':')).is_some_and(|(_, instance)| self.is_this(instance))
    }
}

/// Returns the name of this volume while it is being wiped.
pub fn wiping_name(volume: &LogicalVolume) -> Result<LvName, InvalidName> {
    format!("{NAME_PREFIX}{}", volume.uuid).parse()
}

/// Returns the name of a volume that is made of extents of a physical volume, from this one on, to be wiped.
pub fn claim_name(pv: &PhysicalVolume, first: u64) -> Result<LvName, InvalidName> {
    format!("{NAME_PREFIX}{}.{first}", pv.uuid).parse()
}

/// Returns whether a name is reserved for volumes that are being wiped.
pub fn is_wiping_name(name: &str) -> bool {
    name.starts_with(NAME_PREFIX)
}

/// Returns whether a volume is being wiped.
pub fn is_wiping(volume: &LogicalVolume) -> bool {
    wipe_method(volume).is_some()
}

/// Returns how a volume is being wiped; `None` when it is not. One with the name alone lost its tag, or never got it,
/// and is zeroed, which leaves least behind.
pub fn wipe_method(volume: &LogicalVolume) -> Option<Wipe> {
    match tag_value(volume) {
        Some(value) => Some(value.split(':').next().and_then(Wipe::parse).unwrap_or(Wipe::Zero)),
        None => (volume.name.strip_prefix(NAME_PREFIX) == Some(&*volume.uuid)).then_some(Wipe::Zero),
    }
}

/// Returns the whole tag of a volume that is being wiped.
pub fn wiping_tag(volume: &LogicalVolume) -> Option<&str> {
    volume.tags.iter().find(|tag| tag.starts_with(WIPING)).map(|tag| &**tag).filter(|_| is_managed(volume))
}

/// Returns the method and the instance from the tag, if lvmd wrote it.
fn tag_value(volume: &LogicalVolume) -> Option<&str> {
    wiping_tag(volume)?.strip_prefix(WIPING)
}
