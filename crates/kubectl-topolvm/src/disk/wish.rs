//! Writes wishes about disks: annotations of the NodeStorage of their node.

use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use topolvm_api::{DiskWish, NodeStorage};

use crate::connection::Cluster;
use crate::error::{DiskError, Error};
use crate::request::{RequestError, resource};

/// Most tries to write a list that others write, too.
const TRIES: usize = 10;

/// Wishes something of a disk of a volume group, instead of what was wished of it before.
pub(super) async fn write(cluster: &Cluster, storage: &NodeStorage, uuid: &str, wish: DiskWish) -> Result<(), Error> {
    let key = cluster.flavor.disk_wish(uuid);
    let metadata = json!({"uid": storage.metadata.uid, "annotations": {key: wish.to_string()}});
    match patch(cluster, storage.name(), metadata).await {
        Ok(()) => Ok(()),
        Err(error) => Err(request_error(cluster, error).into()),
    }
}

/// Wishes that a blank disk is added, beside those that are to be added already.
pub(super) async fn write_addition(cluster: &Cluster, node: &str, name: &str) -> Result<(), Error> {
    if name.contains([',', ' ']) {
        return Err(DiskError::Name(name.to_owned()).into());
    }
    for _ in 0..TRIES {
        let storage = super::get(cluster, node).await?;
        let mut names = storage.disks_to_add(cluster.flavor);
        if names.contains(&name) {
            return Ok(());
        }
        names.push(name);
        let version = &storage.metadata.resource_version;
        let annotations = json!({cluster.flavor.add_disks(): names.join(",")});
        match patch(cluster, node, json!({"resourceVersion": version, "annotations": annotations})).await {
            // Somebody has changed it meanwhile
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            Err(error) => return Err(request_error(cluster, error).into()),
            Ok(()) => return Ok(()),
        }
    }
    Err(DiskError::Busy(node.to_owned()).into())
}

async fn patch(cluster: &Cluster, node: &str, metadata: Value) -> kube::Result<()> {
    let api: Api<NodeStorage> = Api::all_with(cluster.client.clone(), &cluster.flavor);
    let patch = Patch::Merge(json!({ "metadata": metadata }));
    api.patch_metadata(node, &PatchParams::default(), &patch).await.map(drop)
}

fn request_error(cluster: &Cluster, error: kube::Error) -> RequestError {
    RequestError::new("patch", resource::<NodeStorage>(&cluster.flavor), error)
}
