//! Measures the milliseconds until a snapshot is ready to use, and until a pod on a volume restored from it is Ready.

use std::cell::Cell;

use anyhow::{Context as _, Result};
use kube::api::DynamicObject;

use super::setup::{SNAPSHOTS, Setup, THIN, create, is_ready};
use crate::figure::{Figure, median};
use crate::watching::{is_bound, time_until};
use system_tests::manifests::{DataSource, VolumeMode, claim, copied_claim, pod, snapshot};

const TIMES: u8 = 4;

pub(super) async fn measure(setup: &Setup<'_>) -> Result<Vec<Figure>> {
    let action = async {
        create(&setup.claims, claim("source", THIN, "256Mi", VolumeMode::Filesystem)).await?;
        create(&setup.pods, pod("source", "source", VolumeMode::Filesystem)).await
    };
    time_until(&setup.pods, "source", is_ready, action).await?;
    let (mut snapshots, mut bound, mut ready) = (Vec::new(), Vec::new(), Vec::new());
    // The first one opens connections
    for round in 0..=TIMES {
        let (copy, snapshot_name) = (format!("copy{round}"), format!("snapshot{round}"));
        let seconds = time_snapshot(setup, &snapshot_name).await?;
        let claim = copied_claim(&copy, THIN, "256Mi", DataSource::Snapshot(&snapshot_name));
        let (bound_after, ready_after) = Box::pin(time_restore(setup, &copy, claim)).await?;
        if round > 0 {
            snapshots.push(seconds);
            bound.push(bound_after);
            ready.push(ready_after);
        }
        setup.cluster.kubectl_ok(["delete", "pod", &copy, "--timeout=180s"])?;
    }
    setup.clean_up()?;
    let ms = |name, values, goal| {
        anyhow::Ok(Figure { name, value: median(values).context("no samples")?, unit: "ms", goal })
    };
    Ok(vec![
        ms("csi.snapshot.p50_ms", snapshots, 1120.0)?,
        ms("csi.restore.bound.p50_ms", bound, 1140.0)?,
        ms("csi.restore.p50_ms", ready, 3190.0)?,
    ])
}

/// Takes a snapshot of `source` and returns the milliseconds until it is ready to use.
pub(super) async fn time_snapshot(setup: &Setup<'_>, name: &str) -> Result<f64> {
    let make = create(&setup.snapshots, snapshot(name, SNAPSHOTS, "source"));
    time_until(&setup.snapshots, name, is_ready_to_use, make).await
}

/// Creates a claim and its pod, and returns the milliseconds until the claim is Bound and until the pod is Ready.
pub(super) async fn time_restore(setup: &Setup<'_>, name: &str, claim: serde_json::Value) -> Result<(f64, f64)> {
    let action = async {
        let make_both = async {
            create(&setup.claims, claim).await?;
            create(&setup.pods, pod(name, name, VolumeMode::Filesystem)).await
        };
        time_until(&setup.claims, name, is_bound, make_both).await
    };
    let bound = Cell::new(0.0);
    let both = async {
        bound.set(action.await?);
        Ok(())
    };
    let ready = time_until(&setup.pods, name, is_ready, Box::pin(both)).await?;
    Ok((bound.get(), ready))
}

fn is_ready_to_use(snapshot: &DynamicObject) -> bool {
    snapshot.data.pointer("/status/readyToUse") == Some(&true.into())
}
