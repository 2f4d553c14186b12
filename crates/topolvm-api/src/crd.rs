//! The CustomResourceDefinitions of `LogicalVolume`, `NodeStorage` and `DiskOperation`, made from the Rust types.

mod definition;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;

use crate::disk_operation::{DiskOperationSpec, DiskOperationStatus};
use crate::schema::schema_of;
use crate::{
    ApiFlavor, DiskOperation, LogicalVolume, LogicalVolumeSpec, LogicalVolumeStatus, NodeStorage, NodeStorageStatus,
};
use definition::{Definition, column};

/// Returns the CustomResourceDefinition of `LogicalVolume` for one API group.
///
/// Beyond what TopoLVM installs it has a short name, printer columns, conditions, rules that what decides where a
/// volume is stays as it is (Kubernetes 1.25; older servers drop them) and selectable fields (Kubernetes 1.31; the
/// same): with `spec.nodeName` a node agent watches only its own objects, with `status.volumeID` it and the controller
/// find the object of a volume without listing all. Objects of either definition are valid under the other; TopoLVM's
/// drops the conditions.
///
/// Its annotations keep Helm, Argo CD and Flux from deleting it, and with it the record of every volume.
///
/// The patterns of quantities and the schema of conditions (apimachinery, `metav1.Condition`) are those of
/// Kubernetes' own kinds.
pub fn crd(flavor: ApiFlavor) -> CustomResourceDefinition {
    let status = r#".status.conditions[?(@.type=="Ready")].reason"#;
    let definition = Definition {
        description: "A volume of a volume group of one node",
        short_names: &["lv"],
        selectable_fields: &[".spec.nodeName", ".status.volumeID"],
        columns: vec![
            column(("Size", "string", ".status.currentSize"), "Real size", false),
            column(("Class", "string", ".spec.deviceClass"), "Device class; empty is the default of the node", false),
            column(("Node", "string", ".spec.nodeName"), "Node that owns the volume", false),
            column(("Status", "string", status), "VolumeReady, or what is not done; -o wide says why", false),
            column(("Age", "date", ".metadata.creationTimestamp"), "Time since creation", false),
            column(("Message", "string", ".status.message"), "Error message of the last attempt", true),
        ],
        parts: vec![("spec", schema_of::<LogicalVolumeSpec>()), ("status", schema_of::<LogicalVolumeStatus>())],
        required: &[],
    };
    definition.build::<LogicalVolume>(flavor)
}

/// Returns the CustomResourceDefinition of `NodeStorage` for one API group. TopoLVM has no such kind.
pub fn node_storage_crd(flavor: ApiFlavor) -> CustomResourceDefinition {
    let ready = |field: &str| format!(".status.conditions[?(@.type==\"Ready\")].{field}");
    let (status, reason) = (ready("status"), ready("reason"));
    let problem = "First problem of the storage";
    let definition = Definition {
        description: "Storage of the Node of this name, written by topolvm-node of that Node only",
        short_names: &["nst"],
        selectable_fields: &[],
        columns: vec![
            column(("Ready", "string", &status), "True while there is no problem, Unknown without lvmd", false),
            column(("Reason", "string", &reason), "StorageHealthy, or the kind of the problem", false),
            column(("Size", "string", ".status.size"), "Size of all volume groups", false),
            column(("Free", "string", ".status.free"), "Free space in all volume groups", false),
            column(("Age", "date", ".metadata.creationTimestamp"), "Time since creation", false),
            column(("Problem", "string", ".status.problems[0]"), problem, true),
        ],
        parts: vec![("status", schema_of::<NodeStorageStatus>())],
        required: &[],
    };
    definition.build::<NodeStorage>(flavor)
}

/// Returns the CustomResourceDefinition of `DiskOperation` for one API group. TopoLVM has no such kind.
pub fn disk_operation_crd(flavor: ApiFlavor) -> CustomResourceDefinition {
    let definition = Definition {
        description: "A request to add, evacuate, remove or replace a disk of a node, done once by topolvm-node",
        short_names: &[],
        selectable_fields: &[".spec.nodeName"],
        columns: vec![
            column(("Node", "string", ".spec.nodeName"), "Node that has the disk", false),
            column(("Disk", "string", ".spec.disk"), "LVM's UUID or the name of the disk", false),
            column(("Operation", "string", ".spec.type"), "Type of the operation", false),
            column(("Phase", "string", ".status.phase"), "Phase of the operation", false),
            column(("Progress", "string", ".status.progress.percent"), "Part of the data that has been moved", false),
            column(("Age", "date", ".metadata.creationTimestamp"), "Time since creation", false),
            column(("Message", "string", ".status.message"), "State of the operation for people", true),
        ],
        parts: vec![("spec", schema_of::<DiskOperationSpec>()), ("status", schema_of::<DiskOperationStatus>())],
        required: &["spec"],
    };
    definition.build::<DiskOperation>(flavor)
}

#[cfg(test)]
mod tests {
    use kube_core::Resource as _;

    use super::*;
    use crate::schema::LONGEST_MESSAGE;

    #[test]
    fn crd_matches_the_rust_type_in_group_kind_and_version() {
        for flavor in [ApiFlavor::TopoLvm, ApiFlavor::Legacy] {
            let CustomResourceDefinition { metadata, spec, .. } = crd(flavor);
            assert_eq!(spec.group, LogicalVolume::group(&flavor));
            assert_eq!(spec.names.kind, LogicalVolume::kind(&flavor));
            assert_eq!(spec.names.plural, LogicalVolume::plural(&flavor));
            assert_eq!(spec.versions[0].name, LogicalVolume::version(&flavor));
            assert_eq!(metadata.name, Some(format!("{}.{}", spec.names.plural, spec.group)));
        }
    }

    #[test]
    fn the_same_holds_for_the_storage_of_nodes() {
        for flavor in [ApiFlavor::TopoLvm, ApiFlavor::Legacy] {
            let CustomResourceDefinition { metadata, spec, .. } = node_storage_crd(flavor);
            assert_eq!(spec.group, NodeStorage::group(&flavor));
            assert_eq!(spec.names.kind, NodeStorage::kind(&flavor));
            assert_eq!(spec.names.plural, NodeStorage::plural(&flavor));
            assert_eq!(spec.versions[0].name, NodeStorage::version(&flavor));
            assert_eq!(metadata.name, Some(format!("{}.{}", spec.names.plural, spec.group)));
        }
    }

    #[test]
    fn the_status_is_a_subresource_of_its_own() {
        for definition in [crd(ApiFlavor::TopoLvm), node_storage_crd(ApiFlavor::TopoLvm)] {
            let definition = serde_json::to_value(definition).unwrap();
            assert_eq!(definition["spec"]["versions"][0]["subresources"], serde_json::json!({"status": {}}));
        }
    }

    /// All conditions are those of Kubernetes.
    #[test]
    fn both_kinds_have_the_same_schema_of_conditions_and_quantities() {
        let status = "/spec/versions/0/schema/openAPIV3Schema/properties/status/properties";
        let schema = |definition| serde_json::to_value(definition).unwrap().pointer(status).unwrap().clone();
        let (volume, storage) = (schema(crd(ApiFlavor::TopoLvm)), schema(node_storage_crd(ApiFlavor::TopoLvm)));
        assert_eq!(volume["conditions"]["items"], storage["conditions"]["items"]);
        for field in ["pattern", "anyOf", "x-kubernetes-int-or-string"] {
            assert_eq!(volume["currentSize"][field], storage["size"][field]);
        }
    }

    #[test]
    fn gitops_tools_do_not_prune_it() {
        for definition in [crd(ApiFlavor::TopoLvm), node_storage_crd(ApiFlavor::Legacy)] {
            let annotations = serde_json::to_value(definition.metadata.annotations).unwrap();
            let expected = serde_json::json!({
                "argocd.argoproj.io/sync-options": "Prune=false,Delete=false",
                "helm.sh/resource-policy": "keep",
                "kustomize.toolkit.fluxcd.io/prune": "disabled",
            });
            assert_eq!(annotations, expected);
        }
    }

    #[test]
    fn people_type_lv() {
        for flavor in [ApiFlavor::TopoLvm, ApiFlavor::Legacy] {
            assert_eq!(crd(flavor).spec.names.short_names.unwrap(), ["lv"]);
        }
    }

    #[test]
    fn people_read_what_became_of_a_volume() {
        let columns = crd(ApiFlavor::Legacy).spec.versions.remove(0).additional_printer_columns.unwrap();
        let shown: Vec<_> = columns.iter().filter(|column| column.priority.is_none()).collect();
        assert_eq!(
            shown.iter().map(|column| column.name.as_str()).collect::<Vec<_>>(),
            ["Size", "Class", "Node", "Status", "Age"]
        );
        assert_eq!(shown[3].json_path, r#".status.conditions[?(@.type=="Ready")].reason"#);
    }

    #[test]
    fn crd_conditions_are_a_map_by_type_with_required_fields() {
        let definition = serde_json::to_value(crd(ApiFlavor::TopoLvm)).unwrap();
        let schema = "/spec/versions/0/schema/openAPIV3Schema/properties/status/properties/conditions";
        let conditions = definition.pointer(schema).unwrap();
        assert_eq!(conditions["x-kubernetes-list-type"], "map");
        assert_eq!(conditions["x-kubernetes-list-map-keys"], serde_json::json!(["type"]));
        assert_eq!(conditions["items"]["properties"]["message"]["maxLength"], LONGEST_MESSAGE);
        let required = serde_json::json!(["lastTransitionTime", "message", "reason", "status", "type"]);
        assert_eq!(conditions["items"]["required"], required);
        assert_eq!(definition.pointer("/spec/versions/0/schema/openAPIV3Schema/properties/status/required"), None);
    }

    #[test]
    fn what_decides_where_a_volume_is_cannot_be_changed() {
        let definition = serde_json::to_value(crd(ApiFlavor::TopoLvm)).unwrap();
        let spec = "/spec/versions/0/schema/openAPIV3Schema/properties/spec";
        let rules = definition.pointer(spec).unwrap()["x-kubernetes-validations"].as_array().unwrap();
        let paths: Vec<_> = rules.iter().map(|rule| rule["fieldPath"].as_str().unwrap()).collect();
        assert_eq!(paths, [".name", ".nodeName", ".deviceClass", ".source"]);
        let expected = "(has(self.source) ? self.source : '') == (has(oldSelf.source) ? oldSelf.source : '')";
        assert_eq!(rules[3]["rule"], expected);
    }

    #[test]
    fn definitions_of_both_groups_differ_in_the_group_only() {
        let text = |flavor| serde_json::to_string(&crd(flavor)).unwrap();
        assert_eq!(text(ApiFlavor::TopoLvm), text(ApiFlavor::Legacy).replace("topolvm.cybozu.com", "topolvm.io"));
    }

    #[test]
    fn disk_operation_schema_is_structural() {
        for flavor in [ApiFlavor::TopoLvm, ApiFlavor::Legacy] {
            let definition = disk_operation_crd(flavor);
            let expected = format!("diskoperations.{flavor}");
            assert_eq!(definition.metadata.name, Some(expected));
            let json = serde_json::to_value(&definition.spec).unwrap();
            let schema = json.pointer("/versions/0/schema/openAPIV3Schema").unwrap();
            let text = serde_json::to_string(schema).unwrap();
            for unsupported in ["oneOf", "$ref", "const", "nullable", "uint", "title\"", "null"] {
                assert!(!text.contains(unsupported), "{unsupported}: {text}");
            }
            let spec = &schema["properties"]["spec"];
            assert_eq!(spec["required"], serde_json::json!(["disk", "nodeName", "type"]));
            assert_eq!(spec["properties"]["type"]["enum"], serde_json::json!(["Add", "Evacuate", "Remove", "Replace"]));
            assert_eq!(spec["properties"]["ttlSecondsAfterFinished"]["default"], 604_800);
            assert_eq!(spec["x-kubernetes-validations"][0]["rule"], "self == oldSelf");
            let status = &schema["properties"]["status"]["properties"];
            assert_eq!(status["phase"]["type"], "string");
            assert_eq!(status["diskUUID"]["type"], "string");
            let int_or_string = serde_json::json!([{"type": "integer"}, {"type": "string"}]);
            assert_eq!(spec["properties"]["maxBytesPerSecond"]["anyOf"], int_or_string);
            assert_eq!(status["conditions"]["x-kubernetes-list-type"], "map");
        }
    }
}
