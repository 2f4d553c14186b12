//! A CustomResourceDefinition, made of the names of a type, its printer columns and its schema.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceColumnDefinition, CustomResourceDefinition, CustomResourceDefinitionNames,
    CustomResourceDefinitionSpec, CustomResourceDefinitionVersion, CustomResourceSubresourceStatus,
    CustomResourceSubresources, CustomResourceValidation, JSONSchemaProps, SelectableField,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube_core::Resource;

use crate::ApiFlavor;

/// Annotations that keep Argo CD, Helm and Flux from deleting a definition, and with it all objects of its kind.
const KEPT: [(&str, &str); 3] = [
    ("argocd.argoproj.io/sync-options", "Prune=false,Delete=false"),
    ("helm.sh/resource-policy", "keep"),
    ("kustomize.toolkit.fluxcd.io/prune", "disabled"),
];

/// The parts of a definition that a type does not have.
#[derive(Debug)]
pub(super) struct Definition {
    pub(super) description: &'static str,
    pub(super) short_names: &'static [&'static str],
    /// JSON paths.
    pub(super) selectable_fields: &'static [&'static str],
    pub(super) columns: Vec<CustomResourceColumnDefinition>,
    /// Schemas of `spec` and `status`, as far as the kind has them.
    pub(super) parts: Vec<(&'static str, JSONSchemaProps)>,
    /// Parts without which an object is not accepted.
    pub(super) required: &'static [&'static str],
}

/// Returns a printer column; one that is wide is only in `-o wide`.
pub(super) fn column(
    (name, type_, json_path): (&str, &str, &str),
    description: &str,
    is_wide: bool,
) -> CustomResourceColumnDefinition {
    CustomResourceColumnDefinition {
        name: name.to_owned(),
        type_: type_.to_owned(),
        json_path: json_path.to_owned(),
        description: Some(description.to_owned()),
        priority: is_wide.then_some(1),
        format: None,
    }
}

impl Definition {
    /// Returns the definition for one API group.
    pub(super) fn build<K: Resource<DynamicType = ApiFlavor>>(self, flavor: ApiFlavor) -> CustomResourceDefinition {
        let (kind, plural) = (K::kind(&flavor), K::plural(&flavor));
        let names = CustomResourceDefinitionNames {
            kind: kind.to_string(),
            list_kind: Some(format!("{kind}List")),
            plural: plural.to_string(),
            singular: Some(kind.to_lowercase()),
            short_names: (!self.short_names.is_empty()).then(|| strings(self.short_names)),
            ..CustomResourceDefinitionNames::default()
        };
        let fields = self.selectable_fields.iter().map(|path| SelectableField { json_path: (*path).to_owned() });
        let version = CustomResourceDefinitionVersion {
            name: K::version(&flavor).into_owned(),
            served: true,
            storage: true,
            subresources: Some(CustomResourceSubresources {
                status: Some(CustomResourceSubresourceStatus(serde_json::json!({}))),
                scale: None,
            }),
            selectable_fields: Some(fields.collect()).filter(|fields: &Vec<_>| !fields.is_empty()),
            additional_printer_columns: Some(self.columns),
            schema: Some(CustomResourceValidation {
                open_api_v3_schema: Some(object(self.description, self.parts, self.required)),
            }),
            ..CustomResourceDefinitionVersion::default()
        };
        let annotations = KEPT.map(|(key, value)| (key.to_owned(), value.to_owned()));
        CustomResourceDefinition {
            metadata: ObjectMeta {
                name: Some(format!("{plural}.{flavor}")),
                annotations: Some(annotations.into()),
                ..ObjectMeta::default()
            },
            spec: CustomResourceDefinitionSpec {
                group: flavor.group().to_owned(),
                scope: "Cluster".to_owned(),
                names,
                versions: vec![version],
                ..CustomResourceDefinitionSpec::default()
            },
            status: None,
        }
    }
}

/// Returns the schema of an object with these parts.
fn object(description: &str, parts: Vec<(&'static str, JSONSchemaProps)>, required: &[&str]) -> JSONSchemaProps {
    let of_type = |type_: &str| JSONSchemaProps { type_: Some(type_.to_owned()), ..JSONSchemaProps::default() };
    let common = [("apiVersion", "string"), ("kind", "string"), ("metadata", "object")];
    let common = common.map(|(name, type_)| (name, of_type(type_)));
    let properties = common.into_iter().chain(parts).map(|(name, schema)| (name.to_owned(), schema));
    JSONSchemaProps {
        description: Some(description.to_owned()),
        required: Some(strings(required)).filter(|required| !required.is_empty()),
        properties: Some(properties.collect()),
        ..of_type("object")
    }
}

fn strings(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|&text| text.to_owned()).collect()
}
