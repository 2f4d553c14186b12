//! Names Nodes without a default device class, while a StorageClass relies on it.
//!
//! A StorageClass that names no device class means the default one of each node. A node whose lvmd.yaml marks none
//! publishes 0 bytes for it, or, with agents of TopoLVM, nothing: volumes of the StorageClass never fit there, and the
//! reason that kube-scheduler shows reads as if the node were full.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::ListParams;
use kube::{Api, Resource as _, ResourceExt};
use prometheus_client::metrics::gauge::Gauge;
use topolvm_capacity::NodeMeta;
use topolvm_kube::ReconcileError;
use topolvm_runtime::error_chain;

use super::Controllers;

/// Pause between two checks, which ask the API server nothing while each node has a default class.
const INTERVAL: Duration = Duration::from_mins(5);

/// The controller of default device classes.
pub(super) struct DefaultClass {
    pub(super) shared: Controllers,
}

impl DefaultClass {
    /// Checks now, and then every interval.
    pub(super) async fn run(self) {
        // False only when the process ends
        if !self.shared.nodes.cache.wait_until_listed().await {
            return;
        }
        let _cleared = ClearNumber(self.shared.scheduling.nodes_without_default_class.clone());
        let mut ticks = tokio::time::interval(INTERVAL);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            if let Err(error) = self.shared.metrics.observe("defaultclass", self.reconcile()).await {
                tracing::warn!(error = error_chain(&error), "cannot check the default device classes");
            }
        }
    }

    async fn reconcile(&self) -> Result<(), ReconcileError> {
        let mut nodes = self.shared.nodes.without_default_class();
        let relying = if nodes.is_empty() { None } else { self.find_relying_class().await? };
        let Some(relying) = relying else {
            self.shared.scheduling.nodes_without_default_class.set(0);
            return Ok(());
        };
        self.shared.scheduling.nodes_without_default_class.set(i64::try_from(nodes.len()).unwrap_or(i64::MAX));
        nodes.sort_by_key(|(node, _)| node.name_any());
        for (node, classes) in nodes {
            self.report(&node, &classes, &relying).await;
        }
        Ok(())
    }

    async fn report(&self, node: &Arc<NodeMeta>, classes: &[String], storage_class: &str) {
        let (name, classes) = (node.name_any(), classes.join(", "));
        tracing::warn!(node = name, classes, storage_class, "a Node has no default device class");
        let parameter = self.shared.flavor.device_class_parameter();
        let note = format!(
            "the node has no default device class (only {classes}), and StorageClass {storage_class} names no device \
             class, so its volumes cannot be created here; set default: true for a class in lvmd.yaml, or set the \
             parameter {parameter} in another StorageClass"
        );
        let about = node.object_ref(&());
        self.shared.events.publish_warning(&about, "NoDefaultDeviceClass", "CheckDeviceClasses", note).await;
    }

    /// Finds a StorageClass of this driver that names no device class, the first by name.
    async fn find_relying_class(&self) -> Result<Option<String>, ReconcileError> {
        let api: Api<StorageClass> = Api::all(self.shared.client.clone());
        let list = api.list(&ListParams::default()).await.map_err(ReconcileError::api("list", "the StorageClasses"))?;
        let parameter = self.shared.flavor.device_class_parameter();
        let is_relying = |class: &StorageClass| {
            let named = class.parameters.as_ref().and_then(|parameters| parameters.get(parameter));
            class.provisioner == self.shared.flavor.driver_name() && named.is_none_or(String::is_empty)
        };
        Ok(list.items.iter().filter(|class| is_relying(class)).map(ResourceExt::name_any).min())
    }
}

/// Sets the metric to 0 when it is dropped: another replica leads then, and finds out itself.
struct ClearNumber(Gauge);

impl Drop for ClearNumber {
    fn drop(&mut self) {
        self.0.set(0);
    }
}

#[cfg(test)]
mod tests;
