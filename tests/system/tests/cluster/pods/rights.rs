//! RBAC rules of the manifests that are missing or that no request has used.

use std::collections::BTreeSet;
use std::fs;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::rbac::v1::PolicyRule;
use serde::Deserialize;
use system_tests::audit::{Request, Right, requests, rights};
use system_tests::shared::TestCluster;
use testbed::assets;
use testbed::sidecars::NAMESPACE;
use testbed::topolvm::CONTROLLER;
use topolvm_api::ApiFlavor;

/// Rights that a whole run need not use, each with the reason why it is granted.
const EXPLAINED: &[(&str, &str)] = &[
    (
        "topolvm-system:controller: patch persistentvolumeclaims",
        "claims are expanded automatically; finalizers of earlier versions and of --pvc-finalizer are removed",
    ),
    ("topolvm-system:controller: patch events.events.k8s.io", "an Event that comes again is counted"),
    ("topolvm-system:controller: update persistentvolumeclaims", "TopoLVM's controller, while a cluster is switched"),
    ("topolvm-system:controller: update pods", "TopoLVM's controller, while a cluster is switched"),
    (
        "topolvm-system:controller: update logicalvolumes.topolvm.io",
        "TopoLVM's controller, which grows volumes while a cluster is switched",
    ),
    ("topolvm-system:controller: get csidrivers.storage.k8s.io", "a sidecar calls Probe"),
    ("topolvm-controller-doctor: patch configmaps", "the checks find something else than before"),
    (
        "topolvm-system:controller-webhooks: get storageclasses.storage.k8s.io",
        "the watch has not delivered a class yet",
    ),
    ("topolvm-controller-extender-probe: watch pods", "kube-scheduler has answered before the first list"),
    ("topolvm-controller-webhook-certificate: patch secrets", "the certificate is renewed after eight months"),
    ("topolvm-system:node: create events.events.k8s.io", "what went wrong with a volume"),
    ("topolvm-system:node: patch events.events.k8s.io", "an Event that comes again is counted"),
    ("topolvm-system:node: get persistentvolumes", "--orphans=quarantine, and an LV without a LogicalVolume"),
    ("topolvm-system:node: list persistentvolumes", "the same, before it is put into quarantine"),
    (
        "topolvm-system:node: list volumesnapshotcontents.snapshot.storage.k8s.io",
        "a deleted snapshot whose content has another name",
    ),
    ("topolvm-system:node: update logicalvolumes/status.topolvm.io", "TopoLVM's agents, while a cluster is switched"),
    ("topolvm-system:node: get csinodes.storage.k8s.io", "a Node that has no topology label, or has lost it"),
    ("topolvm-system:node: get csidrivers.storage.k8s.io", "TopoLVM's agents, while a cluster is switched"),
    ("topolvm-system:provisioner: get volumeattributesclasses.storage.k8s.io", "a claim names such a class"),
    ("topolvm-system:resizer: get volumeattributesclasses.storage.k8s.io", "a claim names such a class"),
    (
        "topolvm-system:snapshotter: get volumegroupsnapshotclasses.groupsnapshot.storage.k8s.io",
        "a group of volumes has a snapshot",
    ),
    (
        "topolvm-system:snapshotter: get volumegroupsnapshotcontents.groupsnapshot.storage.k8s.io",
        "a group of volumes has a snapshot",
    ),
    (
        "topolvm-system:snapshotter: patch volumegroupsnapshotcontents.groupsnapshot.storage.k8s.io",
        "a group of volumes has a snapshot",
    ),
    (
        "topolvm-system:snapshotter: patch volumegroupsnapshotcontents/status.groupsnapshot.storage.k8s.io",
        "a group of volumes has a snapshot",
    ),
];

/// Further ones of the sidecars.
pub(super) const OF_SIDECARS: &[(&str, &str)] = &[
    ("topolvm-system:csi-provisioner: patch events", "an Event that comes again is counted"),
    ("topolvm-system:csi-provisioner: get volumeattributesclasses.storage.k8s.io", "a claim names such a class"),
    ("topolvm-system:csi-provisioner: get persistentvolumeclaims", "its cache is older than a claim that it wrote"),
    ("topolvm-system:csi-provisioner: get storageclasses.storage.k8s.io", "its project's role has it"),
    ("topolvm-system:csi-provisioner: get csinodes.storage.k8s.io", "its project's role has it"),
    ("topolvm-system:csi-provisioner: get nodes", "its project's role has it"),
    (
        "topolvm-system:csi-provisioner: list volumesnapshotcontents.snapshot.storage.k8s.io",
        "its project's role has it",
    ),
    ("topolvm-system:csi-resizer: get persistentvolumes", "its project's role has it"),
    ("topolvm-system:csi-resizer: get persistentvolumeclaims", "its project's role has it"),
    ("topolvm-system:csi-resizer: get pods", "its project's role has it"),
    ("topolvm-system:csi-resizer: get volumeattributesclasses.storage.k8s.io", "its project's role has it"),
    ("topolvm-system:csi-snapshotter: get volumesnapshotclasses.snapshot.storage.k8s.io", "its project's role has it"),
    (
        "topolvm-system:csi-snapshotter: update volumesnapshotcontents.snapshot.storage.k8s.io",
        "its project's role has it",
    ),
    ("topolvm-system:csi-resizer: patch events", "an Event that comes again is counted"),
    ("topolvm-system:csi-snapshotter: create events", "what went wrong with a snapshot"),
    ("topolvm-system:csi-snapshotter: patch events", "an Event that comes again is counted"),
];

/// Further ones on the oldest Kubernetes, which does not have these resources.
const EXPLAINED_ON_THE_OLDEST: [&str; 2] = [
    "topolvm-system:csi-resizer: list volumeattributesclasses.storage.k8s.io",
    "topolvm-system:csi-resizer: watch volumeattributesclasses.storage.k8s.io",
];

/// The role of the publisher of free space.
const CAPACITY_ROLE: &str = "topolvm-capacity";

#[derive(Deserialize)]
struct List {
    items: Vec<Role>,
}

#[derive(Deserialize)]
struct Role {
    metadata: Metadata,
    rules: Option<Vec<PolicyRule>>,
}

#[derive(Deserialize)]
struct Metadata {
    name: String,
}

/// Checks that no request was refused. In the API group that is left the last requests of its agents may have been, and
/// those of a publisher of free space that hands over: the role is the next one's before its pods have ended.
pub(super) fn check_none_missing(shared: &TestCluster, left: Option<ApiFlavor>) -> Result<()> {
    let requests = read_requests(shared)?;
    let is_left = |request: &Request| left.is_some_and(|left| request.group == left.group());
    let is_handed_over = |request: &Request| {
        let last = [(CONTROLLER, "patch"), ("csi-provisioner", "update")];
        request.resource == "csistoragecapacities" && last.contains(&(&request.program, &request.verb))
    };
    let may_be = |request: &Request| is_left(request) || is_handed_over(request);
    let refused: Vec<_> = requests.iter().filter(|request| request.is_forbidden && !may_be(request)).collect();
    ensure!(refused.is_empty(), "a right is missing in the manifests: {refused:#?}");
    Ok(())
}

/// Checks that no request was refused since the mark, a period without a handover.
pub(super) fn check_none_refused(shared: &TestCluster, since: LogMark) -> Result<()> {
    let requests = requests(&read_audit_log(shared, since)?)?;
    let refused: Vec<_> = requests.iter().filter(|request| request.is_forbidden).collect();
    ensure!(refused.is_empty(), "a right is missing in the manifests: {refused:#?}");
    Ok(())
}

/// Checks that every right that is explained is granted, in a cluster with the extender.
pub(super) fn check_explained(shared: &TestCluster) -> Result<()> {
    let granted = list_granted(shared)?;
    for (right, _) in EXPLAINED {
        ensure!(granted.iter().any(|granted| granted.to_string() == *right), "no role has the right {right}");
    }
    Ok(())
}

/// Checks that every right of every role was used, or is explained, here or among the further ones.
pub(super) fn check_all_used(shared: &TestCluster, further: &[(&str, &str)]) -> Result<()> {
    let (requests, granted) = (read_requests(shared)?, list_granted(shared)?);
    let is_asked = |right: &Right| requests.iter().any(|request| right.allows(request));
    // client-go lists before it watches only where an API server cannot stream existing objects
    let is_used = |right: &Right| {
        is_asked(right) || right.verb == "list" && is_asked(&Right { verb: "watch".to_owned(), ..right.clone() })
    };
    let unused: BTreeSet<_> = granted.iter().filter(|right| !is_used(right)).map(Right::to_string).collect();
    eprintln!("{} rights, not used: {unused:#?}", granted.len());
    let is_explained = |right: &String| {
        let is_too_new = assets::is_oldest_kubernetes() && EXPLAINED_ON_THE_OLDEST.contains(&right.as_str());
        is_too_new || EXPLAINED.iter().chain(further).any(|(explained, _)| right == explained)
    };
    let unexplained: Vec<_> = unused.iter().filter(|right| !is_explained(right)).collect();
    ensure!(unexplained.is_empty(), "granted, never used and not explained: {unexplained:#?}");
    Ok(())
}

/// Checks that since the mark topolvm-controller has used every right to publish free space.
pub(super) fn check_capacity_role_used(shared: &TestCluster, since: LogMark) -> Result<()> {
    let requests = requests(&read_audit_log(shared, since)?)?;
    let is_used = |right: &Right| requests.iter().any(|request| right.allows(request));
    let granted = list_granted(shared)?;
    let unused = granted.iter().filter(|right| right.role == CAPACITY_ROLE && !is_used(right));
    let unused: Vec<_> = unused.map(Right::to_string).collect();
    ensure!(unused.is_empty(), "granted for --controllers=capacity and never used: {unused:?}");
    Ok(())
}

/// A moment in the audit log: its length then.
#[derive(Clone, Copy, Default)]
pub(super) struct LogMark(usize);

/// Returns the present moment of the audit log.
pub(super) fn mark_audit_log(shared: &TestCluster) -> Result<LogMark> {
    Ok(LogMark(read_audit_log(shared, LogMark::default())?.len()))
}

fn read_requests(shared: &TestCluster) -> Result<BTreeSet<Request>> {
    requests(&read_audit_log(shared, LogMark::default())?)
}

/// Reads the whole lines of the audit log since the mark; one that is being written is none yet.
fn read_audit_log(shared: &TestCluster, since: LogMark) -> Result<String> {
    let log = shared.cluster.audit_log();
    let text = fs::read_to_string(&log).with_context(|| format!("read {}", log.display()))?;
    let end = text.rfind('\n').map_or(0, |end| end + 1);
    Ok(text.get(since.0..end).unwrap_or_default().to_owned())
}

/// Lists the rights of the product's roles from the API server.
fn list_granted(shared: &TestCluster) -> Result<BTreeSet<Right>> {
    let mut granted = BTreeSet::new();
    for (kind, prefix) in [("clusterroles", "topolvm-system:"), ("roles", "topolvm-")] {
        let list: List = serde_json::from_str(&shared.kubectl(&["get", kind, "-n", NAMESPACE, "-o", "json"])?)?;
        for role in list.items.iter().filter(|role| role.metadata.name.starts_with(prefix)) {
            granted.extend(rights(&role.metadata.name, role.rules.as_deref().unwrap_or_default()));
        }
    }
    ensure!(!granted.is_empty(), "no roles are there");
    Ok(granted)
}
