//! Annotations of a `NodeStorage` with which an administrator wishes something of the disks of the node.

use std::fmt;
use std::str::FromStr;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::{ApiFlavor, NodeStorage, ParseQuantityError, parse_bytes};

/// Name of the rate in the value of an annotation.
const RATE: &str = "bytes-per-second";

/// A wish about a disk that is in a volume group.
///
/// That an annotation is gone is no wish: an object that was deleted and made again has none, and would stop what is
/// half done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskWish {
    /// Move its volumes to the other disks of its group. The wish stays until it is taken off.
    Evacuate {
        /// Most bytes that are moved in a second in the mean; `None` for as many as the disks can.
        bytes_per_second: Option<u64>,
    },
    /// The same, and then take it out of its group.
    Remove {
        /// As above.
        bytes_per_second: Option<u64>,
    },
    /// It is missing: rebuild on other disks the mirrors that have lost it, and forget it.
    Replace,
    /// End its evacuation.
    Stop,
}

/// Error of an annotation that is no wish.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseDiskWishError {
    /// A word that is none.
    #[error("{0:?} is no wish about a disk; write evacuate, remove, replace or stop")]
    Word(String),
    /// Something behind the word that is not known there.
    #[error("{0:?} is not known here; only {RATE}=NUMBER may follow, behind `evacuate;` or `remove;`")]
    Option(String),
    /// A rate that is no number of bytes.
    #[error("{RATE}: {0}")]
    Rate(#[from] ParseQuantityError),
    /// A rate of nothing, at which it would never end.
    #[error("{RATE} is 0; write at least 1, or leave it out for as fast as the disks are")]
    NoRate,
}

impl DiskWish {
    /// Returns the wish without its rate.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Evacuate { .. } => "evacuate",
            Self::Remove { .. } => "remove",
            Self::Replace => "replace",
            Self::Stop => "stop",
        }
    }

    const fn rate(self) -> Option<u64> {
        match self {
            Self::Evacuate { bytes_per_second } | Self::Remove { bytes_per_second } => bytes_per_second,
            Self::Replace | Self::Stop => None,
        }
    }
}

impl FromStr for DiskWish {
    type Err = ParseDiskWishError;

    fn from_str(text: &str) -> Result<Self, ParseDiskWishError> {
        let (word, option) = match text.split_once(';') {
            Some((word, option)) => (word.trim(), Some(option.trim())),
            None => (text.trim(), None),
        };
        let takes_rate = matches!(word, "evacuate" | "remove");
        let bytes_per_second = match option {
            Some(option) if takes_rate => Some(parse_rate(option)?),
            Some(option) => return Err(ParseDiskWishError::Option(option.to_owned())),
            None => None,
        };
        match word {
            "evacuate" => Ok(Self::Evacuate { bytes_per_second }),
            "remove" => Ok(Self::Remove { bytes_per_second }),
            "replace" => Ok(Self::Replace),
            "stop" => Ok(Self::Stop),
            _ => Err(ParseDiskWishError::Word(text.to_owned())),
        }
    }
}

/// Parses what may follow a wish that moves volumes.
fn parse_rate(option: &str) -> Result<u64, ParseDiskWishError> {
    let rate = option.strip_prefix(RATE).and_then(|rest| rest.strip_prefix('='));
    let rate = rate.ok_or_else(|| ParseDiskWishError::Option(option.to_owned()))?;
    match parse_bytes(&Quantity(rate.to_owned()))? {
        0 => Err(ParseDiskWishError::NoRate),
        rate => Ok(rate),
    }
}

impl fmt::Display for DiskWish {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())?;
        self.rate().map_or(Ok(()), |rate| write!(f, ";{RATE}={rate}"))
    }
}

impl NodeStorage {
    /// Iterates over the annotations that are wishes about disks of volume groups: UUID and value.
    pub fn disk_wishes(&self, flavor: ApiFlavor) -> impl Iterator<Item = (&str, &str)> {
        let annotations = self.metadata.annotations.iter().flatten();
        annotations.filter_map(move |(key, value)| Some((key.strip_prefix(flavor.disk_wish_prefix())?, value.as_str())))
    }

    /// Returns the names of the disks that are to be added, each once.
    pub fn disks_to_add(&self, flavor: ApiFlavor) -> Vec<&str> {
        let mut names = Vec::new();
        let value = self.metadata.annotations.as_ref().and_then(|annotations| annotations.get(flavor.add_disks()));
        for name in value.into_iter().flat_map(|value| value.split(',')).map(str::trim) {
            if !name.is_empty() && !names.contains(&name) {
                names.push(name);
            }
        }
        names
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("evacuate", DiskWish::Evacuate { bytes_per_second: None })]
    #[case("remove;bytes-per-second=1048576", DiskWish::Remove { bytes_per_second: Some(1 << 20) })]
    #[case("replace", DiskWish::Replace)]
    #[case("stop", DiskWish::Stop)]
    fn wishes_are_read_as_they_are_written(#[case] text: &str, #[case] wish: DiskWish) {
        assert_eq!(text.parse(), Ok(wish));
        assert_eq!(wish.to_string(), text);
    }

    #[test]
    fn people_write_rates_as_quantities() {
        let wish = DiskWish::Evacuate { bytes_per_second: Some(100 << 20) };
        assert_eq!(" evacuate; bytes-per-second=100Mi".parse(), Ok(wish));
    }

    #[rstest]
    #[case("drop", "is no wish about a disk")]
    #[case("", "is no wish about a disk")]
    #[case("evacuate;fast", "\"fast\" is not known here")]
    #[case("stop;bytes-per-second=1", "is not known here")]
    #[case("remove;bytes-per-second=0", "is 0")]
    #[case("remove;bytes-per-second=fast", "is not a quantity")]
    fn what_is_no_wish_says_what_would_be_one(#[case] text: &str, #[case] expected: &str) {
        let error = text.parse::<DiskWish>().unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }

    #[test]
    fn annotations_of_others_are_no_wishes() {
        let mut storage = NodeStorage::new(ApiFlavor::TopoLvm, "n1", "u");
        assert_eq!(storage.disks_to_add(ApiFlavor::TopoLvm), Vec::<&str>::new());
        let annotations = [
            ("disk.topolvm.io/a-1", "remove"),
            ("disk.topolvm.cybozu.com/b", "stop"),
            ("topolvm.io/add-disks", "ata-X, /dev/sdb,,ata-X"),
            ("example.com/disk", "evacuate"),
        ];
        let annotations = annotations.map(|(key, value)| (key.to_owned(), value.to_owned()));
        storage.metadata.annotations = Some(annotations.into());
        assert_eq!(storage.disk_wishes(ApiFlavor::TopoLvm).collect::<Vec<_>>(), [("a-1", "remove")]);
        assert_eq!(storage.disk_wishes(ApiFlavor::Legacy).collect::<Vec<_>>(), [("b", "stop")]);
        assert_eq!(storage.disks_to_add(ApiFlavor::TopoLvm), ["ata-X", "/dev/sdb"]);
    }
}
