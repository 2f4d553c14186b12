//! Applies and deletes objects, and waits for the effect.

use std::time::Duration;

use cli_runtime::request;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, Preconditions};
use kube::runtime::wait::{Condition, await_condition, conditions};
use kube::{Api, Client, Resource, ResourceExt as _};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::InstallError;
use super::object::{MANAGER, ObjectId, apply_error};
use super::plan::{Action, Step};

/// Timeout for the API server to serve a new CustomResourceDefinition.
const ESTABLISHED_TIMEOUT: Duration = Duration::from_mins(1);

/// Applies what the plan creates and changes, in its order.
pub(crate) async fn apply(client: &Client, steps: &[Step]) -> Result<(), InstallError> {
    for step in steps.iter().filter(|step| matches!(step.action, Action::Create | Action::Change)) {
        let (id, Some(object)) = (&step.id, &step.object) else { continue };
        let params = PatchParams::apply(MANAGER).force();
        let applied = id.api(client).patch(&id.name, &params, &Patch::Apply(object)).await;
        applied.map_err(|error| apply_error(id, error))?;
        if id.kind == "CustomResourceDefinition" {
            let api = Api::<CustomResourceDefinition>::all(client.clone());
            wait_until(api, &id.name, conditions::is_crd_established(), ESTABLISHED_TIMEOUT, id.to_string()).await?;
        }
    }
    Ok(())
}

/// Creates an object that is written as JSON.
pub(crate) async fn create<K>(api: &Api<K>, object: Value) -> Result<K, InstallError>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned + Serialize,
{
    let object = serde_json::from_value(object).map_err(InstallError::Object)?;
    Ok(request::create(api, &object).await?)
}

/// Deletes the objects that the plan removes, and waits until they have gone.
pub(crate) async fn prune(client: &Client, steps: &[Step], limit: Duration) -> Result<(), InstallError> {
    for step in steps.iter().filter(|step| step.action == Action::Remove) {
        if let Some(found) = step.id.get(client).await? {
            delete(client, &step.id, &found, limit).await?;
        }
    }
    Ok(())
}

/// Deletes an object that was read, with all that depends on it, and returns when it has gone.
pub(crate) async fn delete(
    client: &Client,
    id: &ObjectId,
    found: &DynamicObject,
    limit: Duration,
) -> Result<(), InstallError> {
    let api = id.api(client);
    let uid = found.uid().unwrap_or_default();
    // Pods of a workload go before it, so that nothing of it runs any more
    let params = if id.is_workload() { DeleteParams::foreground() } else { DeleteParams::background() };
    let params = params.preconditions(Preconditions { uid: Some(uid.clone()), resource_version: None });
    match api.delete(&id.name, &params).await {
        Ok(_) => wait_until(api, &id.name, conditions::is_deleted(&uid), limit, format!("the deletion of {id}"))
            .await
            .map(drop),
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
        Err(error) => Err(apply_error(id, error)),
    }
}

/// Waits until an object meets a condition. Ctrl-C ends the wait.
pub(crate) async fn wait_until<K>(
    api: Api<K>,
    name: &str,
    condition: impl Condition<K>,
    limit: Duration,
    what: String,
) -> Result<Option<K>, InstallError>
where
    K: Clone + std::fmt::Debug + Send + DeserializeOwned + Resource + 'static,
{
    tokio::select! {
        found = await_condition(api, name, condition) => {
            found.map_err(|source| InstallError::Wait { what, source: Box::new(source) })
        }
        () = tokio::time::sleep(limit) => Err(InstallError::Slow { what, seconds: limit.as_secs() }),
        _ = tokio::signal::ctrl_c() => Err(InstallError::Interrupted),
    }
}
