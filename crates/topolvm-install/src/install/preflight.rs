//! Preflight checks: prove that a cluster is fit for the installation, without changing anything in it.

pub(crate) mod nodes;

use std::collections::BTreeSet;

use cli_runtime::request;
use cli_runtime::server_version;
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec};
use k8s_openapi::api::storage::v1::CSIDriver;
use kube::{Api, Client, ResourceExt as _};
use topolvm_api::ApiFlavor;
use topolvm_doctor::OLDEST;

use super::InstallError;
use super::object::{ObjectId, is_ours};
use super::record::Record;
use super::rendering::Rendering;

/// Access reviews at the same time.
const CONCURRENCY: usize = 4;
/// API that csi-snapshotter watches.
const SNAPSHOTS: &str = "snapshot.storage.k8s.io/v1";

/// Runs all checks of the cluster; the error names every problem.
pub(crate) async fn check(
    client: &Client,
    flavor: ApiFlavor,
    rendering: &Rendering,
    record: Option<&Record>,
    adopts: bool,
) -> Result<(), InstallError> {
    let version = server_version::read(client).await?;
    if topolvm_doctor::is_too_old(&version) {
        let (spelled, (major, minor)) = (version.2, OLDEST);
        let problem = format!("the API server has version {spelled}; upgrade Kubernetes to {major}.{minor} or later");
        return Err(InstallError::Unfit(vec![problem]));
    }
    let mut problems = missing_rights(client, rendering).await?;
    problems.extend(missing_apis(client, rendering).await?);
    if record.is_none() && !adopts {
        problems.extend(other_driver(client, flavor).await?);
    }
    if problems.is_empty() { Ok(()) } else { Err(InstallError::Unfit(problems)) }
}

/// A right that the installing user must have: verbs, and where.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Right {
    group: String,
    resource: String,
    namespace: Option<String>,
    verb: &'static str,
}

async fn missing_rights(client: &Client, rendering: &Rendering) -> Result<Vec<String>, InstallError> {
    let asked = needed(rendering).into_iter().map(|right| async move {
        let attributes = ResourceAttributes {
            group: Some(right.group.clone()),
            resource: Some(right.resource.clone()),
            namespace: right.namespace.clone(),
            verb: Some(right.verb.to_owned()),
            ..ResourceAttributes::default()
        };
        let spec = SelfSubjectAccessReviewSpec {
            resource_attributes: Some(attributes),
            ..SelfSubjectAccessReviewSpec::default()
        };
        let review = SelfSubjectAccessReview { spec, ..SelfSubjectAccessReview::default() };
        let answer = request::create(&Api::all(client.clone()), &review).await?;
        let is_allowed = answer.status.is_some_and(|status| status.allowed);
        Ok::<_, InstallError>((!is_allowed).then(|| right.to_string()))
    });
    let answers: Vec<_> = futures::stream::iter(asked).buffered(CONCURRENCY).try_collect().await?;
    Ok(answers.into_iter().flatten().collect())
}

/// Returns the rights for all objects that are applied and recorded, and for the pods of the checks.
fn needed(rendering: &Rendering) -> BTreeSet<Right> {
    let of_object = |id: ObjectId| {
        let found = id.resource();
        ["create", "get", "patch"].map(|verb| Right {
            group: found.group.clone(),
            resource: found.plural.clone(),
            namespace: id.namespace.clone(),
            verb,
        })
    };
    let mut rights: BTreeSet<_> = rendering.ids().into_iter().chain([Record::id()]).flat_map(of_object).collect();
    let in_core =
        |resource: &str, verb| Right { group: String::new(), resource: resource.to_owned(), namespace: None, verb };
    rights.extend(["create", "get", "list", "watch"].map(|verb| in_core("pods", verb)));
    rights.extend(["create", "delete", "get", "list", "watch"].map(|verb| in_core("namespaces", verb)));
    rights.extend([in_core("nodes", "list"), in_core("persistentvolumeclaims", "create")]);
    rights
}

impl std::fmt::Display for Right {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { group, resource, namespace, verb } = self;
        let dot = if group.is_empty() { "" } else { "." };
        write!(f, "you may not {verb} {resource}{dot}{group}")?;
        if let Some(namespace) = namespace {
            write!(f, " in the namespace {namespace}")?;
        }
        f.write_str("; run the command as a cluster administrator")
    }
}

/// Returns a problem for each API that is applied or watched by a sidecar and is not served.
async fn missing_apis(client: &Client, rendering: &Rendering) -> Result<Vec<String>, InstallError> {
    let mut problems = Vec::new();
    let versions: BTreeSet<_> = rendering.ids().into_iter().map(|id| id.api_version).collect();
    for version in versions.iter().filter(|version| version.contains('/')) {
        if !is_served(client, version).await? {
            let of_whom = match version.split('/').next() {
                Some("cert-manager.io") => "; install cert-manager first",
                Some("monitoring.coreos.com") => "; install the Prometheus operator first",
                Some(_) | None => "",
            };
            problems.push(format!("the API server does not serve {version}{of_whom}"));
        }
    }
    if rendering.containers().any(|(name, _)| name == "csi-snapshotter") && !is_served(client, SNAPSHOTS).await? {
        problems.push(format!(
            "the API server does not serve {SNAPSHOTS}, which csi-snapshotter needs; apply the snapshot CRDs of \
             kubernetes-csi/external-snapshotter first, or disable snapshots with --component without-snapshots"
        ));
    }
    Ok(problems)
}

async fn is_served(client: &Client, version: &str) -> Result<bool, InstallError> {
    Ok(!request::served_resources(client, version).await?.is_empty())
}

/// Returns the installed driver of the same name that was not installed by this plugin.
async fn other_driver(client: &Client, flavor: ApiFlavor) -> Result<Option<String>, InstallError> {
    let api = Api::<CSIDriver>::all(client.clone());
    let Some(driver) = request::get(&api, flavor.driver_name()).await? else { return Ok(None) };
    if is_ours(&driver) {
        return Ok(None);
    }
    let whose = driver.annotations().get("meta.helm.sh/release-name");
    let whose = whose.map_or_else(String::new, |release| format!(" of the Helm release {release}"));
    Ok(Some(format!(
        "the CSIDriver {flavor}{whose} already exists and was not created by this command; to switch from TopoLVM see \
         docs/switching.md, and use --adopt to take over its objects, or those of manifests applied by hand"
    )))
}

#[cfg(test)]
mod tests;
