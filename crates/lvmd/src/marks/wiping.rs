//! Volumes that were removed as far as anybody knows, and whose contents are being wiped before their room is given away.
//!
//! Such a volume has a tag that says how it is wiped and by whom, and a name that no other has, so that its old name is free at
//! once. Both stand in LVM's metadata: whatever becomes of lvmd, the next one finishes the work.

use lvm::{InvalidName, LogicalVolume, LvName, Tag, Wipe};

use super::{MANAGED, Maker, is_managed};

/// How the volume is wiped, and the maker that does it.
const WIPING: &str = "topolvm.io/wiping=";
/// Begins the name of a volume that is being wiped; LVM's identity of it follows.
const ASIDE: &str = "topolvm.wiping.";

impl Maker {
    /// The tags of a volume that this maker is to wipe.
    pub(crate) fn wiping(&self, how: Wipe) -> Result<[Tag; 2], InvalidName> {
        Ok([MANAGED.parse()?, format!("{WIPING}{how}:{}", self.name).parse()?])
    }

    /// Whether this maker is to wipe the volume, in this process or an earlier one.
    pub(crate) fn wipes(&self, volume: &LogicalVolume) -> bool {
        tag(volume).and_then(|tag| tag.split_once(':')).is_some_and(|(_, name)| name == self.name)
    }
}

/// The name of this volume while it is being wiped.
pub(crate) fn aside_name(volume: &LogicalVolume) -> Result<LvName, InvalidName> {
    format!("{ASIDE}{}", volume.uuid).parse()
}

/// Whether a name is kept for volumes that are being wiped.
pub(crate) fn is_aside_name(name: &LvName) -> bool {
    name.as_str().starts_with(ASIDE)
}

/// Whether a volume is being wiped.
pub(crate) fn is_wiping(volume: &LogicalVolume) -> bool {
    wiping(volume).is_some()
}

/// How a volume is being wiped; `None` when it is not. One with the name alone lost its tag, or never got it, so the way that
/// leaves least is taken.
pub(crate) fn wiping(volume: &LogicalVolume) -> Option<Wipe> {
    match tag(volume) {
        Some(tag) => Some(tag.split(':').next().and_then(|how| how.parse().ok()).unwrap_or(Wipe::Zero)),
        None => (volume.name.strip_prefix(ASIDE) == Some(&*volume.uuid)).then_some(Wipe::Zero),
    }
}

/// The whole tag of a volume that is being wiped.
pub(crate) fn wiping_tag(volume: &LogicalVolume) -> Option<&str> {
    volume.tags.iter().find(|tag| tag.starts_with(WIPING)).map(|tag| &**tag).filter(|_| is_managed(volume))
}

/// What the tag says, if it is one that lvmd wrote.
fn tag(volume: &LogicalVolume) -> Option<&str> {
    wiping_tag(volume)?.strip_prefix(WIPING)
}
