//! Counts the LVM processes of operations that users ask Kubernetes for, by lvmd's metric.

use anyhow::{Result, ensure};
use kube::api::{Patch, PatchParams};
use serde_json::json;
use std::time::Duration;

use super::LIMIT;
use super::bed::{Bed, IMMEDIATE, THIN, create, is_bound, is_ready};
use super::copies::{restored, snapshot_ready};
use super::pods::has_size;
use super::watching::time;
use crate::bench::Figure;
use crate::manifests::{DataSource, VolumeMode, claim, copied_claim, pod};

/// Interval between reads of the agent's count of calls.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

pub(super) async fn measure(bed: &Bed<'_>) -> Result<Vec<Figure>> {
    let mut counter = Counter { bed, before: bed.lvm_processes()? };
    let make = create(&bed.claims, claim("life", IMMEDIATE, "1Gi", VolumeMode::Filesystem));
    time(&bed.claims, "life", is_bound, make).await?;
    let created = counter.since()?;

    let run = create(&bed.pods, pod("life", "life", VolumeMode::Filesystem));
    time(&bed.pods, "life", is_ready, run).await?;
    let published = counter.since()?;

    // kubelet asks about each volume every ten seconds on this bed
    let asked = bed.calls("NodeGetVolumeStats")?;
    let two_more = async {
        while bed.calls("NodeGetVolumeStats")? < asked + 2.0 {
            tokio::time::sleep(LOOK_AGAIN).await;
        }
        anyhow::Ok(())
    };
    tokio::time::timeout(LIMIT, two_more).await??;
    let told = counter.since()?;

    let patch = json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}});
    let grow = async {
        bed.claims.patch("life", &PatchParams::default(), &Patch::Merge(&patch)).await?;
        Ok(())
    };
    time(&bed.claims, "life", |claim| has_size(claim, 2048), grow).await?;
    let expanded = counter.since()?;

    bed.cluster.kubectl_ok(["delete", "pod", "life", "--timeout=90s"])?;
    let unpublished = counter.since()?;
    bed.clean_up()?;
    let deleted = counter.since()?;

    let start = async {
        create(&bed.claims, claim("source", THIN, "256Mi", VolumeMode::Filesystem)).await?;
        create(&bed.pods, pod("source", "source", VolumeMode::Filesystem)).await
    };
    time(&bed.pods, "source", is_ready, start).await?;
    let created_thin = counter.since()?;
    snapshot_ready(bed, "snapshot").await?;
    let snapshot = counter.since()?;
    let copy = copied_claim("copy", THIN, "256Mi", DataSource::Snapshot("snapshot"));
    Box::pin(restored(bed, "copy", copy)).await?;
    let restored = counter.since()?;
    bed.clean_up()?;

    ensure!(bed.calls("NodePublishVolume")? > 0.0, "the agent counts no calls");
    let procs = |name, value, goal| Figure { name, value, unit: "processes", goal };
    Ok(vec![
        procs("csi.procs.create", created, 1.0),
        procs("csi.procs.publish", published, 0.0),
        procs("csi.procs.stats", told, 0.0),
        procs("csi.procs.expand", expanded, 1.0),
        procs("csi.procs.unpublish", unpublished, 0.0),
        procs("csi.procs.delete", deleted, 1.0),
        procs("csi.procs.create_thin_and_publish", created_thin, 1.0),
        procs("csi.procs.snapshot", snapshot, 1.0),
        procs("csi.procs.restore", restored, 1.0),
    ])
}

/// Counts the LVM processes since the previous reading.
struct Counter<'a> {
    bed: &'a Bed<'a>,
    before: f64,
}

impl Counter<'_> {
    fn since(&mut self) -> Result<f64> {
        let now = self.bed.lvm_processes()?;
        let processes = now - self.before;
        self.before = now;
        Ok(processes)
    }
}
