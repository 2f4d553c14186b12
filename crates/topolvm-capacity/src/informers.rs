//! Watches the objects from which capacity and reservations follow. A program takes those that it does not watch
//! anyway.

use kube::{Api, Client};
use topolvm_api::ApiFlavor;
use topolvm_kube::watch_all;
use topolvm_runtime::CancellationToken;

use crate::capacity::Capacity;

/// Watches the metadata of Nodes until `shutdown` is cancelled.
pub async fn watch_nodes(capacity: Capacity, client: Client, shutdown: CancellationToken) -> anyhow::Result<()> {
    watch_all("Nodes", Api::all(client), shutdown, move |event| capacity.apply_node(&event)).await
}

/// Watches `LogicalVolume`s until `shutdown` is cancelled.
pub async fn watch_volumes(
    capacity: Capacity,
    flavor: ApiFlavor,
    client: Client,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    let api = Api::all_with(client, &flavor);
    watch_all("LogicalVolumes", api, shutdown, move |event| capacity.apply_volume(&event)).await
}

/// Watches PersistentVolumeClaims until `shutdown` is cancelled.
pub async fn watch_claims(capacity: Capacity, client: Client, shutdown: CancellationToken) -> anyhow::Result<()> {
    let apply = move |event| drop(capacity.apply_claim(&event));
    watch_all("PersistentVolumeClaims", Api::all(client), shutdown, apply).await
}

/// Watches StorageClasses until `shutdown` is cancelled.
pub async fn watch_classes(capacity: Capacity, client: Client, shutdown: CancellationToken) -> anyhow::Result<()> {
    watch_all("StorageClasses", Api::all(client), shutdown, move |event| capacity.apply_class(&event)).await
}
