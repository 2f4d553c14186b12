//! References to Secrets: those that snapshot-controller has written to a VolumeSnapshotContent, and templates in a
//! VolumeSnapshotClass. Pure.

use std::collections::HashMap;

use kube::ResourceExt as _;
use topolvm_api::SnapshotContent;

use crate::annotations::{SECRET_NAME, SECRET_NAMESPACE};

/// Parameters of a VolumeSnapshotClass with the Secret for ListSnapshots.
const LIST_SECRET_NAME: &str = "csi.storage.k8s.io/snapshotter-list-secret-name";
const LIST_SECRET_NAMESPACE: &str = "csi.storage.k8s.io/snapshotter-list-secret-namespace";
/// The token of a template that is the name of the VolumeSnapshotContent.
const CONTENT_NAME: &str = "${volumesnapshotcontent.name}";

/// Namespace and name of a Secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SecretName {
    pub(crate) namespace: String,
    pub(crate) name: String,
}

/// No Secret is named, or not completely.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SecretError {
    #[error(
        "the annotations {SECRET_NAME} and {SECRET_NAMESPACE} of the VolumeSnapshotContent must not be empty; name \
         the Secret in them, or remove both"
    )]
    EmptyAnnotation,
    #[error(
        "the VolumeSnapshotClass needs both {LIST_SECRET_NAME} and {LIST_SECRET_NAMESPACE}; recreate it with both or \
         neither"
    )]
    Incomplete,
    #[error("{0:?} in the VolumeSnapshotClass contains a token that is not known; use {CONTENT_NAME}")]
    UnknownToken(String),
}

/// Returns the Secret for the calls that create and delete the snapshot, if there is one.
pub(crate) fn snapshot_secret(content: &SnapshotContent) -> Result<Option<SecretName>, SecretError> {
    let annotations = content.annotations();
    match (annotations.get(SECRET_NAMESPACE), annotations.get(SECRET_NAME)) {
        (Some(namespace), Some(name)) if !namespace.is_empty() && !name.is_empty() => {
            Ok(Some(SecretName { namespace: namespace.clone(), name: name.clone() }))
        }
        (Some(_), Some(_)) => Err(SecretError::EmptyAnnotation),
        (None, _) | (_, None) => Ok(None),
    }
}

/// Returns the Secret for ListSnapshots that a VolumeSnapshotClass with these parameters names, if it does.
pub(crate) fn list_secret(
    parameters: &HashMap<String, String>,
    content: &SnapshotContent,
) -> Result<Option<SecretName>, SecretError> {
    let parameter = |key: &str| parameters.get(key).filter(|template| !template.is_empty());
    match (parameter(LIST_SECRET_NAMESPACE), parameter(LIST_SECRET_NAME)) {
        (None, None) => {
            let is_named = [LIST_SECRET_NAMESPACE, LIST_SECRET_NAME].iter().any(|key| parameters.contains_key(*key));
            if is_named { Err(SecretError::Incomplete) } else { Ok(None) }
        }
        (Some(namespace), Some(name)) => {
            let resolve = |template| resolve(template, &content.name_any());
            Ok(Some(SecretName { namespace: resolve(namespace)?, name: resolve(name)? }))
        }
        (None, Some(_)) | (Some(_), None) => Err(SecretError::Incomplete),
    }
}

fn resolve(template: &str, content: &str) -> Result<String, SecretError> {
    let resolved = template.replace(CONTENT_NAME, content);
    if resolved.contains('$') { Err(SecretError::UnknownToken(template.to_owned())) } else { Ok(resolved) }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;
    use crate::tests::content::dynamic;

    fn secret(namespace: &str, name: &str) -> SecretName {
        SecretName { namespace: namespace.to_owned(), name: name.to_owned() }
    }

    #[rstest]
    #[case(json!({}), Ok(None))]
    #[case(json!({SECRET_NAME: "a"}), Ok(None))]
    #[case(json!({SECRET_NAME: "a", SECRET_NAMESPACE: "b"}), Ok(Some(secret("b", "a"))))]
    #[case(json!({SECRET_NAME: "", SECRET_NAMESPACE: "b"}), Err(SecretError::EmptyAnnotation))]
    fn secret_of_a_snapshot_is_in_annotations(
        #[case] annotations: Value,
        #[case] expected: Result<Option<SecretName>, SecretError>,
    ) {
        let content = dynamic(&[json!({"metadata": {"annotations": annotations}})]);
        assert_eq!(snapshot_secret(&content), expected);
    }

    #[rstest]
    #[case(&[("colour", "red")], Ok(None))]
    #[case(&[(LIST_SECRET_NAME, "a"), (LIST_SECRET_NAMESPACE, "b")], Ok(Some(secret("b", "a"))))]
    #[case(
        &[(LIST_SECRET_NAME, "of-${volumesnapshotcontent.name}"), (LIST_SECRET_NAMESPACE, "b")],
        Ok(Some(secret("b", "of-content"))),
    )]
    #[case(&[(LIST_SECRET_NAME, "a")], Err(SecretError::Incomplete))]
    #[case(&[(LIST_SECRET_NAME, ""), (LIST_SECRET_NAMESPACE, "b")], Err(SecretError::Incomplete))]
    #[case(&[(LIST_SECRET_NAME, ""), (LIST_SECRET_NAMESPACE, "")], Err(SecretError::Incomplete))]
    #[case(
        // A user chooses this name, and must not reach another Secret
        &[(LIST_SECRET_NAME, "${volumesnapshot.name}"), (LIST_SECRET_NAMESPACE, "b")],
        Err(SecretError::UnknownToken("${volumesnapshot.name}".to_owned())),
    )]
    fn secret_of_lists_is_in_the_class(
        #[case] parameters: &[(&str, &str)],
        #[case] expected: Result<Option<SecretName>, SecretError>,
    ) {
        let parameters = parameters.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        assert_eq!(list_secret(&parameters, &dynamic(&[])), expected);
    }
}
