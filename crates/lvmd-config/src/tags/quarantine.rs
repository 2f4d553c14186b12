//! The LVM tag and the name of volumes in quarantine: volumes without an object, which are kept for a while.
//!
//! The name contains the identity of the object, the tag the time since when the volume is kept. Both are in LVM's
//! metadata.

use lvm::{InvalidName, LogicalVolume, LvName, Tag};

use super::is_managed;

/// Begins the tag; the time follows, in seconds since 1970.
const QUARANTINED: &str = "topolvm.io/quarantined=";
/// Begins the name; the UID of the object that is gone follows.
const NAME_PREFIX: &str = "topolvm.quarantine.";

/// Returns the name in quarantine of the volume of an object.
pub fn quarantine_name(uid: &str) -> Result<LvName, InvalidName> {
    format!("{NAME_PREFIX}{uid}").parse()
}

/// Returns the UID in the name of a volume in quarantine; `None` if it is the name of something else.
pub fn quarantined_uid(name: &str) -> Option<&str> {
    name.strip_prefix(NAME_PREFIX).filter(|uid| lvm::is_uuid(uid))
}

/// Returns the UID of the object that a volume of this name was made for, also of one in quarantine; `None` if it was
/// not made for an object.
pub fn object_uid(name: &str) -> Option<&str> {
    quarantined_uid(name).or_else(|| lvm::is_uuid(name).then_some(name))
}

/// Returns the time in the tags of a volume in quarantine, in seconds since 1970. A volume that existed before, and was
/// not restored by us, has an older tag as well.
pub fn quarantined_at<T: AsRef<str>>(tags: &[T]) -> Option<i64> {
    tags.iter().filter_map(|tag| tag.as_ref().strip_prefix(QUARANTINED)?.parse().ok()).max()
}

/// Returns the tag of a volume that is kept since this time, in seconds since 1970.
pub fn quarantine_tag(at: i64) -> Result<Tag, InvalidName> {
    format!("{QUARANTINED}{at}").parse()
}

/// Returns whether a tag stores the time since when its volume is kept.
pub fn is_quarantine_tag(tag: &str) -> bool {
    tag.starts_with(QUARANTINED)
}

/// Returns whether a volume was put into quarantine at this time.
pub fn is_quarantined_at(volume: &LogicalVolume, at: i64) -> bool {
    is_managed(volume) && quarantined_uid(&volume.name).is_some() && quarantined_at(&volume.tags) == Some(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quarantined_uid_is_parsed_from_quarantine_names_only() {
        let uid = "0b5a2f4e-8d54-4f5c-9a0e-7d8f6f3c2b1a";
        assert_eq!(quarantined_uid(quarantine_name(uid).unwrap().as_str()), Some(uid));
        for name in [uid, "topolvm.quarantine.root", "topolvm.quarantine.", "topolvm.wiping.x"] {
            assert_eq!(quarantined_uid(name), None, "{name}");
        }
    }

    #[test]
    fn the_newest_time_counts() {
        let tags = ["topolvm.io/quarantined=7", "topolvm.io/quarantined=9", "topolvm.io/quarantined=x", "a"];
        assert_eq!(quarantined_at(&tags), Some(9));
        assert_eq!(quarantined_at(&["topolvm.io/quarantined="]), None);
    }
}
