//! Runs the steps of a plan as a user would, and waits for their completion.

use anyhow::{Context as _, Result};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::api::DynamicObject;
use serde_json::{Value, json};
use topolvm_api::parse_bytes;

use super::class::Class;
use super::history::Fact;
use super::objects::{Kind, Objects, text};
use super::plan::{ClaimSource, Step};
use system_tests::manifests::{DataSource, VolumeMode, claim, copied_claim, snapshot};

/// Name of the VolumeSnapshotClass.
pub(super) const SNAPSHOT_CLASS: &str = "chaos";

impl Step {
    /// Runs the step. `note` records the ids that lead from logs to this step.
    pub(super) async fn run(&self, objects: &Objects, note: impl Fn(Fact)) -> Result<()> {
        match self {
            Self::Create { claim, class, mebibytes, source } => {
                let uid = objects.create(Kind::Claim, &new_claim(claim, *class, *mebibytes, source)).await?;
                note(format!("{claim} has the UID {uid}").into());
                objects.wait_until(Kind::Claim, claim, "bound", |claim| claim.is_some_and(is_bound)).await
            }
            Self::CreateAndDelete { claim, class, mebibytes } => {
                let uid =
                    objects.create(Kind::Claim, &new_claim(claim, *class, *mebibytes, &ClaimSource::Empty)).await?;
                note(Fact::ShortLivedClaim { claim: claim.clone(), uid: uid.clone() });
                objects.delete(Kind::Claim, claim).await?;
                objects.wait_until_gone(Kind::Claim, claim).await?;
                note(Fact::ShortLivedClaimGone { uid });
                Ok(())
            }
            Self::Grow { claim, mebibytes, waits } => grow(objects, claim, *mebibytes, *waits).await,
            Self::Snapshot { snapshot: name, claim, waits } => {
                let uid = objects.create(Kind::Snapshot, &snapshot(name, SNAPSHOT_CLASS, claim)).await?;
                note(format!("{name} has the UID {uid}").into());
                if *waits {
                    wait_until_ready(objects, name).await?;
                }
                Ok(())
            }
            Self::DeleteSnapshot { snapshot } => delete_snapshot(objects, snapshot).await,
            Self::DeleteClaim { claim } => delete_claim(objects, claim).await,
        }
    }
}

fn new_claim(name: &str, class: Class, mebibytes: u64, source: &ClaimSource) -> Value {
    let size = format!("{mebibytes}Mi");
    match source {
        ClaimSource::Empty => claim(name, class.name(), &size, VolumeMode::Filesystem),
        ClaimSource::Snapshot(source) => copied_claim(name, class.name(), &size, DataSource::Snapshot(source)),
        ClaimSource::Claim(source) => copied_claim(name, class.name(), &size, DataSource::Claim(source)),
    }
}

fn is_bound(claim: &DynamicObject) -> bool {
    text(claim, "/status/phase") == "Bound"
}

/// Expands a claim and waits until the volume, though not yet a filesystem on it, has the size: there is no pod.
async fn grow(objects: &Objects, claim: &str, mebibytes: u64, waits: bool) -> Result<()> {
    let patch = json!({"spec": {"resources": {"requests": {"storage": format!("{mebibytes}Mi")}}}});
    objects.patch(Kind::Claim, claim, &patch).await?;
    if !waits {
        return Ok(());
    }
    let now = objects.get(Kind::Claim, claim).await?.context("the claim is gone")?;
    let is_so = |volume: Option<&DynamicObject>| {
        let size = volume.map(|volume| text(volume, "/spec/capacity/storage")).unwrap_or_default();
        parse_bytes(&Quantity(size.to_owned())).is_ok_and(|bytes| bytes >= mebibytes << 20)
    };
    objects.wait_until(Kind::Volume, text(&now, "/spec/volumeName"), "as large as it should be", is_so).await
}

async fn delete_claim(objects: &Objects, claim: &str) -> Result<()> {
    let volume = objects.get(Kind::Claim, claim).await?.map(|claim| text(&claim, "/spec/volumeName").to_owned());
    objects.delete(Kind::Claim, claim).await?;
    objects.wait_until_gone(Kind::Claim, claim).await?;
    match volume.filter(|volume| !volume.is_empty()) {
        Some(volume) => objects.wait_until_gone(Kind::Volume, &volume).await,
        None => Ok(()),
    }
}

async fn wait_until_ready(objects: &Objects, snapshot: &str) -> Result<()> {
    let is_ready = |now: &DynamicObject| now.data.pointer("/status/readyToUse") == Some(&Value::Bool(true));
    objects.wait_until(Kind::Snapshot, snapshot, "ready", |now| now.is_some_and(is_ready)).await
}

/// Deletes a snapshot, after waiting until it is ready: csi-snapshotter and snapshot-controller forget, or leak, a
/// snapshot that is deleted while it is created (external-snapshotter, issues 134, 1258 and 1388).
async fn delete_snapshot(objects: &Objects, snapshot: &str) -> Result<()> {
    wait_until_ready(objects, snapshot).await?;
    let content = objects
        .get(Kind::Snapshot, snapshot)
        .await?
        .map(|snapshot| text(&snapshot, "/status/boundVolumeSnapshotContentName").to_owned());
    objects.delete(Kind::Snapshot, snapshot).await?;
    objects.wait_until_gone(Kind::Snapshot, snapshot).await?;
    match content.filter(|content| !content.is_empty()) {
        Some(content) => objects.wait_until_gone(Kind::Content, &content).await,
        None => Ok(()),
    }
}
