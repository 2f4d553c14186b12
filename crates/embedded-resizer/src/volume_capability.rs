//! CSI's capability of a PersistentVolume. Pure.

use csi_calls::{Capabilities, common_access_mode};
use k8s_openapi::api::core::v1::PersistentVolumeSpec;
use topolvm_proto::csi::VolumeCapability;
use topolvm_proto::csi::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};

use crate::error::OperationError;

/// Returns the capability.
pub(crate) fn volume_capability(
    spec: &PersistentVolumeSpec,
    announced: Capabilities,
) -> Result<VolumeCapability, OperationError> {
    let access_type = if spec.volume_mode.as_deref() == Some("Block") {
        AccessType::Block(BlockVolume {})
    } else {
        let fs_type = spec.csi.as_ref().and_then(|source| source.fs_type.clone()).unwrap_or_default();
        let mount_flags = spec.mount_options.clone().unwrap_or_default();
        AccessType::Mount(MountVolume { fs_type, mount_flags, ..MountVolume::default() })
    };
    let modes = spec.access_modes.as_deref().unwrap_or_default();
    let mode = common_access_mode(modes, announced).ok_or_else(|| OperationError::AccessModes(modes.join(", ")))?;
    Ok(VolumeCapability { access_mode: Some(AccessMode { mode: mode.into() }), access_type: Some(access_type) })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn capability_has_filesystem_and_mount_options_or_block() {
        let mut spec: PersistentVolumeSpec = serde_json::from_value(json!({
            "accessModes": ["ReadWriteOnce"], "mountOptions": ["noatime"], "volumeMode": "Filesystem",
            "csi": {"driver": "topolvm.io", "volumeHandle": "id", "fsType": "xfs"},
        }))
        .unwrap();
        let Some(AccessType::Mount(mount)) = volume_capability(&spec, Capabilities::default()).unwrap().access_type
        else {
            panic!()
        };
        assert_eq!((mount.fs_type.as_str(), mount.mount_flags), ("xfs", vec!["noatime".to_owned()]));
        spec.volume_mode = Some("Block".to_owned());
        let capability = volume_capability(&spec, Capabilities::default()).unwrap();
        assert_eq!(capability.access_type, Some(AccessType::Block(BlockVolume {})));
        spec.access_modes = None;
        assert!(volume_capability(&spec, Capabilities::default()).is_err());
    }
}
