//! The LVM tags that lvmd adds to its volumes; `lvs -o +tags` shows them.
//!
//! The creation of a volume takes several LVM commands. From the first to the last the volume carries the tag
//! `topolvm.io/making=...` and is called unfinished. A crash in between leaves an unfinished volume that no client
//! knows.

mod evacuation;
mod former_group;
mod quarantine;
mod vacated;
mod wiping;

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use lvm::{InvalidName, LogicalVolume, LvName, Tag, Wipe};

use crate::machine::Machine;

pub use evacuation::{EvacuationRequest, evacuation_tags, requests_evacuation};
pub use former_group::FormerGroup;
pub use quarantine::{is_quarantine_tag, is_quarantined_at, quarantine_tag};
pub use quarantine::{object_uid, quarantine_name, quarantined_at, quarantined_uid};
pub use vacated::VacatedExtents;
pub use wiping::{claim_name, is_wiping, is_wiping_name, wipe_method, wiping_name, wiping_tag};

/// Begins all tags that lvmd gives a meaning to.
const DOMAIN: &str = "topolvm.io/";
/// lvmd created the volume.
pub const MANAGED: &str = "topolvm.io/managed-by=lvmd";
/// Begins the tag of an unfinished volume; the instance of lvmd that creates it and the attempt follow.
const MAKING: &str = "topolvm.io/making=";
/// Begins the tag of a snapshot; the name of its source follows, which LVM forgets when the source is removed.
const SOURCE: &str = "topolvm.io/source=";
/// Prefix of the tag that stores how the class wiped volumes at the creation of the volume. It applies when the volume
/// is removed and no class uses its location any more.
const WIPE: &str = "topolvm.io/wipe=";
/// Begins the name of a volume that LVM made of a thin device with data in it; LVM's UUID of the volume follows.
const FOUND: &str = "topolvm.found.";
/// The name of the volume of a proof.
const PROBE: &str = "topolvm.probe";
/// Longest instance name that fits in a tag, in characters; the paths of sockets are shorter.
const MAX_INSTANCE_NAME: usize = 512;
/// Keys that clients cannot set.
const RESERVED: &[&str] =
    &["managed-by", "making", "source", "wipe", "wiping", "quarantined", "disk-group", "machine", "former-group"];

/// Returns whether only lvmd itself may write this tag.
pub fn is_reserved(tag: &Tag) -> bool {
    let key = tag.as_str().strip_prefix(DOMAIN).map(|rest| rest.split('=').next().unwrap_or(rest));
    key.is_some_and(|key| RESERVED.contains(&key))
}

/// Identifies an instance of lvmd in the tags of its volumes, as `MACHINE:BOOT:NAME` or, on a machine without an
/// identity and before tags had it, `NAME`. Instances that may work on the same volume groups at the same time are on
/// different machines or have different names; one that is started again has its old name.
#[derive(Debug)]
pub struct InstanceId {
    name: String,
    machine: Option<Machine>,
    attempts: AtomicU64,
}

impl InstanceId {
    /// Names an instance by the path of its socket, or by another path that no other instance of the machine has.
    pub fn new(name: &Path, machine: Option<Machine>) -> Self {
        let allowed = |character: char| {
            if character.is_ascii_alphanumeric() || "_+.-/".contains(character) { character } else { '_' }
        };
        let name: String = name.display().to_string().chars().map(allowed).take(MAX_INSTANCE_NAME).collect();
        Self { name, machine, attempts: AtomicU64::new(0) }
    }

    /// Returns a tag that no other volume carries: the command that removes it makes just the one volume ready.
    pub fn new_making_tag(&self) -> Result<Tag, InvalidName> {
        let attempt = self.attempts.fetch_add(1, Ordering::Relaxed);
        format!("{MAKING}{}#{}.{attempt}", self.in_tags(), std::process::id()).parse()
    }

    /// Returns the instance as it is written into tags.
    fn in_tags(&self) -> String {
        match &self.machine {
            Some(machine) => format!("{}:{}", machine.mark(), self.name),
            None => self.name.clone(),
        }
    }

    /// Returns whether an instance in a tag is this one, in whichever boot of the machine.
    fn is_this(&self, instance: &str) -> bool {
        let (mark, name) = split_instance(instance);
        name == self.name && !self.is_of_other_machine(mark)
    }

    fn is_of_other_machine(&self, mark: &str) -> bool {
        !mark.is_empty() && self.machine.as_ref().is_none_or(|machine| machine.is_other(mark))
    }

    /// Returns whether no other machine began to create an unfinished volume.
    pub fn is_of_this_machine(&self, volume: &LogicalVolume) -> bool {
        maker(volume).is_some_and(|instance| !self.is_of_other_machine(split_instance(instance).0))
    }

    /// Returns whether this instance began to create an unfinished volume, in this process or in an earlier one.
    pub fn is_creating(&self, volume: &LogicalVolume) -> bool {
        is_unfinished(volume) && maker(volume).is_some_and(|instance| self.is_this(instance))
    }
}

/// Splits an instance in a tag into the mark of its machine, which is empty if it has none, and its name.
fn split_instance(instance: &str) -> (&str, &str) {
    instance.rsplit_once(':').unwrap_or(("", instance))
}

/// Returns the instance that began to create an unfinished volume.
fn maker(volume: &LogicalVolume) -> Option<&str> {
    making_tag(volume)?.strip_prefix(MAKING)?.rsplit_once('#').map(|(instance, _)| instance)
}

/// Returns the tags with which a volume is created: those that the client wants and those of lvmd. `wipe` is how its
/// class wipes volumes.
pub fn of_new_volume(
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

/// Returns the name under which a volume is kept that LVM made of a thin device with data in it. lvmd does not touch it
/// again.
pub fn found_name(volume: &LogicalVolume) -> Result<LvName, InvalidName> {
    format!("{FOUND}{}", volume.uuid).parse()
}

/// Returns the name of the volume by which lvmd proves that LVM creates volumes. It carries the tag of an unfinished
/// volume as long as it exists.
pub fn probe_name() -> Result<LvName, InvalidName> {
    PROBE.parse()
}

/// Returns whether lvmd created the volume.
pub fn is_managed(volume: &LogicalVolume) -> bool {
    volume.tags.iter().any(|tag| **tag == *MANAGED)
}

/// Returns how the class of a volume wiped volumes when lvmd created it.
pub fn wipe_at_creation(volume: &LogicalVolume) -> Option<Wipe> {
    Wipe::parse(volume.tags.iter().find_map(|tag| tag.strip_prefix(WIPE)).filter(|_| is_managed(volume))?)
}

/// Returns the tag of an unfinished volume.
pub fn making_tag(volume: &LogicalVolume) -> Option<&str> {
    volume.tags.iter().find(|tag| tag.starts_with(MAKING)).map(|tag| &**tag)
}

/// Returns whether an lvmd began to create the volume and has not finished.
pub fn is_unfinished(volume: &LogicalVolume) -> bool {
    is_managed(volume) && making_tag(volume).is_some()
}

/// Returns whether a volume is hidden from clients: it is unfinished or being wiped.
pub fn is_hidden(volume: &LogicalVolume) -> bool {
    is_unfinished(volume) || is_wiping(volume)
}

/// Returns whether a thin volume was created as a snapshot.
pub fn is_thin_snapshot(volume: &LogicalVolume) -> bool {
    volume.attr.is_thin() && (volume.origin.is_some() || volume.tags.iter().any(|tag| tag.starts_with(SOURCE)))
}

/// Returns whether a volume is a snapshot of `source`, which may have been removed since.
pub fn is_snapshot_of(volume: &LogicalVolume, source: &LvName) -> bool {
    match &volume.origin {
        Some(origin) => **origin == *source.as_str(),
        None => volume.tags.iter().any(|tag| tag.strip_prefix(SOURCE) == Some(source.as_str())),
    }
}

#[cfg(test)]
mod tests {
    use lvm::PhysicalVolume;
    use rstest::rstest;

    use super::*;

    pub(super) fn pv_with_tags(tags: &[&str]) -> PhysicalVolume {
        PhysicalVolume {
            path: "/dev/sdb".to_owned(),
            uuid: "u".to_owned(),
            device: None,
            size: 0,
            free: 0,
            free_areas: Vec::new(),
            allocatable: false,
            tags: tags.iter().map(|tag| (*tag).into()).collect(),
        }
    }

    #[rstest]
    #[case("topolvm.io/making=x", true)]
    #[case("topolvm.io/making", true)]
    #[case("topolvm.io/managed-by=me", true)]
    #[case("topolvm.io/source=", true)]
    #[case("topolvm.io/wiping=zero:x", true)]
    #[case("topolvm.io/wipe=none", true)]
    #[case("topolvm.io/quarantined=1", true)]
    #[case("topolvm.io/makings=x", false)]
    #[case("topolvm.io/name=pvc-1", false)]
    #[case("making=x", false)]
    fn clients_cannot_write_tags_that_lvmd_relies_on(#[case] tag: &str, #[case] reserved: bool) {
        assert_eq!(is_reserved(&tag.parse().unwrap()), reserved);
    }

    #[test]
    fn every_name_can_be_a_source() {
        let longest: LvName = "+_.-Aa0".repeat(18).parse().unwrap();
        let instance = InstanceId::new(Path::new("/run/topolvm/lvmd.sock"), None);
        assert_eq!(
            of_new_volume(&[], &instance.new_making_tag().unwrap(), Some(&longest), Some(Wipe::Zero)).unwrap().len(),
            4
        );
    }

    #[test]
    fn every_path_gives_a_tag_and_no_tag_comes_twice() {
        for path in ["/run/topolvm/lvmd.sock", "/tmp/with space, and ünïcode", &"x".repeat(2000)] {
            let instance = InstanceId::new(Path::new(path), None);
            assert_ne!(instance.new_making_tag().unwrap(), instance.new_making_tag().unwrap());
        }
    }
}
