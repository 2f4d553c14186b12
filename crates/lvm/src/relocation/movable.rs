//! Decides which volumes pvmove can move, and which of their parts must lie on different physical volumes.

use crate::UsedRange;

/// Parts of names that LVM gives to what lies below a volume (lvm(8) "VALID NAMES") and that can be moved: data and
/// metadata of thin pools. Those of caches, VDO, old mirrors and checksums were never tried.
const POOL_PARTS: [&str; 2] = ["_tdata", "_tmeta"];
const IMAGE_PARTS: [&str; 2] = ["_rimage_", "_rmeta_"];
const POOL_SPARE: &str = "_pmspare";

/// Returns whether a range can be moved. It cannot if a part that must lie apart from it is on the same disk.
pub(super) fn is_movable(range: &UsedRange, ranges: &[UsedRange]) -> bool {
    let is_known = match range.segment_type.as_str() {
        "linear" => image_of(range).is_some() || is_plain(range),
        "striped" => is_plain(range),
        _ => false,
    };
    // A contiguous volume would be in two pieces meanwhile, and perhaps forever (lvm(8) "ALLOCATION")
    is_known
        && range.attr.allocation() != 'c'
        && !ranges.iter().any(|other| other.pv == range.pv && must_lie_apart(range, other))
}

/// Returns whether the range belongs to a volume that users see, or to a part of a thin pool. pvmove ignores
/// copy-on-write snapshots and their origins.
fn is_plain(range: &UsedRange) -> bool {
    let kind = range.attr.as_str().chars().next().unwrap_or('?');
    match &range.parent {
        None => kind == '-' || range.volume.ends_with(POOL_SPARE),
        Some(_) => POOL_PARTS.iter().any(|part| range.volume.ends_with(part)),
    }
}

/// Returns whether two ranges must not lie on the same physical volume: other images of the same RAID, or other stripes
/// of the same volume.
pub(super) fn must_lie_apart(range: &UsedRange, other: &UsedRange) -> bool {
    match (image_of(range), image_of(other)) {
        (Some(image), Some(other_image)) => range.parent == other.parent && image != other_image,
        (None, None) => {
            let is_striped = range.segment_type == "striped" && other.segment_type == "striped";
            is_striped && range.volume == other.volume && range != other && range.pv != other.pv
        }
        _ => false,
    }
}

impl UsedRange {
    /// Returns the name of the RAID of which the range is an image or the metadata of one.
    pub fn raid_volume(&self) -> Option<&str> {
        image_of(self).and(self.parent.as_deref())
    }
}

/// Returns the number of the RAID image that the range is the data or the metadata of.
fn image_of(range: &UsedRange) -> Option<&str> {
    let parent = range.parent.as_deref()?;
    let rest = range.volume.strip_prefix(parent)?;
    let number = IMAGE_PARTS.iter().find_map(|part| rest.strip_prefix(part))?;
    number.bytes().all(|byte| byte.is_ascii_digit()).then_some(number)
}
