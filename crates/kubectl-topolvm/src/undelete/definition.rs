//! The CustomResourceDefinitions: one that is being deleted accepts no new objects, and is recreated when it has gone.

use std::time::Duration;

use cli_runtime::connection::Cluster;
use cli_runtime::output;
use cli_runtime::request::{self, RequestResult};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::runtime::wait::{await_condition, conditions};
use kube::{Api, ResourceExt as _};

use crate::error::UndeleteError;

/// Time in which a definition goes whose objects have gone, and in which a new one is served.
const CHANGES: Duration = Duration::from_mins(1);

/// Returns whether the definition of `LogicalVolume` is being deleted, or gone.
pub(super) async fn is_deleted(cluster: &Cluster) -> RequestResult<bool> {
    let found = read(cluster, &topolvm_api::crd(cluster.flavor).name_any()).await?;
    Ok(found.is_none_or(|found| found.metadata.deletion_timestamp.is_some()))
}

/// Makes the definitions again that are being deleted, or gone.
pub(super) async fn restore(cluster: &Cluster) -> Result<(), crate::error::Error> {
    let flavor = cluster.flavor;
    let definitions =
        [topolvm_api::crd(flavor), topolvm_api::node_storage_crd(flavor), topolvm_api::disk_operation_crd(flavor)];
    for definition in definitions {
        let name = definition.name_any();
        let api: Api<CustomResourceDefinition> = Api::all(cluster.client.clone());
        if let Some(found) = read(cluster, &name).await? {
            if found.metadata.deletion_timestamp.is_none() {
                continue;
            }
            output::print(&format!("CustomResourceDefinition {name} is being deleted; waiting until it is deleted\n"))?;
            let uid = found.uid().unwrap_or_default();
            let gone = await_condition(api.clone(), &name, conditions::is_deleted(&uid));
            if !matches!(tokio::time::timeout(CHANGES, gone).await, Ok(Ok(_))) {
                return Err(UndeleteError::DefinitionStays(name).into());
            }
        }
        create(&api, &definition).await?;
        let served = await_condition(api, &name, conditions::is_crd_established());
        if !matches!(tokio::time::timeout(CHANGES, served).await, Ok(Ok(_))) {
            return Err(UndeleteError::NotServed(name).into());
        }
        output::print(&format!("CustomResourceDefinition {name} is recreated\n"))?;
    }
    Ok(())
}

async fn create(api: &Api<CustomResourceDefinition>, definition: &CustomResourceDefinition) -> RequestResult<()> {
    match request::create(api, definition).await {
        // Whatever deploys it was faster
        Err(_) if matches!(request::get(api, &definition.name_any()).await, Ok(Some(_))) => Ok(()),
        created => created.map(drop),
    }
}

async fn read(cluster: &Cluster, name: &str) -> RequestResult<Option<CustomResourceDefinition>> {
    request::get(&Api::all(cluster.client.clone()), name).await
}
