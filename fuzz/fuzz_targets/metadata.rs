//! Reads LVM metadata from any bytes of a disk: nothing is read that lies outside of the metadata area.
#![no_main]

use libfuzzer_sys::fuzz_target;
use lvm::metadata::{areas, text_head, version};

/// A sector with the label, and the header of an area behind it.
const HEADER: usize = 512;

fuzz_target!(|disk: &[u8]| {
    let _ = version(disk);
    let header = disk.get(disk.len().saturating_sub(HEADER)..).unwrap_or_default();
    for area in areas(disk).unwrap_or_default() {
        let Some(pieces) = text_head(area, header) else { continue };
        assert!((1..=2).contains(&pieces.len()), "{pieces:?}");
        assert!(pieces.iter().map(|piece| piece.size).sum::<u64>() <= 512, "{pieces:?}");
        for piece in pieces {
            let end = piece.offset.checked_add(piece.size);
            let is_inside = piece.offset >= area.offset && end.is_some_and(|end| end - area.offset <= area.size);
            assert!(is_inside, "{piece:?} in {area:?}");
        }
    }
});
