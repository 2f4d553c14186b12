//! Name and parameters of a snapshot in the request to the driver. Pure.

use std::collections::HashMap;
use std::num::NonZeroU8;

use kube::ResourceExt as _;
use topolvm_api::SnapshotContent;

/// Prefix of the parameters that are for the controllers of Kubernetes.
const RESERVED: &str = "csi.storage.k8s.io/";
/// Purposes of the Secrets that a VolumeSnapshotClass, or the class of a group, can name.
const SECRET_PURPOSES: [&str; 4] = ["snapshotter", "snapshotter-list", "group-snapshotter", "group-snapshotter-get"];

/// Rule for the names of snapshots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SnapshotNames {
    /// Text before the UID of the VolumeSnapshot.
    pub(crate) prefix: String,
    /// Number of digits of the UID; all of it where it is `None`.
    pub(crate) uid_length: Option<NonZeroU8>,
}

/// No snapshot can be requested for a content.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RequestError {
    #[error("the VolumeSnapshotContent is not bound to a VolumeSnapshot; delete it, and create a VolumeSnapshot")]
    Unbound,
    #[error(
        "the VolumeSnapshotClass has the parameter {0}, which is reserved and not known; recreate it without this \
         parameter"
    )]
    UnknownParameter(String),
}

impl SnapshotNames {
    /// Returns the name of the snapshot of a VolumeSnapshot, whose UID is in it: a VolumeSnapshot that is recreated
    /// under its name gets another snapshot.
    pub(crate) fn of(&self, content: &SnapshotContent) -> Result<String, RequestError> {
        let uid = content.spec.volume_snapshot_ref.uid.as_deref().filter(|uid| !uid.is_empty());
        let uid = uid.ok_or(RequestError::Unbound)?;
        let uid = match self.uid_length {
            None => uid.to_owned(),
            Some(length) => uid.chars().filter(|character| *character != '-').take(length.get().into()).collect(),
        };
        Ok(format!("{}-{uid}", self.prefix))
    }
}

/// Returns the parameters for the driver: those of the class that are not reserved, and the names of the objects.
pub(crate) fn driver_parameters(
    class: HashMap<String, String>,
    content: &SnapshotContent,
) -> Result<HashMap<String, String>, RequestError> {
    let mut parameters = HashMap::new();
    for (key, value) in class {
        match key.strip_prefix(RESERVED) {
            None => drop(parameters.insert(key, value)),
            Some(rest) if names_secret(rest) => {}
            Some(_) => return Err(RequestError::UnknownParameter(key)),
        }
    }
    let snapshot = &content.spec.volume_snapshot_ref;
    let names = [
        ("volumesnapshot/name", snapshot.name.clone().unwrap_or_default()),
        ("volumesnapshot/namespace", snapshot.namespace.clone().unwrap_or_default()),
        ("volumesnapshotcontent/name", content.name_any()),
    ];
    parameters.extend(names.map(|(key, name)| (format!("{RESERVED}{key}"), name)));
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
            assert_eq!(names.of(&unbound), Err(RequestError::Unbound));
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
        assert_eq!(refused, Err(RequestError::UnknownParameter(key.to_owned())));
    }
}
