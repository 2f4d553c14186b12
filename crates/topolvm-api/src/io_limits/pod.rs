//! Limits in the annotations of a pod, which hold for each of its volumes: with our keys, and with those of Carina.

use std::collections::BTreeMap;

use super::{IoLimit, IoLimitError, IoLimits};
use crate::ApiFlavor;

/// Prefixes of Carina's keys: today's, and that of its first versions.
const CARINA_PREFIXES: [&str; 2] = ["carina.storage.io/", "kubernetes.customized/"];

impl IoLimit {
    /// Returns Carina's keys of the limit.
    fn carina_keys(self) -> [String; 2] {
        let name = match self {
            Self::ReadBytes => "read_bps",
            Self::WriteBytes => "write_bps",
            Self::ReadOperations => "read_iops",
            Self::WriteOperations => "write_iops",
        };
        CARINA_PREFIXES.map(|prefix| format!("{prefix}blkio.throttle.{name}_device"))
    }

    /// Parses the value of one of Carina's keys, a whole number.
    fn parse_carina(self, key: &str, text: &str) -> Result<u64, IoLimitError> {
        if text.bytes().all(|byte| byte.is_ascii_digit()) {
            return self.parse(key, text);
        }
        let problem = "which is not a whole number";
        Err(IoLimitError::Value { key: key.to_owned(), value: text.to_owned(), problem })
    }
}

impl IoLimits {
    /// Parses the limits in the annotations of a pod. One that is wrong makes all of them an error.
    pub fn parse_pod(flavor: ApiFlavor, annotations: &BTreeMap<String, String>) -> Result<Self, IoLimitError> {
        let mut limits = Self::default();
        for limit in IoLimit::ALL {
            let mut found: Option<(String, u64)> = None;
            for (key, is_ours) in keys(flavor, limit) {
                let Some(text) = annotations.get(&key).filter(|text| !text.is_empty()) else { continue };
                let rate = if is_ours { limit.parse(&key, text) } else { limit.parse_carina(&key, text) }?;
                match found {
                    Some((first, other)) if other != rate => {
                        return Err(IoLimitError::Conflict { first, second: key });
                    }
                    Some(_) => {}
                    None => found = Some((key, rate)),
                }
            }
            limits = limits.with(limit, found.map(|(_, rate)| rate));
        }
        Ok(limits)
    }

    /// Returns whether a pod annotation of this name is one of the limits.
    pub fn is_pod_annotation(flavor: ApiFlavor, name: &str) -> bool {
        IoLimit::ALL.into_iter().any(|limit| keys(flavor, limit).any(|(key, _)| key == name))
    }
}

/// Returns the keys of a limit, and whether each is ours.
fn keys(flavor: ApiFlavor, limit: IoLimit) -> impl Iterator<Item = (String, bool)> {
    let carina = limit.carina_keys().into_iter().map(|key| (key, false));
    std::iter::once((limit.key(flavor).to_owned(), true)).chain(carina)
}
