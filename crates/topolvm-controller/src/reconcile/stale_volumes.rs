//! Lets volumes go that wait for a node which is not there any more.
//!
//! A volume is removed by the agent of its node, whose finalizer holds the object meanwhile. Where the Node object is gone nobody will ever
//! do that, and external-provisioner asks for the deletion for ever. After a day the object is let go. This is about objects that somebody
//! has deleted already: nothing is deleted here.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, PersistentVolume};
use kube::api::{ListParams, PatchParams};
use kube::{Api, Client, Resource as _, ResourceExt as _};
use topolvm_api::{ApiFlavor, LogicalVolume};
use topolvm_kube::ReconcileMetrics;
use topolvm_runtime::error_chain;

use super::error::{Error, present};
use super::events::Events;
use super::finalizers;
use crate::volume_informer::VolumeWatch;

/// Objects per answer where all have to be listed.
const PAGE: u32 = 500;

/// Looks for stale volumes from time to time.
pub(super) struct StaleVolumes {
    pub(super) client: Client,
    pub(super) flavor: ApiFlavor,
    /// A volume that has been leaving for so long is stale.
    pub(super) period: Duration,
    /// How often to look.
    pub(super) interval: Duration,
    pub(super) volumes: VolumeWatch,
    pub(super) events: Events,
    pub(super) metrics: ReconcileMetrics,
    /// The wall clock.
    pub(super) now: fn() -> Timestamp,
}

/// What becomes of a stale volume.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Verdict {
    /// Nobody will remove it.
    LetGo,
    /// Somebody must look at it, and this is why.
    Keep(String),
    /// It is gone, or no longer stale.
    Nothing,
}

impl StaleVolumes {
    /// Looks now, and then every interval.
    pub(super) async fn run(self) {
        let mut ticks = tokio::time::interval(self.interval);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            for name in self.volumes.names() {
                if !self.volumes.get(&name).is_some_and(|volume| self.is_stale(&volume)) {
                    continue;
                }
                if let Err(error) = self.metrics.observed("stalelogicalvolume", self.step(&name)).await {
                    tracing::warn!(volume = name, error = error_chain(&error), "cannot clean up; trying again later");
                }
            }
        }
    }

    /// It has been on its way out for too long, and our finalizer is what holds it.
    fn is_stale(&self, volume: &LogicalVolume) -> bool {
        let since = volume.metadata.deletion_timestamp.as_ref();
        let waited = since.map(|since| (self.now)().duration_since(since.0));
        waited.and_then(|waited| Duration::try_from(waited).ok()).is_some_and(|waited| waited >= self.period)
            && volume.has_finalizer(self.flavor.logical_volume_finalizer())
    }

    async fn step(&self, name: &str) -> Result<(), Error> {
        let api: Api<LogicalVolume> = Api::all_with(self.client.clone(), &self.flavor);
        let volume = api.get_opt(name).await.map_err(Error::api("read LogicalVolume", name))?;
        let Some(volume) = volume.filter(|volume| self.is_stale(volume)) else {
            return Ok(());
        };
        let (about, node) = (volume.object_ref(&self.flavor), volume.spec.node_name.as_str());
        match self.judge(&volume).await? {
            Verdict::LetGo => {
                let operations = finalizers::removal(&volume.metadata, &[self.flavor.logical_volume_finalizer()]);
                let written = api.patch(name, &PatchParams::default(), &finalizers::patch(operations)?).await;
                present(written).map_err(Error::api("let go of LogicalVolume", name))?;
                tracing::info!(volume = name, uid = volume.uid(), node, "let go of a stale LogicalVolume");
                let note = format!("the volume is forgotten: it was deleted long ago, and its Node {node} is gone");
                self.events.normal(&about, "StaleVolumeForgotten", "DeleteVolume", note).await;
            }
            Verdict::Keep(why) => {
                tracing::warn!(volume = name, node, why, "a deleted volume does not go");
                self.events.warning(&about, "StaleVolume", "DeleteVolume", why).await;
            }
            Verdict::Nothing => {}
        }
        Ok(())
    }

    async fn judge(&self, volume: &LogicalVolume) -> Result<Verdict, Error> {
        let node = &volume.spec.node_name;
        let nodes: Api<Node> = Api::all(self.client.clone());
        let its_node = nodes.get_metadata_opt(node).await.map_err(Error::api("read Node", node))?;
        match its_node {
            // Its controller does the same at once
            Some(its_node) if its_node.metadata.deletion_timestamp.is_some() => return Ok(Verdict::Nothing),
            Some(_) => {
                return Ok(Verdict::Keep(format!(
                    "the volume was deleted long ago and is still there; is topolvm-node running on Node {node}, and what does its log \
                     say? If the node is lost for good, delete the Node object"
                )));
            }
            None => {}
        }
        Ok(match self.wanted_by(volume).await? {
            None => Verdict::LetGo,
            Some(persistent) => Verdict::Keep(format!(
                "Node {node} of the deleted volume is gone, but PersistentVolume {persistent} still refers to the volume; delete its \
                 claim, or the PersistentVolume if nobody needs it"
            )),
        })
    }

    /// A PersistentVolume that has the volume and does not itself wait for its removal.
    async fn wanted_by(&self, volume: &LogicalVolume) -> Result<Option<String>, Error> {
        let Some(id) = volume.volume_id() else {
            // Never made, so that nothing can refer to it
            return Ok(None);
        };
        let api: Api<PersistentVolume> = Api::all(self.client.clone());
        let mut page = ListParams::default().limit(PAGE);
        loop {
            let list = api.list(&page).await.map_err(Error::api("list", "the PersistentVolumes"))?;
            let wants = |persistent: &&PersistentVolume| self.is_of(persistent, id) && !waits_for_removal(persistent);
            if let Some(persistent) = list.items.iter().find(wants) {
                return Ok(Some(persistent.name_any()));
            }
            match list.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => page = page.continue_token(&token),
                None => return Ok(None),
            }
        }
    }

    fn is_of(&self, persistent: &PersistentVolume, id: &str) -> bool {
        let csi = persistent.spec.as_ref().and_then(|spec| spec.csi.as_ref());
        csi.is_some_and(|csi| csi.driver == self.flavor.driver_name() && csi.volume_handle == id)
    }
}

/// Its claim is gone and its volume is to be deleted, which external-provisioner tries again and again.
fn waits_for_removal(persistent: &PersistentVolume) -> bool {
    let policy = persistent.spec.as_ref().and_then(|spec| spec.persistent_volume_reclaim_policy.as_deref());
    let phase = persistent.status.as_ref().and_then(|status| status.phase.as_deref());
    policy == Some("Delete") && matches!(phase, Some("Released" | "Failed"))
}

#[cfg(test)]
mod tests;
