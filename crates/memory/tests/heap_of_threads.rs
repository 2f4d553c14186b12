//! Memory that threads have freed goes back to the kernel. This is a process of its own: the harness of other tests has
//! threads, and with them heaps, before the test begins.

use std::thread;

/// Pieces that each thread has at once, of a KiB.
const PIECES: usize = 8_000;

fn main() {
    memory::share_heap();
    // The first list of objects is one large piece; when it is freed, glibc begins to keep more at the ends of heaps
    drop(vec![1_u8; 8 << 20]);
    let threads: Vec<_> = (0..4).map(|_| thread::spawn(fill_and_free)).collect();
    for thread in threads {
        assert_eq!(thread.join().ok(), Some(PIECES), "a thread has failed");
    }
    let full = resident_kib();
    memory::trim();
    let after = resident_kib();
    assert!(after < 4_000, "{after} KiB are left of {full}");
}

/// Allocates pieces and frees them. Returns how many there were.
fn fill_and_free() -> usize {
    let pieces: Vec<Vec<u8>> = (0..PIECES).map(|_| vec![1; 1024]).collect();
    pieces.iter().filter(|piece| piece.len() == 1024).count()
}

/// Returns the KiB of anonymous memory that this process has resident.
fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap_or_default();
    line.trim().trim_end_matches(" kB").parse().unwrap_or(u64::MAX)
}
