//! Matches `LogicalVolume`s with the claims that they are made for. Pure.

use std::fmt::{self, Write as _};

/// The UID of a claim, as the claim itself and the name of its volume have it: external-provisioner calls the volume
/// `pvc-UID`, with another prefix on demand.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum VolumeKey {
    /// A UID as API servers make them.
    Uuid(u128),
    /// Any other.
    Other(Box<str>),
}

/// Characters of a UUID with its dashes.
const UUID_LENGTH: usize = 36;

impl VolumeKey {
    /// Returns the key of a claim.
    pub(crate) fn from_uid(uid: &str) -> Self {
        parse_uuid(uid).map_or_else(|| Self::Other(uid.into()), Self::Uuid)
    }

    /// Returns whether it is a UID as API servers make them.
    pub(crate) fn is_uuid(&self) -> bool {
        matches!(self, Self::Uuid(_))
    }

    /// Returns the key of the volume of this name: the UID at its end, or what follows its prefix.
    pub(crate) fn from_name(name: &str) -> Self {
        let end = name.len().checked_sub(UUID_LENGTH).and_then(|start| name.get(start..));
        let uuid = end.and_then(parse_uuid);
        uuid.map_or_else(|| Self::Other(name.split_once('-').map_or(name, |(_, end)| end).into()), Self::Uuid)
    }
}

/// The UID.
impl fmt::Display for VolumeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let uuid = match self {
            Self::Uuid(uuid) => format!("{uuid:032x}"),
            Self::Other(uid) => return f.write_str(uid),
        };
        for (place, digit) in uuid.char_indices() {
            f.write_str(if [8, 12, 16, 20].contains(&place) { "-" } else { "" })?;
            f.write_char(digit)?;
        }
        Ok(())
    }
}

fn parse_uuid(text: &str) -> Option<u128> {
    let has_form = text.len() == UUID_LENGTH
        && text.bytes().enumerate().all(|(place, byte)| match place {
            8 | 13 | 18 | 23 => byte == b'-',
            _ => byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte),
        });
    if has_form { u128::from_str_radix(&text.replace('-', ""), 16).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_is_matched_by_the_uid_at_the_end_of_its_name() {
        let uid = "0c54f5f8-52f1-4f38-9a27-3e5a1d7f6f10";
        assert_eq!(VolumeKey::from_name(&format!("pvc-{uid}")), VolumeKey::from_uid(uid));
        assert_eq!(VolumeKey::from_name(&format!("team-a-{uid}")), VolumeKey::from_uid(uid));
        assert_ne!(VolumeKey::from_name("pvc-0c54f5f8-52f1-4f38-9a27-3e5a1d7f6f11"), VolumeKey::from_uid(uid));
        assert_eq!(VolumeKey::from_name("pvc-1"), VolumeKey::from_uid("1"));
        assert_eq!(VolumeKey::from_name("1"), VolumeKey::from_uid("1"));
        assert_ne!(VolumeKey::from_name("pvc-1"), VolumeKey::from_uid("11"));
    }

    #[test]
    fn a_key_is_written_as_the_uid_that_it_is() {
        for uid in ["0c54f5f8-52f1-4f38-9a27-3e5a1d7f6f10", "00000000-0000-0000-0000-000000000001", "1"] {
            assert_eq!(VolumeKey::from_uid(uid).to_string(), uid);
        }
    }
}
