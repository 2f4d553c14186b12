//! References to Secrets, from templates in the parameters of a StorageClass. Pure.

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, SecretReference};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::ResourceExt as _;

/// Prefix of the StorageClass parameters that are for the provisioner. The driver does not get them.
pub(crate) const RESERVED: &str = "csi.storage.k8s.io/";

/// The two parameters of a StorageClass that name a Secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SecretParameters {
    /// Text before `secret-name` and `secret-namespace` in the reserved keys.
    purpose: &'static str,
    /// The keys of earlier versions of external-provisioner, without `Name` and `Namespace`.
    old: Option<&'static str>,
}

/// The Secret for CreateVolume and DeleteVolume.
pub(crate) const PROVISIONER: SecretParameters =
    SecretParameters { purpose: "provisioner-", old: Some("csiProvisionerSecret") };
/// The Secret for attaching.
pub(crate) const CONTROLLER_PUBLISH: SecretParameters =
    SecretParameters { purpose: "controller-publish-", old: Some("csiControllerPublishSecret") };
/// The Secret for staging.
pub(crate) const NODE_STAGE: SecretParameters =
    SecretParameters { purpose: "node-stage-", old: Some("csiNodeStageSecret") };
/// The Secret for mounting.
pub(crate) const NODE_PUBLISH: SecretParameters =
    SecretParameters { purpose: "node-publish-", old: Some("csiNodePublishSecret") };
/// The Secret for growing the volume.
pub(crate) const CONTROLLER_EXPAND: SecretParameters = SecretParameters { purpose: "controller-expand-", old: None };
/// The Secret for growing the filesystem.
pub(crate) const NODE_EXPAND: SecretParameters = SecretParameters { purpose: "node-expand-", old: None };
/// The Secret for a change of the VolumeAttributesClass.
pub(crate) const CONTROLLER_MODIFY: SecretParameters = SecretParameters { purpose: "controller-modify-", old: None };
/// The Secret for each purpose that has none of its own.
const DEFAULT: SecretParameters = SecretParameters { purpose: "", old: None };

/// All of them.
pub(crate) const SECRET_PARAMETERS: [SecretParameters; 8] = [
    PROVISIONER,
    CONTROLLER_PUBLISH,
    NODE_STAGE,
    NODE_PUBLISH,
    CONTROLLER_EXPAND,
    NODE_EXPAND,
    CONTROLLER_MODIFY,
    DEFAULT,
];

/// The parameters of a StorageClass name no valid Secret.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SecretError {
    #[error("the StorageClass names the {0}secret twice; remove the parameters without the prefix {RESERVED}")]
    Twice(&'static str),
    #[error("the StorageClass has only one of {RESERVED}{0}secret-name and {RESERVED}{0}secret-namespace; set both")]
    Incomplete(&'static str),
    #[error(
        "{template:?} in the StorageClass contains ${{{token}}}, which is not known; use ${{pv.name}}, \
         ${{pvc.namespace}} and, in names, ${{pvc.name}} or ${{pvc.annotations['KEY']}} of an annotation of the claim"
    )]
    UnknownToken { template: String, token: String },
    #[error("{template:?} in the StorageClass becomes {value:?}, which is no valid name of a {kind}")]
    InvalidName { template: String, value: String, kind: &'static str },
}

impl SecretParameters {
    /// Returns whether this is one of the reserved keys.
    pub(crate) fn has_key(self, key: &str) -> bool {
        self.keys().iter().any(|reserved| key == reserved)
    }

    fn keys(self) -> [String; 2] {
        ["name", "namespace"].map(|part| format!("{RESERVED}{}secret-{part}", self.purpose))
    }

    /// Returns the reference to the Secret for the volume of a claim, if the StorageClass names one.
    pub(crate) fn resolve(
        self,
        class: &StorageClass,
        volume: &str,
        claim: &PersistentVolumeClaim,
    ) -> Result<Option<SecretReference>, SecretError> {
        let templates = match self.templates(class)? {
            None => DEFAULT.templates(class)?,
            own => own,
        };
        let Some([name, namespace]) = templates else { return Ok(None) };
        let claim_namespace = claim.namespace().unwrap_or_default();
        // A user chooses the name of a claim and its annotations, and must not reach Secrets of other namespaces
        let of_namespace = expand(namespace, |token| match token {
            "pv.name" => Some(volume.to_owned()),
            "pvc.namespace" => Some(claim_namespace.clone()),
            _ => None,
        })?;
        let of_name = expand(name, |token| match token {
            "pv.name" => Some(volume.to_owned()),
            "pvc.namespace" => Some(claim_namespace.clone()),
            "pvc.name" => Some(claim.name_any()),
            other => {
                let key = other.strip_prefix("pvc.annotations['")?.strip_suffix("']")?;
                claim.annotations().get(key).cloned()
            }
        })?;
        check_name(namespace, &of_namespace, "namespace", is_label(&of_namespace))?;
        check_name(name, &of_name, "Secret", of_name.len() <= 253 && of_name.split('.').all(is_label_part))?;
        Ok(Some(SecretReference { name: Some(of_name), namespace: Some(of_namespace) }))
    }

    /// Returns the templates of name and namespace.
    fn templates(self, class: &StorageClass) -> Result<Option<[&str; 2]>, SecretError> {
        let parameter = |key: &str| class.parameters.as_ref().and_then(|all| all.get(key)).map(String::as_str);
        let mut found = [None, None];
        for (index, (part, key)) in ["Name", "Namespace"].into_iter().zip(self.keys()).enumerate() {
            let old = self.old.and_then(|old| parameter(&format!("{old}{part}")));
            let template = match (parameter(&key), old) {
                (Some(_), Some(_)) => return Err(SecretError::Twice(self.purpose)),
                (new, old) => new.or(old),
            };
            if let Some(place) = found.get_mut(index) {
                *place = template;
            }
        }
        match found {
            [None, None] => Ok(None),
            [Some(name), Some(namespace)] if !name.is_empty() && !namespace.is_empty() => Ok(Some([name, namespace])),
            _ => Err(SecretError::Incomplete(self.purpose)),
        }
    }
}

/// Replaces each `${token}` of a template.
fn expand(template: &str, value: impl Fn(&str) -> Option<String>) -> Result<String, SecretError> {
    let mut expanded = String::new();
    let mut rest = template;
    while let Some((before, token)) = rest.split_once("${") {
        let (token, after) = token.split_once('}').unwrap_or((token, ""));
        let unknown = || SecretError::UnknownToken { template: template.to_owned(), token: token.to_owned() };
        expanded.push_str(before);
        expanded.push_str(&value(token).ok_or_else(unknown)?);
        rest = after;
    }
    expanded.push_str(rest);
    Ok(expanded)
}

fn check_name(template: &str, value: &str, kind: &'static str, is_valid: bool) -> Result<(), SecretError> {
    if is_valid {
        return Ok(());
    }
    Err(SecretError::InvalidName { template: template.to_owned(), value: value.to_owned(), kind })
}

fn is_label(name: &str) -> bool {
    name.len() <= 63 && is_label_part(name)
}

fn is_label_part(name: &str) -> bool {
    let is_alphanumeric = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = name.as_bytes();
    bytes.first().is_some_and(is_alphanumeric)
        && bytes.last().is_some_and(is_alphanumeric)
        && bytes.iter().all(|byte| is_alphanumeric(byte) || *byte == b'-')
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use rstest::rstest;
    use topolvm_testkit::fixtures::{claim, storage_class};

    use super::*;

    fn resolve(parameters: &[(&str, &str)]) -> Result<Option<(String, String)>, SecretError> {
        let class = parameters.iter().fold(storage_class("fast"), |class, (key, value)| class.parameter(key, value));
        let mut claim = claim("data").namespace("web").build();
        claim.metadata.annotations = Some(BTreeMap::from([("a.example/secret".to_owned(), "mine".to_owned())]));
        let found = PROVISIONER.resolve(&class.build(), "pvc-1", &claim)?;
        Ok(found.map(|found| (found.namespace.unwrap(), found.name.unwrap())))
    }

    const NAME: &str = "csi.storage.k8s.io/provisioner-secret-name";
    const NAMESPACE: &str = "csi.storage.k8s.io/provisioner-secret-namespace";

    #[rstest]
    #[case::none(&[], None)]
    #[case::templates(
        &[(NAME, "${pvc.name}-${pvc.annotations['a.example/secret']}"), (NAMESPACE, "${pvc.namespace}")],
        Some(("web", "data-mine")),
    )]
    #[case::volume(&[(NAME, "${pv.name}"), (NAMESPACE, "n")], Some(("n", "pvc-1")))]
    #[case::old_names(
        &[("csiProvisionerSecretName", "a"), ("csiProvisionerSecretNamespace", "b")], Some(("b", "a")),
    )]
    #[case::default(
        &[("csi.storage.k8s.io/secret-name", "a"), ("csi.storage.k8s.io/secret-namespace", "b")], Some(("b", "a")),
    )]
    fn secret_reference_follows_the_templates(
        #[case] parameters: &[(&str, &str)],
        #[case] expected: Option<(&str, &str)>,
    ) {
        let expected = expected.map(|(namespace, name)| (namespace.to_owned(), name.to_owned()));
        assert_eq!(resolve(parameters), Ok(expected));
    }

    #[rstest]
    #[case::half(&[(NAME, "a")])]
    #[case::empty(&[(NAME, ""), (NAMESPACE, "b")])]
    #[case::twice(&[(NAME, "a"), (NAMESPACE, "b"), ("csiProvisionerSecretName", "a")])]
    #[case::name_of_the_claim_as_namespace(&[(NAME, "a"), (NAMESPACE, "${pvc.name}")])]
    #[case::missing_annotation(&[(NAME, "${pvc.annotations['other']}"), (NAMESPACE, "b")])]
    #[case::invalid_name(&[(NAME, "A"), (NAMESPACE, "b")])]
    #[case::invalid_namespace(&[(NAME, "a"), (NAMESPACE, "b.c")])]
    fn secret_reference_is_refused(#[case] parameters: &[(&str, &str)]) {
        resolve(parameters).unwrap_err();
    }
}
