//! Measures the time of a hundred volumes created and removed through lvmd, one after the other and ten at once,
//! compared to a shell loop that does the same.

use std::time::Instant;

use anyhow::{Context as _, Result};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use serde::{Deserialize, Serialize};

use super::daemon::{Client, VG};
use super::shell::run_script;
use crate::figure::median;

const MIB: i64 = 1 << 20;
const VOLUMES: u8 = 100;
const AT_ONCE: usize = 10;
const ROUNDS: usize = 3;

/// Times and ratios, medians of a few rounds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Speed {
    /// Milliseconds to create and remove one volume with the shell.
    pub(super) shell: f64,
    /// Milliseconds to create and remove one volume with lvmd.
    pub(super) sequential: f64,
    /// Ratio of lvmd to the shell in the same round.
    pub(super) sequential_ratio: f64,
    /// Ratio of ten at once to one after the other in the same round.
    pub(super) parallel_ratio: f64,
}

pub(super) async fn measure(client: &Client) -> Result<Speed> {
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        remove_archive()?;
        let start = Instant::now();
        run_script(&format!("for i in $(seq {VOLUMES}); do lvcreate -qqy -L 4m -n v$i {VG}; done"))?;
        run_script(&format!("for i in $(seq {VOLUMES}); do lvremove -qqy {VG}/v$i; done"))?;
        let shell = milliseconds_per_volume(start);

        remove_archive()?;
        let start = Instant::now();
        create_all(client, 1).await?;
        remove_all(client, 1).await?;
        let sequential = milliseconds_per_volume(start);

        remove_archive()?;
        let start = Instant::now();
        create_all(client, AT_ONCE).await?;
        remove_all(client, AT_ONCE).await?;
        rounds.push((shell, sequential, milliseconds_per_volume(start)));
    }
    let of = |value: fn(&(f64, f64, f64)) -> f64| median(rounds.iter().map(value).collect()).context("no rounds");
    Ok(Speed {
        shell: of(|round| round.0)?,
        sequential: of(|round| round.1)?,
        sequential_ratio: of(|round| round.1 / round.0)?,
        parallel_ratio: of(|round| round.2 / round.1)?,
    })
}

/// Removes the archive of metadata, in which LVM keeps a file for each change, by default for a month, and which it
/// searches at each change: later rounds would be slower.
fn remove_archive() -> Result<()> {
    run_script("rm -rf /etc/lvm/archive")
}

/// Creates the hundred volumes, `at_once` in parallel.
pub(super) async fn create_all(client: &Client, at_once: usize) -> Result<()> {
    let creations = (0..VOLUMES).map(|number| async move { client.create("", &volume_name(number), 4 * MIB).await });
    stream::iter(creations).buffer_unordered(at_once).try_collect().await
}

/// Removes the hundred volumes, `at_once` in parallel.
pub(super) async fn remove_all(client: &Client, at_once: usize) -> Result<()> {
    let removals = (0..VOLUMES).map(|number| async move { client.remove("", &volume_name(number)).await });
    stream::iter(removals).buffer_unordered(at_once).try_collect().await
}

/// Returns the name of a volume, as long as real ones, which are UIDs.
fn volume_name(number: u8) -> String {
    format!("0b5a2f4e-8d54-4f5c-9a0e-7d8f6f3c2{number:03}")
}

/// Returns the milliseconds since `start` for each volume.
fn milliseconds_per_volume(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1000.0 / f64::from(VOLUMES)
}
