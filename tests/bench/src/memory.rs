//! Resident memory of a process.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

/// Pause after which an idle program has released temporary memory, which it does every ten seconds.
pub(super) const AT_REST: Duration = Duration::from_secs(12);

/// Resident memory of a process in KiB, from `/proc/PID/status`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ResidentMemory {
    /// `RssAnon`: heap, stacks, data that was written to.
    pub(super) anonymous: u64,
    /// `RssFile`: pages of the program and its libraries, shared with others that run the same.
    pub(super) file: u64,
}

impl ResidentMemory {
    /// Reads the resident memory of a process of this machine.
    pub(super) fn read(pid: u32) -> Result<Self> {
        Self::parse(&read_status(pid)?)
    }

    /// Parses the contents of `/proc/PID/status`.
    pub(super) fn parse(status: &str) -> Result<Self> {
        Ok(Self { anonymous: kibibytes(status, "RssAnon:")?, file: kibibytes(status, "RssFile:")? })
    }

    /// Returns the MiB of all resident memory, as in `VmRSS`.
    pub(super) fn mebibytes(self) -> f64 {
        mebibytes(self.anonymous + self.file)
    }

    /// Returns the MiB of the anonymous part.
    pub(super) fn anonymous_mebibytes(self) -> f64 {
        mebibytes(self.anonymous)
    }
}

/// Reads the most MiB of resident memory that a process of this machine has had, `VmHWM`.
pub(super) fn peak_mebibytes(pid: u32) -> Result<f64> {
    Ok(mebibytes(kibibytes(&read_status(pid)?, "VmHWM:")?))
}

fn read_status(pid: u32) -> Result<String> {
    let path = format!("/proc/{pid}/status");
    fs::read_to_string(&path).with_context(|| format!("read {path}"))
}

/// Returns a number of `/proc/PID/status`.
fn kibibytes(status: &str, name: &str) -> Result<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let value = line.and_then(|rest| rest.trim_end_matches("kB").trim().parse().ok());
    value.with_context(|| format!("no {name} in the status of the process: {status}"))
}

#[expect(clippy::as_conversions, clippy::cast_precision_loss, reason = "kibibytes of memory are exact in a float")]
fn mebibytes(kibibytes: u64) -> f64 {
    kibibytes as f64 / 1024.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resident_memory_is_that_of_the_kernel() {
        let status =
            "Name:\tlvmd\nVmRSS:\t    5120 kB\nRssAnon:\t    1024 kB\nRssFile:\t    4096 kB\nRssShmem:\t 0 kB\n";
        let resident = ResidentMemory::parse(status).unwrap();
        assert_eq!((resident, resident.mebibytes()), (ResidentMemory { anonymous: 1024, file: 4096 }, 5.0));
        assert!(ResidentMemory::parse("Name:\tkthreadd\n").is_err());
    }
}
