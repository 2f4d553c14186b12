//! What lvmd writes on its volumes, as LVM tags: `lvs -o +tags` shows it.
//!
//! A volume that takes several LVM commands to make is marked as being made from its first moment to its last. A crash in
//! between leaves a volume that nobody was told about and that says so itself.

mod wiping;

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use lvm::{InvalidName, LogicalVolume, LvName, Tag, Wipe};

pub(crate) use wiping::{aside_name, is_aside_name, is_wiping, wiping, wiping_tag};

/// Begins all tags that lvmd gives a meaning to.
const DOMAIN: &str = "topolvm.io/";
/// lvmd made the volume.
pub(crate) const MANAGED: &str = "topolvm.io/managed-by=lvmd";
/// The volume is not ready and was never given to anybody; who makes it, and in which attempt.
const MAKING: &str = "topolvm.io/making=";
/// Of which volume it is a snapshot; LVM forgets that when the volume is removed.
const SOURCE: &str = "topolvm.io/source=";
/// How the contents of the volume are wiped when it is removed and no class has its volumes where it is.
const WIPE: &str = "topolvm.io/wipe=";
/// Begins the name of a volume that was made of a thin device with data in it; LVM's identity of the volume follows.
const FOUND: &str = "topolvm.found.";
/// A tag has room for this much of a maker's name; the paths of sockets are shorter.
const MAX_MAKER: usize = 512;
/// Keys that clients cannot set.
const RESERVED: &[&str] = &["managed-by", "making", "source", "wipe", "wiping"];

/// Whether only lvmd itself may write this tag.
pub(crate) fn is_reserved(tag: &Tag) -> bool {
    let key = tag.as_str().strip_prefix(DOMAIN).map(|rest| rest.split('=').next().unwrap_or(rest));
    key.is_some_and(|key| RESERVED.contains(&key))
}

/// Who makes volumes: lvmd processes that may work on the same volume groups at the same time have different names, and one
/// that is started again has its old one.
#[derive(Debug)]
pub struct Maker {
    name: String,
    /// Begins the mark of each volume that it is making.
    prefix: String,
    attempts: AtomicU64,
}

impl Maker {
    /// A maker by the name of its socket, or whatever else no other has.
    pub fn new(name: &Path) -> Self {
        let allowed = |character: char| {
            if character.is_ascii_alphanumeric() || "_+.-/".contains(character) { character } else { '_' }
        };
        let name: String = name.display().to_string().chars().map(allowed).take(MAX_MAKER).collect();
        Self { prefix: format!("{MAKING}{name}#"), name, attempts: AtomicU64::new(0) }
    }

    /// A mark that no other volume carries: what takes it away makes just the one volume ready.
    pub(crate) fn mark(&self) -> Result<Tag, InvalidName> {
        let attempt = self.attempts.fetch_add(1, Ordering::Relaxed);
        format!("{}{}.{attempt}", self.prefix, std::process::id()).parse()
    }

    /// Whether this maker began the volume, in this process or in an earlier one.
    pub(crate) fn began(&self, volume: &LogicalVolume) -> bool {
        is_half_made(volume) && volume.tags.iter().any(|tag| tag.starts_with(&self.prefix))
    }
}

/// Tags of a volume that is being made: those that the client wants and those of lvmd. `wipe` is how its class wipes volumes.
pub(crate) fn begin(
    wanted: &[Tag],
    making: &Tag,
    source: Option<&LvName>,
    wipe: Option<Wipe>,
) -> Result<Vec<Tag>, InvalidName> {
    let mut tags = wanted.to_vec();
    tags.push(MANAGED.parse()?);
    tags.push(making.clone());
    if let Some(wipe) = wipe {
        tags.push(format!("{WIPE}{wipe}").parse()?);
    }
    if let Some(source) = source {
        tags.push(format!("{SOURCE}{source}").parse()?);
    }
    Ok(tags)
}

/// The name of a volume that LVM made of a thin device with data in it. lvmd does not touch it again.
pub(crate) fn found_name(volume: &LogicalVolume) -> Result<LvName, InvalidName> {
    format!("{FOUND}{}", volume.uuid).parse()
}

/// Whether lvmd made the volume.
pub(crate) fn is_managed(volume: &LogicalVolume) -> bool {
    volume.tags.iter().any(|tag| **tag == *MANAGED)
}

/// How the class in which lvmd made the volume wiped volumes then.
pub(crate) fn wipe(volume: &LogicalVolume) -> Option<Wipe> {
    volume.tags.iter().find_map(|tag| tag.strip_prefix(WIPE)).filter(|_| is_managed(volume))?.parse().ok()
}

/// The tag that says that a volume is being made.
pub(crate) fn making(volume: &LogicalVolume) -> Option<&str> {
    volume.tags.iter().find(|tag| tag.starts_with(MAKING)).map(|tag| &**tag)
}

/// Whether a name can only be that of one volume: topolvm-node and TopoLVM's own name volumes by the UID of their object.
pub(crate) fn is_object_uid(name: &str) -> bool {
    let is_hex = |part: &str, length: usize| part.len() == length && part.bytes().all(|byte| byte.is_ascii_hexdigit());
    let parts: Vec<_> = name.split('-').collect();
    parts.len() == 5 && parts.iter().zip([8, 4, 4, 4, 12]).all(|(part, length)| is_hex(part, length))
}

/// Whether a volume was begun by an lvmd and is not ready.
pub(crate) fn is_half_made(volume: &LogicalVolume) -> bool {
    is_managed(volume) && making(volume).is_some()
}

/// Whether nobody is to be told of a volume.
pub(crate) fn is_hidden(volume: &LogicalVolume) -> bool {
    is_half_made(volume) || is_wiping(volume)
}

/// Whether a thin volume was made as a snapshot.
pub(crate) fn is_thin_snapshot(volume: &LogicalVolume) -> bool {
    volume.attr.is_thin() && (volume.origin.is_some() || volume.tags.iter().any(|tag| tag.starts_with(SOURCE)))
}

/// Whether a volume is a snapshot of `source`, which may have been removed since.
pub(crate) fn is_snapshot_of(volume: &LogicalVolume, source: &LvName) -> bool {
    match &volume.origin {
        Some(origin) => **origin == *source.as_str(),
        None => volume.tags.iter().any(|tag| tag.strip_prefix(SOURCE) == Some(source.as_str())),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("topolvm.io/making=x", true)]
    #[case("topolvm.io/making", true)]
    #[case("topolvm.io/managed-by=me", true)]
    #[case("topolvm.io/source=", true)]
    #[case("topolvm.io/wiping=zero:x", true)]
    #[case("topolvm.io/wipe=none", true)]
    #[case("topolvm.io/makings=x", false)]
    #[case("topolvm.io/name=pvc-1", false)]
    #[case("making=x", false)]
    fn clients_cannot_write_what_lvmd_relies_on(#[case] tag: &str, #[case] reserved: bool) {
        assert_eq!(is_reserved(&tag.parse().unwrap()), reserved);
    }

    #[rstest]
    #[case("0b5a2f4e-8d54-4f5c-9a0e-7d8f6f3c2b1a", true)]
    #[case("0B5A2F4E-8D54-4F5C-9A0E-7D8F6F3C2B1A", true)]
    #[case("0b5a2f4e8d544f5c9a0e7d8f6f3c2b1a", false)]
    #[case("0b5a2f4e-8d54-4f5c-9a0e-7d8f6f3c2b1g", false)]
    #[case("root", false)]
    fn an_object_uid_is_a_uuid(#[case] name: &str, #[case] expected: bool) {
        assert_eq!(is_object_uid(name), expected);
    }

    #[test]
    fn every_name_can_be_a_source() {
        let longest: LvName = "+_.-Aa0".repeat(18).parse().unwrap();
        let maker = Maker::new(Path::new("/run/topolvm/lvmd.sock"));
        assert_eq!(begin(&[], &maker.mark().unwrap(), Some(&longest), Some(Wipe::Zero)).unwrap().len(), 4);
    }

    #[test]
    fn every_path_makes_a_mark_and_no_mark_comes_twice() {
        for path in ["/run/topolvm/lvmd.sock", "/tmp/with space, and ünïcode", &"x".repeat(2000)] {
            let maker = Maker::new(Path::new(path));
            assert_ne!(maker.mark().unwrap(), maker.mark().unwrap());
        }
    }
}
