//! The configuration file: YAML whose keys may be written in any case and whose unknown keys are only warned of,
//! because that is how files in the field have been read so far.

mod values;

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use topolvm_runtime::listen::ListenAddress;

use crate::prioritize::Scoring;
use values::mebibytes;

/// The port of upstream's binary; deployments set 9251.
const DEFAULT_LISTEN: u16 = 8000;

/// Space for the Node objects of several thousand big nodes.
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
    /// Watches the Nodes, so that requests with their names alone can be answered.
    pub node_cache: bool,
    /// Watches the reservations of claims and volumes, and counts them as used.
    pub reservations: bool,
    /// Files for HTTPS; none is plain HTTP.
    pub tls: Option<TlsFiles>,
}

/// Files in PEM form with which HTTPS is served. They are read again when they change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate, and those between it and its authority.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// Authorities of the clients that may connect; with none all may.
    pub client_authorities: Option<PathBuf>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: ListenAddress::every_interface(DEFAULT_LISTEN),
            scoring: Scoring::default(),
            max_request_bytes: mebibytes(DEFAULT_MAX_REQUEST_MIB),
            node_cache: false,
            reservations: false,
            tls: None,
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
        reader.finish().map_err(|problems| Error::Invalid { path: path.to_owned(), problems })
    }
}

#[derive(Default)]
struct Reader {
    config: Config,
    tls_certificate: Option<PathBuf>,
    tls_key: Option<PathBuf>,
    tls_client_authorities: Option<PathBuf>,
    problems: Vec<String>,
    warnings: Vec<String>,
}

impl Reader {
    fn set(&mut self, key: &str, value: &Value) {
        let result = match key.to_ascii_lowercase().as_str() {
            "listen" => values::listen(value).map(|address| self.config.listen = address),
            "default-divisor" => values::divisor(value).map(|divisor| self.config.scoring.default_divisor = divisor),
            "divisors" => values::divisors(value).map(|divisors| self.config.scoring.divisors = divisors),
            "minimum-score" => values::minimum_score(value).map(|score| self.config.scoring.minimum = score),
            "max-request-mib" => {
                values::max_request_mib(value).map(|mib| self.config.max_request_bytes = mebibytes(mib))
            }
            "strategy" => values::strategy(value).map(|strategy| self.config.scoring.strategy = strategy),
            "tls-cert-file" => values::path(value).map(|path| self.tls_certificate = path),
            "tls-key-file" => values::path(value).map(|path| self.tls_key = path),
            "tls-client-ca-file" => values::path(value).map(|path| self.tls_client_authorities = path),
            "node-cache" => values::boolean(value).map(|node_cache| self.config.node_cache = node_cache),
            "reservations" => values::boolean(value).map(|reservations| self.config.reservations = reservations),
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

    /// Returns the configuration with its warnings, or what is wrong.
    fn finish(mut self) -> Result<(Config, Vec<String>), Vec<String>> {
        let client_authorities = self.tls_client_authorities;
        self.config.tls = match (self.tls_certificate, self.tls_key) {
            (Some(certificate), Some(key)) => Some(TlsFiles { certificate, key, client_authorities }),
            (None, None) if client_authorities.is_none() => None,
            _ => {
                self.problems.push("tls-cert-file and tls-key-file must both be set, or no TLS file at all".to_owned());
                None
            }
        };
        if self.problems.is_empty() { Ok((self.config, self.warnings)) } else { Err(self.problems) }
    }
}

#[cfg(test)]
mod tests;
