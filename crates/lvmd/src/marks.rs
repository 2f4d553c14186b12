//! What lvmd writes on its volumes, as LVM tags: `lvs -o +tags` shows it.
//!
//! A volume that takes several LVM commands to make is marked as being made from its first moment to its last. A crash in
//! between leaves a volume that nobody was told about and that says so itself.

use lvm::{InvalidName, LogicalVolume, LvName, Tag};

/// Begins all tags that lvmd gives a meaning to.
const DOMAIN: &str = "topolvm.io/";
/// lvmd made the volume.
const MANAGED: &str = "topolvm.io/managed-by=lvmd";
/// The volume is not ready and was never given to anybody.
const MAKING: &str = "topolvm.io/state=making";
/// Of which volume it is a snapshot; LVM forgets that when the volume is removed.
const SOURCE: &str = "topolvm.io/source=";
/// Keys that clients cannot set.
const RESERVED: &[&str] = &["managed-by", "state", "source"];

/// Whether only lvmd itself may write this tag.
pub(crate) fn is_reserved(tag: &Tag) -> bool {
    let key = tag.as_str().strip_prefix(DOMAIN).map(|rest| rest.split('=').next().unwrap_or(rest));
    key.is_some_and(|key| RESERVED.contains(&key))
}

/// Tags of a volume that is being made: those that the client wants and those of lvmd.
pub(crate) fn begin(wanted: &[Tag], source: Option<&LvName>) -> Result<Vec<Tag>, InvalidName> {
    let mut tags = wanted.to_vec();
    tags.push(MANAGED.parse()?);
    tags.push(making()?);
    if let Some(source) = source {
        tags.push(format!("{SOURCE}{source}").parse()?);
    }
    Ok(tags)
}

/// The tag whose removal makes a volume ready.
pub(crate) fn making() -> Result<Tag, InvalidName> {
    MAKING.parse()
}

/// Whether a volume was begun by lvmd and is not ready.
pub(crate) fn is_half_made(volume: &LogicalVolume) -> bool {
    let has = |tag: &str| volume.tags.iter().any(|existing| existing == tag);
    has(MANAGED) && has(MAKING)
}

/// Whether a thin volume was made as a snapshot.
pub(crate) fn is_thin_snapshot(volume: &LogicalVolume) -> bool {
    volume.attr.is_thin() && (volume.origin.is_some() || volume.tags.iter().any(|tag| tag.starts_with(SOURCE)))
}

/// Whether a volume is a snapshot of `source`, which may have been removed since.
pub(crate) fn is_snapshot_of(volume: &LogicalVolume, source: &LvName) -> bool {
    match &volume.origin {
        Some(origin) => origin == source.as_str(),
        None => volume.tags.iter().any(|tag| tag.strip_prefix(SOURCE) == Some(source.as_str())),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("topolvm.io/state=making", true)]
    #[case("topolvm.io/state", true)]
    #[case("topolvm.io/managed-by=me", true)]
    #[case("topolvm.io/source=", true)]
    #[case("topolvm.io/statement=x", false)]
    #[case("topolvm.io/name=pvc-1", false)]
    #[case("state=making", false)]
    fn clients_cannot_write_what_lvmd_relies_on(#[case] tag: &str, #[case] reserved: bool) {
        assert_eq!(is_reserved(&tag.parse().unwrap()), reserved);
    }

    #[test]
    fn every_name_can_be_a_source() {
        let longest: LvName = "+_.-Aa0".repeat(18).parse().unwrap();
        assert_eq!(begin(&[], Some(&longest)).unwrap().len(), 3);
    }
}
