//! References to Secrets: those that snapshot-controller has written to a content, and templates in a class. Pure.

use std::collections::HashMap;

use kube::ResourceExt as _;

use crate::content::{Content, ContentNames};

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
        "the annotations {} and {} of the {} must not be empty; name the Secret in them, or remove both",
        .0.secret_name, .0.secret_namespace, .0.content
    )]
    EmptyAnnotation(&'static ContentNames),
    #[error(
        "the {} needs both {} and {}; recreate it with both or neither",
        .0.class, .0.check_secret_name, .0.check_secret_namespace
    )]
    Incomplete(&'static ContentNames),
    #[error(
        "{template:?} in the {} contains a token that is not known; use {}", .names.class, .names.content_token
    )]
    UnknownToken { names: &'static ContentNames, template: String },
}

/// Returns the Secret for the calls that create and delete the snapshots, if there is one.
pub(crate) fn snapshot_secret<C: Content>(content: &C) -> Result<Option<SecretName>, SecretError> {
    let annotations = content.annotations();
    match (annotations.get(C::NAMES.secret_namespace), annotations.get(C::NAMES.secret_name)) {
        (Some(namespace), Some(name)) if !namespace.is_empty() && !name.is_empty() => {
            Ok(Some(SecretName { namespace: namespace.clone(), name: name.clone() }))
        }
        (Some(_), Some(_)) => Err(SecretError::EmptyAnnotation(C::NAMES)),
        (None, _) | (_, None) => Ok(None),
    }
}

/// Returns the Secret for the check of what existed before that a class with these parameters names, if it does.
pub(crate) fn check_secret<C: Content>(
    parameters: &HashMap<String, String>,
    content: &C,
) -> Result<Option<SecretName>, SecretError> {
    let keys = [C::NAMES.check_secret_namespace, C::NAMES.check_secret_name];
    match keys.map(|key| parameters.get(key).filter(|template| !template.is_empty())) {
        [None, None] => {
            let is_named = keys.iter().any(|key| parameters.contains_key(*key));
            if is_named { Err(SecretError::Incomplete(C::NAMES)) } else { Ok(None) }
        }
        [Some(namespace), Some(name)] => {
            Ok(Some(SecretName { namespace: resolve(namespace, content)?, name: resolve(name, content)? }))
        }
        [None, Some(_)] | [Some(_), None] => Err(SecretError::Incomplete(C::NAMES)),
    }
}

fn resolve<C: Content>(template: &str, content: &C) -> Result<String, SecretError> {
    let resolved = template.replace(C::NAMES.content_token, &content.name_any());
    if resolved.contains('$') {
        return Err(SecretError::UnknownToken { names: C::NAMES, template: template.to_owned() });
    }
    Ok(resolved)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;
    use crate::snapshot_content::NAMES;
    use crate::tests::content::dynamic;

    const LIST_SECRET_NAME: &str = NAMES.check_secret_name;
    const LIST_SECRET_NAMESPACE: &str = NAMES.check_secret_namespace;

    fn secret(namespace: &str, name: &str) -> SecretName {
        SecretName { namespace: namespace.to_owned(), name: name.to_owned() }
    }

    #[rstest]
    #[case(json!({}), Ok(None))]
    #[case(json!({NAMES.secret_name: "a"}), Ok(None))]
    #[case(json!({NAMES.secret_name: "a", NAMES.secret_namespace: "b"}), Ok(Some(secret("b", "a"))))]
    #[case(json!({NAMES.secret_name: "", NAMES.secret_namespace: "b"}), Err(SecretError::EmptyAnnotation(&NAMES)))]
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
    #[case(&[(LIST_SECRET_NAME, "a")], Err(SecretError::Incomplete(&NAMES)))]
    #[case(&[(LIST_SECRET_NAME, ""), (LIST_SECRET_NAMESPACE, "b")], Err(SecretError::Incomplete(&NAMES)))]
    #[case(&[(LIST_SECRET_NAME, ""), (LIST_SECRET_NAMESPACE, "")], Err(SecretError::Incomplete(&NAMES)))]
    #[case(
        // A user chooses this name, and must not reach another Secret
        &[(LIST_SECRET_NAME, "${volumesnapshot.name}"), (LIST_SECRET_NAMESPACE, "b")],
        Err(SecretError::UnknownToken { names: &NAMES, template: "${volumesnapshot.name}".to_owned() }),
    )]
    fn secret_of_lists_is_in_the_class(
        #[case] parameters: &[(&str, &str)],
        #[case] expected: Result<Option<SecretName>, SecretError>,
    ) {
        let parameters = parameters.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        assert_eq!(check_secret(&parameters, &dynamic(&[])), expected);
    }
}
