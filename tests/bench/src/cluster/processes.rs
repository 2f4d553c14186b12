//! Counts the LVM processes of operations that users request from Kubernetes, by lvmd's metric.

use anyhow::{Result, ensure};
use kube::api::{Patch, PatchParams};
use serde_json::json;
use std::time::Duration;

use super::copies::{time_restore, time_snapshot};
use super::pods::has_size;
use super::setup::{IMMEDIATE, Setup, THIN, create, is_ready};
use crate::figure::Figure;
use crate::watching::{is_bound, time_until};
use system_tests::manifests::{DataSource, VolumeMode, claim, copied_claim, pod};

/// Time in which kubelet requests the statistics of volumes: longer than it takes on the slowest machine.
const LIMIT: Duration = Duration::from_mins(2);
/// Interval between reads of the agent's count of calls.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

pub(super) async fn measure(setup: &Setup<'_>) -> Result<Vec<Figure>> {
    let mut counter = Counter { setup, before: setup.lvm_processes()? };
    let mut figures = measure_volume(setup, &mut counter).await?;
    figures.extend(measure_copies(setup, &mut counter).await?);
    ensure!(setup.handled_calls("NodePublishVolume")? > 0.0, "the agent counts no calls");
    Ok(figures)
}

/// Counts the processes of a thick volume, from its creation to its deletion.
async fn measure_volume(setup: &Setup<'_>, counter: &mut Counter<'_>) -> Result<Vec<Figure>> {
    let make = create(&setup.claims, claim("life", IMMEDIATE, "1Gi", VolumeMode::Filesystem));
    time_until(&setup.claims, "life", is_bound, make).await?;
    let created = counter.count_new()?;

    let run = create(&setup.pods, pod("life", "life", VolumeMode::Filesystem));
    time_until(&setup.pods, "life", is_ready, run).await?;
    let published = counter.count_new()?;

    wait_for_stats(setup).await?;
    let reported = counter.count_new()?;

    let patch = json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}});
    let grow = async {
        setup.claims.patch("life", &PatchParams::default(), &Patch::Merge(&patch)).await?;
        Ok(())
    };
    time_until(&setup.claims, "life", |claim| has_size(claim, 2048), grow).await?;
    let expanded = counter.count_new()?;

    setup.cluster.kubectl_ok(["delete", "pod", "life", "--timeout=180s"])?;
    let unpublished = counter.count_new()?;
    setup.clean_up()?;
    let deleted = counter.count_new()?;
    Ok(vec![
        figure("csi.procs.create", created, 1.0),
        figure("csi.procs.publish", published, 0.0),
        figure("csi.procs.stats", reported, 0.0),
        figure("csi.procs.expand", expanded, 1.0),
        figure("csi.procs.unpublish", unpublished, 0.0),
        figure("csi.procs.delete", deleted, 1.0),
    ])
}

/// Waits until kubelet has requested the statistics of volumes from the agent twice: every ten seconds in this cluster.
async fn wait_for_stats(setup: &Setup<'_>) -> Result<()> {
    let asked = setup.handled_calls("NodeGetVolumeStats")?;
    let two_more = async {
        while setup.handled_calls("NodeGetVolumeStats")? < asked + 2.0 {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        anyhow::Ok(())
    };
    tokio::time::timeout(LIMIT, two_more).await?
}

/// Counts the processes of a thin volume, a snapshot of it and a volume restored from that.
async fn measure_copies(setup: &Setup<'_>, counter: &mut Counter<'_>) -> Result<Vec<Figure>> {
    let start = async {
        create(&setup.claims, claim("source", THIN, "256Mi", VolumeMode::Filesystem)).await?;
        create(&setup.pods, pod("source", "source", VolumeMode::Filesystem)).await
    };
    time_until(&setup.pods, "source", is_ready, start).await?;
    let created_thin = counter.count_new()?;
    time_snapshot(setup, "snapshot").await?;
    let snapshot = counter.count_new()?;
    let copy = copied_claim("copy", THIN, "256Mi", DataSource::Snapshot("snapshot"));
    Box::pin(time_restore(setup, "copy", copy)).await?;
    let restored = counter.count_new()?;
    setup.clean_up()?;
    Ok(vec![
        figure("csi.procs.create_thin_and_publish", created_thin, 1.0),
        figure("csi.procs.snapshot", snapshot, 1.0),
        figure("csi.procs.restore", restored, 1.0),
    ])
}

fn figure(name: &'static str, value: f64, goal: f64) -> Figure {
    Figure { name, value, unit: "processes", goal }
}

/// Counts the LVM processes since the previous reading.
struct Counter<'a> {
    setup: &'a Setup<'a>,
    before: f64,
}

impl Counter<'_> {
    fn count_new(&mut self) -> Result<f64> {
        let now = self.setup.lvm_processes()?;
        let processes = now - self.before;
        self.before = now;
        Ok(processes)
    }
}
