//! Gives free memory of the heap back to the kernel.

/// Gives all free memory of the heap back to the kernel, wherever it lies. glibc itself gives back only the end of the
/// heap, so that most of what a long list or report took would stay. Takes microseconds for each megabyte in use.
pub fn trim() {
    #[cfg(target_env = "gnu")]
    glibc::malloc_trim(0);
}

#[cfg(target_env = "gnu")]
mod glibc {
    use core::ffi::c_int;

    #[expect(
        unsafe_code,
        reason = "a declaration; malloc_trim(3) may be called at any time and touches no memory in use"
    )]
    // SAFETY: the signature is that of malloc.h.
    unsafe extern "C" {
        /// Leaves so many bytes at the end of the heap.
        pub(super) safe fn malloc_trim(pad: usize) -> c_int;
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    /// Returns the KiB that this process has resident of a kind, as `/proc/self/status` calls it.
    fn resident_kib(kind: &str) -> u64 {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(kind)).unwrap();
        line.trim_matches([':', '\t', ' ']).trim_end_matches(" kB").parse().unwrap()
    }

    #[test]
    fn what_lies_between_pieces_in_use_is_given_back() {
        let mut pieces: Vec<Vec<u8>> = (0..20_000).map(|_| vec![1; 1024]).collect();
        let full = resident_kib("RssAnon");
        // Every hundredth stays
        let kept: Vec<Vec<u8>> = (0..200).map(|number| pieces.swap_remove(number * 99)).collect();
        drop(pieces);
        super::trim();
        let after = resident_kib("RssAnon");
        assert!(after + 10_000 < full, "{full} KiB, then {after} KiB");
        assert_eq!(kept.len(), 200);
    }
}
