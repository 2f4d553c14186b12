//! `undelete`: recreates LogicalVolumes whose objects are being deleted, or are gone, while something refers to their
//! volumes. It changes only objects, no LV.
//!
//! Kubernetes cannot undo a deletion. So the object goes without its agent, which ignores the LV as long as something
//! refers to the volume, and is recreated with the same content and the request to get that very LV.

mod args;
mod definition;
mod plan;

use std::time::Duration;

use cli_runtime::connection::Cluster;
use cli_runtime::output::{self, OutputError};
use cli_runtime::request::{self, RequestError, RequestResult};
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use kube::runtime::wait::{await_condition, conditions};
use serde_json::json;
use topolvm_api::LogicalVolume;

pub(crate) use self::args::UndeleteFlags;
use self::plan::{Facts, Restoration};
use crate::error::{Error, UndeleteError};
use crate::orphans::{self, failed};

/// Time in which an object goes when its last finalizer is off.
const GOES: Duration = Duration::from_mins(1);

/// Takes deletions back. A second run goes on where the first one ended.
pub(crate) async fn run(cluster: &Cluster, flags: &UndeleteFlags) -> Result<(), Error> {
    let facts = Facts::read(cluster).await?;
    let mut restorations = facts.restorations(cluster.flavor)?;
    if !flags.all {
        restorations = select(restorations, &flags.names)?;
    }
    if restorations.is_empty() {
        return Ok(output::print("No LogicalVolume needs to be recreated\n")?);
    }
    for restoration in &restorations {
        output::print(&format!("{restoration}\n"))?;
    }
    if flags.dry_run {
        return Ok(());
    }
    if !flags.all && definition::is_deleted(cluster).await? {
        return Err(UndeleteError::DefinitionDeleted.into());
    }
    let api: Api<LogicalVolume> = Api::all_with(cluster.client.clone(), &cluster.flavor);
    for restoration in &restorations {
        release(cluster, &api, restoration).await?;
    }
    definition::restore(cluster).await?;
    for restoration in &restorations {
        restore(cluster, &api, restoration).await?;
    }
    Ok(())
}

/// Selects the restorations of these LogicalVolumes.
fn select(restorations: Vec<Restoration>, names: &[String]) -> Result<Vec<Restoration>, UndeleteError> {
    let is_known = |name: &&String| restorations.iter().any(|known| known.object.name() == name.as_str());
    if let Some(unknown) = names.iter().find(|name| !is_known(name)) {
        return Err(UndeleteError::NothingToRestore(unknown.clone()));
    }
    Ok(restorations.into_iter().filter(|known| names.iter().any(|name| name == known.object.name())).collect())
}

/// Lets the deleted object go.
async fn release(cluster: &Cluster, api: &Api<LogicalVolume>, restoration: &Restoration) -> Result<(), Error> {
    let Some(deleted) = &restoration.deleted else { return Ok(()) };
    let (name, finalizer) = (deleted.name(), cluster.flavor.logical_volume_finalizer());
    let others = || deleted.metadata.finalizers.iter().flatten().filter(|other| *other != finalizer);
    if let Some(other) = others().next() {
        return Err(UndeleteError::OtherFinalizer { name: name.to_owned(), finalizer: other.clone() }.into());
    }
    let operations = json!([
        {"op": "test", "path": "/metadata/uid", "value": deleted.uid()},
        {"op": "test", "path": "/metadata/finalizers", "value": [finalizer]},
        {"op": "remove", "path": "/metadata/finalizers"},
    ]);
    let patch = Patch::<LogicalVolume>::Json(serde_json::from_value(operations).map_err(OutputError::Json)?);
    match api.patch(name, &PatchParams::default(), &patch).await {
        Err(kube::Error::Api(status)) if status.code == 404 => return Ok(()),
        patched => patched.map_err(|error| failed(cluster, "patch", error))?,
    };
    let gone = await_condition(api.clone(), name, conditions::is_deleted(deleted.uid()));
    match tokio::time::timeout(GOES, gone).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(_)) | Err(_) => Err(UndeleteError::Stays(name.to_owned()).into()),
    }
}

/// Makes the object new, and waits until it has its LV.
async fn restore(cluster: &Cluster, api: &Api<LogicalVolume>, restoration: &Restoration) -> Result<(), Error> {
    let object = &restoration.object;
    match api.create(&PostParams::default(), object).await {
        // Of an earlier run, or of a backup tool, which waits for an administrator
        Err(kube::Error::Api(status)) if status.code == 409 => request_lv(cluster, api, object).await?,
        created => drop(created.map_err(|error| failed(cluster, "create", error))?),
    }
    let restored = orphans::await_lv(api, object.name()).await?;
    Ok(output::print(&format!("LogicalVolume {} owns LV {}\n", restored.name(), restored.lv_name()))?)
}

/// Has an object that has no volume yet ask for the LV.
async fn request_lv(cluster: &Cluster, api: &Api<LogicalVolume>, wanted: &LogicalVolume) -> RequestResult<()> {
    let name = wanted.name();
    let found = api.get(name).await.map_err(|error| failed(cluster, "get", error))?;
    if found.volume_id().is_some() {
        return Ok(());
    }
    let annotations = json!({cluster.flavor.adopt(): wanted.annotation(cluster.flavor.adopt())});
    let patch = Patch::Merge(json!({"metadata": {"uid": found.uid(), "annotations": annotations}}));
    let patched = api.patch(name, &PatchParams::default(), &patch).await;
    patched.map(drop).map_err(|error| failed(cluster, "patch", error))
}

/// Lists the LogicalVolumes; none where their definition is gone.
async fn list_volumes(cluster: &Cluster) -> RequestResult<Vec<LogicalVolume>> {
    let api: Api<LogicalVolume> = Api::all_with(cluster.client.clone(), &cluster.flavor);
    match request::list(&api, &cluster.flavor, "").await {
        Err(RequestError::Absent { .. }) => Ok(Vec::new()),
        listed => listed,
    }
}

#[cfg(test)]
mod tests;
