//! Counts the LVM processes that lvmd starts: for each operation, and when idle while a client lists all volumes.

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use serde::{Deserialize, Serialize};
use tokio::time::{MissedTickBehavior, interval};

use super::daemon::{Client, THIN, count_lvm_processes};

const MIB: i64 = 1 << 20;
/// Number of times that each operation is done.
const TIMES: u8 = 5;
/// Number of volumes when idle, and of lists in the time [`REST`] in which processes are counted.
const AT_REST: u8 = 100;
const REST: Duration = Duration::from_mins(1);

/// LVM processes of each operation.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Processes {
    pub(super) create_thick: f64,
    pub(super) create_thin: f64,
    pub(super) snapshot: f64,
    pub(super) snapshot_larger: f64,
    pub(super) expand: f64,
    pub(super) remove: f64,
    pub(super) idle_per_minute: f64,
}

/// Counts the processes of all operations. No volume is left behind.
pub(super) async fn measure(client: &Client) -> Result<Processes> {
    let create_thick =
        processes_per_call(async |name| client.create("", &format!("thick{name}"), 16 * MIB).await).await?;
    let create_thin =
        processes_per_call(async |name| client.create(THIN, &format!("thin{name}"), 16 * MIB).await).await?;
    let snapshot =
        processes_per_call(async |name| client.snapshot(&format!("thin{name}"), &format!("snap{name}"), 0).await)
            .await?;
    let snapshot_larger = processes_per_call(async |name| {
        client.snapshot(&format!("thin{name}"), &format!("large{name}"), 32 * MIB).await
    })
    .await?;
    let expand = processes_per_call(async |name| client.resize("", &format!("thick{name}"), 32 * MIB).await).await?;
    let remove = processes_per_call(async |name| client.remove("", &format!("thick{name}")).await).await?;
    for name in 0..TIMES {
        for kind in ["large", "snap", "thin"] {
            client.remove(THIN, &format!("{kind}{name}")).await?;
        }
    }
    let idle_per_minute = count_at_rest(client).await?;
    Ok(Processes { create_thick, create_thin, snapshot, snapshot_larger, expand, remove, idle_per_minute })
}

/// Returns the LVM processes for a call of an operation, which gets a number.
async fn processes_per_call(mut operation: impl AsyncFnMut(u8) -> Result<()>) -> Result<f64> {
    let before = count_while_none_runs().await?;
    for number in 0..TIMES {
        operation(number).await?;
    }
    Ok(processes_since(before).await? / f64::from(TIMES))
}

/// Returns the counts of [`count_lvm_processes`] once they have not changed for a second: the script counts a process
/// when it starts, lvmd's metric when it has ended.
async fn count_while_none_runs() -> Result<(f64, f64)> {
    let mut last = count_lvm_processes()?;
    for _ in 0..30 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let now = count_lvm_processes()?;
        if now == last {
            return Ok(now);
        }
        last = now;
    }
    bail!("LVM processes start all the time; the last counts are {last:?}")
}

async fn count_at_rest(client: &Client) -> Result<f64> {
    for number in 0..AT_REST {
        client.create("", &format!("rest{number}"), 4 * MIB).await?;
    }
    let before = count_while_none_runs().await?;
    let mut ticks = interval(REST / u32::from(AT_REST));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for _ in 0..AT_REST {
        ticks.tick().await;
        ensure!(client.list().await?.len() == usize::from(AT_REST), "lvmd does not list all volumes");
    }
    let processes = processes_since(before).await?;
    for number in 0..AT_REST {
        client.remove("", &format!("rest{number}")).await?;
    }
    Ok(processes)
}

/// Returns the LVM processes since `before`, on which the script that counts and lvmd's own metric must agree.
async fn processes_since(before: (f64, f64)) -> Result<f64> {
    let after = count_while_none_runs().await?;
    let (counted, reported) = (after.0 - before.0, after.1 - before.1);
    ensure!((counted - reported).abs() < 0.5, "{counted} LVM processes ran, and lvmd's metric says {reported}");
    Ok(counted)
}
