//! Signatures on disks: written by their programs where the machine has these, otherwise as the bytes of the format's
//! specification.

use std::fs::{File, OpenOptions};
use std::io::{Seek as _, SeekFrom};
use std::os::unix::fs::FileExt as _;

use crate::fixture::run_ok;

/// A kind of foreign content of a disk.
pub(crate) struct Signature {
    pub(crate) name: &'static str,
    make: fn(&str),
}

impl Signature {
    /// Puts it on a disk.
    pub(crate) fn make(&self, disk: &str) {
        (self.make)(disk);
    }
}

pub(crate) const SIGNATURES: &[Signature] = &[
    Signature { name: "ext4", make: |disk| drop(run_ok("mkfs.ext4", &["-qF", disk])) },
    Signature { name: "swap", make: |disk| drop(run_ok("mkswap", &[disk])) },
    Signature { name: "LVM", make: |disk| drop(run_ok("pvcreate", &["-qq", disk])) },
    Signature { name: "XFS", make: |disk| write(disk, 0, b"XFSB\0\0\x10\0") },
    Signature { name: "Btrfs", make: |disk| write(disk, (64 << 10) + 64, b"_BHRfS_M") },
    Signature { name: "LUKS 1", make: |disk| write(disk, 0, b"LUKS\xba\xbe\0\x01") },
    Signature {
        name: "LUKS 2, of which the second header is left",
        make: |disk| write(disk, 16 << 10, b"SKUL\xba\xbe\0\x02"),
    },
    Signature { name: "MBR", make: |disk| write(disk, 446, &mbr()) },
    Signature { name: "GPT", make: |disk| write(disk, 512, b"EFI PART\0\0\x01\0\x5c\0\0\0") },
    Signature {
        name: "GPT, of which the copy at the end is left",
        make: |disk| write(disk, end(disk, 512), b"EFI PART"),
    },
    Signature { name: "md 1.2", make: |disk| write(disk, 4096, &[0xfc, 0x4e, 0x2b, 0xa9, 1, 0, 0, 0]) },
    Signature { name: "md 0.90 at the end", make: |disk| write(disk, end(disk, 64 << 10), &[0xfc, 0x4e, 0x2b, 0xa9]) },
    Signature {
        name: "RAID of the firmware at the end",
        make: |disk| write(disk, end(disk, 1024), b"Intel Raid ISM Cfg Sig. "),
    },
    Signature { name: "ZFS", make: |disk| write(disk, 128 << 10, &0x00ba_b10c_u64.to_le_bytes()) },
    Signature {
        name: "ZFS, of which the last label is left",
        make: |disk| write(disk, end(disk, 128 << 10), &0x00ba_b10c_u64.to_le_bytes()),
    },
    Signature { name: "Ceph BlueStore", make: |disk| write(disk, 0, b"bluestore block device\n") },
    Signature { name: "bcache", make: |disk| write(disk, 4096 + 24, &BCACHE) },
    Signature { name: "DRBD at the end", make: |disk| write(disk, end(disk, 4096) + 60, &[0x83, 0x74, 0x02, 0x6d]) },
    Signature { name: "data that no program has a signature for", make: |disk| write(disk, 1 << 20, b"x") },
];

/// The magic number of bcache (`BCACHE_MAGIC`).
const BCACHE: [u8; 16] =
    [0xc6, 0x85, 0x73, 0xf6, 0x4e, 0x1a, 0x45, 0xca, 0x82, 0x65, 0xf5, 0x7f, 0x48, 0xba, 0x6d, 0x81];

/// Returns a table of partitions with none in it, as a tool leaves it, and the signature behind it.
fn mbr() -> [u8; 66] {
    let mut table = [0; 66];
    table[64..].copy_from_slice(&[0x55, 0xaa]);
    table
}

/// Returns the place so many bytes before the end of a disk.
fn end(disk: &str, bytes: u64) -> u64 {
    File::open(disk).unwrap().seek(SeekFrom::End(0)).unwrap() - bytes
}

fn write(disk: &str, place: u64, bytes: &[u8]) {
    let file = OpenOptions::new().write(true).open(disk).unwrap();
    file.write_all_at(bytes, place).unwrap();
    file.sync_all().unwrap();
}
