//! The answer of `/api/storage`: volume groups with their disks and thin pools of a node, and their problems.
//!
//! The object of the node is read when a viewer opens the node. Nothing is kept.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::{Api, Client};
use serde::Serialize;
use tokio::time::timeout;
use topolvm_api::{
    ApiFlavor, EvacuationStatus, NodeStorage, PhysicalVolumeStatus, ThinPoolStatus, VolumeGroupStatus, parse_bytes,
};
use topolvm_runtime::error_chain;

/// Time for the API server to answer.
const DEADLINE: Duration = Duration::from_secs(3);

/// The storage of a node, or why nothing is known of it. Sizes are bytes.
#[derive(Debug, Default, Serialize)]
pub(crate) struct StorageAnswer {
    groups: Vec<Group>,
    pools: Vec<Pool>,
    problems: Vec<String>,
    /// None where all is known.
    unknown: Option<String>,
}

#[derive(Debug, Serialize)]
struct Group {
    name: String,
    size: u64,
    free: u64,
    disks: Vec<Disk>,
}

#[derive(Debug, Serialize)]
struct Disk {
    /// Empty for a missing one that lvmd has never seen.
    path: String,
    size: u64,
    free: u64,
    missing: bool,
    /// None if it is not to be emptied.
    #[serde(skip_serializing_if = "Option::is_none")]
    evacuation: Option<Evacuation>,
}

/// The progress of a disk that is emptied.
#[derive(Debug, Serialize)]
struct Evacuation {
    state: String,
    message: String,
    remaining: u64,
}

#[derive(Debug, Serialize)]
struct Pool {
    name: String,
    size: u64,
    /// Percent; none while it is not active.
    data: Option<u32>,
    metadata: Option<u32>,
}

/// Reads the storage of a node.
pub(crate) async fn read(client: Client, flavor: ApiFlavor, node: &str) -> StorageAnswer {
    let api = Api::<NodeStorage>::all_with(client, &flavor);
    let unknown = |reason: String| StorageAnswer { unknown: Some(reason), ..StorageAnswer::default() };
    match timeout(DEADLINE, api.get_opt(node)).await {
        Ok(Ok(Some(object))) => StorageAnswer::of(object),
        Ok(Ok(None)) => unknown(format!(
            "This node has no NodeStorage. Its agent creates it if the CustomResourceDefinition nodestorages.{flavor} \
             is installed."
        )),
        Ok(Err(error)) => unknown(format!("Cannot read the NodeStorage of this node: {}", error_chain(&error))),
        Err(_) => unknown(format!("The API server did not answer within {} s.", DEADLINE.as_secs())),
    }
}

impl StorageAnswer {
    fn of(object: NodeStorage) -> Self {
        let unknown = object.ready().filter(|ready| ready.status == "Unknown").map(|ready| ready.message.clone());
        let status = object.status.unwrap_or_default();
        Self {
            groups: status.volume_groups.into_iter().map(group).collect(),
            pools: status.thin_pools.iter().map(pool).collect(),
            problems: status.problems,
            unknown,
        }
    }
}

fn group(group: VolumeGroupStatus) -> Group {
    Group {
        name: group.name,
        size: bytes(group.size.as_ref()),
        free: bytes(group.free.as_ref()),
        disks: group.physical_volumes.into_iter().map(disk).collect(),
    }
}

fn disk(disk: PhysicalVolumeStatus) -> Disk {
    let PhysicalVolumeStatus { path, size, free, missing, evacuation, .. } = disk;
    let evacuation = evacuation.map(|EvacuationStatus { state, message, remaining, .. }| Evacuation {
        state,
        message,
        remaining: bytes(remaining.as_ref()),
    });
    Disk { path, size: bytes(size.as_ref()), free: bytes(free.as_ref()), missing, evacuation }
}

fn pool(pool: &ThinPoolStatus) -> Pool {
    Pool {
        name: format!("{}/{}", pool.volume_group, pool.name),
        size: bytes(pool.size.as_ref()),
        data: pool.data_percent,
        metadata: pool.metadata_percent,
    }
}

fn bytes(quantity: Option<&Quantity>) -> u64 {
    quantity.and_then(|quantity| parse_bytes(quantity).ok()).unwrap_or_default()
}
