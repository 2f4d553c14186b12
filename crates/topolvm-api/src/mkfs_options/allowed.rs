//! Options of mke2fs(8), mkfs.xfs(8) and mkfs.btrfs(8) that are allowed, with their values. An omitted option names a
//! file or a device, creates a filesystem of another kind or none, or is set by topolvm-node itself.

use Value::{Features, Label, Names, Nothing, OneOf, Percent, Settings, Size, Switch, Uuid, UuidOrRandom};

/// Names, separated by spaces, and the value that each of them has. The short and the long name of one option are
/// separated by `|`.
pub(super) type Table = &'static [(&'static str, Value)];

/// Value of an option or a setting.
#[derive(Debug)]
pub(super) enum Value {
    Nothing,
    /// A number with or without a unit.
    Size,
    /// A number, which may have decimals.
    Percent,
    /// Label of the filesystem.
    Label,
    Uuid,
    /// A UUID, or how to make one.
    UuidOrRandom,
    /// 0, 1, or nothing.
    Switch,
    /// One of these keywords.
    OneOf(&'static str),
    /// Any names, which mkfs searches among its own.
    Names,
    /// Some of these keywords, each of which may be switched off with `^`.
    Features(&'static str),
    /// `name=value` and names, separated by commas.
    Settings(Table),
}

/// Returns the options that are allowed for a filesystem.
pub(super) const fn options(filesystem: &str) -> Table {
    match filesystem.as_bytes() {
        b"ext4" => EXT4,
        b"xfs" => XFS,
        b"btrfs" => BTRFS,
        _ => &[],
    }
}

/// Returns the value that a name has in a table.
pub(super) fn find_value(table: Table, name: &str) -> Option<&'static Value> {
    let has_name = |(names, _): &&(&str, Value)| names.split([' ', '|']).any(|known| known == name);
    table.iter().find(has_name).map(|(_, value)| value)
}

const EXT4: Table = &[
    ("-b -C -G -g -I -i -N", Size),
    (
        "-E",
        Settings(&[
            ("discard nodiscard", Nothing),
            ("mmp_update_interval num_backup_sb orphan_file_size resize stride stripe-width stripe_width", Size),
            ("assume_storage_prezeroed lazy_itable_init lazy_journal_init packed_meta_blocks", Switch),
            ("encoding encoding_flags quotatype", Names),
            ("hash_seed", Uuid),
        ]),
    ),
    // Not "panic", which takes the whole node down
    ("-e", OneOf("continue remount-ro")),
    ("-J", Settings(&[("size fast_commit_size location", Size)])),
    ("-L", Label),
    ("-m", Percent),
    (
        "-O",
        Features(
            "64bit bigalloc casefold dir_index dir_nlink ea_inode encrypt ext_attr extent extents extra_isize \
             fast_commit filetype flex_bg has_journal huge_file inline_data large_dir large_file meta_bg \
             metadata_csum metadata_csum_seed mmp orphan_file project quota resize_inode sparse_super sparse_super2 \
             stable_inodes uninit_bg verity",
        ),
    ),
    ("-T", Names),
    ("-U", UuidOrRandom),
    ("-j -K -q -v", Nothing),
];

const XFS: Table = &[
    ("-b", Settings(&[("size log", Size)])),
    (
        "-d",
        Settings(&[
            ("agcount agsize concurrency cowextsize extszinherit projinherit", Size),
            ("sectlog sectsize su sunit sw swidth", Size),
            ("daxinherit", Switch),
            ("noalign", Nothing),
        ]),
    ),
    ("-i", Settings(&[("attr log maxpct perblock size", Size), ("align exchange nrext64 projid32bit sparse", Switch)])),
    ("-L", Label),
    (
        "-l",
        Settings(&[
            ("agnum concurrency sectlog sectsize size su sunit version", Size),
            // Without 0: the log would be on another device
            ("internal", Nothing),
            ("lazy-count", Switch),
        ]),
    ),
    ("-m", Settings(&[("autofsck bigtime crc finobt inobtcount metadir reflink rmapbt", Switch), ("uuid", Uuid)])),
    ("-n", Settings(&[("log size", Size), ("ftype parent", Switch), ("version", OneOf("2 ci"))])),
    ("-s", Settings(&[("log sectlog sectsize size", Size)])),
    ("-K -q", Nothing),
];

const BTRFS: Table = &[
    // Other profiles need several devices
    ("-d|--data -m|--metadata", OneOf("single dup SINGLE DUP")),
    ("-M|--mixed", Nothing),
    ("--csum|--checksum", OneOf("crc32c xxhash xxhash64 sha256 blake2 blake2b")),
    ("-n|--nodesize -s|--sectorsize", Size),
    (
        "-O|--features",
        Features("bgt block-group-tree extref free-space-tree fst mixed-bg no-holes quota skinny-metadata squota"),
    ),
    ("-R|--runtime-features", Features("bgt block-group-tree free-space-tree fst quota")),
    // No UUID: the kernel takes two filesystems of the same one for parts of one
    ("-L|--label", Label),
    ("-K|--nodiscard -q|--quiet -v|--verbose", Nothing),
];
