//! Measures the milliseconds until a pod with a volume is Ready, compared to one without, and until volumes in use have
//! grown: one after the other, and sixty at once.

use std::time::Duration;

use anyhow::{Context as _, Result};
use futures::future::{try_join, try_join_all};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use super::setup::{Setup, WAITING, create, is_ready};
use crate::figure::{Figure, median};
use crate::watching::{time_until, time_until_all};
use system_tests::manifests::{VolumeMode, claim, pod};

const TIMES: u8 = 5;
/// After this time without a sync of the pod kubelet starts the next sync at once: a sync waits for the next relist of
/// the generic PLEG, once a second.
const PLEG_PERIODS: Duration = Duration::from_secs(2);
/// Pods whose volumes grow at once, and volumes of each.
const PODS: usize = 6;
const VOLUMES_OF_A_POD: usize = 10;
/// Sizes in MiB to which they grow.
const SIZES: [i64; 3] = [96, 128, 160];

pub(super) async fn measure(setup: &Setup<'_>) -> Result<Vec<Figure>> {
    // Images and CSI connections
    time_pod_with_volume(setup).await?;
    setup.clean_up()?;
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for _ in 0..TIMES {
        with.push(time_pod_with_volume(setup).await?);
        setup.clean_up()?;
        without.push(time_pod_without_volume(setup).await?);
        setup.clean_up()?;
    }
    time_pod_with_volume(setup).await?;
    let mut growths = Vec::new();
    for step in 1..=i64::from(TIMES) {
        growths.push(time_expansion(setup, 1024 + 256 * step).await?);
    }
    let mut alone = Vec::new();
    for step in 1..=i64::from(TIMES) {
        tokio::time::sleep(PLEG_PERIODS).await;
        alone.push(time_expansion(setup, 2304 + 256 * step).await?);
    }
    setup.clean_up()?;
    let at_once = time_expansions_at_once(setup).await?;
    setup.clean_up()?;
    let ms = |name, values, goal| {
        anyhow::Ok(Figure { name, value: median(values).context("no samples")?, unit: "ms", goal })
    };
    Ok(vec![
        ms("csi.ready.1.p50_ms", with, 2300.0)?,
        ms("csi.ready.without_volume.p50_ms", without, f64::INFINITY)?,
        ms("csi.expand.p50_ms", growths, 700.0)?,
        ms("csi.expand.alone.p50_ms", alone, f64::INFINITY)?,
        ms("csi.expand.60.p50_ms", at_once.all, f64::INFINITY)?,
        ms("csi.expand.max_ms", at_once.last, 2000.0)?,
        ms("csi.expand.60.volumes_ms", at_once.last_volume, f64::INFINITY)?,
    ])
}

/// Creates a claim and its pod, and returns the milliseconds until the pod is Ready. Both stay.
async fn time_pod_with_volume(setup: &Setup<'_>) -> Result<f64> {
    let action = async {
        create(&setup.claims, claim("pod", WAITING, "1Gi", VolumeMode::Filesystem)).await?;
        create(&setup.pods, pod("pod", "pod", VolumeMode::Filesystem)).await
    };
    time_until(&setup.pods, "pod", is_ready, action).await
}

async fn time_pod_without_volume(setup: &Setup<'_>) -> Result<f64> {
    time_until(&setup.pods, "pod", is_ready, create(&setup.pods, pod_with_volumes("pod", &[])?)).await
}

/// Returns a pod that mounts these claims.
fn pod_with_volumes(name: &str, claims: &[String]) -> Result<Value> {
    let mut pod = pod(name, "", VolumeMode::Filesystem);
    let volume = |claim: &String| json!({"name": claim, "persistentVolumeClaim": {"claimName": claim}});
    let mount = |claim: &String| json!({"name": claim, "mountPath": format!("/{claim}")});
    *pod.pointer_mut("/spec/volumes").context("no volumes")? = claims.iter().map(volume).collect();
    *pod.pointer_mut("/spec/containers/0/volumeMounts").context("no mounts")? = claims.iter().map(mount).collect();
    Ok(pod)
}

/// Milliseconds of expansions at once, of all rounds.
#[derive(Default)]
struct AtOnce {
    all: Vec<f64>,
    /// Until the last claim of each round.
    last: Vec<f64>,
    /// Until the last volume of each round has grown, and the claim only waits for kubelet.
    last_volume: Vec<f64>,
}

/// Expands the claims of several pods at once, a few times.
async fn time_expansions_at_once(setup: &Setup<'_>) -> Result<AtOnce> {
    let names: Vec<String> = (0..PODS * VOLUMES_OF_A_POD).map(|number| format!("grown{number}")).collect();
    let pods: Vec<String> = (0..PODS).map(|number| format!("pod{number}")).collect();
    let claims = names.iter().map(|name| create(&setup.claims, claim(name, WAITING, "64Mi", VolumeMode::Filesystem)));
    let action = async {
        try_join_all(claims).await?;
        for (pod, names) in pods.iter().zip(names.chunks(VOLUMES_OF_A_POD)) {
            create(&setup.pods, pod_with_volumes(pod, names)?).await?;
        }
        Ok(())
    };
    time_until_all(&setup.pods, &pods, is_ready, action).await?;
    let mut at_once = AtOnce::default();
    for mebibytes in SIZES {
        tokio::time::sleep(PLEG_PERIODS).await;
        let action = async { try_join_all(names.iter().map(|name| expand(setup, name, mebibytes))).await.map(drop) };
        let grown = time_until_all(&setup.claims, &names, |claim| has_size(claim, mebibytes), action);
        let volumes = time_until_all(&setup.claims, &names, waits_for_kubelet, async { Ok(()) });
        let (grown, volumes) = try_join(grown, volumes).await?;
        let last = |times: &[f64]| times.iter().copied().fold(0.0, f64::max);
        at_once.last.push(last(&grown));
        at_once.last_volume.push(last(&volumes));
        at_once.all.extend(grown);
    }
    Ok(at_once)
}

/// Returns true if the volume of a claim has grown, and its filesystem has not.
fn waits_for_kubelet(claim: &PersistentVolumeClaim) -> bool {
    let conditions = claim.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "FileSystemResizePending")
}

/// Expands the claim and returns the milliseconds until its capacity shows that the filesystem has grown.
async fn time_expansion(setup: &Setup<'_>, mebibytes: i64) -> Result<f64> {
    time_until(&setup.claims, "pod", |claim| has_size(claim, mebibytes), expand(setup, "pod", mebibytes)).await
}

async fn expand(setup: &Setup<'_>, claim: &str, mebibytes: i64) -> Result<()> {
    let patch = json!({"spec": {"resources": {"requests": {"storage": format!("{mebibytes}Mi")}}}});
    setup.claims.patch(claim, &PatchParams::default(), &Patch::Merge(&patch)).await?;
    Ok(())
}

/// Returns true if the status of a claim has this size. The API server writes 1280Mi as 1280Mi and 2048Mi as 2Gi.
pub(super) fn has_size(claim: &PersistentVolumeClaim, mebibytes: i64) -> bool {
    let capacity = claim.status.as_ref().and_then(|status| status.capacity.as_ref()?.get("storage"));
    let wanted = [format!("{mebibytes}Mi"), format!("{}Gi", mebibytes / 1024)];
    capacity.is_some_and(|size| size.0 == wanted[0] || mebibytes % 1024 == 0 && size.0 == wanted[1])
}
