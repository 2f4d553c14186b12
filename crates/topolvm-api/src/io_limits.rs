//! Limits of the I/O of volumes: bytes and operations per second, as StorageClasses, VolumeAttributesClasses, pods and
//! `LogicalVolume`s name them.

mod pod;

use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::{ApiFlavor, format_bytes, parse_bytes};

const STOPS: &str = "which would block all I/O; set a limit greater than 0, or omit it for no limit";
const TOO_LARGE: &str = "which is too large; omit it for no limit";

/// Subject of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IoLimit {
    /// Bytes that are read in a second.
    ReadBytes,
    /// Bytes that are written in a second.
    WriteBytes,
    /// Reads in a second.
    ReadOperations,
    /// Writes in a second.
    WriteOperations,
}

impl IoLimit {
    /// All that can be limited, in the order of [`IoLimits`].
    pub const ALL: [Self; 4] = [Self::ReadBytes, Self::WriteBytes, Self::ReadOperations, Self::WriteOperations];

    /// Returns the key of the limit: a parameter of classes, and an annotation of pods and `LogicalVolume`s.
    pub const fn key(self, flavor: ApiFlavor) -> &'static str {
        match self {
            Self::ReadBytes => flavor.read_bytes_per_second(),
            Self::WriteBytes => flavor.write_bytes_per_second(),
            Self::ReadOperations => flavor.read_operations_per_second(),
            Self::WriteOperations => flavor.write_operations_per_second(),
        }
    }

    /// Returns the name of the limited quantity in messages.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ReadBytes => "bytes read",
            Self::WriteBytes => "bytes written",
            Self::ReadOperations => "reads",
            Self::WriteOperations => "writes",
        }
    }

    /// Parses the value of a limit. `key` is its annotation or parameter.
    fn parse(self, key: &str, text: &str) -> Result<u64, IoLimitError> {
        let value = match self {
            Self::ReadBytes | Self::WriteBytes => parse_byte_rate(text),
            Self::ReadOperations | Self::WriteOperations => parse_operation_rate(text),
        };
        value.map_err(|problem| IoLimitError::Value { key: key.to_owned(), value: text.to_owned(), problem })
    }
}

/// Limits of the I/O of a volume, each greater than 0; what is not in it is not limited.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IoLimits(BTreeMap<IoLimit, u64>);

/// Error of limits that cannot be meant.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IoLimitError {
    /// The value is no limit.
    #[error("{key} is {value:?}, {problem}")]
    Value {
        /// The key of the value.
        key: String,
        /// The value.
        value: String,
        /// Reason why it cannot be meant, and advice.
        problem: &'static str,
    },
    /// Two keys for the same limit have different values.
    #[error("{first} and {second} set the same limit to different values; remove one of them")]
    Conflict {
        /// One of the keys.
        first: String,
        /// The other.
        second: String,
    },
}

/// Limits of a volume as its metrics show them: of several pods the lowest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeIoLimits {
    /// The limits that are to be in force.
    pub requested: IoLimits,
    /// The limits that the kernel has shown.
    pub in_force: IoLimits,
}

impl IoLimits {
    /// Parses the limits in parameters of a class or annotations of a `LogicalVolume`, which `get` returns by their
    /// key. An empty value counts as none.
    pub fn parse<'a>(flavor: ApiFlavor, get: impl Fn(&str) -> Option<&'a str>) -> Result<Self, IoLimitError> {
        let mut limits = Self::default();
        for limit in IoLimit::ALL {
            let key = limit.key(flavor);
            if let Some(text) = get(key).filter(|text| !text.is_empty()) {
                limits.0.insert(limit, limit.parse(key, text)?);
            }
        }
        Ok(limits)
    }

    /// Returns whether nothing is limited.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns a limit; `None` if there is none.
    pub fn get(&self, limit: IoLimit) -> Option<u64> {
        self.0.get(&limit).copied()
    }

    /// Sets a limit; 0, which would stop the volume, and `None` take it away.
    #[must_use]
    pub fn with(mut self, limit: IoLimit, rate: Option<u64>) -> Self {
        match rate.filter(|&rate| rate > 0) {
            Some(rate) => self.0.insert(limit, rate),
            None => self.0.remove(&limit),
        };
        self
    }

    /// Returns the lower of both limits where both name one, so that neither lifts the other.
    #[must_use]
    pub fn lower(&self, other: &Self) -> Self {
        let mut lower = self.clone();
        for (&limit, &rate) in &other.0 {
            lower.0.entry(limit).and_modify(|own| *own = rate.min(*own)).or_insert(rate);
        }
        lower
    }

    /// Returns the annotations of a `LogicalVolume` with these limits: all keys, those without a limit as `None`.
    pub fn annotations(&self, flavor: ApiFlavor) -> impl Iterator<Item = (&'static str, Option<String>)> + '_ {
        IoLimit::ALL.into_iter().map(move |limit| (limit.key(flavor), self.get(limit).map(|rate| write(limit, rate))))
    }
}

impl fmt::Display for IoLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for (&limit, &rate) in &self.0 {
            write!(f, "{separator}{} {}/s", limit.as_str(), write(limit, rate))?;
            separator = ", ";
        }
        Ok(())
    }
}

/// Writes a rate as it is written in annotations.
fn write(limit: IoLimit, rate: u64) -> String {
    match limit {
        IoLimit::ReadBytes | IoLimit::WriteBytes => format_bytes(rate).0,
        IoLimit::ReadOperations | IoLimit::WriteOperations => rate.to_string(),
    }
}

/// Parses bytes per second, a quantity.
fn parse_byte_rate(text: &str) -> Result<u64, &'static str> {
    match parse_bytes(&Quantity(text.to_owned())) {
        Err(_) => Err("which is not a number of bytes; use for example 10Mi, 5M or 1048576"),
        // Thousandths of a byte are allowed in a quantity, and here they are a mistyped 10M
        Ok(_) if text.ends_with(['n', 'u', 'm']) => {
            Err("which is not a whole number of bytes; use for example 10Mi or 5M")
        }
        Ok(0) => Err(STOPS),
        // Larger quantities are parsed as this one, too
        Ok(rate) if rate >= i64::MAX.unsigned_abs() => Err(TOO_LARGE),
        Ok(rate) => Ok(rate),
    }
}

/// Parses operations per second, a whole number. The kernel counts them in 32 bits, whose largest is its "no limit".
fn parse_operation_rate(text: &str) -> Result<u64, &'static str> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match text.parse::<u64>() {
        _ if !is_number => Err("which is not a whole number of operations; use for example 500"),
        Ok(0) => Err(STOPS),
        Ok(rate) if rate < u64::from(u32::MAX) => Ok(rate),
        Ok(_) | Err(_) => Err(TOO_LARGE),
    }
}

#[cfg(test)]
mod tests;
