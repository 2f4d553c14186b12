//! Guests that run at the same time take turns with the CPUs, also those of other test programs.

use std::fs::File;

use anyhow::{Context, Result};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::thread::{CpuSet, sched_getaffinity};

use crate::cache::Cache;

/// A CPU that a guest is pinned to, until this is dropped.
#[derive(Debug)]
pub struct Turn {
    /// Its number.
    pub cpu: usize,
    lock: Option<File>,
}

impl Turn {
    /// The CPU that the caller chose, or else the one with the fewest guests on it.
    pub fn new(chosen: Option<usize>) -> Result<Self> {
        match chosen {
            Some(cpu) => Ok(Self { cpu, lock: None }),
            None => Self::take(&Cache::open()?),
        }
    }

    /// Lets the programs that this process starts from now on hold the turn, too: a guest that outlives this process
    /// keeps its CPU. Whatever else another thread starts before this is dropped holds it as well, which only makes the
    /// next choice a worse one.
    pub fn inherit(&self) -> Result<()> {
        match &self.lock {
            Some(lock) => fcntl_setfd(lock, FdFlags::empty()).context("let a guest keep its CPU"),
            None => Ok(()),
        }
    }

    /// The CPU with the fewest guests on it; of several the last, because most other things of a machine happen on the
    /// first.
    fn take(cache: &Cache) -> Result<Self> {
        let allowed = sched_getaffinity(None).context("ask which CPUs this process may use")?;
        let cpus: Vec<usize> = (0..CpuSet::MAX_CPU).rev().filter(|cpu| allowed.is_set(*cpu)).collect();
        for round in 0..64 {
            for &cpu in &cpus {
                let path = cache.root().join(format!(".cpu-{cpu}-{round}.lock"));
                let lock = File::create(&path).with_context(|| format!("create {}", path.display()))?;
                if lock.try_lock().is_ok() {
                    return Ok(Self { cpu, lock: Some(lock) });
                }
            }
        }
        anyhow::bail!("more than 64 guests for each CPU run already: end some")
    }
}
