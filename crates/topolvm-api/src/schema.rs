//! Schemas of our CustomResourceDefinitions, generated from the Rust types: doc comments are the descriptions.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::JSONSchemaProps;
use kube_core::schema::StructuralSchemaRewriter;
use schemars::generate::SchemaSettings;
use schemars::transform::{Transform, transform_subschemas};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::{Value, json};

/// Longest message of a condition in characters (apimachinery, `metav1.Condition`); a longer one would be refused.
pub(crate) const LONGEST_MESSAGE: usize = 32_768;
/// Pattern of a quantity, as controller-gen has it.
const QUANTITY: &str = concat!(
    r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))",
    r"(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$",
);
/// Patterns of apimachinery, `metav1.Condition`.
const CONDITION_TYPE: &str = concat!(
    r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?",
    r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$",
);
const CONDITION_REASON: &str = "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$";

/// Returns the structural schema of a type.
pub(crate) fn schema_of<T: JsonSchema>() -> JSONSchemaProps {
    let settings = SchemaSettings::openapi3().with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    });
    let settings = settings.with_transform(StructuralSchemaRewriter).with_transform(AsControllerGen);
    let schema = settings.into_generator().into_root_schema_for::<T>();
    // A schema of ours, which the tests generate: it is never anything else
    serde_json::from_value(schema.to_value()).unwrap_or_default()
}

/// Writes a schema as controller-gen does: without titles, defaults of serde, `null` and formats that Kubernetes does
/// not know, and with descriptions in one line.
#[derive(Clone, Debug)]
struct AsControllerGen;

impl Transform for AsControllerGen {
    fn transform(&mut self, schema: &mut Schema) {
        transform_subschemas(self, schema);
        let Some(object) = schema.as_object_mut() else { return };
        for name in ["title", "nullable"] {
            object.remove(name);
        }
        object.retain(|_, value| !value.is_null());
        if object.contains_key("x-kubernetes-int-or-string") {
            // Not in the schema itself: the rewriter takes the types away
            object.insert("anyOf".to_owned(), json!([{"type": "integer"}, {"type": "string"}]));
        }
        // A zero value is what a field without a value means anyway
        let has_value = |default: &Value| default.as_i64().is_some_and(|number| number != 0);
        if object.get("default").is_some_and(|default| !has_value(default)) {
            object.remove("default");
        }
        match object.get("format").and_then(Value::as_str) {
            Some("uint32") => drop(object.insert("format".to_owned(), "int32".into())),
            Some("uint64" | "uint") => drop(object.insert("format".to_owned(), "int64".into())),
            _ => {}
        }
        if let Some(Value::String(text)) = object.get_mut("description") {
            text.replace('\n', " ").replace('`', "").trim_end_matches('.').clone_into(text);
        }
    }
}

/// Returns the schema of a quantity.
pub(crate) fn quantity(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "x-kubernetes-int-or-string": true,
        "pattern": QUANTITY,
    })
}

/// Returns the schema of a quantity that is at least one.
pub(crate) fn positive_quantity(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "x-kubernetes-int-or-string": true,
        "pattern": QUANTITY,
        "x-kubernetes-validations": [{
            "rule": "quantity(string(self)).isGreaterThan(quantity('0'))",
            "message": "must be greater than 0; leave it out for no limit",
        }],
    })
}

/// Returns the schema of a time.
pub(crate) fn time(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "format": "date-time"})
}

/// Returns the schema of a list of conditions, of which there is one of each type.
pub(crate) fn conditions(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
        "items": {
            "type": "object",
            "required": ["lastTransitionTime", "message", "reason", "status", "type"],
            "properties": {
                "type": {
                    "type": "string", "maxLength": 316, "pattern": CONDITION_TYPE,
                    "description": "Type of the condition",
                },
                "status": {
                    "type": "string", "enum": ["True", "False", "Unknown"],
                    "description": "Status of the condition",
                },
                "reason": {
                    "type": "string", "minLength": 1, "maxLength": 1024, "pattern": CONDITION_REASON,
                    "description": "Reason of the last transition, for programs",
                },
                "message": {
                    "type": "string", "maxLength": LONGEST_MESSAGE,
                    "description": "Details of the last transition, for people",
                },
                "observedGeneration": {
                    "type": "integer", "format": "int64", "minimum": 0,
                    "description": "Generation of the object for which the condition was set",
                },
                "lastTransitionTime": {
                    "type": "string", "format": "date-time",
                    "description": "Time of the last change of status",
                },
            },
        },
    })
}
