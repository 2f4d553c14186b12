//! CSI's capability of a PersistentVolume. Pure.

use k8s_openapi::api::core::v1::PersistentVolumeSpec;
use topolvm_proto::csi::VolumeCapability;
use topolvm_proto::csi::volume_capability::access_mode::Mode;
use topolvm_proto::csi::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};

use crate::error::OperationError;

/// Returns the capability. A driver without `has_single_node_modes` knows one mode for one node.
pub(crate) fn volume_capability(
    spec: &PersistentVolumeSpec,
    has_single_node_modes: bool,
) -> Result<VolumeCapability, OperationError> {
    let access_type = if spec.volume_mode.as_deref() == Some("Block") {
        AccessType::Block(BlockVolume {})
    } else {
        let fs_type = spec.csi.as_ref().and_then(|source| source.fs_type.clone()).unwrap_or_default();
        let mount_flags = spec.mount_options.clone().unwrap_or_default();
        AccessType::Mount(MountVolume { fs_type, mount_flags, ..MountVolume::default() })
    };
    let modes = spec.access_modes.as_deref().unwrap_or_default();
    let mode =
        access_mode(modes, has_single_node_modes).ok_or_else(|| OperationError::AccessModes(modes.join(", ")))?;
    Ok(VolumeCapability { access_mode: Some(AccessMode { mode: mode.into() }), access_type: Some(access_type) })
}

/// Returns CSI's access mode for those of a volume; `None` if it has none for them together.
fn access_mode(modes: &[String], has_single_node_modes: bool) -> Option<Mode> {
    let has = |mode: &str| modes.iter().any(|known| known == mode);
    if has("ReadWriteOncePod") {
        let is_alone = modes.iter().all(|mode| mode == "ReadWriteOncePod");
        let mode = if has_single_node_modes { Mode::SingleNodeSingleWriter } else { Mode::SingleNodeWriter };
        return is_alone.then_some(mode);
    }
    match (has("ReadWriteMany"), has("ReadOnlyMany"), has("ReadWriteOnce")) {
        (true, _, _) => Some(Mode::MultiNodeMultiWriter),
        (false, true, false) => Some(Mode::MultiNodeReaderOnly),
        (false, false, true) if has_single_node_modes => Some(Mode::SingleNodeMultiWriter),
        (false, false, true) => Some(Mode::SingleNodeWriter),
        (false, true, true) | (false, false, false) => None,
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case(&["ReadWriteOnce"], Some(Mode::SingleNodeWriter), Some(Mode::SingleNodeMultiWriter))]
    #[case(&["ReadWriteOncePod"], Some(Mode::SingleNodeWriter), Some(Mode::SingleNodeSingleWriter))]
    #[case(&["ReadWriteOnce", "ReadWriteMany"], Some(Mode::MultiNodeMultiWriter), Some(Mode::MultiNodeMultiWriter))]
    #[case(&["ReadOnlyMany"], Some(Mode::MultiNodeReaderOnly), Some(Mode::MultiNodeReaderOnly))]
    #[case(&["ReadWriteOncePod", "ReadWriteOnce"], None, None)]
    #[case(&["ReadOnlyMany", "ReadWriteOnce"], None, None)]
    #[case(&[], None, None)]
    fn access_mode_depends_on_the_driver(
        #[case] modes: &[&str],
        #[case] without: Option<Mode>,
        #[case] with: Option<Mode>,
    ) {
        let modes: Vec<String> = modes.iter().map(|&mode| mode.to_owned()).collect();
        assert_eq!((access_mode(&modes, false), access_mode(&modes, true)), (without, with));
    }

    #[test]
    fn capability_has_filesystem_and_mount_options_or_block() {
        let mut spec: PersistentVolumeSpec = serde_json::from_value(json!({
            "accessModes": ["ReadWriteOnce"], "mountOptions": ["noatime"], "volumeMode": "Filesystem",
            "csi": {"driver": "topolvm.io", "volumeHandle": "id", "fsType": "xfs"},
        }))
        .unwrap();
        let Some(AccessType::Mount(mount)) = volume_capability(&spec, true).unwrap().access_type else { panic!() };
        assert_eq!((mount.fs_type.as_str(), mount.mount_flags), ("xfs", vec!["noatime".to_owned()]));
        spec.volume_mode = Some("Block".to_owned());
        let capability = volume_capability(&spec, true).unwrap();
        assert_eq!(capability.access_type, Some(AccessType::Block(BlockVolume {})));
        spec.access_modes = None;
        assert!(volume_capability(&spec, true).is_err());
    }
}
