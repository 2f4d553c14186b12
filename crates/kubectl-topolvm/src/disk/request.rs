//! Creates, finds and deletes DiskOperations.

use cli_runtime::connection::Cluster;
use cli_runtime::request::{self, RequestError, RequestResult, resource};
use kube::Api;
use kube::api::{DeleteParams, PostParams, Preconditions};
use topolvm_api::{DiskOperation, DiskOperationSpec, DiskOperationType, format_bytes};

/// Returns the spec of an operation of this type for a disk of a node.
pub(super) fn spec(
    node: &str,
    type_: DiskOperationType,
    disk: &str,
    bytes_per_second: Option<u64>,
) -> DiskOperationSpec {
    DiskOperationSpec {
        node_name: node.to_owned(),
        disk: disk.to_owned(),
        type_,
        max_bytes_per_second: bytes_per_second.map(format_bytes),
        ..DiskOperationSpec::default()
    }
}

/// Creates an operation, and returns it with its name.
pub(super) async fn create(cluster: &Cluster, spec: DiskOperationSpec) -> RequestResult<DiskOperation> {
    let operation = DiskOperation::new(cluster.flavor, spec);
    let created = api(cluster).create(&PostParams::default(), &operation).await;
    created.map_err(|error| RequestError::new("create", resource::<DiskOperation>(&cluster.flavor), error))
}

/// Lists the operations of a node, or of all; none where the API server does not know them, because the manifests are
/// older.
pub(super) async fn list(cluster: &Cluster, node: Option<&str>) -> RequestResult<Vec<DiskOperation>> {
    let mut operations = match request::list(&api(cluster), &cluster.flavor, "").await {
        Err(RequestError::Absent { .. }) => Vec::new(),
        listed => listed?,
    };
    operations.retain(|operation| node.is_none_or(|node| operation.spec.node_name == node));
    Ok(operations)
}

/// Finds the unfinished operation that evacuates the disk of this UUID.
pub(super) async fn find_evacuation(cluster: &Cluster, node: &str, uuid: &str) -> RequestResult<Option<DiskOperation>> {
    let operations = list(cluster, Some(node)).await?;
    let is_it = |operation: &DiskOperation| {
        let is_under_way = operation.spec.type_.is_evacuation() && !operation.phase().is_final();
        is_under_way && operation.disk_uuid().unwrap_or(&operation.spec.disk) == uuid
    };
    Ok(operations.into_iter().find(is_it))
}

/// Deletes an operation, and no other of its name.
pub(super) async fn delete(cluster: &Cluster, operation: &DiskOperation) -> RequestResult<()> {
    let exactly = Preconditions { uid: operation.metadata.uid.clone(), resource_version: None };
    let params = DeleteParams::default().preconditions(exactly);
    match api(cluster).delete(operation.name(), &params).await {
        Ok(_) => Ok(()),
        // It has finished meanwhile, and its time was over
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
        Err(error) => Err(RequestError::new("delete", resource::<DiskOperation>(&cluster.flavor), error)),
    }
}

pub(super) fn api(cluster: &Cluster) -> Api<DiskOperation> {
    Api::all_with(cluster.client.clone(), &cluster.flavor)
}
