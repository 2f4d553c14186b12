//! Grows claims automatically that request it, up to the limit that they name.
//!
//! The controller writes the thresholds of a claim to its LogicalVolume, so that the agent of its node knows when the
//! volume is too small and reports it there. It requests the next size of such a claim once: until the claim has
//! reached that size, it requests no other. If the API server refuses the size, or the node lacks the free space, the
//! controller retries after increasing pauses.

mod args;
mod decision;
mod growing_claim;
mod growing_claims;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolumeClaim};
use kube::api::{Patch, PatchParams};
use kube::runtime::watcher::Event;
use kube::{Api, Client};
use serde_json::json;
use tokio::sync::watch;
use tokio::time::Instant;
use topolvm_api::{ApiFlavor, CREATED_BY, GROWTH_ENABLED, LogicalVolume, format_bytes};
use topolvm_capacity::{Capacity, Exemption, VolumeClasses};
use topolvm_kube::{EventPublisher, LogicalVolumes, ReconcileError, ReconcileMetrics, none_if_not_found};
use topolvm_runtime::{Backoff, error_chain};

pub use args::GrowthArgs;

use decision::{Decision, decide};
use growing_claim::{GrowingClaim, GrowthPolicy};
use growing_claims::GrowingClaims;

/// Changes within this time are handled together.
const SETTLING: Duration = Duration::from_secs(1);
/// Pauses between attempts to grow the same claim.
const BACKOFF: Backoff = Backoff::new(Duration::from_secs(30), Duration::from_mins(15));

/// The dependencies of growth.
#[expect(missing_debug_implementations, reason = "the client has none")]
#[derive(Clone)]
pub struct GrowthContext {
    /// The client of the API server.
    pub client: Client,
    /// The API group.
    pub flavor: ApiFlavor,
    /// The cache of LogicalVolumes.
    pub volumes: LogicalVolumes,
    /// Changes with each of them.
    pub volumes_changed: watch::Receiver<()>,
    /// The free space of nodes, and the StorageClasses.
    pub capacity: Capacity,
    /// The publisher of Events about claims.
    pub events: EventPublisher,
    /// The metric of reconciles.
    pub metrics: ReconcileMetrics,
}

/// The controller of growth.
#[expect(missing_debug_implementations, reason = "the client in it has none")]
pub struct Growth {
    context: GrowthContext,
    claims: GrowingClaims,
}

/// Memory of volumes from one run to the next, by UID of their objects.
#[derive(Debug, Default)]
struct Memory {
    /// Volumes that are tried again later.
    pauses: HashMap<String, Pause>,
    /// The last Event of a volume that is not published again as long as nothing else has happened.
    reported: HashMap<String, String>,
}

#[derive(Debug)]
struct Pause {
    backoff: Backoff,
    until: Instant,
}

/// Outcome of an attempt to grow a claim.
enum Attempt {
    Asked,
    /// The claim has changed since it was read: the watch is about to show it.
    Outdated,
    /// It is tried again later. Reason and note of an Event.
    Refused(&'static str, String),
}

impl Growth {
    /// Makes the controller, which knows no claim yet.
    #[must_use]
    pub fn new(context: GrowthContext) -> Self {
        Self { context, claims: GrowingClaims::default() }
    }

    /// Returns the function that takes the events of a watch of all claims.
    pub fn subscriber(&self) -> impl FnMut(&Event<PersistentVolumeClaim>) + Send + use<> {
        let claims = self.claims.clone();
        move |event| claims.apply(event)
    }

    /// Checks the claims whenever claims, volumes or StorageClasses have changed, and after each pause.
    pub async fn run(self) {
        // False only when the process ends
        if !self.context.volumes.wait_until_listed().await {
            return;
        }
        let mut memory = Memory::default();
        let (mut claims, mut volumes) = (self.claims.changes(), self.context.volumes_changed.clone());
        let mut classes = self.context.capacity.changes();
        loop {
            for changes in [&mut claims, &mut volumes, &mut classes] {
                changes.mark_unchanged();
            }
            self.reconcile(&mut memory).await;
            let now = Instant::now();
            let pause_ends = memory.pauses.values().map(|pause| pause.until).filter(|until| *until > now).min();
            let has_changed = async {
                tokio::select! {
                    changed = claims.changed() => changed,
                    changed = volumes.changed() => changed,
                    changed = classes.changed() => changed,
                    () = sleep_until(pause_ends) => Ok(()),
                }
            };
            if has_changed.await.is_err() {
                return;
            }
            tokio::time::sleep(SETTLING).await;
        }
    }

    /// Checks all volumes.
    async fn reconcile(&self, memory: &mut Memory) {
        let Some(claims) = self.claims.state() else { return };
        let volumes = self.context.volumes.state();
        let uids: HashSet<&str> = volumes.iter().map(|volume| volume.uid()).collect();
        memory.pauses.retain(|uid, _| uids.contains(uid.as_str()));
        memory.reported.retain(|uid, _| uids.contains(uid.as_str()));
        for volume in &volumes {
            let claim = claims.get(volume.name());
            let is_concerned = claim.is_some() || volume.annotation(self.context.flavor.growth_thresholds()).is_some();
            let is_made = volume.volume_id().is_some() && !volume.is_snapshot() && !volume.is_deleting();
            if !is_concerned || !is_made || memory.pauses(volume) {
                continue;
            }
            let step = self.reconcile_volume(volume, claim, memory);
            if let Err(error) = self.context.metrics.observe("growth", step).await {
                let volume_name = volume.name();
                tracing::warn!(
                    volume = volume_name,
                    error = error_chain(&error),
                    "cannot grow the volume automatically"
                );
                memory.pause(volume);
            }
        }
    }

    /// Makes the agent measure a volume or not, as its claim requests, and grows the claim if it has to.
    async fn reconcile_volume(
        &self,
        volume: &Arc<LogicalVolume>,
        claim: Option<&GrowingClaim>,
        memory: &mut Memory,
    ) -> Result<(), ReconcileError> {
        let policy = match claim {
            Some(claim) => self.policy(volume, claim, memory).await.map(|policy| (claim, policy)),
            None => None,
        };
        let key = self.context.flavor.growth_thresholds();
        let thresholds = policy.map(|(_, policy)| policy.thresholds.to_string());
        if volume.annotation(key) != thresholds.as_deref() {
            self.write_thresholds(volume, thresholds.as_deref()).await?;
        }
        match policy {
            Some((claim, policy)) => self.grow_if_too_small(volume, claim, policy, memory).await,
            None => Ok(()),
        }
    }

    /// Returns the policy that a claim requests, if its StorageClass permits automatic growth. Reports problems of
    /// either.
    async fn policy(&self, volume: &LogicalVolume, claim: &GrowingClaim, memory: &mut Memory) -> Option<GrowthPolicy> {
        let class = self.context.capacity.class(&claim.storage_class).filter(|class| class.lets_claims_grow)?;
        let problem = match &claim.policy {
            Ok(policy) if class.allows_expansion => return Some(*policy),
            Ok(_) => format!(
                "StorageClass {} has the annotation {GROWTH_ENABLED} but not allowVolumeExpansion: true; set \
                 allowVolumeExpansion, or remove the annotation",
                claim.storage_class
            ),
            Err(problem) => format!("the claim does not grow automatically; correct the annotation {problem}"),
        };
        self.publish_once(volume, &claim.reference, "GrowthMisconfigured", problem, memory).await;
        None
    }

    /// Writes to a LogicalVolume below which free space it is too small, or that it is not to be measured.
    async fn write_thresholds(&self, volume: &LogicalVolume, thresholds: Option<&str>) -> Result<(), ReconcileError> {
        let api: Api<LogicalVolume> = Api::all_with(self.context.client.clone(), &self.context.flavor);
        // The UID in a merge patch is a precondition
        let key = self.context.flavor.growth_thresholds();
        let patch = Patch::Merge(json!({"metadata": {"uid": volume.uid(), "annotations": {key: thresholds}}}));
        let written = api.patch(volume.name(), &PatchParams::default(), &patch).await;
        none_if_not_found(written).map_err(ReconcileError::api("annotate LogicalVolume", volume.name())).map(drop)
    }

    /// Grows a claim whose agent reports that its volume is too small.
    async fn grow_if_too_small(
        &self,
        volume: &LogicalVolume,
        claim: &GrowingClaim,
        policy: GrowthPolicy,
        memory: &mut Memory,
    ) -> Result<(), ReconcileError> {
        let too_small_at = volume.annotation(self.context.flavor.too_small_at()).and_then(|size| size.parse().ok());
        let Some(volume_bytes) = volume.current_bytes() else { return Ok(()) };
        let limit = format_bytes(policy.limit).0;
        match decide(policy, claim.size, too_small_at, volume_bytes) {
            Decision::Wait => Ok(()),
            Decision::AtLimit => {
                let note = format!(
                    "the volume is nearly full and has reached its limit, {limit}; raise the limit, or delete files"
                );
                self.publish_once(volume, &claim.reference, "GrowthAtLimit", note, memory).await;
                Ok(())
            }
            Decision::Grow(bytes) => match self.grow(volume, volume_bytes, claim, bytes).await? {
                Attempt::Asked => {
                    let (from, to) = (format_bytes(claim.size.capacity).0, format_bytes(bytes).0);
                    let note =
                        format!("the volume is nearly full; requested {to} instead of {from}; the limit is {limit}");
                    memory.forget(volume);
                    self.context.events.publish_normal(&claim.reference, "Growing", "Grow", note).await;
                    Ok(())
                }
                Attempt::Outdated => Ok(()),
                Attempt::Refused(reason, note) => {
                    memory.pause(volume);
                    self.context.events.publish_warning(&claim.reference, reason, "Grow", note).await;
                    Ok(())
                }
            },
        }
    }

    /// Requests this size for exactly this version of the claim, if the node has enough free space.
    async fn grow(
        &self,
        volume: &LogicalVolume,
        volume_bytes: u64,
        claim: &GrowingClaim,
        bytes: u64,
    ) -> Result<Attempt, ReconcileError> {
        let spec = &volume.spec;
        let classes = VolumeClasses::new(&spec.device_class, &spec.lvcreate_option_class);
        let free = self.context.capacity.free_bytes(&spec.node_name, &classes, &Exemption::default()).unwrap_or(0);
        let (wanted, size) = (bytes.saturating_sub(volume_bytes), format_bytes(bytes).0);
        if free < wanted {
            let note = format!(
                "the volume is nearly full, and node {} has only {free} of the {wanted} bytes needed to grow it to \
                 {size}; extend the volume group",
                spec.node_name
            );
            return Ok(Attempt::Refused("GrowthWithoutFreeSpace", note));
        }
        let ObjectReference { name, namespace, uid, .. } = &claim.reference;
        let (name, namespace) = (name.as_deref().unwrap_or_default(), namespace.as_deref().unwrap_or_default());
        let api: Api<PersistentVolumeClaim> = Api::namespaced(self.context.client.clone(), namespace);
        // UID and version in a merge patch are preconditions
        let patch = json!({
            "metadata": {"uid": uid, "resourceVersion": claim.version},
            "spec": {"resources": {"requests": {"storage": size}}},
        });
        let params = PatchParams { field_manager: Some(CREATED_BY.to_owned()), ..PatchParams::default() };
        match api.patch(name, &params, &Patch::Merge(patch)).await {
            Ok(_) => {
                tracing::info!(claim = name, namespace, from = claim.size.capacity, to = bytes, "growing a claim");
                self.claims.note_request(volume.name(), claim, bytes);
                Ok(Attempt::Asked)
            }
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(Attempt::Outdated),
            Err(kube::Error::Api(status)) if matches!(status.code, 403 | 422) => {
                let note = format!("the volume is nearly full and cannot grow to {size}: {}", status.message);
                Ok(Attempt::Refused("GrowthRefused", note))
            }
            Err(error) => Err(ReconcileError::api("grow claim", format!("{namespace}/{name}"))(error)),
        }
    }

    /// Publishes an Event, unless it is the last one of this volume.
    async fn publish_once(
        &self,
        volume: &LogicalVolume,
        about: &ObjectReference,
        reason: &'static str,
        note: String,
        memory: &mut Memory,
    ) {
        if memory.reported.insert(volume.uid().to_owned(), note.clone()).as_ref() != Some(&note) {
            self.context.events.publish_warning(about, reason, "Grow", note).await;
        }
    }
}

impl Memory {
    /// Returns whether the volume is to be left alone for now.
    fn pauses(&self, volume: &LogicalVolume) -> bool {
        self.pauses.get(volume.uid()).is_some_and(|pause| pause.until > Instant::now())
    }

    /// Leaves the volume alone for a while, which is longer each time.
    fn pause(&mut self, volume: &LogicalVolume) {
        let (now, backoff) = (Instant::now(), BACKOFF);
        let pause = self.pauses.entry(volume.uid().to_owned()).or_insert(Pause { backoff, until: now });
        pause.until = now + pause.backoff.fail();
    }

    /// Forgets a volume that grows.
    fn forget(&mut self, volume: &LogicalVolume) {
        self.pauses.remove(volume.uid());
        self.reported.remove(volume.uid());
    }
}

/// Sleeps until then; indefinitely if there is no such time.
async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;
