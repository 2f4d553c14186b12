//! Builds the parts of a CreateVolume request that follow from the claim and its StorageClass. Pure.

use std::collections::HashMap;

use csi_calls::{Capabilities, access_mode};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::ResourceExt as _;
use topolvm_api::parse_bytes;
use topolvm_proto::csi::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use topolvm_proto::csi::{CapacityRange, VolumeCapability};

use crate::error::PrepareError;
use crate::secret_reference::{RESERVED, SECRET_PARAMETERS};

/// The parameter with the filesystem.
const FSTYPE: &str = "csi.storage.k8s.io/fstype";

/// Returns the name of a volume and of its PersistentVolume.
pub(crate) fn volume_name(prefix: &str, claim_uid: &str) -> String {
    format!("{prefix}-{claim_uid}")
}

/// Returns the UID of the claim in the name of a PersistentVolume.
pub(crate) fn claim_uid<'a>(prefix: &str, volume: &'a str) -> Option<&'a str> {
    volume.strip_prefix(prefix)?.strip_prefix('-')
}

/// Returns the filesystem that the StorageClass names, or the default.
pub(crate) fn filesystem(class: &StorageClass, default: &str) -> Result<String, PrepareError> {
    // The key without a prefix is an old name, in any case
    let is_named = |key: &str| key == FSTYPE || key.eq_ignore_ascii_case("fstype");
    let mut named = class.parameters.iter().flatten().filter(|(key, _)| is_named(key)).map(|(_, value)| value);
    match (named.next(), named.next()) {
        (_, Some(_)) => Err(PrepareError::TwoFilesystems(class.name_any())),
        (Some(name), None) if !name.is_empty() => Ok(name.clone()),
        (_, None) => Ok(default.to_owned()),
    }
}

/// Returns the parameters for the driver: those of the StorageClass without the reserved ones, and the names of the
/// claim and its volume.
pub(crate) fn parameters(
    class: &StorageClass,
    claim: &PersistentVolumeClaim,
    volume: &str,
) -> Result<HashMap<String, String>, PrepareError> {
    let mut kept = HashMap::new();
    for (key, value) in class.parameters.iter().flatten() {
        if !key.starts_with(RESERVED) {
            kept.insert(key.clone(), value.clone());
        } else if key != FSTYPE && !SECRET_PARAMETERS.iter().any(|secret| secret.has_key(key)) {
            return Err(PrepareError::UnknownParameter { class: class.name_any(), key: key.clone() });
        }
    }
    let names = [
        ("pvc/name", claim.name_any()),
        ("pvc/namespace", claim.namespace().unwrap_or_default()),
        ("pv/name", volume.to_owned()),
    ];
    kept.extend(names.map(|(key, name)| (format!("{RESERVED}{key}"), name)));
    Ok(kept)
}

/// Returns the size that the claim requests. There is no upper limit.
pub(crate) fn capacity_range(claim: &PersistentVolumeClaim) -> Result<CapacityRange, PrepareError> {
    let bytes = requested_bytes(claim)?;
    Ok(CapacityRange { required_bytes: i64::try_from(bytes).unwrap_or(i64::MAX), limit_bytes: 0 })
}

/// Returns the bytes that the claim requests.
pub(crate) fn requested_bytes(claim: &PersistentVolumeClaim) -> Result<u64, PrepareError> {
    let resources = claim.spec.as_ref().and_then(|spec| spec.resources.as_ref());
    let storage = resources.and_then(|resources| resources.requests.as_ref()?.get("storage"));
    Ok(storage.map(parse_bytes).transpose()?.unwrap_or(0))
}

/// Returns a capability for each access mode of the claim.
pub(crate) fn capabilities(
    claim: &PersistentVolumeClaim,
    class: &StorageClass,
    filesystem: &str,
    announced: Capabilities,
) -> Result<Vec<VolumeCapability>, PrepareError> {
    let access_type = || {
        if is_block(claim) {
            return AccessType::Block(BlockVolume {});
        }
        AccessType::Mount(MountVolume {
            fs_type: filesystem.to_owned(),
            mount_flags: class.mount_options.clone().unwrap_or_default(),
            ..MountVolume::default()
        })
    };
    let modes = claim.spec.iter().flat_map(|spec| spec.access_modes.iter().flatten());
    let capability = |mode: &String| {
        let mode = access_mode(mode, announced).ok_or_else(|| PrepareError::UnknownAccessMode(mode.clone()))?;
        let access_mode = Some(AccessMode { mode: mode.into() });
        Ok(VolumeCapability { access_mode, access_type: Some(access_type()) })
    };
    modes.map(capability).collect()
}

/// Returns whether the claim is for a device without a filesystem.
pub(crate) fn is_block(claim: &PersistentVolumeClaim) -> bool {
    claim.spec.as_ref().is_some_and(|spec| spec.volume_mode.as_deref() == Some("Block"))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use topolvm_testkit::fixtures::{claim, storage_class};

    use super::*;

    #[rstest]
    #[case::none(&[], "xfs", Some("xfs"))]
    #[case::named(&[("csi.storage.k8s.io/fstype", "btrfs")], "xfs", Some("btrfs"))]
    #[case::old_name(&[("FsType", "ext4")], "", Some("ext4"))]
    #[case::empty(&[("csi.storage.k8s.io/fstype", "")], "xfs", Some("xfs"))]
    #[case::twice(&[("csi.storage.k8s.io/fstype", "ext4"), ("fstype", "ext4")], "", None)]
    fn filesystem_is_that_of_the_class_or_the_default(
        #[case] parameters: &[(&str, &str)],
        #[case] default: &str,
        #[case] expected: Option<&str>,
    ) {
        let class = parameters.iter().fold(storage_class("fast"), |class, (key, value)| class.parameter(key, value));
        assert_eq!(filesystem(&class.build(), default).ok().as_deref(), expected);
    }

    #[test]
    fn parameters_are_stripped_of_reserved_keys_and_name_the_claim() {
        let class = storage_class("fast")
            .device_class("ssd")
            .parameter("csi.storage.k8s.io/fstype", "xfs")
            .parameter("csi.storage.k8s.io/node-stage-secret-name", "a")
            .parameter("csiProvisionerSecretName", "kept, as its name is an old one");
        let found = parameters(&class.clone().build(), &claim("data").namespace("web").build(), "pvc-1").unwrap();
        let mut keys: Vec<_> = found.iter().map(|(key, value)| format!("{key}={value}")).collect();
        keys.sort();
        let expected = [
            "csi.storage.k8s.io/pv/name=pvc-1",
            "csi.storage.k8s.io/pvc/name=data",
            "csi.storage.k8s.io/pvc/namespace=web",
            "csiProvisionerSecretName=kept, as its name is an old one",
            "topolvm.io/device-class=ssd",
        ];
        assert_eq!(keys, expected);
        let unknown = class.parameter("csi.storage.k8s.io/fs-type", "xfs").build();
        let error = parameters(&unknown, &claim("data").build(), "pvc-1").unwrap_err();
        assert!(error.to_string().contains("csi.storage.k8s.io/fs-type"), "{error}");
    }

    #[test]
    fn capability_is_for_a_mount_with_options_or_for_a_device() {
        let mut class = storage_class("fast").build();
        class.mount_options = Some(vec!["noatime".to_owned()]);
        let mut claim = claim("data").build();
        let [mount] = &capabilities(&claim, &class, "xfs", Capabilities::default()).unwrap()[..] else {
            panic!("one mode")
        };
        let expected = MountVolume {
            fs_type: "xfs".to_owned(),
            mount_flags: vec!["noatime".to_owned()],
            ..MountVolume::default()
        };
        assert_eq!(mount.access_type, Some(AccessType::Mount(expected)));
        claim.spec.as_mut().unwrap().volume_mode = Some("Block".to_owned());
        let [block] = &capabilities(&claim, &class, "xfs", Capabilities::default()).unwrap()[..] else {
            panic!("one mode")
        };
        assert_eq!(block.access_type, Some(AccessType::Block(BlockVolume {})));
    }

    #[test]
    fn volume_name_has_the_uid_of_the_claim() {
        assert_eq!(volume_name("pvc", "1-2"), "pvc-1-2");
        assert_eq!(claim_uid("pvc", "pvc-1-2"), Some("1-2"));
        assert_eq!(claim_uid("pvc", "data-1-2"), None);
    }
}
