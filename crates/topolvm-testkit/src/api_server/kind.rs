//! Resources that the fake server serves, and the rules that differ between them.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinitionSpec;
use topolvm_api::{ApiFlavor, disk_operation_crd, node_storage_crd};

/// A resource: its names, its scope, and which rules of the real server hold for it.
#[derive(Clone, Debug)]
pub struct Kind {
    pub(super) group: String,
    pub(super) version: String,
    pub(super) name: String,
    pub(super) plural: String,
    pub(super) namespaced: bool,
    pub(super) has_status: bool,
    pub(super) custom: bool,
    pub(super) selectable: Vec<String>,
    pub(super) unknown: Vec<String>,
}

impl Kind {
    /// Makes a namespaced custom resource; the core group is the empty string.
    pub fn namespaced(group: &str, version: &str, kind: &str, plural: &str) -> Self {
        Self {
            group: group.to_owned(),
            version: version.to_owned(),
            name: kind.to_owned(),
            plural: plural.to_owned(),
            namespaced: true,
            has_status: false,
            custom: true,
            selectable: Vec::new(),
            unknown: Vec::new(),
        }
    }

    /// Makes a cluster-scoped custom resource.
    pub fn cluster_scoped(group: &str, version: &str, kind: &str, plural: &str) -> Self {
        Self { namespaced: false, ..Self::namespaced(group, version, kind, plural) }
    }

    /// Adds the status subresource: writes to the object leave the status alone and the other way round.
    #[must_use]
    pub fn with_status(mut self) -> Self {
        self.has_status = true;
        self
    }

    /// Sets the fields that field selectors may name besides `metadata.name` and `metadata.namespace`, as
    /// `spec.nodeName`.
    #[must_use]
    pub fn selectable(mut self, fields: &[&str]) -> Self {
        self.selectable = fields.iter().map(|&field| field.to_owned()).collect();
        self
    }

    /// Sets the fields that its schema lacks, as `/status/conditions`: what is written to them is dropped.
    #[must_use]
    pub(super) fn pruning(mut self, fields: &[&str]) -> Self {
        self.unknown = fields.iter().map(|&field| field.to_owned()).collect();
        self
    }

    /// Marks it as built into the real server, which treats such resources less strictly than custom ones.
    #[must_use]
    fn built_in(mut self) -> Self {
        self.custom = false;
        self
    }

    /// Returns `apiVersion`: `v1` or `topolvm.io/v1`.
    pub(super) fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }

    /// Returns `pods` or `logicalvolumes.topolvm.io`, as messages name the resource.
    pub(super) fn qualified_plural(&self) -> String {
        qualify(&self.plural, &self.group)
    }

    /// Returns `Pod` or `LogicalVolume.topolvm.io`, as messages about invalid objects name the kind.
    pub(super) fn qualified_kind(&self) -> String {
        qualify(&self.name, &self.group)
    }

    /// Returns true for a name that a test uses for this resource: `pods`, `logicalvolumes.topolvm.io` or `*`.
    pub(super) fn has_name(&self, name: &str) -> bool {
        name == "*" || name == self.plural || name == self.qualified_plural()
    }
}

fn qualify(name: &str, group: &str) -> String {
    if group.is_empty() { name.to_owned() } else { format!("{name}.{group}") }
}

/// Returns the resources that every server serves: the custom resources of both groups, and the built-in resources that
/// the programs under test use.
pub(super) fn default_kinds() -> Vec<Kind> {
    let flavors = [ApiFlavor::TopoLvm, ApiFlavor::Legacy];
    let definitions = flavors
        .into_iter()
        .flat_map(|flavor| [topolvm_api::crd(flavor), node_storage_crd(flavor), disk_operation_crd(flavor)]);
    let mut kinds: Vec<Kind> = definitions.map(|definition| defined(&definition.spec)).collect();
    for (group, kind, plural, has_status, selectable) in NAMESPACED {
        let kind = Kind::namespaced(group, "v1", kind, plural).built_in().selectable(selectable);
        kinds.push(if *has_status { kind.with_status() } else { kind });
    }
    for (group, kind, plural, has_status, selectable) in CLUSTER_SCOPED {
        let kind = Kind::cluster_scoped(group, "v1", kind, plural).built_in().selectable(selectable);
        kinds.push(if *has_status { kind.with_status() } else { kind });
    }
    kinds
}

/// Returns the resource that a CustomResourceDefinition describes.
fn defined(definition: &CustomResourceDefinitionSpec) -> Kind {
    let selectable: Vec<String> = definition
        .versions
        .iter()
        .flat_map(|version| version.selectable_fields.iter().flatten())
        .map(|field| field.json_path.trim_start_matches('.').to_owned())
        .collect();
    let names = &definition.names;
    let kind = Kind::cluster_scoped(&definition.group, "v1", &names.kind, &names.plural).with_status();
    Kind { selectable, ..kind }
}

/// Group, kind, plural, presence of the status subresource, selectable fields.
type BuiltIn = (&'static str, &'static str, &'static str, bool, &'static [&'static str]);

const NAMESPACED: &[BuiltIn] = &[
    ("", "ConfigMap", "configmaps", false, &[]),
    (
        "",
        "Event",
        "events",
        false,
        &["involvedObject.kind", "involvedObject.name", "involvedObject.uid", "reason", "type"],
    ),
    ("", "PersistentVolumeClaim", "persistentvolumeclaims", true, &[]),
    ("", "Pod", "pods", true, &["spec.nodeName", "spec.schedulerName", "status.phase"]),
    ("", "Secret", "secrets", false, &["type"]),
    ("", "Service", "services", true, &[]),
    ("apps", "DaemonSet", "daemonsets", true, &[]),
    ("apps", "Deployment", "deployments", true, &[]),
    ("apps", "ReplicaSet", "replicasets", true, &[]),
    ("apps", "StatefulSet", "statefulsets", true, &[]),
    ("coordination.k8s.io", "Lease", "leases", false, &[]),
    (
        "events.k8s.io",
        "Event",
        "events",
        false,
        &["reason", "regarding.kind", "regarding.name", "regarding.uid", "type"],
    ),
    ("storage.k8s.io", "CSIStorageCapacity", "csistoragecapacities", false, &[]),
];

const CLUSTER_SCOPED: &[BuiltIn] = &[
    ("", "Namespace", "namespaces", true, &["status.phase"]),
    ("", "Node", "nodes", true, &["spec.unschedulable"]),
    ("", "PersistentVolume", "persistentvolumes", true, &[]),
    ("admissionregistration.k8s.io", "MutatingWebhookConfiguration", "mutatingwebhookconfigurations", false, &[]),
    ("admissionregistration.k8s.io", "ValidatingAdmissionPolicy", "validatingadmissionpolicies", true, &[]),
    ("apiextensions.k8s.io", "CustomResourceDefinition", "customresourcedefinitions", true, &[]),
    ("authentication.k8s.io", "TokenReview", "tokenreviews", false, &[]),
    ("authorization.k8s.io", "SubjectAccessReview", "subjectaccessreviews", false, &[]),
    ("storage.k8s.io", "CSIDriver", "csidrivers", false, &[]),
    ("storage.k8s.io", "CSINode", "csinodes", false, &[]),
    ("storage.k8s.io", "StorageClass", "storageclasses", false, &[]),
];
