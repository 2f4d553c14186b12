//! The CustomResourceDefinition of `LogicalVolume`.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceColumnDefinition, CustomResourceDefinition, CustomResourceDefinitionNames,
    CustomResourceDefinitionSpec, CustomResourceDefinitionVersion, CustomResourceSubresourceStatus,
    CustomResourceSubresources, CustomResourceValidation, JSON, JSONSchemaProps, JSONSchemaPropsOrArray,
    SelectableField, ValidationRule,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::ApiFlavor;
use crate::condition::LONGEST_MESSAGE;
use crate::logical_volume::{KIND, PLURAL, VERSION};

/// Short name of `logicalvolumes` for kubectl.
const SHORT_NAME: &str = "lv";

/// Returns the CustomResourceDefinition for one API group.
///
/// Beyond what TopoLVM installs it has a short name, printer columns, conditions, rules that what decides where a
/// volume is stays as it is (Kubernetes 1.25; older servers drop them) and selectable fields (Kubernetes 1.32; the
/// same): with `spec.nodeName` a node agent watches only its own objects, with `status.volumeID` it and the controller
/// find the object of a volume without listing all. Objects of either definition are valid under the other; TopoLVM's
/// drops the conditions.
pub fn crd(flavor: ApiFlavor) -> CustomResourceDefinition {
    let selectable = |path: &str| SelectableField { json_path: path.to_owned() };
    let column = |name: &str, type_: &str, path: &str, description: &str| CustomResourceColumnDefinition {
        name: name.to_owned(),
        type_: type_.to_owned(),
        json_path: path.to_owned(),
        description: Some(description.to_owned()),
        ..CustomResourceColumnDefinition::default()
    };
    CustomResourceDefinition {
        metadata: ObjectMeta { name: Some(format!("{PLURAL}.{}", flavor.group())), ..ObjectMeta::default() },
        spec: CustomResourceDefinitionSpec {
            group: flavor.group().to_owned(),
            scope: "Cluster".to_owned(),
            names: CustomResourceDefinitionNames {
                kind: KIND.to_owned(),
                list_kind: Some(format!("{KIND}List")),
                plural: PLURAL.to_owned(),
                singular: Some("logicalvolume".to_owned()),
                short_names: Some(vec![SHORT_NAME.to_owned()]),
                ..CustomResourceDefinitionNames::default()
            },
            versions: vec![CustomResourceDefinitionVersion {
                name: VERSION.to_owned(),
                served: true,
                storage: true,
                subresources: Some(CustomResourceSubresources {
                    // An object, if an empty one: the API server drops null, and with it the subresource
                    status: Some(CustomResourceSubresourceStatus(serde_json::Value::Object(serde_json::Map::new()))),
                    ..CustomResourceSubresources::default()
                }),
                additional_printer_columns: Some(vec![
                    column("Size", "string", ".status.currentSize", "Real size"),
                    column("Class", "string", ".spec.deviceClass", "Device class; empty is the node's default"),
                    column("Node", "string", ".spec.nodeName", "Node that owns the volume"),
                    column(
                        "Status",
                        "string",
                        r#".status.conditions[?(@.type=="Ready")].reason"#,
                        "VolumeReady, or what is not done; -o wide says why",
                    ),
                    column("Age", "date", ".metadata.creationTimestamp", "Time since creation"),
                    CustomResourceColumnDefinition {
                        // Shown by -o wide only
                        priority: Some(1),
                        ..column("Message", "string", ".status.message", "Why the last attempt failed")
                    },
                ]),
                selectable_fields: Some([".spec.nodeName", ".status.volumeID"].map(selectable).to_vec()),
                schema: Some(CustomResourceValidation { open_api_v3_schema: Some(schema()) }),
                ..CustomResourceDefinitionVersion::default()
            }],
            ..CustomResourceDefinitionSpec::default()
        },
        status: None,
    }
}

/// Returns the structural schema, the same for both groups.
fn schema() -> JSONSchemaProps {
    let quantity = |description: &str| JSONSchemaProps {
        any_of: Some(vec![typed_only("integer"), typed_only("string")]),
        x_kubernetes_int_or_string: Some(true),
        pattern: Some(QUANTITY_PATTERN.to_owned()),
        description: Some(description.to_owned()),
        ..JSONSchemaProps::default()
    };
    let mut spec = object(
        &["name", "nodeName", "size"],
        vec![
            ("name", typed("string", "Name of the volume, equal to metadata.name")),
            ("nodeName", typed("string", "Node that must own the volume")),
            ("size", quantity("Wanted size in bytes")),
            ("deviceClass", typed("string", "Device class; empty means the node's default class")),
            ("lvcreateOptionClass", typed("string", "Class of lvcreate options")),
            ("source", typed("string", "Name of the LogicalVolume that this one is a snapshot or clone of")),
            ("accessType", typed("string", "How a snapshot may be used: ro or rw")),
        ],
    );
    spec.x_kubernetes_validations = Some(["name", "nodeName", "deviceClass", "source"].map(stays).to_vec());
    let mut code = typed("integer", "gRPC code of the last attempt");
    code.format = Some("int32".to_owned());
    let status = object(
        &[],
        vec![
            ("volumeID", typed("string", "Id of the volume for CSI and its name in LVM")),
            ("code", code),
            ("message", typed("string", "Why the last attempt failed")),
            ("currentSize", quantity("Real size in bytes")),
            ("conditions", conditions()),
        ],
    );
    let mut schema = object(
        &[],
        vec![
            ("apiVersion", typed_only("string")),
            ("kind", typed_only("string")),
            ("metadata", typed_only("object")),
            ("spec", spec),
            ("status", status),
        ],
    );
    schema.description = Some("A volume cut from a volume group of one node".to_owned());
    schema
}

/// Returns the rule that a field of the spec cannot be changed: its volume would be looked for in another place.
/// TopoLVM writes the whole spec when it changes the size, without empty fields, so an empty field is the same as none.
fn stays(field: &str) -> ValidationRule {
    let value = |of: &str| format!("(has({of}.{field}) ? {of}.{field} : '')");
    ValidationRule {
        rule: format!("{} == {}", value("self"), value("oldSelf")),
        message: Some(format!("{field} says which volume this is and where, and cannot be changed")),
        field_path: Some(format!(".{field}")),
        ..ValidationRule::default()
    }
}

/// Returns the schema of standard conditions, validated like those of Kubernetes' own kinds.
fn conditions() -> JSONSchemaProps {
    let text = |description: &str, most: i64, pattern: Option<&str>| JSONSchemaProps {
        max_length: Some(most),
        pattern: pattern.map(str::to_owned),
        ..typed("string", description)
    };
    let condition = object(
        &["lastTransitionTime", "message", "reason", "status", "type"],
        vec![
            ("type", text("What it is about: Ready", 316, Some(CONDITION_TYPE_PATTERN))),
            (
                "status",
                JSONSchemaProps {
                    enum_: Some(["True", "False", "Unknown"].map(|truth| JSON(truth.into())).to_vec()),
                    ..typed("string", "Whether it is so")
                },
            ),
            (
                "reason",
                JSONSchemaProps {
                    min_length: Some(1),
                    ..text("Why, in one word", 1024, Some("^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"))
                },
            ),
            ("message", text("Why, for people", i64::try_from(LONGEST_MESSAGE).unwrap_or(i64::MAX), None)),
            (
                "observedGeneration",
                JSONSchemaProps {
                    format: Some("int64".to_owned()),
                    minimum: Some(0.0),
                    ..typed("integer", "Generation of the object that this is about")
                },
            ),
            (
                "lastTransitionTime",
                JSONSchemaProps {
                    format: Some("date-time".to_owned()),
                    ..typed("string", "When the status became what it is")
                },
            ),
        ],
    );
    JSONSchemaProps {
        items: Some(JSONSchemaPropsOrArray::Schema(Box::new(condition))),
        x_kubernetes_list_type: Some("map".to_owned()),
        x_kubernetes_list_map_keys: Some(vec!["type".to_owned()]),
        ..typed("array", "What of the object is so")
    }
}

fn object(required: &[&str], properties: Vec<(&str, JSONSchemaProps)>) -> JSONSchemaProps {
    JSONSchemaProps {
        required: (!required.is_empty()).then(|| required.iter().map(|&name| name.to_owned()).collect()),
        properties: Some(properties.into_iter().map(|(name, props)| (name.to_owned(), props)).collect()),
        ..typed_only("object")
    }
}

fn typed(type_: &str, description: &str) -> JSONSchemaProps {
    JSONSchemaProps { description: Some(description.to_owned()), ..typed_only(type_) }
}

/// Regular expression of Kubernetes for a quantity.
const QUANTITY_PATTERN: &str = concat!(
    r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))",
    r"(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$"
);

/// Regular expression of Kubernetes for the type of a condition (apimachinery, `metav1.Condition`).
const CONDITION_TYPE_PATTERN: &str =
    r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$";

fn typed_only(type_: &str) -> JSONSchemaProps {
    JSONSchemaProps { type_: Some(type_.to_owned()), ..JSONSchemaProps::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_is_a_subresource_of_its_own() {
        let definition = serde_json::to_value(crd(ApiFlavor::TopoLvm)).unwrap();
        assert_eq!(definition["spec"]["versions"][0]["subresources"], serde_json::json!({"status": {}}));
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
