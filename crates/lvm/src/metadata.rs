//! The part of LVM's metadata on a physical volume that shows whether anything has changed: the identity of the volume
//! group, and the count of its changes.
//!
//! A physical volume begins with a label, which contains the locations of its metadata areas. Each area begins with a
//! header, which contains the location of the present metadata in it: a text that begins with the group's identity and
//! its `seqno`. LVM rewrites all of this with each change, whichever process or container makes it, so it is the one
//! place where no change can be missed. Layout: LVM2, `lib/label/label.h` and `lib/format_text/layout.h`; numbers are
//! little-endian.

/// Bytes that contain the label: one of the first four sectors. The metadata areas usually begin behind it at 4096.
pub(crate) const LABEL_SPACE: usize = 4 * SECTOR;
/// Bytes of the header of a metadata area (`struct mda_header`).
pub(crate) const HEADER: usize = 512;
/// Bytes of the metadata text that hold its first lines, with identity and count.
pub(crate) const TEXT_HEAD: usize = 512;

const SECTOR: usize = 512;
const LABEL: &[u8] = b"LABELONE";
const LABEL_TYPE: &[u8] = b"LVM2 001";
const AREA: &[u8] = b" LVM2 x[5A%r0N*>";
/// `RAW_LOCN_IGNORED`: LVM keeps this area but does not write to it.
const IGNORED: u32 = 1;

/// Version of the metadata of a volume group.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Version {
    /// Identity of the group.
    pub vg_uuid: String,
    /// Count of changes.
    pub seqno: u64,
}

/// A range of bytes on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteRange {
    /// First byte.
    pub offset: u64,
    /// Its length.
    pub size: u64,
}

/// Returns the metadata areas that the label in one of the first four sectors of a device names; `None` when there is
/// no label.
pub fn areas(start: &[u8]) -> Option<Vec<ByteRange>> {
    let (label, contents) = find_label(start)?;
    // Identity (32 bytes) and size (8), then data areas, then metadata areas, each list ended by zeros.
    let mut place = contents.checked_add(40)?;
    list(label, &mut place)?;
    list(label, &mut place)
}

/// Returns true if the label is that of the physical volume with this UUID, as LVM reports it.
pub(crate) fn is_label_of(start: &[u8], pv_uuid: &str) -> bool {
    let identity = find_label(start).and_then(|(label, contents)| label.get(contents..contents.checked_add(32)?));
    // A report has hyphens in it
    identity.is_some_and(|identity| identity.iter().copied().eq(pv_uuid.bytes().filter(|byte| *byte != b'-')))
}

/// Returns the sector with the label, and where in it the contents begin.
fn find_label(start: &[u8]) -> Option<(&[u8], usize)> {
    let label = start.chunks(SECTOR).take(4).find(|sector| sector.starts_with(LABEL))?;
    if label.get(24..32)? != LABEL_TYPE {
        return None;
    }
    Some((label, usize::try_from(u32_at(label, 20)?).ok()?))
}

/// Reads a list of ranges, which ends with a range at zero.
fn list(label: &[u8], place: &mut usize) -> Option<Vec<ByteRange>> {
    let mut ranges = Vec::new();
    loop {
        let range = ByteRange { offset: u64_at(label, *place)?, size: u64_at(label, place.checked_add(8)?)? };
        *place = place.checked_add(16)?;
        if range.offset == 0 {
            return Some(ranges);
        }
        ranges.push(range);
    }
}

/// Returns the ranges of the head of the present metadata, by the header of a metadata area: two pieces if it reaches
/// over the end of the area, which is used like a ring. `None` when there is none.
pub fn text_head(area: ByteRange, header: &[u8]) -> Option<Vec<ByteRange>> {
    if header.get(4..20)? != AREA {
        return None;
    }
    let (offset, size, flags) = (u64_at(header, 40)?, u64_at(header, 48)?, u32_at(header, 60)?);
    let ring = u64::try_from(HEADER).ok()?;
    // No disk is as large as that.
    area.offset.checked_add(area.size)?;
    if offset < ring || offset >= area.size || flags & IGNORED != 0 {
        return None;
    }
    let size = size.min(u64::try_from(TEXT_HEAD).ok()?);
    let first = size.min(area.size.checked_sub(offset)?);
    let mut pieces = vec![ByteRange { offset: area.offset.checked_add(offset)?, size: first }];
    if first < size {
        pieces.push(ByteRange { offset: area.offset.checked_add(ring)?, size: size.checked_sub(first)? });
    }
    Some(pieces)
}

/// Parses the version from the head of a metadata text.
pub fn version(text: &[u8]) -> Option<Version> {
    let text = String::from_utf8_lossy(text);
    let value = |name: &str| text.lines().find_map(|line| line.trim().strip_prefix(name)?.trim().strip_prefix('='));
    let vg_uuid = value("id")?.trim().trim_matches('"').to_owned();
    Some(Version { vg_uuid, seqno: value("seqno")?.trim().parse().ok()? })
}

fn u32_at(bytes: &[u8], place: usize) -> Option<u32> {
    bytes.get(place..place.checked_add(4)?)?.try_into().ok().map(u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], place: usize) -> Option<u64> {
    bytes.get(place..place.checked_add(8)?)?.try_into().ok().map(u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const AREA_AT_4096: ByteRange = ByteRange { offset: 4096, size: 0x000f_f000 };

    /// Returns what `pvcreate` of LVM 2.03.16 writes, without what is not read here.
    fn label() -> Vec<u8> {
        let mut start = vec![0; LABEL_SPACE];
        let mut put = |place: usize, bytes: &[u8]| start[place..place + bytes.len()].copy_from_slice(bytes);
        put(512, LABEL);
        put(512 + 20, &32u32.to_le_bytes());
        put(512 + 24, LABEL_TYPE);
        put(512 + 32, b"VMFgxfZH20441HLJG97fePCmvFhBAjug");
        put(512 + 64, &(256u64 << 20).to_le_bytes());
        put(512 + 72, &(1u64 << 20).to_le_bytes());
        put(512 + 104, &AREA_AT_4096.offset.to_le_bytes());
        put(512 + 112, &AREA_AT_4096.size.to_le_bytes());
        start
    }

    fn header(offset: u64, size: u64, flags: u32) -> Vec<u8> {
        let mut header = vec![0; HEADER];
        header[4..20].copy_from_slice(AREA);
        header[40..48].copy_from_slice(&offset.to_le_bytes());
        header[48..56].copy_from_slice(&size.to_le_bytes());
        header[60..64].copy_from_slice(&flags.to_le_bytes());
        header
    }

    #[test]
    fn the_label_says_where_the_metadata_is() {
        assert_eq!(areas(&label()), Some(vec![AREA_AT_4096]));
        assert!(is_label_of(&label(), "VMFgxf-ZH20-441H-LJG9-7feP-CmvF-hBAjug"));
        assert!(!is_label_of(&label(), "VMFgxf-ZH20-441H-LJG9-7feP-CmvF-hBAjuh") && !is_label_of(&[], ""));
    }

    #[test]
    fn a_device_without_a_label_is_no_physical_volume() {
        assert_eq!(areas(&vec![0; LABEL_SPACE]), None);
    }

    #[test]
    fn the_header_says_where_the_text_is() {
        let head = text_head(AREA_AT_4096, &header(0x1000, 0x6cc, 0));
        assert_eq!(head, Some(vec![ByteRange { offset: 0x2000, size: 512 }]));
    }

    #[test]
    fn a_text_over_the_end_of_the_ring_goes_on_behind_the_header() {
        let head = text_head(AREA_AT_4096, &header(AREA_AT_4096.size - 100, 1000, 0)).unwrap();
        assert_eq!(
            head,
            [
                ByteRange { offset: 4096 + AREA_AT_4096.size - 100, size: 100 },
                ByteRange { offset: 4096 + 512, size: 412 }
            ]
        );
    }

    #[test]
    fn an_area_that_is_empty_or_ignored_says_nothing() {
        assert_eq!(text_head(AREA_AT_4096, &header(0, 0, 0)), None);
        assert_eq!(text_head(AREA_AT_4096, &header(0x1000, 0x6cc, IGNORED)), None);
    }

    #[test]
    fn an_area_beyond_all_disks_says_nothing() {
        let area = ByteRange { offset: u64::MAX - 2000, size: 4096 };
        assert_eq!(text_head(area, &header(1024, 600, 0)), None);
    }

    #[test]
    fn the_text_begins_with_identity_and_count() {
        let text = "vg1 {\nid = \"DTnR5B-piVn-mek8-vJMf-xEz9-kILr-xyHCbG\"\nseqno = 17\nformat = \"lvm2\"\n";
        let expected = Version { vg_uuid: "DTnR5B-piVn-mek8-vJMf-xEz9-kILr-xyHCbG".to_owned(), seqno: 17 };
        assert_eq!(version(text.as_bytes()), Some(expected));
        assert_eq!(version(b"vg1 {\nid = \"x\"\n"), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_harm(bytes in proptest::collection::vec(any::<u8>(), 0..2048)) {
            drop((areas(&bytes), version(&bytes)));
            let mut labelled = label();
            let from = 520;
            let end = (from + bytes.len()).min(LABEL_SPACE);
            labelled[from..end].copy_from_slice(&bytes[..end - from]);
            for area in areas(&labelled).unwrap_or_default() {
                drop(text_head(area, &bytes));
            }
        }
    }
}
