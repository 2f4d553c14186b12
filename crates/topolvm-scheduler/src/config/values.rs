//! Values of the configuration file. An error names the expected and the actual value.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_json::Value;
use topolvm_api::{DEFAULT_DEVICE_CLASS_KEY, NodeStrategy};
use topolvm_runtime::listen::ListenAddress;

use crate::prioritize::Scoring;

pub(super) fn listen(value: &Value) -> Result<ListenAddress, String> {
    let address = value.as_str().and_then(|address| address.parse().ok());
    address.ok_or_else(|| format!("must be an address such as :8000 or localhost:9251, not {value}"))
}

pub(super) fn divisor(value: &Value) -> Result<f64, String> {
    match value.as_f64() {
        Some(divisor) if divisor.is_finite() && divisor > 0.0 => Ok(divisor),
        _ => Err(format!("must be a number greater than 0, not {value}")),
    }
}

pub(super) fn divisors(value: &Value) -> Result<BTreeMap<String, f64>, String> {
    let Some(entries) = value.as_object() else {
        return Err(format!("must be a mapping of device classes to numbers, not {value}"));
    };
    let mut divisors = BTreeMap::new();
    let mut problems = Vec::new();
    for (class, value) in entries {
        let key = if class.is_empty() { DEFAULT_DEVICE_CLASS_KEY } else { class };
        match divisor(value) {
            Ok(divisor) => drop(divisors.insert(key.to_owned(), divisor)),
            Err(problem) => problems.push(format!("of {key} {problem}")),
        }
    }
    if problems.is_empty() { Ok(divisors) } else { Err(problems.join(" and ")) }
}

pub(super) fn minimum_score(value: &Value) -> Result<u8, String> {
    let score = value.as_u64().and_then(|score| u8::try_from(score).ok());
    score
        .filter(|score| *score <= Scoring::HIGHEST)
        .ok_or_else(|| format!("must be a whole number from 0 to {}, not {value}", Scoring::HIGHEST))
}

pub(super) fn max_request_mib(value: &Value) -> Result<u64, String> {
    const LARGEST: u64 = 64 << 10;
    let mib = value.as_u64().filter(|mib| (1..=LARGEST).contains(mib));
    mib.ok_or_else(|| format!("must be a whole number of MiB from 1 to {LARGEST}, not {value}"))
}

pub(super) fn strategy(value: &Value) -> Result<NodeStrategy, String> {
    value.as_str().unwrap_or_default().parse().map_err(|error| format!("{error}, not {value}"))
}

pub(super) fn boolean(value: &Value) -> Result<bool, String> {
    value.as_bool().ok_or_else(|| format!("must be true or false, not {value}"))
}

pub(super) fn mebibytes(mib: u64) -> usize {
    usize::try_from(mib << 20).unwrap_or(usize::MAX)
}

/// Returns a path; `None` for an empty one.
pub(super) fn path(value: &Value) -> Result<Option<PathBuf>, String> {
    let path = value.as_str().ok_or_else(|| format!("must be the path of a file, not {value}"))?;
    Ok((!path.is_empty()).then(|| path.into()))
}
