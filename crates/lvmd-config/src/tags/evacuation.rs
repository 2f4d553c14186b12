//! The LVM tag of physical volumes that are being evacuated: how fast, and whether they leave their group afterwards.
//!
//! The tag is in LVM's metadata: if lvmd stops, its next process continues.

use lvm::{InvalidName, PhysicalVolume, Tag};

/// Begins the tag; `remove` or `keep` and the bytes in a second follow, separated by a colon.
const EVACUATE: &str = "topolvm.io/evacuate=";
const REMOVE: &str = "remove";
const KEEP: &str = "keep";

/// The request that a physical volume be emptied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EvacuationRequest {
    /// Bytes that are moved in a second on average; 0 for as many as the disks can.
    pub bytes_per_second: u64,
    /// True if it leaves its volume group when it is empty.
    pub remove: bool,
}

impl EvacuationRequest {
    /// Returns the request in the tags of a physical volume. Of a tag in another form only that the disk is to be
    /// emptied is believed.
    pub fn of(pv: &PhysicalVolume) -> Option<Self> {
        let value = pv.tags.iter().find_map(|tag| tag.strip_prefix(EVACUATE))?;
        Some(Self::parse(value).unwrap_or_default())
    }

    fn parse(value: &str) -> Option<Self> {
        let (what, rate) = value.split_once(':')?;
        let remove = match what {
            REMOVE => true,
            KEEP => false,
            _ => return None,
        };
        Some(Self { bytes_per_second: rate.parse().ok()?, remove })
    }

    /// Returns the tag of the request.
    pub fn tag(self) -> Result<Tag, InvalidName> {
        format!("{EVACUATE}{}:{}", if self.remove { REMOVE } else { KEEP }, self.bytes_per_second).parse()
    }
}

/// Returns whether these tags of a physical volume request its evacuation.
pub fn requests_evacuation(tags: &[Box<str>]) -> bool {
    tags.iter().any(|tag| tag.starts_with(EVACUATE))
}

/// Returns the tags of a physical volume that request its evacuation.
pub fn evacuation_tags(pv: &PhysicalVolume) -> Result<Vec<Tag>, InvalidName> {
    pv.tags.iter().filter(|tag| tag.starts_with(EVACUATE)).map(|tag| tag.parse()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tags::tests::pv_with_tags;

    fn pv(tag: &str) -> PhysicalVolume {
        pv_with_tags(&["other", tag])
    }

    #[test]
    fn the_tag_says_what_was_asked_for() {
        for (bytes_per_second, remove) in [(0, false), (50_000_000, true), (u64::MAX, false)] {
            let request = EvacuationRequest { bytes_per_second, remove };
            let tag = request.tag().unwrap();
            assert_eq!(EvacuationRequest::of(&pv(tag.as_str())), Some(request));
            assert_eq!(evacuation_tags(&pv(tag.as_str())).unwrap(), [tag]);
        }
    }

    #[test]
    fn a_tag_of_another_form_takes_no_disk_out_of_its_group() {
        for value in ["", "remove", "remove:", "remove:fast", "take:1"] {
            let found = EvacuationRequest::of(&pv(&format!("topolvm.io/evacuate={value}")));
            assert_eq!(found, Some(EvacuationRequest::default()), "{value}");
        }
        assert_eq!(EvacuationRequest::of(&pv("topolvm.io/evacuated=remove:0")), None);
    }
}
