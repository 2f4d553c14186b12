//! Options of mke2fs(8), mkfs.xfs(8) and mkfs.btrfs(8) that are allowed, with their values. An option that is left out
//! names a file or a device, makes a filesystem of another kind or none, or is given by topolvm-node itself.

/// An option of a program that makes a filesystem.
#[derive(Debug)]
pub(super) struct MkfsOption {
    /// Short and long names.
    pub(super) names: &'static [&'static str],
    pub(super) value: Value,
}

/// Value of an option or a setting.
#[derive(Debug)]
pub(super) enum Value {
    /// Nothing.
    None,
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
    OneOf(&'static [&'static str]),
    /// Any names, which mkfs looks up among its own.
    Names,
    /// These, each of which may be switched off with `^`.
    Features(&'static [&'static str]),
    /// `name=value` and names, separated by commas.
    Settings(&'static [(&'static str, Self)]),
}

/// Returns the options that are allowed for a filesystem.
pub(super) const fn options(filesystem: &str) -> &'static [MkfsOption] {
    match filesystem.as_bytes() {
        b"ext4" => EXT4,
        b"xfs" => XFS,
        b"btrfs" => BTRFS,
        _ => &[],
    }
}

const fn option(names: &'static [&'static str], value: Value) -> MkfsOption {
    MkfsOption { names, value }
}

const EXT4: &[MkfsOption] = &[
    option(&["-b"], Value::Size),
    option(&["-C"], Value::Size),
    option(
        &["-E"],
        Value::Settings(&[
            ("assume_storage_prezeroed", Value::Switch),
            ("discard", Value::None),
            ("encoding", Value::Names),
            ("encoding_flags", Value::Names),
            ("hash_seed", Value::Uuid),
            ("lazy_itable_init", Value::Switch),
            ("lazy_journal_init", Value::Switch),
            ("mmp_update_interval", Value::Size),
            ("nodiscard", Value::None),
            ("num_backup_sb", Value::Size),
            ("orphan_file_size", Value::Size),
            ("packed_meta_blocks", Value::Switch),
            ("quotatype", Value::Names),
            ("resize", Value::Size),
            ("stride", Value::Size),
            ("stripe-width", Value::Size),
            ("stripe_width", Value::Size),
        ]),
    ),
    // Not "panic", which takes the whole node down
    option(&["-e"], Value::OneOf(&["continue", "remount-ro"])),
    option(&["-G"], Value::Size),
    option(&["-g"], Value::Size),
    option(&["-I"], Value::Size),
    option(&["-i"], Value::Size),
    option(
        &["-J"],
        Value::Settings(&[("size", Value::Size), ("fast_commit_size", Value::Size), ("location", Value::Size)]),
    ),
    option(&["-j"], Value::None),
    option(&["-K"], Value::None),
    option(&["-L"], Value::Label),
    option(&["-m"], Value::Percent),
    option(&["-N"], Value::Size),
    option(
        &["-O"],
        Value::Features(&[
            "64bit",
            "bigalloc",
            "casefold",
            "dir_index",
            "dir_nlink",
            "ea_inode",
            "encrypt",
            "ext_attr",
            "extent",
            "extents",
            "extra_isize",
            "fast_commit",
            "filetype",
            "flex_bg",
            "has_journal",
            "huge_file",
            "inline_data",
            "large_dir",
            "large_file",
            "meta_bg",
            "metadata_csum",
            "metadata_csum_seed",
            "mmp",
            "orphan_file",
            "project",
            "quota",
            "resize_inode",
            "sparse_super",
            "sparse_super2",
            "stable_inodes",
            "uninit_bg",
            "verity",
        ]),
    ),
    option(&["-q"], Value::None),
    option(&["-T"], Value::Names),
    option(&["-U"], Value::UuidOrRandom),
    option(&["-v"], Value::None),
];

const XFS: &[MkfsOption] = &[
    option(&["-b"], Value::Settings(&[("size", Value::Size), ("log", Value::Size)])),
    option(
        &["-d"],
        Value::Settings(&[
            ("agcount", Value::Size),
            ("agsize", Value::Size),
            ("concurrency", Value::Size),
            ("cowextsize", Value::Size),
            ("daxinherit", Value::Switch),
            ("extszinherit", Value::Size),
            ("noalign", Value::None),
            ("projinherit", Value::Size),
            ("sectlog", Value::Size),
            ("sectsize", Value::Size),
            ("su", Value::Size),
            ("sunit", Value::Size),
            ("sw", Value::Size),
            ("swidth", Value::Size),
        ]),
    ),
    option(
        &["-i"],
        Value::Settings(&[
            ("align", Value::Switch),
            ("attr", Value::Size),
            ("exchange", Value::Switch),
            ("log", Value::Size),
            ("maxpct", Value::Size),
            ("nrext64", Value::Switch),
            ("perblock", Value::Size),
            ("projid32bit", Value::Switch),
            ("size", Value::Size),
            ("sparse", Value::Switch),
        ]),
    ),
    option(&["-K"], Value::None),
    option(&["-L"], Value::Label),
    option(
        &["-l"],
        Value::Settings(&[
            ("agnum", Value::Size),
            ("concurrency", Value::Size),
            // Without 0: the log would be on another device
            ("internal", Value::None),
            ("lazy-count", Value::Switch),
            ("sectlog", Value::Size),
            ("sectsize", Value::Size),
            ("size", Value::Size),
            ("su", Value::Size),
            ("sunit", Value::Size),
            ("version", Value::Size),
        ]),
    ),
    option(
        &["-m"],
        Value::Settings(&[
            ("autofsck", Value::Switch),
            ("bigtime", Value::Switch),
            ("crc", Value::Switch),
            ("finobt", Value::Switch),
            ("inobtcount", Value::Switch),
            ("metadir", Value::Switch),
            ("reflink", Value::Switch),
            ("rmapbt", Value::Switch),
            ("uuid", Value::Uuid),
        ]),
    ),
    option(
        &["-n"],
        Value::Settings(&[
            ("ftype", Value::Switch),
            ("log", Value::Size),
            ("parent", Value::Switch),
            ("size", Value::Size),
            ("version", Value::OneOf(&["2", "ci"])),
        ]),
    ),
    option(&["-q"], Value::None),
    option(
        &["-s"],
        Value::Settings(&[
            ("log", Value::Size),
            ("sectlog", Value::Size),
            ("sectsize", Value::Size),
            ("size", Value::Size),
        ]),
    ),
];

/// Other profiles need several devices.
const ONE_DEVICE: Value = Value::OneOf(&["single", "dup", "SINGLE", "DUP"]);

const BTRFS: &[MkfsOption] = &[
    option(&["-d", "--data"], ONE_DEVICE),
    option(&["-m", "--metadata"], ONE_DEVICE),
    option(&["-M", "--mixed"], Value::None),
    option(&["--csum", "--checksum"], Value::OneOf(&["crc32c", "xxhash", "xxhash64", "sha256", "blake2", "blake2b"])),
    option(&["-n", "--nodesize"], Value::Size),
    option(&["-s", "--sectorsize"], Value::Size),
    option(
        &["-O", "--features"],
        Value::Features(&[
            "bgt",
            "block-group-tree",
            "extref",
            "free-space-tree",
            "fst",
            "mixed-bg",
            "no-holes",
            "quota",
            "skinny-metadata",
            "squota",
        ]),
    ),
    option(
        &["-R", "--runtime-features"],
        Value::Features(&["bgt", "block-group-tree", "free-space-tree", "fst", "quota"]),
    ),
    option(&["-L", "--label"], Value::Label),
    // Not a UUID: the kernel takes two filesystems of the same one for parts of one
    option(&["-K", "--nodiscard"], Value::None),
    option(&["-q", "--quiet"], Value::None),
    option(&["-v", "--verbose"], Value::None),
];
