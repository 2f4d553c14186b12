//! Deletes the DiskOperations of a deleted Node: its agent, which holds those under way, may not exist any more.
//!
//! An evacuation that LVM has on record goes on when the disks come back with a Node of this name.

use kube::api::{DeleteParams, PatchParams, Preconditions};
use kube::{Api, ResourceExt as _};
use topolvm_api::DiskOperation;
use topolvm_kube::{ReconcileError, json_patch, list_selected, none_if_deleted, none_if_not_found, remove_finalizers};

use super::NodeDeletion;

impl NodeDeletion {
    /// Deletes the operations of a node; there are none where the API server does not know them.
    pub(super) async fn delete_disk_operations(&self, node: &str) -> Result<(), ReconcileError> {
        let flavor = self.shared.flavor;
        let api: Api<DiskOperation> = Api::all_with(self.shared.client.clone(), &flavor);
        let is_here = |operation: &DiskOperation| operation.spec.node_name == node;
        let listed = list_selected(&api, &format!("spec.nodeName={node}"), is_here).await;
        let listed = none_if_not_found(listed).map_err(ReconcileError::api("list the DiskOperations of Node", node))?;
        for operation in listed.into_iter().flatten() {
            let name = operation.name_any();
            let removal = remove_finalizers(&operation.metadata, &[flavor.disk_operation_finalizer()]);
            if !removal.is_empty() {
                let written = api.patch(&name, &PatchParams::default(), &json_patch(removal)).await;
                none_if_not_found(written).map_err(ReconcileError::api("release DiskOperation", &name))?;
            }
            let exactly = Preconditions { uid: operation.uid(), resource_version: None };
            let gone = api.delete(&name, &DeleteParams::default().preconditions(exactly)).await;
            none_if_deleted(gone).map_err(ReconcileError::api("delete DiskOperation", &name))?;
            tracing::info!(node, operation = name, "deleted a DiskOperation of a deleted Node");
        }
        Ok(())
    }
}
