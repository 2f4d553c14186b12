//! Rights of our service accounts, asked with SubjectAccessReviews.

use cli_runtime::connection::Cluster;
use cli_runtime::request::{self, RequestResult};
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::Api;
use topolvm_api::ApiFlavor;
use topolvm_doctor::{LEASE, Right, Role};

/// Questions at the same time.
const CONCURRENCY: usize = 4;

/// Placeholder for the API group of LogicalVolumes, NodeStorages and DiskOperations.
const OURS: &str = "logicalvolumes";

/// Rights that each program needs: API group, resource, verbs. That of the Lease is for this one object, all others for
/// the whole cluster.
const NEEDED: [(Role, &str, &str, &[&str]); 15] = [
    (Role::Controller, OURS, "logicalvolumes", &["create", "delete", "list", "patch", "watch"]),
    (Role::Controller, "", "nodes", &["list", "patch", "watch"]),
    (Role::Controller, "", "persistentvolumeclaims", &["delete", "list", "watch"]),
    (Role::Controller, "storage.k8s.io", "storageclasses", &["list"]),
    (Role::Controller, "events.k8s.io", "events", &["create"]),
    (Role::Controller, "coordination.k8s.io", "leases", &["get", "update"]),
    (Role::Node, OURS, "logicalvolumes", &["list", "patch", "watch"]),
    (Role::Node, OURS, "logicalvolumes/status", &["patch"]),
    (Role::Node, OURS, "nodestorages", &["create", "list", "watch"]),
    (Role::Node, OURS, "nodestorages/status", &["patch"]),
    (Role::Node, OURS, "diskoperations", &["delete", "list", "patch", "watch"]),
    (Role::Node, OURS, "diskoperations/status", &["patch"]),
    (Role::Node, "", "nodes", &["list", "patch", "watch"]),
    (Role::Node, "storage.k8s.io", "csinodes", &["get"]),
    (Role::Node, "events.k8s.io", "events", &["create"]),
];

/// Asks the API server about all rights.
pub(super) async fn review(
    cluster: &Cluster,
    namespace: &str,
    accounts: &[(Role, String)],
) -> RequestResult<Vec<Right>> {
    let questions = accounts.iter().flat_map(|(role, account)| {
        let of_role = attributes(*role, cluster.flavor, namespace);
        of_role.into_iter().map(move |attributes| (account.clone(), attributes))
    });
    let asked = questions.map(|(account, attributes)| async move {
        let what = format_right(&attributes);
        let spec = SubjectAccessReviewSpec {
            user: Some(format!("system:serviceaccount:{namespace}:{account}")),
            // The groups in a token of the account
            groups: Some(vec![
                "system:serviceaccounts".to_owned(),
                format!("system:serviceaccounts:{namespace}"),
                "system:authenticated".to_owned(),
            ]),
            resource_attributes: Some(attributes),
            ..SubjectAccessReviewSpec::default()
        };
        let review = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
        let answer = request::create(&Api::all(cluster.client.clone()), &review).await?;
        let is_allowed = answer.status.is_some_and(|status| status.allowed);
        Ok(Right { account, what, is_allowed })
    });
    futures::stream::iter(asked).buffered(CONCURRENCY).try_collect().await
}

fn attributes(role: Role, flavor: ApiFlavor, namespace: &str) -> Vec<ResourceAttributes> {
    let mut all = Vec::new();
    for (_, group, resource, verbs) in NEEDED.iter().filter(|(other, ..)| *other == role) {
        let (resource, subresource) = resource.split_once('/').map_or((*resource, None), |(r, s)| (r, Some(s)));
        let group = if *group == OURS { flavor.group() } else { group };
        let is_lease = resource == "leases";
        let attributes = ResourceAttributes {
            group: Some(group.to_owned()),
            resource: Some(resource.to_owned()),
            subresource: subresource.map(str::to_owned),
            name: is_lease.then(|| LEASE.to_owned()),
            namespace: is_lease.then(|| namespace.to_owned()),
            ..ResourceAttributes::default()
        };
        let of_verb = |verb: &&str| ResourceAttributes { verb: Some((*verb).to_owned()), ..attributes.clone() };
        all.extend(verbs.iter().map(of_verb));
    }
    all
}

fn format_right(attributes: &ResourceAttributes) -> String {
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    let mut what = format!("{} {}", text(&attributes.verb), text(&attributes.resource));
    let group = text(&attributes.group);
    if !group.is_empty() {
        what.extend([".", &group]);
    }
    if let Some(subresource) = &attributes.subresource {
        what.extend(["/", subresource]);
    }
    what
}
