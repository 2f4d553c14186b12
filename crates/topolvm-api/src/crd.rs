//! The CustomResourceDefinitions of `LogicalVolume`, from `crd.json`, and of `NodeStorage`, from
//! `node_storage_crd.json`.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;

use crate::ApiFlavor;

/// The definitions of `topolvm.io`.
const LOGICAL_VOLUME: &str = include_str!("crd.json");
const NODE_STORAGE: &str = include_str!("node_storage_crd.json");

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
/// The rules take an empty field for none: TopoLVM writes the whole spec, without empty fields, when it changes the
/// size. The patterns of quantities and the schema of conditions (apimachinery, `metav1.Condition`) are those of
/// Kubernetes' own kinds.
pub fn crd(flavor: ApiFlavor) -> CustomResourceDefinition {
    read(LOGICAL_VOLUME, flavor)
}

/// Returns the CustomResourceDefinition of `NodeStorage` for one API group. TopoLVM has no such kind.
pub fn node_storage_crd(flavor: ApiFlavor) -> CustomResourceDefinition {
    read(NODE_STORAGE, flavor)
}

fn read(definition: &str, flavor: ApiFlavor) -> CustomResourceDefinition {
    let definition = definition.replace(ApiFlavor::TopoLvm.group(), flavor.group());
    // The text is a part of the program, and the tests read it: it is never anything else than a definition
    serde_json::from_str(&definition).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use kube_core::Resource as _;

    use super::*;
    use crate::condition::LONGEST_MESSAGE;
    use crate::{LogicalVolume, NodeStorage};

    #[test]
    fn the_definition_is_of_the_type_that_the_programs_read_and_write() {
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
    fn there_is_one_condition_of_a_type_and_each_says_all_that_kubernetes_asks_for() {
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
}
