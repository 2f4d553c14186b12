//! Writes to LogicalVolumes the claims that use them, where these were not known when they were created (by TopoLVM, by
//! an earlier version, or by this one before its watch of claims knew the claim), and where another claim has the
//! PersistentVolume by now: volume populators and backup tools first create it for a separate claim.
//!
//! The watch of claims shows that another claim has it, since csi-provisioner names a PersistentVolume like the volume;
//! the PersistentVolume itself is read before anything is written. All PersistentVolumes are listed only while there
//! are volumes without a claim. If no PersistentVolume with a claim refers to a volume, the controller retries a few
//! times and then ignores it, so that an idle cluster costs no request.

use std::collections::{HashMap, HashSet};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::TryStreamExt as _;
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::Api;
use kube::api::{ListParams, PatchParams};
use tokio::time::{Interval, MissedTickBehavior};
use topolvm_api::LogicalVolume;
use topolvm_kube::{Cache, CachedClaim, ReconcileError, json_patch, list_in_pages, none_if_not_found, set_annotation};
use topolvm_runtime::error_chain;

use super::Controllers;

/// Time between two searches for volumes without a claim.
const INTERVAL: Duration = Duration::from_mins(10);
/// Time between two comparisons of the cached claims with the cached volumes.
const COMPARE_INTERVAL: Duration = Duration::from_secs(10);
/// Searches for the claim of a volume: external-provisioner writes the PersistentVolume right after the volume was
/// made.
const MAX_SEARCHES: u32 = 3;
/// PersistentVolumes in a page.
const PAGE: u32 = 200;

/// The controller of claim annotations.
pub(super) struct ClaimAnnotation {
    pub(super) shared: Controllers,
    pub(super) claims: Cache<CachedClaim>,
}

/// Number of searches in vain, by the UID of the LogicalVolume.
type Searches = HashMap<String, u32>;

/// A volume and a claim that is bound to a PersistentVolume of its name, by their UIDs.
type Pair = (String, String);

impl ClaimAnnotation {
    /// Searches now, and then every interval.
    pub(super) async fn run(self) {
        // False only when the process ends
        if !self.shared.volumes.cache.wait_until_listed().await || !self.claims.wait_until_listed().await {
            return;
        }
        let (mut searches, mut refuted) = (Searches::new(), HashSet::new());
        let (mut search, mut compare) = (interval(INTERVAL), interval(COMPARE_INTERVAL));
        loop {
            let result = tokio::select! {
                biased;
                _ = compare.tick() => self.follow_claims(&mut refuted).await,
                _ = search.tick() => self.search(&mut searches).await,
            };
            if let Err(error) = result {
                tracing::warn!(error = error_chain(&error), "cannot find claims of volumes; trying again later");
            }
        }
    }

    /// Annotates the volumes whose claim is another one than their annotation names. `refuted` are the pairs that the
    /// PersistentVolume did not confirm.
    async fn follow_claims(&self, refuted: &mut HashSet<Pair>) -> Result<(), ReconcileError> {
        let moved: Vec<_> = self.claims.state().into_iter().filter_map(|claim| self.moved_volume(claim)).collect();
        refuted.retain(|pair| moved.iter().any(|(known, ..)| known == pair));
        for (pair, volume, claim) in moved {
            if refuted.contains(&pair) {
                continue;
            }
            if self.has_volume(&claim, &volume).await? {
                let name = claim.full_name();
                self.shared.metrics.observe("claimannotation", self.annotate(&volume, &name)).await?;
            } else {
                refuted.insert(pair);
            }
        }
        Ok(())
    }

    /// Returns the volume of the name of the PersistentVolume to which a claim is bound, if its annotation names
    /// another claim.
    fn moved_volume(&self, claim: Arc<CachedClaim>) -> Option<(Pair, Arc<LogicalVolume>, Arc<CachedClaim>)> {
        let volume = self.shared.volumes.cache.get(claim.volume_name()?)?;
        let named = volume.claim(self.shared.flavor)?;
        let is_moved = named != (claim.namespace(), claim.name());
        let is_live = !volume.is_deleting() && !claim.is_deleting();
        let pair = (volume.uid().to_owned(), claim.uid()?.to_owned());
        (is_moved && is_live && !volume.is_snapshot()).then_some((pair, volume, claim))
    }

    /// Reads from the API server whether a claim has the PersistentVolume of a volume.
    async fn has_volume(&self, claim: &CachedClaim, volume: &LogicalVolume) -> Result<bool, ReconcileError> {
        let api: Api<PersistentVolume> = Api::all(self.shared.client.clone());
        // Listing is all that the ClusterRole allows
        let named = ListParams::default().fields(&format!("metadata.name={}", volume.name()));
        let found = api.list(&named).await.map_err(ReconcileError::api("read PersistentVolume", volume.name()))?;
        let Some(persistent) = found.items.into_iter().next() else { return Ok(false) };
        let owner = persistent.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
        let is_bound = owner.is_some_and(|owner| owner.uid.is_some() && owner.uid.as_deref() == claim.uid());
        Ok(is_bound && self.claim_of(&persistent).is_some_and(|(id, _)| volume.volume_id() == Some(id)))
    }

    /// Lists the PersistentVolumes, if there are volumes without a claim, and annotates these.
    async fn search(&self, searches: &mut Searches) -> Result<(), ReconcileError> {
        let mut wanted = self.volumes_without_claim();
        let uids: HashSet<&str> = wanted.values().map(|volume| volume.uid()).collect();
        searches.retain(|uid, _| uids.contains(uid.as_str()));
        wanted.retain(|_, volume| searches.get(volume.uid()).is_none_or(|&count| count < MAX_SEARCHES));
        if wanted.is_empty() {
            return Ok(());
        }
        let api: Api<PersistentVolume> = Api::all(self.shared.client.clone());
        let mut found = pin!(list_in_pages(&api, ListParams::default().limit(PAGE)));
        let unlisted = |error| ReconcileError::api("list", "the PersistentVolumes")(error);
        while let Some(persistent) = found.try_next().await.map_err(unlisted)? {
            let Some((id, claim)) = self.claim_of(&persistent) else { continue };
            let Some(volume) = wanted.remove(id) else { continue };
            if let Err(error) = self.shared.metrics.observe("claimannotation", self.annotate(&volume, &claim)).await {
                let volume = volume.name();
                tracing::warn!(volume, error = error_chain(&error), "cannot write the claim; trying again later");
            }
        }
        for volume in wanted.values() {
            let count = searches.entry(volume.uid().to_owned()).or_default();
            *count = count.saturating_add(1);
        }
        Ok(())
    }

    /// Returns the volumes that do not name their claim, by volume id. Snapshots have none.
    fn volumes_without_claim(&self) -> HashMap<String, Arc<LogicalVolume>> {
        let is_wanted = |volume: &LogicalVolume| {
            !volume.is_snapshot() && !volume.is_deleting() && volume.claim(self.shared.flavor).is_none()
        };
        let volumes = self.shared.volumes.cache.state().into_iter().filter(|volume| is_wanted(volume));
        volumes.filter_map(|volume| Some((volume.volume_id()?.to_owned(), volume))).collect()
    }

    /// Returns the id of the volume that a PersistentVolume of this driver refers to, and its claim as the annotation
    /// has it.
    fn claim_of<'a>(&self, persistent: &'a PersistentVolume) -> Option<(&'a str, String)> {
        let spec = persistent.spec.as_ref()?;
        let csi = spec.csi.as_ref().filter(|csi| csi.driver == self.shared.flavor.driver_name())?;
        let claim = spec.claim_ref.as_ref()?;
        let (namespace, name) = (claim.namespace.as_deref()?, claim.name.as_deref()?);
        Some((&csi.volume_handle, format!("{namespace}/{name}")))
    }

    /// Writes the claim to a LogicalVolume.
    async fn annotate(&self, volume: &LogicalVolume, claim: &str) -> Result<(), ReconcileError> {
        let api: Api<LogicalVolume> = Api::all_with(self.shared.client.clone(), &self.shared.flavor);
        let patch = json_patch(set_annotation(&volume.metadata, self.shared.flavor.claim(), claim));
        let written = api.patch(volume.name(), &PatchParams::default(), &patch).await;
        none_if_not_found(written).map_err(ReconcileError::api("annotate LogicalVolume", volume.name()))?;
        tracing::debug!(volume = volume.name(), claim, "wrote the claim to the LogicalVolume");
        Ok(())
    }
}

fn interval(period: Duration) -> Interval {
    let mut ticks = tokio::time::interval(period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

#[cfg(test)]
mod tests;
