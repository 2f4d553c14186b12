//! Identity of objects of any kind, the order in which they are applied, and their
//! API.

use std::fmt;

use cli_runtime::request::RequestError;
use kube::api::{ApiResource, DynamicObject};
use kube::core::GroupVersionKind;
use kube::{Api, Client, ResourceExt};
use serde::{Deserialize, Serialize};

use super::InstallError;

/// Label on all that this program applies, and its value, which is also the field manager.
pub(crate) const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
pub(crate) const MANAGER: &str = "kubectl-topolvm";

/// Kinds that are applied first, in this order. Kinds that are not named come between these and [`LAST`].
const FIRST: [&str; 10] = [
    "Namespace",
    "CustomResourceDefinition",
    "ServiceAccount",
    "ClusterRole",
    "Role",
    "ClusterRoleBinding",
    "RoleBinding",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
    "CSIDriver",
];
/// Kinds that are applied last: the webhook of pods, and workloads.
const LAST: [&str; 3] = ["MutatingWebhookConfiguration", "Deployment", "DaemonSet"];

/// Identity of an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ObjectId {
    pub(crate) api_version: String,
    pub(crate) kind: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) namespace: Option<String>,
    pub(crate) name: String,
}

impl ObjectId {
    pub(crate) fn of(object: &DynamicObject) -> Self {
        let types = object.types.clone().unwrap_or_default();
        Self {
            api_version: types.api_version,
            kind: types.kind,
            namespace: object.namespace(),
            name: object.name_any(),
        }
    }

    /// Returns the position in the order of applying. Removal goes the other way.
    pub(crate) fn rank(&self) -> usize {
        let place = |kinds: &[&str]| kinds.iter().position(|kind| *kind == self.kind);
        let last = place(&LAST).map(|place| FIRST.len().saturating_add(place).saturating_add(1));
        place(&FIRST).or(last).unwrap_or(FIRST.len())
    }

    /// Returns true for a Deployment or DaemonSet.
    pub(crate) fn is_workload(&self) -> bool {
        matches!(self.kind.as_str(), "Deployment" | "DaemonSet")
    }

    /// Returns its API group, resource and version.
    pub(crate) fn resource(&self) -> ApiResource {
        let (group, version) = self.api_version.split_once('/').unwrap_or(("", &self.api_version));
        // All kinds of the manifests have the plural that is guessed
        ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, &self.kind))
    }

    pub(crate) fn api(&self, client: &Client) -> Api<DynamicObject> {
        match &self.namespace {
            Some(namespace) => Api::namespaced_with(client.clone(), namespace, &self.resource()),
            None => Api::all_with(client.clone(), &self.resource()),
        }
    }

    /// Reads the object from the cluster; none if it does not exist.
    pub(crate) async fn get(&self, client: &Client) -> Result<Option<DynamicObject>, InstallError> {
        let found = self.api(client).get_opt(&self.name).await;
        found.map_err(|error| RequestError::new("get", self.qualified(), error).into())
    }

    /// Returns the resource as roles name it: `deployments.apps`.
    pub(crate) fn qualified(&self) -> String {
        let ApiResource { plural, group, .. } = self.resource();
        if group.is_empty() { plural } else { format!("{plural}.{group}") }
    }
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.namespace {
            Some(namespace) => write!(f, "{} {namespace}/{}", self.kind, self.name),
            None => write!(f, "{} {}", self.kind, self.name),
        }
    }
}

/// Makes the error for an object that the API server has refused.
pub(crate) fn apply_error(id: &ObjectId, error: kube::Error) -> InstallError {
    if let kube::Error::Api(status) = error {
        return InstallError::Refused { what: id.to_string(), message: status.message };
    }
    RequestError::new("change", id.qualified(), error).into()
}

/// Returns true if this program has applied the object.
pub(crate) fn is_ours(object: &impl ResourceExt) -> bool {
    object.labels().get(MANAGED_BY).is_some_and(|manager| manager == MANAGER)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(api_version: &str, kind: &str) -> ObjectId {
        ObjectId { api_version: api_version.to_owned(), kind: kind.to_owned(), namespace: None, name: "x".to_owned() }
    }

    #[test]
    fn what_others_need_is_applied_before_them() {
        let kinds = ["Namespace", "ClusterRole", "ClusterRoleBinding", "CSIDriver", "ConfigMap", "DaemonSet"];
        let ranks: Vec<_> = kinds.iter().map(|kind| id("v1", kind).rank()).collect();
        assert!(ranks.is_sorted_by(|a, b| a < b), "{ranks:?}");
    }

    #[test]
    fn resources_are_called_as_roles_call_them() {
        for (api_version, kind, expected) in [
            ("v1", "ConfigMap", "configmaps"),
            ("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies.networking.k8s.io"),
            ("storage.k8s.io/v1", "StorageClass", "storageclasses.storage.k8s.io"),
            (
                "admissionregistration.k8s.io/v1",
                "ValidatingAdmissionPolicy",
                "validatingadmissionpolicies.admissionregistration.k8s.io",
            ),
        ] {
            assert_eq!(id(api_version, kind).qualified(), expected);
        }
    }
}
