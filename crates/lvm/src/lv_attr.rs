//! `lv_attr`: ten characters in which LVM packs type, permissions, state and health of a volume (lvs(8), "NOTES").

use std::fmt;
use std::str::FromStr;

// Places of the characters.
const STATE: usize = 4;
const OPEN: usize = 5;
const HEALTH: usize = 8;

/// The ten characters.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct LvAttr([u8; 10]);

/// Attributes that are not ten ASCII characters.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} does not have ten characters")]
pub struct InvalidLvAttr(String);

macro_rules! character {
    ($(#[$doc:meta])* $type:ident { $($(#[$variant_doc:meta])* $variant:ident = $char:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $type {
            $($(#[$variant_doc])* $variant,)*
            /// Another character.
            Other(char),
        }

        impl From<u8> for $type {
            fn from(byte: u8) -> Self {
                match byte {
                    $($char => Self::$variant,)*
                    other => Self::Other(char::from(other)),
                }
            }
        }
    };
}

character! {
    /// First character: what kind of volume it is.
    VolumeType {
        /// Ordinary: linear or striped.
        Plain = b'-',
        /// Cached by another volume.
        Cache = b'C',
        /// Mirrored in the old way.
        Mirror = b'm',
        /// Mirrored in the old way, not yet in sync.
        MirrorUnsynced = b'M',
        /// Has copy-on-write snapshots.
        Origin = b'o',
        /// RAID.
        Raid = b'r',
        /// RAID, not yet in sync.
        RaidUnsynced = b'R',
        /// Copy-on-write snapshot.
        Snapshot = b's',
        /// Thin volume.
        Thin = b'V',
        /// Thin pool.
        ThinPool = b't',
        /// Data inside a thin pool.
        ThinPoolData = b'T',
        /// VDO pool.
        VdoPool = b'd',
        /// Data inside a VDO pool.
        VdoPoolData = b'D',
        /// Metadata inside a RAID or a pool.
        Metadata = b'e',
    }
}

character! {
    /// Fifth character: what the kernel has of it.
    State {
        /// Not active: there is no block device.
        Inactive = b'-',
        /// Active.
        Active = b'a',
        /// Active, and all reading and writing waits.
        Suspended = b's',
    }
}

/// Abnormal condition of a volume; the text is what users read in the volume's condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum Problem {
    #[error("a physical volume that the volume needs is missing")]
    Partial,
    #[error("LVM cannot determine the health of the volume")]
    UnknownHealth,
    #[error("the write cache of the volume has an error")]
    WriteCacheError,
    #[error("the thin pool failed; reads and writes fail")]
    ThinPoolFailed,
    #[error("the thin pool is out of data space")]
    ThinPoolOutOfDataSpace,
    #[error("the metadata of the thin pool is read-only")]
    ThinPoolMetadataReadOnly,
    #[error("the thin pool of the volume failed; reads and writes fail")]
    ThinVolumeFailed,
    #[error("a device of the RAID volume had errors and must be refreshed or replaced")]
    RaidRefreshNeeded,
    #[error("copies in the RAID volume differ")]
    RaidMismatches,
    #[error("the RAID volume is being reshaped")]
    RaidReshaping,
    #[error("images of the RAID volume are to be removed after reshaping")]
    RaidReshapeRemoved,
    #[error("a device of the RAID volume is write-mostly")]
    RaidWriteMostly,
    #[error("the volume is suspended")]
    Suspended,
    #[error("the snapshot is invalid")]
    InvalidSnapshot,
    #[error("merging the snapshot failed")]
    MergeFailed,
    #[error("the device of the volume has inactive tables")]
    InactiveTables,
    #[error("the device of the volume has no tables")]
    WithoutTables,
    #[error("the metadata of the thin pool must be checked")]
    CheckNeeded,
    #[error("LVM cannot determine the state of the volume")]
    UnknownState,
    #[error("the volume is historical")]
    Historical,
    #[error("LVM cannot determine whether the volume is open")]
    UnknownDevice,
}

impl LvAttr {
    /// Returns the ten characters.
    pub fn as_str(&self) -> &str {
        // Only ASCII gets in.
        std::str::from_utf8(&self.0).unwrap_or_default()
    }

    /// Returns the type of the volume.
    pub fn volume_type(self) -> VolumeType {
        self.0[0].into()
    }

    /// Returns whether its users may write to it.
    pub fn is_writable(self) -> bool {
        self.0[1] == b'w'
    }

    /// Returns the third character: the allocation policy, in lower case also where it is locked (lvs(8)).
    pub(crate) fn allocation(self) -> char {
        let [_, _, policy, ..] = self.0;
        char::from(policy.to_ascii_lowercase())
    }

    /// Returns whether LVM has locked it, as long as a pvmove moves it.
    pub(crate) fn is_locked(self) -> bool {
        let [_, _, policy, ..] = self.0;
        policy.is_ascii_uppercase()
    }

    /// Returns the state of the volume in the kernel.
    pub fn state(self) -> State {
        self.0[STATE].into()
    }

    /// Returns whether its block device is open, for example because it is mounted.
    pub fn is_open(self) -> bool {
        self.0[OPEN] == b'o'
    }

    /// Returns whether LVM skips it when it activates whole groups; thin snapshots are created so.
    pub fn skips_activation(self) -> bool {
        self.0[9] == b'k'
    }

    /// Returns whether it is a thin volume.
    pub fn is_thin(self) -> bool {
        self.volume_type() == VolumeType::Thin
    }

    /// Returns whether it is a thin pool.
    pub fn is_thin_pool(self) -> bool {
        self.volume_type() == VolumeType::ThinPool
    }

    /// Returns whether it is a RAID, in sync or not.
    pub fn is_raid(self) -> bool {
        matches!(self.volume_type(), VolumeType::Raid | VolumeType::RaidUnsynced)
    }

    /// Returns whether newly allocated blocks read as zeros. True of thin pools and their volumes unless an
    /// administrator has disabled it (`lvchange --zero n`).
    pub fn zeroes_new_blocks(self) -> bool {
        self.0[7] == b'z'
    }

    /// Returns whether a write to its block device replaces the old data in place: linear, striped, mirrored, RAID. A
    /// volume with a cache, a log or a map of its blocks in between may keep the old data.
    pub fn is_overwritten_in_place(self) -> bool {
        matches!(
            self.volume_type(),
            VolumeType::Plain
                | VolumeType::Mirror
                | VolumeType::MirrorUnsynced
                | VolumeType::Raid
                | VolumeType::RaidUnsynced
        )
    }

    /// Returns whether it is a pool or part of one: its removal removes other volumes.
    pub fn holds_volumes(self) -> bool {
        matches!(
            self.volume_type(),
            VolumeType::ThinPool
                | VolumeType::ThinPoolData
                | VolumeType::VdoPool
                | VolumeType::VdoPoolData
                | VolumeType::Metadata
        )
    }

    /// Returns what is abnormal, the worst first; `None` while it can be used normally. A volume that is not active
    /// counts as normal, see [`Self::state`].
    pub fn problem(self) -> Option<Problem> {
        let has = |place: usize, letters: &[u8]| self.0.get(place).is_some_and(|letter| letters.contains(letter));
        let is_this =
            |(types, place, letters, _): &&Symptom| (types.is_empty() || has(0, types)) && has(*place, letters);
        SYMPTOMS.iter().find(is_this).map(|(.., problem)| *problem)
    }
}

/// Types of volumes, or none for all of them; a place in the attributes; letters in it; and what they mean.
type Symptom = (&'static [u8], usize, &'static [u8], Problem);

const SYMPTOMS: [Symptom; 21] = [
    (b"", HEALTH, b"p", Problem::Partial),
    (b"", HEALTH, b"X", Problem::UnknownHealth),
    (b"", HEALTH, b"E", Problem::WriteCacheError),
    (b"t", HEALTH, b"F", Problem::ThinPoolFailed),
    (b"t", HEALTH, b"D", Problem::ThinPoolOutOfDataSpace),
    (b"t", HEALTH, b"M", Problem::ThinPoolMetadataReadOnly),
    (b"V", HEALTH, b"F", Problem::ThinVolumeFailed),
    (b"rR", HEALTH, b"r", Problem::RaidRefreshNeeded),
    (b"rR", HEALTH, b"m", Problem::RaidMismatches),
    (b"rR", HEALTH, b"s", Problem::RaidReshaping),
    (b"rR", HEALTH, b"R", Problem::RaidReshapeRemoved),
    (b"rR", HEALTH, b"w", Problem::RaidWriteMostly),
    (b"", STATE, b"sS", Problem::Suspended),
    (b"", STATE, b"I", Problem::InvalidSnapshot),
    (b"", STATE, b"mM", Problem::MergeFailed),
    (b"", STATE, b"i", Problem::InactiveTables),
    (b"", STATE, b"d", Problem::WithoutTables),
    (b"", STATE, b"cC", Problem::CheckNeeded),
    (b"", STATE, b"X", Problem::UnknownState),
    (b"", STATE, b"h", Problem::Historical),
    (b"", OPEN, b"X", Problem::UnknownDevice),
];

impl FromStr for LvAttr {
    type Err = InvalidLvAttr;

    fn from_str(text: &str) -> Result<Self, InvalidLvAttr> {
        match <[u8; 10]>::try_from(text.as_bytes()) {
            Ok(bytes) if text.is_ascii() => Ok(Self(bytes)),
            _ => Err(InvalidLvAttr(text.to_owned())),
        }
    }
}

impl fmt::Display for LvAttr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for LvAttr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LvAttr({})", self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    fn attr(text: &str) -> LvAttr {
        text.parse().unwrap()
    }

    #[rstest]
    #[case("-wi-a-----", VolumeType::Plain, State::Active)]
    #[case("-wi-------", VolumeType::Plain, State::Inactive)]
    #[case("rwi-aor---", VolumeType::Raid, State::Active)]
    #[case("twi-aotz--", VolumeType::ThinPool, State::Active)]
    #[case("Vwi---tz-k", VolumeType::Thin, State::Inactive)]
    #[case("Cwi-aoC---", VolumeType::Cache, State::Active)]
    #[case("owi-a-s---", VolumeType::Origin, State::Active)]
    #[case("?wi-?-----", VolumeType::Other('?'), State::Other('?'))]
    fn type_and_state(#[case] text: &str, #[case] volume_type: VolumeType, #[case] state: State) {
        assert_eq!((attr(text).volume_type(), attr(text).state()), (volume_type, state));
    }

    #[test]
    fn a_volume_with_a_write_cache_is_not_thin() {
        assert!(!attr("Cwi-aoC---").is_thin());
        assert!(attr("Vwi-aotz--").is_thin());
        assert!(attr("twi-aotz--").is_thin_pool());
    }

    #[test]
    fn open_permissions_and_activation_skip() {
        let volume = attr("Vri-aotz-k");
        assert_eq!((volume.is_writable(), volume.is_open(), volume.skips_activation()), (false, true, true));
        let volume = attr("-wi-a-----");
        assert_eq!((volume.is_writable(), volume.is_open(), volume.skips_activation()), (true, false, false));
    }

    #[rstest]
    #[case("-wi-a-----", None)]
    #[case("-wi-------", None)]
    #[case("rwi-a-r---", None)]
    #[case("Vwi-aotz--", None)]
    #[case("-wi-a---p-", Some(Problem::Partial))]
    #[case("rwi-a-r-p-", Some(Problem::Partial))]
    #[case("-wi-a---X-", Some(Problem::UnknownHealth))]
    #[case("Cwi-aoC-E-", Some(Problem::WriteCacheError))]
    #[case("twi-aotzF-", Some(Problem::ThinPoolFailed))]
    #[case("twi-aotzD-", Some(Problem::ThinPoolOutOfDataSpace))]
    #[case("twi-aotzM-", Some(Problem::ThinPoolMetadataReadOnly))]
    #[case("Vwi-aotzF-", Some(Problem::ThinVolumeFailed))]
    #[case("Vwi-aotzD-", None)]
    #[case("rwi-a-r-r-", Some(Problem::RaidRefreshNeeded))]
    #[case("Rwi-a-r-r-", Some(Problem::RaidRefreshNeeded))]
    #[case("rwi-a-r-m-", Some(Problem::RaidMismatches))]
    #[case("rwi-a-r-s-", Some(Problem::RaidReshaping))]
    #[case("rwi-a-r-R-", Some(Problem::RaidReshapeRemoved))]
    #[case("rwi-a-r-w-", Some(Problem::RaidWriteMostly))]
    #[case("-wi-a---r-", None)]
    #[case("-wi-s-----", Some(Problem::Suspended))]
    #[case("swi-S-s---", Some(Problem::Suspended))]
    #[case("swi-I-s---", Some(Problem::InvalidSnapshot))]
    #[case("swi-m-s---", Some(Problem::MergeFailed))]
    #[case("swi-M-s---", Some(Problem::MergeFailed))]
    #[case("-wi-i-----", Some(Problem::InactiveTables))]
    #[case("-wi-d-----", Some(Problem::WithoutTables))]
    #[case("twi-cotz--", Some(Problem::CheckNeeded))]
    #[case("twi-Cotz--", Some(Problem::CheckNeeded))]
    #[case("-wi-X-----", Some(Problem::UnknownState))]
    #[case("Vwi-h-----", Some(Problem::Historical))]
    #[case("-wi-aX----", Some(Problem::UnknownDevice))]
    #[case("twi-sotzF-", Some(Problem::ThinPoolFailed))]
    fn problems(#[case] text: &str, #[case] problem: Option<Problem>) {
        assert_eq!(attr(text).problem(), problem);
    }

    #[rstest]
    #[case("")]
    #[case("-wi-a----")]
    #[case("-wi-a------")]
    #[case("-wi-a---ä")]
    fn another_form_is_an_error(#[case] text: &str) {
        assert!(text.parse::<LvAttr>().is_err());
    }

    proptest! {
        #[test]
        fn ten_ascii_characters_survive_unchanged(text in "[ -~]{10}") {
            prop_assert_eq!(attr(&text).to_string(), text);
        }
    }
}
