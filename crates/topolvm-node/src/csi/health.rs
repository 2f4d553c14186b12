//! `NodeGetVolumeHealth` and `NodeGetStorageHealth`, and the volume condition that `NodeGetVolumeStats` carries for
//! callers that are older than CSI 1.13.

use std::path::Path;
use std::time::Duration;

use topolvm_proto::csi;
use topolvm_proto::csi::node_get_storage_health_response::StorageBackendHealth;
use topolvm_proto::csi::volume_health::VolumeHealthEntry;

use super::findings::{self, Finding, Severity};
use super::request::GetVolumeHealth;
use super::{Agent, Error};
use crate::mount::Mounter;

/// How long the condition may take that goes with the usage: the usage is what kubelet waits for.
const CONDITION: Duration = Duration::from_secs(5);

impl<M: Mounter> Agent<M> {
    /// All that is wrong with a volume, for callers of CSI 1.13.
    pub(super) async fn volume_health(&self, request: GetVolumeHealth) -> Result<csi::VolumeHealth, Error> {
        let GetVolumeHealth { id, path, staging } = request;
        let mut findings = self.lv_findings(&id).await?;
        findings.extend(self.mounts_finding(path.as_deref(), staging.as_deref()).await);
        let entry = |finding: Finding| VolumeHealthEntry {
            status: finding.severity.of_volume().into(),
            reason: finding.reason,
            message: finding.message,
        };
        Ok(csi::VolumeHealth { volume_id: id, health_statuses: findings.into_iter().map(entry).collect() })
    }

    /// All that is wrong with the volume groups and thin pools of this node.
    pub(super) fn storage_health(&self) -> Vec<StorageBackendHealth> {
        let findings = findings::of_pools(&self.pools.borrow());
        let entry = |finding: Finding| StorageBackendHealth {
            status: finding.severity.of_storage().into(),
            reason: finding.reason,
            message: finding.message,
            volume_capability: None,
        };
        findings.into_iter().map(entry).collect()
    }

    /// The condition of a published volume. That it cannot be known is no abnormal condition: kubelet would tell the user
    /// about a broken volume whenever lvmd restarts.
    pub(super) async fn condition(&self, id: &str, of_mount: Option<Finding>) -> csi::VolumeCondition {
        let known = tokio::time::timeout(CONDITION, self.lv_findings(id)).await;
        let (mut findings, unknown) = match known {
            Ok(Ok(findings)) => (findings, None),
            Ok(Err(error)) => (Vec::new(), Some(error.to_string())),
            Err(_) => (Vec::new(), Some(format!("no answer within {} s", CONDITION.as_secs()))),
        };
        findings.extend(of_mount);
        let messages: Vec<String> = findings.into_iter().map(|finding| finding.message).collect();
        match (messages.is_empty(), unknown) {
            (false, _) => csi::VolumeCondition { abnormal: true, message: messages.join("; ") },
            (true, Some(why)) => {
                csi::VolumeCondition { abnormal: false, message: format!("the condition is not known: {why}") }
            }
            (true, None) => {
                csi::VolumeCondition { abnormal: false, message: "volume is healthy and operating normally".to_owned() }
            }
        }
    }

    /// What LVM knows: the LV itself, and the thin pool that it lives in.
    async fn lv_findings(&self, id: &str) -> Result<Vec<Finding>, Error> {
        let volume = self.volumes.find(id).await?;
        let class = volume.spec.device_class.as_str();
        let Some(lv) = self.lvmd.find(id, class).await? else {
            let message = format!("LVM on this node has no logical volume {id} any more");
            return Ok(vec![Finding::new(Severity::DataLoss, "LogicalVolumeMissing", message)]);
        };
        let of_class = self.pools.borrow().class(class).and_then(findings::of_class);
        let missing = self.missing.get(id);
        let missing = missing.map(|message| Finding::new(Severity::Inaccessible, "FilesystemMissing", message));
        Ok(findings::of_lv(&lv).into_iter().chain(of_class).chain(missing).collect())
    }

    /// What is wrong with what is published at a path, and staged at another. A pod that may only read shows nothing of a
    /// filesystem that was stopped.
    pub(super) async fn mounts_finding(&self, path: Option<&Path>, staging: Option<&Path>) -> Option<Finding> {
        for path in [path, staging].into_iter().flatten() {
            if let Some(finding) = self.mount_finding(path).await {
                return Some(finding);
            }
        }
        None
    }

    /// What is wrong with what is mounted at a path.
    async fn mount_finding(&self, path: &Path) -> Option<Finding> {
        let mounts = self.mounter.mounts_at(path).await.ok()?;
        let mount = mounts.last()?;
        if let Err(error) = self.hanging.guard(path, self.mounter.inspect(path)).await {
            return Some(unreadable(&error));
        }
        (mount.filesystem_readonly && !mount.readonly).then(|| {
            let message = "the kernel has made the filesystem read-only after an error; see its log on the node";
            Finding::new(Severity::Degraded, "FilesystemReadOnly", message)
        })
    }
}

/// A filesystem that gives errors instead of answers.
pub(super) fn unreadable(error: &(dyn std::error::Error + 'static)) -> Finding {
    let source = error.source().map(|source| format!(": {source}")).unwrap_or_default();
    let message = format!("the volume cannot be read: {error}{source}");
    Finding::new(Severity::Inaccessible, "FilesystemUnreadable", message)
}
