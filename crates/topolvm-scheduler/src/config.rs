//! The configuration file: YAML whose keys may be written in any case and whose unknown keys are only warned of,
//! because that is how files in the field have been read so far.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use topolvm_api::DEFAULT_DEVICE_CLASS_KEY;
use topolvm_runtime::listen::ListenAddress;

use crate::prioritize::Scoring;

/// The port of upstream's binary; deployments set 9251.
const DEFAULT_LISTEN: u16 = 8000;

/// Room for the Node objects of several thousand big nodes.
const DEFAULT_MAX_REQUEST_MIB: u64 = 512;

/// Valid configuration of the extender.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Address of the extender, as `:8000` or `localhost:9251`.
    pub listen: ListenAddress,
    /// Formula from free space to score.
    pub scoring: Scoring,
    /// Longest request body in bytes.
    pub max_request_bytes: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: ListenAddress::every_interface(DEFAULT_LISTEN),
            scoring: Scoring::default(),
            max_request_bytes: mebibytes(DEFAULT_MAX_REQUEST_MIB),
        }
    }
}

/// Error of a configuration that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be read.
    #[error("cannot read {path}: {source}; check the path given with --config")]
    Read {
        /// The file.
        path: PathBuf,
        /// Cause.
        source: std::io::Error,
    },
    /// The file is no YAML mapping.
    #[error("{path} is not a YAML mapping: {reason}")]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Mistake and its place.
        reason: String,
    },
    /// Values that cannot work, all of them.
    #[error("{path}: {}", problems.join("; "))]
    Invalid {
        /// The file.
        path: PathBuf,
        /// One sentence each.
        problems: Vec<String>,
    },
}

impl Config {
    /// Reads the file, and logs a warning for each key without effect.
    pub fn load(path: &Path) -> Result<Self, Error> {
        let read = std::fs::read_to_string(path);
        let text = read.map_err(|source| Error::Read { path: path.to_owned(), source })?;
        let (config, warnings) = Self::parse(path, &text)?;
        for warning in warnings {
            tracing::warn!(file = %path.display(), "{warning}");
        }
        Ok(config)
    }

    /// Parses a file's text, and returns warnings about keys without effect.
    fn parse(path: &Path, text: &str) -> Result<(Self, Vec<String>), Error> {
        let syntax = |reason: String| Error::Syntax { path: path.to_owned(), reason };
        let settings: Option<Map<String, Value>> =
            serde_saphyr::from_str(text).map_err(|error| syntax(error.to_string()))?;
        let mut reader = Reader::default();
        for (key, value) in settings.into_iter().flatten() {
            // As in YAML files of Kubernetes, null is the same as leaving the key out
            if !value.is_null() {
                reader.set(&key, &value);
            }
        }
        if reader.problems.is_empty() {
            Ok((reader.config, reader.warnings))
        } else {
            Err(Error::Invalid { path: path.to_owned(), problems: reader.problems })
        }
    }
}

#[derive(Default)]
struct Reader {
    config: Config,
    problems: Vec<String>,
    warnings: Vec<String>,
}

impl Reader {
    fn set(&mut self, key: &str, value: &Value) {
        let result = match key.to_ascii_lowercase().as_str() {
            "listen" => listen(value).map(|address| self.config.listen = address),
            "default-divisor" => divisor(value).map(|divisor| self.config.scoring.default_divisor = divisor),
            "divisors" => divisors(value).map(|divisors| self.config.scoring.divisors = divisors),
            "minimum-score" => minimum_score(value).map(|score| self.config.scoring.minimum = score),
            "max-request-mib" => max_request_mib(value).map(|mib| self.config.max_request_bytes = mebibytes(mib)),
            "profiling-bind-address" => {
                if value.as_str() != Some("") {
                    self.warnings.push(format!("{key} has no effect: profiling over HTTP is not supported"));
                }
                Ok(())
            }
            _ => {
                self.warnings.push(format!("unknown key {key} has no effect"));
                Ok(())
            }
        };
        if let Err(problem) = result {
            self.problems.push(format!("{key} {problem}"));
        }
    }
}

fn listen(value: &Value) -> Result<ListenAddress, String> {
    let address = value.as_str().and_then(|address| address.parse().ok());
    address.ok_or_else(|| format!("must be an address such as :8000 or localhost:9251, not {value}"))
}

fn divisor(value: &Value) -> Result<f64, String> {
    match value.as_f64() {
        Some(divisor) if divisor.is_finite() && divisor > 0.0 => Ok(divisor),
        _ => Err(format!("must be a number greater than 0, not {value}")),
    }
}

fn divisors(value: &Value) -> Result<BTreeMap<String, f64>, String> {
    let Some(entries) = value.as_object() else {
        return Err(format!("must be a mapping from device class to number, not {value}"));
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

fn minimum_score(value: &Value) -> Result<u8, String> {
    let score = value.as_u64().and_then(|score| u8::try_from(score).ok());
    score
        .filter(|score| *score <= Scoring::HIGHEST)
        .ok_or_else(|| format!("must be a whole number from 0 to {}, not {value}", Scoring::HIGHEST))
}

fn max_request_mib(value: &Value) -> Result<u64, String> {
    const LARGEST: u64 = 64 << 10;
    let mib = value.as_u64().filter(|mib| (1..=LARGEST).contains(mib));
    mib.ok_or_else(|| format!("must be a whole number of MiB from 1 to {LARGEST}, not {value}"))
}

fn mebibytes(mib: u64) -> usize {
    usize::try_from(mib << 20).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<(Config, Vec<String>), String> {
        Config::parse(Path::new("o.yaml"), text).map_err(|error| error.to_string())
    }

    #[test]
    fn an_empty_file_means_defaults() {
        assert_eq!(parse("# nothing\n").unwrap(), (Config::default(), vec![]));
        assert_eq!(parse("").unwrap().0.listen.to_string(), ":8000");
    }

    #[test]
    fn a_file_of_the_field_is_read() {
        let (config, warnings) =
            parse("listen: \"localhost:9251\"\ndefault-divisor: 10\ndivisors:\n  ssd: 5\n  hdd: 2.5\n").unwrap();
        assert_eq!(config.listen.to_string(), "localhost:9251");
        let divisors = BTreeMap::from([("hdd".to_owned(), 2.5), ("ssd".to_owned(), 5.0)]);
        assert_eq!(config.scoring, Scoring { default_divisor: 10.0, divisors, minimum: 0 });
        assert_eq!(warnings, [""; 0]);
    }

    #[test]
    fn keys_are_read_in_any_case_and_the_default_class_has_two_names() {
        let (config, _) = parse("Listen: :1\ndivisors: {\"\": 3}\n").unwrap();
        assert_eq!(config.listen.to_string(), ":1");
        assert_eq!(config.scoring.divisors, BTreeMap::from([("00default".to_owned(), 3.0)]));
    }

    #[test]
    fn keys_without_effect_are_warned_of() {
        let (config, warnings) = parse("profiling-bind-address: \":6060\"\nspare: 1\n").unwrap();
        assert_eq!(config, Config::default());
        assert_eq!(
            warnings,
            [
                "profiling-bind-address has no effect: profiling over HTTP is not supported",
                "unknown key spare has no effect",
            ]
        );
        assert_eq!(parse("profiling-bind-address: \"\"\n").unwrap().1, [""; 0]);
    }

    #[test]
    fn every_wrong_value_is_reported() {
        let text =
            "listen: 8000\ndefault-divisor: 0\ndivisors: {ssd: -1, hdd: x}\nminimum-score: 11\nmax-request-mib: 0\n";
        assert_eq!(
            parse(text).unwrap_err(),
            "o.yaml: default-divisor must be a number greater than 0, not 0; \
             divisors of hdd must be a number greater than 0, not \"x\" \
             and of ssd must be a number greater than 0, not -1; \
             listen must be an address such as :8000 or localhost:9251, not 8000; \
             max-request-mib must be a whole number of MiB from 1 to 65536, not 0; \
             minimum-score must be a whole number from 0 to 10, not 11"
        );
    }

    #[test]
    fn a_file_that_is_no_mapping_is_refused() {
        assert!(parse("- a\n").unwrap_err().starts_with("o.yaml is not a YAML mapping"));
        assert!(parse("a: [\n").unwrap_err().starts_with("o.yaml is not a YAML mapping"));
    }
}
