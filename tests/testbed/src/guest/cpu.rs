//! CPU affinity of guests: each is pinned to the CPU with the fewest guests, also of other test programs, which a lock
//! file per guest and CPU counts.

use std::fs::File;

use anyhow::{Context, Result};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::thread::{CpuSet, sched_getaffinity};

use crate::cache::Cache;

/// A lock on a place of a CPU, to which a guest is pinned, until this is dropped.
#[derive(Debug)]
pub(crate) struct CpuLock {
    /// Number of the CPU.
    pub(crate) cpu: usize,
    lock: Option<File>,
}

impl CpuLock {
    /// Locks a place on the CPU with the fewest guests. A CPU that the caller chose is not locked.
    pub(crate) fn new(chosen: Option<usize>) -> Result<Self> {
        match chosen {
            Some(cpu) => Ok(Self { cpu, lock: None }),
            None => Self::lock_least_used(&Cache::open()?),
        }
    }

    /// Lets the programs that this process starts from now on inherit the lock: a guest that outlives this process
    /// keeps its CPU. Programs that another thread starts before this is dropped inherit it as well, which only makes
    /// the next choice a worse one.
    pub(crate) fn inherit(&self) -> Result<()> {
        match &self.lock {
            Some(lock) => fcntl_setfd(lock, FdFlags::empty()).context("let a guest keep its CPU"),
            None => Ok(()),
        }
    }

    /// Locks a place on the CPU with the fewest guests; of several the last, because most other things of a machine
    /// happen on the first.
    fn lock_least_used(cache: &Cache) -> Result<Self> {
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
