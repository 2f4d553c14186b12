//! A namespace for the time of a check: made before it, and gone with all that is in it after it, whatever came of it.

use std::time::Duration;

use k8s_openapi::api::core::v1::Namespace;
use kube::api::{DeleteParams, PostParams};
use kube::runtime::wait::conditions;
use kube::{Api, Client, ResourceExt as _};
use serde_json::json;

use super::apply::until;
use super::object::{MANAGED_BY, MANAGER};
use super::{InstallError, tell};
use crate::reading::Gap;

/// For pods to end, and for the namespace's controller to see that.
const REMOVED: Duration = Duration::from_mins(2);

/// Does the work in a new namespace with this prefix and level of pod security. Ctrl-C ends the work too.
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
    let namespace = serde_json::from_value(namespace).map_err(InstallError::Object)?;
    let made = api.create(&PostParams::default(), &namespace).await;
    let made = made.map_err(|error| Gap::new("create", "namespaces".to_owned(), error))?;
    let (name, uid) = (made.name_any(), made.uid().unwrap_or_default());
    let outcome = tokio::select! {
        outcome = work(&name) => outcome,
        _ = tokio::signal::ctrl_c() => Err(InstallError::Interrupted),
    };
    let removed = async {
        let deleted = api.delete(&name, &DeleteParams::default()).await;
        deleted.map_err(|error| Gap::new("delete", format!("the namespace {name}"), error))?;
        until(api.clone(), &name, conditions::is_deleted(&uid), REMOVED, format!("the end of the namespace {name}"))
            .await
    };
    match (outcome, removed.await) {
        (Ok(outcome), removed) => removed.map(|_| outcome),
        (Err(error), Ok(_)) => Err(error),
        (Err(error), Err(left)) => {
            tell(&format!("{left}; remove it with kubectl delete namespace {name}"));
            Err(error)
        }
    }
}
