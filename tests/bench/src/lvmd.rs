//! Measures lvmd on real LVM in a guest: LVM processes of each operation and when idle, speed compared to a plain shell
//! loop, memory.

mod daemon;
mod in_guest;
mod memory;
mod processes;
mod shell;
mod speed;

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde::{Deserialize, Serialize};
use testbed::guest::{self, GuestSpec, Output};
use testbed::size::{GIB, MIB};

use crate::figure::{Figure, Selector};
use crate::memory::ResidentMemory;

/// First argument with which the benchmark is started again in the guest.
const IN_GUEST: &str = "bench-lvmd-in-guest";
/// Timeout of the guest: twice the usual time on a slow machine.
const LIMIT: Duration = Duration::from_mins(10);

/// Prefixes of the names of its figures.
pub(crate) const FAMILIES: [&str; 5] = [PROCESSES, SPEED[0], SPEED[1], SPEED[2], MEMORY];
const PROCESSES: &str = "lvmd.procs.";
const SPEED: [&str; 3] = ["lvmd.shell.", "lvmd.sequential.", "lvmd.parallel."];
const MEMORY: &str = "lvmd.rss_mib.";

/// Measurements from the guest. Those that were not selected are `None`.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Measured {
    processes: Option<processes::Processes>,
    speed: Option<speed::Speed>,
    /// Resident memory with no volume, 100 and 1000.
    resident: Option<[ResidentMemory; 3]>,
}

/// Boots a guest with two blank disks and measures the selected figures of the lvmd in this program's directory.
pub(crate) fn run(_directory: &Path, wanted: &Selector<'_>) -> Result<Vec<Figure>> {
    let program = std::env::current_exe().context("find this program's file")?;
    let program = program.to_str().context("the path of this program is not text")?;
    let spec = GuestSpec {
        disks: vec![8 * GIB, 8 * GIB],
        memory: 1536 * MIB,
        timeout: LIMIT,
        output: Output::Keep,
        ..GuestSpec::new([program, IN_GUEST].into_iter().chain(FAMILIES.into_iter().filter(|family| wanted(family))))
    };
    let finished = guest::run(spec)?;
    let errors = String::from_utf8_lossy(&finished.stderr);
    ensure!(finished.status == 0, "measuring in the guest failed: {}", errors.trim());
    let measured: Measured = serde_json::from_slice(&finished.stdout).context("read what the guest measured")?;
    Ok(measured.figures())
}

/// Measures in the guest, if this process was started there by [`run`].
pub(crate) fn serve() -> Option<ExitCode> {
    (std::env::args().nth(1)? == IN_GUEST).then(in_guest::main)
}

impl Measured {
    fn figures(&self) -> Vec<Figure> {
        let Self { processes, speed, resident } = self;
        let procs = |name, value, goal| Figure { name, value, unit: "processes", goal };
        let ratio = |name, value, goal| Figure { name, value, unit: "ratio", goal };
        let ms = |name, value| Figure { name, value, unit: "ms", goal: f64::INFINITY };
        let mib = |name, value, goal| Figure { name, value, unit: "MiB", goal };
        let mut figures = Vec::new();
        if let Some(processes) = processes {
            figures.extend([
                procs("lvmd.procs.create_thick", processes.create_thick, 1.0),
                procs("lvmd.procs.create_thin", processes.create_thin, 1.0),
                procs("lvmd.procs.snapshot", processes.snapshot, 1.0),
                procs("lvmd.procs.snapshot_larger", processes.snapshot_larger, 2.0),
                procs("lvmd.procs.expand", processes.expand, 1.0),
                procs("lvmd.procs.remove", processes.remove, 1.0),
                procs("lvmd.procs.idle_per_min", processes.idle_per_minute, 1.0),
            ]);
        }
        if let Some(speed) = speed {
            figures.extend([
                ms("lvmd.shell.create_remove_ms", speed.shell),
                ms("lvmd.sequential.create_remove_ms", speed.sequential),
                ratio("lvmd.sequential.ratio", speed.sequential_ratio, 1.15),
                ratio("lvmd.parallel.ratio", speed.parallel_ratio, 1.0),
            ]);
        }
        if let Some([none, hundred, thousand]) = resident {
            figures.extend([
                // The goal of the anonymous part is that of TopoLVM's lvmd, freshly started and with 20 volumes
                mib("lvmd.rss_mib.0", none.mebibytes(), 5.0),
                mib("lvmd.rss_mib.0.anon", none.anonymous_mebibytes(), 6.6),
                mib("lvmd.rss_mib.100", hundred.mebibytes(), 5.0),
                mib("lvmd.rss_mib.100.anon", hundred.anonymous_mebibytes(), 9.0),
                mib("lvmd.rss_mib.1000", thousand.mebibytes(), 7.0),
                mib("lvmd.rss_mib.1000.anon", thousand.anonymous_mebibytes(), 9.0),
            ]);
        }
        figures
    }
}
