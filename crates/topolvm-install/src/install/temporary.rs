//! A temporary namespace for a check, deleted after the check with all that is in it, whatever its result.

use std::time::Duration;

use cli_runtime::request::RequestError;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::DeleteParams;
use kube::runtime::wait::conditions;
use kube::{Api, Client, ResourceExt as _};
use serde_json::json;

use super::apply::{create, wait_until};
use super::object::{MANAGED_BY, MANAGER};
use super::{InstallError, print_progress};

/// Timeout for the deletion of the namespace: pods end, and the namespace controller sees that.
const DELETION_TIMEOUT: Duration = Duration::from_mins(2);

/// Runs a check in a new namespace with this prefix and level of pod security. Ctrl-C ends the check too.
pub(crate) async fn within<T>(
    client: &Client,
    prefix: &str,
    level: &str,
    work: impl AsyncFnOnce(&str) -> Result<T, InstallError>,
) -> Result<T, InstallError> {
    let api = Api::<Namespace>::all(client.clone());
    let namespace = json!({ "metadata": {
        "generateName": prefix,
        "labels": { MANAGED_BY: MANAGER, "pod-security.kubernetes.io/enforce": level },
    }});
    let made = create(&api, namespace).await?;
    let (name, uid) = (made.name_any(), made.uid().unwrap_or_default());
    let outcome = tokio::select! {
        outcome = work(&name) => outcome,
        _ = tokio::signal::ctrl_c() => Err(InstallError::Interrupted),
    };
    let removed = async {
        let deleted = api.delete(&name, &DeleteParams::default()).await;
        deleted.map_err(|error| RequestError::new("delete", format!("the namespace {name}"), error))?;
        wait_until(
            api.clone(),
            &name,
            conditions::is_deleted(&uid),
            DELETION_TIMEOUT,
            format!("the deletion of the namespace {name}"),
        )
        .await
    };
    match (outcome, removed.await) {
        (Ok(outcome), removed) => removed.map(|_| outcome),
        (Err(error), Ok(_)) => Err(error),
        (Err(error), Err(left)) => {
            print_progress(&format!("{left}; remove it with kubectl delete namespace {name}"));
            Err(error)
        }
    }
}
