//! Removes the finalizer from deleted volumes whose node does not exist any more.
//!
//! A volume is removed by the agent of its node, whose finalizer holds the object meanwhile. If the Node object is
//! gone, no agent will ever do that, and external-provisioner retries the deletion forever. After a day the finalizer
//! is removed. The controller changes only objects that are already being deleted: it deletes nothing.

use std::future;
use std::pin::pin;
use std::time::Duration;

use futures::TryStreamExt as _;
use k8s_openapi::api::core::v1::{Node, PersistentVolume};
use kube::api::{ListParams, PatchParams};
use kube::{Api, Resource as _, ResourceExt as _};
use topolvm_api::{LogicalVolume, refers_to, waits_for_removal};
use topolvm_kube::{ReconcileError, json_patch, list_in_pages, none_if_not_found, remove_finalizers};
use topolvm_runtime::error_chain;

use super::Controllers;

/// The controller of stale volumes.
pub(super) struct StaleVolumes {
    pub(super) shared: Controllers,
}

/// The action for a stale volume.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Action {
    /// Remove the finalizer: no other component will.
    RemoveFinalizer,
    /// Warn the user, with this reason.
    Warn(String),
    /// Nothing: another controller takes the finalizer off.
    Skip,
}

impl StaleVolumes {
    /// Searches now, and then every interval.
    pub(super) async fn run(self) {
        let mut ticks = tokio::time::interval(self.shared.cleanup.cleanup_interval);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            for name in self.shared.volumes.cache.names() {
                if !self.shared.volumes.cache.get(&name).is_some_and(|volume| self.is_stale(&volume)) {
                    continue;
                }
                if let Err(error) = self.shared.metrics.observe("stalelogicalvolume", self.reconcile(&name)).await {
                    tracing::warn!(volume = name, error = error_chain(&error), "cannot clean up; trying again later");
                }
            }
        }
    }

    /// Returns whether the volume was deleted longer ago than the period and has our finalizer.
    fn is_stale(&self, volume: &LogicalVolume) -> bool {
        let since = volume.metadata.deletion_timestamp.as_ref();
        let waited = since.map(|since| (self.shared.now)().duration_since(since.0));
        waited
            .and_then(|waited| Duration::try_from(waited).ok())
            .is_some_and(|waited| waited >= self.shared.cleanup.stale_period)
            && volume.has_finalizer(self.shared.flavor.logical_volume_finalizer())
    }

    /// Takes the finalizer off a stale volume, or warns the user.
    async fn reconcile(&self, name: &str) -> Result<(), ReconcileError> {
        let api: Api<LogicalVolume> = Api::all_with(self.shared.client.clone(), &self.shared.flavor);
        let volume = api.get_opt(name).await.map_err(ReconcileError::api("read LogicalVolume", name))?;
        let Some(volume) = volume.filter(|volume| self.is_stale(volume)) else {
            return Ok(());
        };
        let (about, node) = (volume.object_ref(&self.shared.flavor), volume.spec.node_name.as_str());
        match self.choose_action(&volume).await? {
            Action::RemoveFinalizer => {
                let patch =
                    json_patch(remove_finalizers(&volume.metadata, &[self.shared.flavor.logical_volume_finalizer()]));
                let written = api.patch(name, &PatchParams::default(), &patch).await;
                none_if_not_found(written)
                    .map_err(ReconcileError::api("remove the finalizer from LogicalVolume", name))?;
                tracing::info!(
                    volume = name,
                    uid = volume.uid(),
                    node,
                    "removed the finalizer from a stale LogicalVolume"
                );
                let note =
                    format!("the LogicalVolume is removed: it was deleted long ago, and its Node {node} is gone");
                self.shared.events.publish_normal(&about, "StaleVolumeForgotten", "DeleteVolume", note).await;
            }
            Action::Warn(why) => {
                tracing::warn!(volume = name, node, why, "a deleted LogicalVolume still exists");
                self.shared.events.publish_warning(&about, "StaleVolume", "DeleteVolume", why).await;
            }
            Action::Skip => {}
        }
        Ok(())
    }

    /// Chooses what to do about a stale volume, from its Node and the PersistentVolume that refers to it.
    async fn choose_action(&self, volume: &LogicalVolume) -> Result<Action, ReconcileError> {
        let node = &volume.spec.node_name;
        let nodes: Api<Node> = Api::all(self.shared.client.clone());
        let its_node = nodes.get_metadata_opt(node).await.map_err(ReconcileError::api("read Node", node))?;
        match its_node {
            // The controller of Nodes does the same at once
            Some(its_node) if its_node.metadata.deletion_timestamp.is_some() => return Ok(Action::Skip),
            Some(_) => {
                return Ok(Action::Warn(format!(
                    "the LogicalVolume was deleted long ago but still exists; check that topolvm-node runs on Node \
                     {node}, and check its log. If the node is permanently lost, delete the Node object"
                )));
            }
            None => {}
        }
        Ok(match self.find_persistent_volume(volume).await? {
            None => Action::RemoveFinalizer,
            Some(persistent) => Action::Warn(format!(
                "Node {node} of the deleted volume is gone, but PersistentVolume {persistent} still refers to the \
                 volume; delete its claim, or the PersistentVolume if its data is not needed"
            )),
        })
    }

    /// Finds the name of a PersistentVolume that refers to the volume and does not itself wait for its removal.
    async fn find_persistent_volume(&self, volume: &LogicalVolume) -> Result<Option<String>, ReconcileError> {
        let Some(id) = volume.volume_id() else {
            // Never made, so that nothing can refer to it
            return Ok(None);
        };
        let driver = self.shared.flavor.driver_name();
        let api: Api<PersistentVolume> = Api::all(self.shared.client.clone());
        let is_used =
            |persistent: &PersistentVolume| refers_to(persistent, driver, id) && !waits_for_removal(persistent);
        let mut used = pin!(
            list_in_pages(&api, ListParams::default()).try_filter(|persistent| future::ready(is_used(persistent)))
        );
        let found = used.try_next().await.map_err(ReconcileError::api("list", "the PersistentVolumes"))?;
        Ok(found.map(|persistent| persistent.name_any()))
    }
}

#[cfg(test)]
mod tests;
