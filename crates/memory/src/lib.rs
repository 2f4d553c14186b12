//! Keeps the heap small: one for all threads, whose free memory goes back to the kernel.

/// Has all threads that are started from now on use one heap. glibc gives each its own up to eight for each CPU, and
/// keeps megabytes at the end of each, which [`trim`] does not give back.
pub fn share_heap() {
    #[cfg(target_env = "gnu")]
    glibc::mallopt(glibc::M_ARENA_MAX, 1);
}

/// Gives all free memory of the heap back to the kernel, wherever it lies. glibc itself gives back only the end of the
/// heap, so that most of what a long list or report took would stay. Takes microseconds for each megabyte in use.
pub fn trim() {
    #[cfg(target_env = "gnu")]
    glibc::malloc_trim(0);
}

#[cfg(target_env = "gnu")]
mod glibc {
    use core::ffi::c_int;

    /// Number of heaps at most, as malloc.h has it.
    pub(super) const M_ARENA_MAX: c_int = -8;

    #[expect(
        unsafe_code,
        reason = "declarations; malloc_trim(3) and mallopt(3) may be called at any time and touch no memory in use"
    )]
    // SAFETY: the signatures are those of malloc.h.
    unsafe extern "C" {
        /// Sets a parameter. Returns 1, or 0 if the value is refused.
        pub(super) safe fn mallopt(parameter: c_int, value: c_int) -> c_int;
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
