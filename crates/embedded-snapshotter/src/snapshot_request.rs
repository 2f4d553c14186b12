//! Name and parameters of what the driver is asked to create. Pure.

use std::collections::HashMap;
use std::num::NonZeroU8;

use kube::ResourceExt as _;

use crate::content::{Content, ContentNames};

/// Prefix of the parameters that are for the controllers of Kubernetes.
const RESERVED: &str = "csi.storage.k8s.io/";
/// Purposes of the Secrets that a VolumeSnapshotClass, or the class of a group, can name.
const SECRET_PURPOSES: [&str; 4] = ["snapshotter", "snapshotter-list", "group-snapshotter", "group-snapshotter-get"];

/// Rule for the names of snapshots, or of groups of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SnapshotNames {
    /// Text before the UID of the VolumeSnapshot or VolumeGroupSnapshot.
    pub(crate) prefix: String,
    /// Number of digits of the UID; all of it where it is `None`.
    pub(crate) uid_length: Option<NonZeroU8>,
}

/// No snapshots can be requested for a content.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RequestError {
    #[error("the {} is not bound to a {}; delete it, and create a {}", .0.content, .0.object, .0.object)]
    Unbound(&'static ContentNames),
    #[error(
        "the {} has the parameter {parameter}, which is reserved and not known; recreate it without this parameter",
        .names.class
    )]
    UnknownParameter { names: &'static ContentNames, parameter: String },
}

impl SnapshotNames {
    /// Returns the name for the object that the content is bound to, whose UID is in it: one that is recreated under
    /// its name gets another snapshot.
    pub(crate) fn of<C: Content>(&self, content: &C) -> Result<String, RequestError> {
        let uid = content.bound_uid().filter(|uid| !uid.is_empty()).ok_or(RequestError::Unbound(C::NAMES))?;
        let uid = match self.uid_length {
            None => uid.to_owned(),
            Some(length) => uid.chars().filter(|character| *character != '-').take(length.get().into()).collect(),
        };
        Ok(format!("{}-{uid}", self.prefix))
    }
}

/// Returns the parameters for the driver: those of the class that are not reserved, and the names of the objects.
pub(crate) fn driver_parameters<C: Content>(
    class: HashMap<String, String>,
    content: &C,
) -> Result<HashMap<String, String>, RequestError> {
    let mut parameters = HashMap::new();
    for (key, value) in class {
        match key.strip_prefix(RESERVED) {
            None => drop(parameters.insert(key, value)),
            Some(rest) if names_secret(rest) => {}
            Some(_) => return Err(RequestError::UnknownParameter { names: C::NAMES, parameter: key }),
        }
    }
    let [name, namespace] = content.bound_name().map(str::to_owned);
    let names = [
        (C::NAMES.object_name_parameter, name),
        (C::NAMES.object_namespace_parameter, namespace),
        (C::NAMES.content_name_parameter, content.name_any()),
    ];
    parameters.extend(names.map(|(key, name)| (key.to_owned(), name)));
    Ok(parameters)
}

fn names_secret(key: &str) -> bool {
    SECRET_PURPOSES
        .iter()
        .any(|purpose| matches!(key.strip_prefix(purpose), Some("-secret-name" | "-secret-namespace")))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::snapshot_content::NAMES;
    use crate::tests::content::dynamic;

    #[rstest]
    #[case(None, "snapshot-0abc-1def")]
    #[case(NonZeroU8::new(6), "snapshot-0abc1d")]
    #[case(NonZeroU8::new(32), "snapshot-0abc1def")]
    fn snapshot_name_contains_the_uid(#[case] uid_length: Option<NonZeroU8>, #[case] expected: &str) {
        let names = SnapshotNames { prefix: "snapshot".to_owned(), uid_length };
        assert_eq!(names.of(&dynamic(&[])).as_deref(), Ok(expected));
        for uid in [json!(null), json!("")] {
            let unbound = dynamic(&[json!({"spec": {"volumeSnapshotRef": {"uid": uid}}})]);
            assert_eq!(names.of(&unbound), Err(RequestError::Unbound(&NAMES)));
        }
    }

    #[test]
    fn driver_gets_its_parameters_and_the_names() {
        let class = [
            ("colour", "red"),
            ("csi.storage.k8s.io/snapshotter-secret-name", "a"),
            ("csi.storage.k8s.io/snapshotter-list-secret-namespace", "b"),
        ];
        let class = class.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let parameters = driver_parameters(class.into(), &dynamic(&[])).unwrap();
        let expected = [
            ("colour", "red"),
            ("csi.storage.k8s.io/volumesnapshot/name", "monday"),
            ("csi.storage.k8s.io/volumesnapshot/namespace", "web"),
            ("csi.storage.k8s.io/volumesnapshotcontent/name", "content"),
        ];
        assert_eq!(parameters, expected.map(|(key, value)| (key.to_owned(), value.to_owned())).into());
    }

    #[rstest]
    #[case("csi.storage.k8s.io/fstype")]
    #[case("csi.storage.k8s.io/snapshotter-secret")]
    fn unknown_reserved_parameter_is_refused(#[case] key: &str) {
        let class = [(key.to_owned(), "x".to_owned())];
        let refused = driver_parameters(class.into(), &dynamic(&[]));
        assert_eq!(refused, Err(RequestError::UnknownParameter { names: &NAMES, parameter: key.to_owned() }));
    }
}
