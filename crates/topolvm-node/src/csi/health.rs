//! `NodeGetVolumeHealth` and `NodeGetStorageHealth`, and the volume condition that `NodeGetVolumeStats` carries for
//! callers that are older than CSI 1.13.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use linux_mount::{HungPaths, Mount, MountError, Mounter};
use lvmd_client::DeviceClasses;
use tokio::sync::watch;
use topolvm_proto::csi;
use topolvm_proto::csi::node_get_storage_health_response::StorageBackendHealth;
use topolvm_proto::csi::volume_health::VolumeHealthEntry;
use topolvm_runtime::error_chain;

use super::CsiError;
use super::conditions::{self, Condition, Severity};
use super::prepare::MissingFilesystems;
use super::request::GetVolumeHealth;
use super::volume_access::VolumeAccess;

/// Deadline of the conditions that come from lvmd. kubelet calls NodeGetVolumeHealth for one volume after the other,
/// also of other drivers, and of NodeGetVolumeStats it needs the usage.
const CONDITION: Duration = Duration::from_secs(5);

/// Reports usage and health of volumes and of the storage of the node.
#[derive(Debug)]
pub(super) struct HealthReports<M> {
    pub(super) access: Arc<VolumeAccess<M>>,
    pub(super) device_classes: watch::Receiver<DeviceClasses>,
    pub(super) hung_paths: HungPaths,
    pub(super) missing_filesystems: MissingFilesystems,
}

impl<M: Mounter> HealthReports<M> {
    /// Returns the conditions of a volume, for callers of CSI 1.13.
    pub(super) async fn volume_health(&self, request: GetVolumeHealth) -> Result<csi::VolumeHealth, CsiError> {
        let GetVolumeHealth { id, path, staging } = request;
        let mut conditions = self.lv_conditions(&id).await?;
        conditions.extend(self.mounts_condition(path.as_deref(), staging.as_deref()).await);
        let entry = |condition: Condition| VolumeHealthEntry {
            status: condition.severity.of_volume().into(),
            reason: condition.reason,
            message: condition.message,
        };
        let health_statuses = conditions::merge_duplicates(conditions).into_iter().map(entry).collect();
        Ok(csi::VolumeHealth { volume_id: id, health_statuses })
    }

    /// Returns the conditions of the volume groups and thin pools of this node.
    pub(super) fn storage_health(&self) -> Vec<StorageBackendHealth> {
        let conditions = conditions::storage_conditions(&self.device_classes.borrow());
        let entry = |condition: Condition| StorageBackendHealth {
            status: condition.severity.of_storage().into(),
            reason: condition.reason,
            message: condition.message,
            volume_capability: None,
        };
        conditions::merge_duplicates(conditions).into_iter().map(entry).collect()
    }

    /// Returns the condition of a published volume, for callers before CSI 1.13. A condition that cannot be determined
    /// is not abnormal: otherwise the kubelet would report a broken volume whenever lvmd restarts.
    pub(super) async fn volume_condition(&self, id: &str, of_mount: Option<Condition>) -> csi::VolumeCondition {
        let (mut conditions, unknown) = match self.lv_conditions(id).await {
            Ok(conditions) => (conditions, None),
            Err(error) => (Vec::new(), Some(error.to_string())),
        };
        conditions.extend(of_mount);
        let messages: Vec<String> = conditions.into_iter().map(|condition| condition.message).collect();
        let abnormal = !messages.is_empty();
        let message = match unknown {
            _ if abnormal => messages.join("; "),
            Some(why) => format!("the condition is unknown: {why}"),
            None => "volume is healthy and operating normally".to_owned(),
        };
        csi::VolumeCondition { abnormal, message }
    }

    /// Returns the conditions of the LV, of its device class, and of a filesystem that is missing, within a deadline.
    async fn lv_conditions(&self, id: &str) -> Result<Vec<Condition>, CsiError> {
        let unanswered = |_| CsiError::ConditionUnknown { id: id.to_owned(), seconds: CONDITION.as_secs() };
        tokio::time::timeout(CONDITION, self.find_lv_conditions(id)).await.map_err(unanswered)?
    }

    /// Finds the conditions of the LV, of its device class, and of a filesystem that is missing.
    async fn find_lv_conditions(&self, id: &str) -> Result<Vec<Condition>, CsiError> {
        let volume = self.access.volumes.find(id).await?;
        let class = volume.spec.device_class.as_str();
        let Some(lv) = self.access.lvmd.find(id, class).await? else {
            let message = format!("logical volume {id} no longer exists in LVM on this node");
            return Ok(vec![Condition::new(Severity::DataLoss, "LogicalVolumeMissing", message)]);
        };
        let device_class_condition =
            self.device_classes.borrow().class(class).and_then(conditions::device_class_condition);
        let missing = self.missing_filesystems.lock().get(id).cloned();
        let missing = missing.map(|message| Condition::new(Severity::Inaccessible, "FilesystemMissing", message));
        Ok(conditions::lv_condition(&lv).into_iter().chain(device_class_condition).chain(missing).collect())
    }

    /// Returns the condition of the mounts at the target path and the staging path. A read-only mount does not show
    /// that the kernel has stopped the filesystem.
    pub(super) async fn mounts_condition(&self, path: Option<&Path>, staging: Option<&Path>) -> Option<Condition> {
        for path in [path, staging].into_iter().flatten() {
            if let Some(condition) = self.mount_condition(path).await {
                return Some(condition);
            }
        }
        None
    }

    /// Returns the condition of the mount at a path.
    async fn mount_condition(&self, path: &Path) -> Option<Condition> {
        let mounts = self.access.mounter.mounts_at(path).await.ok()?;
        let mount = mounts.last()?;
        if let Err(error) = self.hung_paths.guard(path, self.access.mounter.inspect_path(path)).await {
            return Some(unreadable_condition(&error));
        }
        stopped_condition(mount)
    }
}

/// Makes the condition for a filesystem that the kernel has stopped after an error, if it has.
pub(super) fn stopped_condition(mount: &Mount) -> Option<Condition> {
    (mount.filesystem_readonly && !mount.readonly).then(|| {
        let message = "the kernel remounted the filesystem read-only after an error; see the kernel log";
        Condition::new(Severity::Degraded, "FilesystemReadOnly", message)
    })
}

/// Makes the condition for a filesystem that answers with an error.
pub(super) fn unreadable_condition(error: &MountError) -> Condition {
    let message = format!("the volume cannot be read: {}", error_chain(error));
    Condition::new(Severity::Inaccessible, "FilesystemUnreadable", message)
}
