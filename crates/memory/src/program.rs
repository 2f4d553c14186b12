//! The pages of the program itself.

use std::ffi::c_void;
use std::fs;
use std::ptr;

use rustix::mm::{Advice, madvise};

/// Gives back the pages of the program and its libraries, as under memory pressure. What runs on comes back from their files, and what only
/// the start needed does not: flags, configuration, tables of the linker. Pages that other processes use stay, and all of them where the
/// file belongs to another user. Does nothing on kernels before 5.4.
pub fn page_out_program() {
    for (address, length) in fs::read_to_string("/proc/self/maps").unwrap_or_default().lines().filter_map(unwritten) {
        page_out(address, length);
    }
}

/// Address and length of a mapping of a file that is not written to, from a line of `/proc/PID/maps`.
fn unwritten(line: &str) -> Option<(usize, usize)> {
    let mut fields = line.split_whitespace();
    let (begin, end) = fields.next()?.split_once('-')?;
    let is_written = fields.next()?.contains('w');
    // Offset, device and inode come between
    let is_file = fields.nth(3)?.starts_with('/');
    let (begin, end) = (usize::from_str_radix(begin, 16).ok()?, usize::from_str_radix(end, 16).ok()?);
    (is_file && !is_written).then_some((begin, end.checked_sub(begin)?))
}

#[expect(unsafe_code, reason = "madvise is about addresses")]
fn page_out(address: usize, length: usize) {
    let begin = ptr::with_exposed_provenance_mut::<c_void>(address);
    // SAFETY: MADV_PAGEOUT changes no contents: a page comes back from its file, or from swap when it was written to. Of a mapping that is gone
    // the kernel says so.
    unsafe { madvise(begin, length, Advice::LinuxPageOut) }.ok();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::resident_kib;

    #[test]
    fn mappings_of_files_that_are_not_written_to_are_found() {
        let text = "55d0c0a00000-55d0c0a21000 r-xp 00042000 fe:00 131079   /usr/bin/lvmd";
        assert_eq!(unwritten(text), Some((0x55d0_c0a0_0000, 0x21000)));
        for other in [
            "55d0c0a21000-55d0c0a22000 rw-p 00063000 fe:00 131079   /usr/bin/lvmd",
            "7ffd3b1fe000-7ffd3b200000 r-xp 00000000 00:00 0        [vdso]",
            "7f0000000000-7f0000021000 ---p 00000000 00:00 0",
            "",
        ] {
            assert_eq!(unwritten(other), None, "{other}");
        }
    }

    #[test]
    fn the_program_is_paged_out_and_goes_on() {
        // Pages that the linker wrote a moment ago and that are not on the disk yet stay
        std::fs::File::open("/proc/self/exe").unwrap().sync_all().unwrap();
        let before = resident_kib("RssFile");
        page_out_program();
        let after = resident_kib("RssFile");
        assert!(after < before, "{before} KiB, then {after} KiB");
    }
}
