//! Tests of mounts and filesystems on the real machine.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

mod system_mounter;
