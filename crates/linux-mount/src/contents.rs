//! Contents of a block device, as `blkid` finds them.

/// Contents of a block device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Contents {
    /// Blank: no signature, and nothing at the beginning and end.
    Blank,
    /// Data without a signature that `blkid` knows.
    Unrecognized,
    /// A filesystem of this type.
    Filesystem(String),
    /// Something else with a signature, by its name.
    Other(String),
}

impl Contents {
    /// Parses the output of `blkid -p -o export`: one `NAME=value` a line.
    pub(crate) fn parse(export: &str) -> Self {
        let value =
            |name: &str| export.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('=')).map(str::to_owned);
        match (value("TYPE"), value("USAGE"), value("PTTYPE")) {
            (Some(kind), Some(usage), _) if usage == "filesystem" => Self::Filesystem(kind),
            (Some(kind), _, _) => Self::Other(kind),
            (None, _, Some(table)) => Self::Other(format!("a partition table ({table})")),
            (None, _, None) => Self::Other("unknown data that blkid detects".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(
        "DEVNAME=/dev/dm-1\nUUID=1-2\nBLOCK_SIZE=4096\nTYPE=ext4\nUSAGE=filesystem\n",
        Contents::Filesystem("ext4".to_owned())
    )]
    #[case("DEVNAME=/dev/dm-1\nTYPE=LVM2_member\nUSAGE=raid\n", Contents::Other("LVM2_member".to_owned()))]
    #[case("DEVNAME=/dev/dm-1\nPTUUID=1\nPTTYPE=gpt\n", Contents::Other("a partition table (gpt)".to_owned()))]
    #[case("DEVNAME=/dev/dm-1\n", Contents::Other("unknown data that blkid detects".to_owned()))]
    fn the_output_of_blkid_is_parsed(#[case] export: &str, #[case] expected: Contents) {
        assert_eq!(Contents::parse(export), expected);
    }
}
