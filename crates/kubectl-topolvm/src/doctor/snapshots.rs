//! Reads VolumeSnapshots and their classes, which not each cluster has.

use cli_runtime::request;
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Api, Client};
use serde::de::DeserializeOwned;
use topolvm_api::SNAPSHOT_GROUP;
use topolvm_doctor::{Facts, ReadResult};

use super::answer::fact;

/// Reads what there is of snapshots.
pub(super) async fn read(client: &Client, facts: &mut Facts) {
    let served = request::served_resources(client, &format!("{SNAPSHOT_GROUP}/v1")).await;
    let served = fact(served).map(|all| all.into_iter().map(|resource| resource.name).collect::<Vec<_>>());
    let names = served.clone().unwrap_or_default();
    facts.snapshot_resources = served;
    facts.snapshot_classes = list(client, &names, "volumesnapshotclasses", "VolumeSnapshotClass").await;
    facts.snapshots = list(client, &names, "volumesnapshots", "VolumeSnapshot").await;
    facts.snapshot_contents = list(client, &names, "volumesnapshotcontents", "VolumeSnapshotContent").await;
}

/// Lists the objects of a kind if it is served. One that has another form than it should is left out.
async fn list<T: DeserializeOwned>(client: &Client, served: &[String], plural: &str, kind: &str) -> ReadResult<Vec<T>> {
    if !served.iter().any(|name| name == plural) {
        return Ok(Vec::new());
    }
    let kind = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(SNAPSHOT_GROUP, "v1", kind), plural);
    let api = Api::<DynamicObject>::all_with(client.clone(), &kind);
    let objects = fact(request::list(&api, &kind, "").await)?;
    let parse = |object| serde_json::from_value(serde_json::to_value(object).ok()?).ok();
    Ok(objects.into_iter().filter_map(parse).collect())
}
