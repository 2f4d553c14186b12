//! Measures the milliseconds until a pod with a volume is Ready, beside one without, and until a volume in use has
//! grown.

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use super::bed::{Bed, WAITING, create, is_ready};
use super::watching::time_until;
use crate::bench::{Figure, median};
use crate::manifests::{VolumeMode, claim, pod};

const TIMES: u8 = 5;

pub(super) async fn measure(bed: &Bed<'_>) -> Result<Vec<Figure>> {
    // Images and CSI connections
    time_pod_with_volume(bed).await?;
    bed.clean_up()?;
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for _ in 0..TIMES {
        with.push(time_pod_with_volume(bed).await?);
        bed.clean_up()?;
        without.push(time_pod_without_volume(bed).await?);
        bed.clean_up()?;
    }
    time_pod_with_volume(bed).await?;
    let mut growths = Vec::new();
    for step in 1..=i64::from(TIMES) {
        growths.push(time_expansion(bed, 1024 + 256 * step).await?);
    }
    bed.clean_up()?;
    let ms = |name, values, goal| {
        anyhow::Ok(Figure { name, value: median(values).context("no samples")?, unit: "ms", goal })
    };
    Ok(vec![
        ms("csi.ready.1.p50_ms", with, 3470.0)?,
        ms("csi.ready.without_volume.p50_ms", without, f64::INFINITY)?,
        ms("csi.expand.p50_ms", growths, 1420.0)?,
    ])
}

/// Creates a claim and its pod, and returns the milliseconds until the pod is Ready. Both stay.
async fn time_pod_with_volume(bed: &Bed<'_>) -> Result<f64> {
    let action = async {
        create(&bed.claims, claim("pod", WAITING, "1Gi", VolumeMode::Filesystem)).await?;
        create(&bed.pods, pod("pod", "pod", VolumeMode::Filesystem)).await
    };
    time_until(&bed.pods, "pod", is_ready, action).await
}

async fn time_pod_without_volume(bed: &Bed<'_>) -> Result<f64> {
    let mut pod = pod("pod", "", VolumeMode::Filesystem);
    let spec = pod.get_mut("spec").and_then(serde_json::Value::as_object_mut).context("no spec")?;
    let _volumes = spec.remove("volumes");
    let containers = spec.get_mut("containers").and_then(serde_json::Value::as_array_mut).context("no containers")?;
    for container in containers.iter_mut().filter_map(serde_json::Value::as_object_mut) {
        let _mounts = container.remove("volumeMounts");
    }
    time_until(&bed.pods, "pod", is_ready, create(&bed.pods, pod)).await
}

/// Expands the claim and returns the milliseconds until its capacity says that the filesystem has grown.
async fn time_expansion(bed: &Bed<'_>, mebibytes: i64) -> Result<f64> {
    let size = format!("{mebibytes}Mi");
    let patch = json!({"spec": {"resources": {"requests": {"storage": size}}}});
    let action = async {
        bed.claims.patch("pod", &PatchParams::default(), &Patch::Merge(&patch)).await?;
        Ok(())
    };
    // The API server writes 1280Mi as 1280Mi and 2048Mi as 2Gi
    time_until(&bed.claims, "pod", |claim| has_size(claim, mebibytes), action).await
}

pub(super) fn has_size(claim: &PersistentVolumeClaim, mebibytes: i64) -> bool {
    let capacity = claim.status.as_ref().and_then(|status| status.capacity.as_ref()?.get("storage"));
    let wanted = [format!("{mebibytes}Mi"), format!("{}Gi", mebibytes / 1024)];
    capacity.is_some_and(|size| size.0 == wanted[0] || mebibytes % 1024 == 0 && size.0 == wanted[1])
}
