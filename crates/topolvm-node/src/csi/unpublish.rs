//! `NodeUnpublishVolume` and `NodeUnstageVolume`: unmounts a volume from its target or staging path, whatever state it
//! is in.

use std::path::Path;

use linux_mount::{FILE_DEADLINE, Mounter, run_blocking};
use topolvm_runtime::error_chain;

use super::{Agent, CsiError};
use crate::target_path;

impl<M: Mounter> Agent<M> {
    /// Unmounts a volume and removes its target path. Neither the LogicalVolume nor the LV is looked up: both may be
    /// gone, and a pod must be able to end all the same.
    pub(super) async fn unpublish(&self, id: &str, target: &Path) -> Result<(), CsiError> {
        self.unmount_leftover_staging(id, target).await;
        self.unmount_or_report(id, target).await?;
        run_blocking(FILE_DEADLINE, target, target_path::remove_target).await?;
        self.published_pods.remove(id, target).await;
        if is_file_name(id) {
            // Versions before 0.33 created separate device nodes
            let leftover = self.legacy_devices.join(id);
            if let Err(error) = target_path::ignore_not_found(std::fs::remove_file(&leftover)) {
                tracing::warn!(path = %leftover.display(), %error, "cannot remove an old device node");
            }
        }
        Ok(())
    }

    /// Unmounts a volume from its staging path. As in unpublish, neither the LogicalVolume nor the LV is looked up. The
    /// caller owns the directory (CSI, NodeStageVolume).
    pub(super) async fn unstage(&self, id: &str, staging: &Path) -> Result<(), CsiError> {
        self.unmount_or_report(id, staging).await
    }

    /// Unmounts a volume from a path, and publishes a failure: of the error the kubelet makes no Event, while the pod
    /// stays in Terminating.
    async fn unmount_or_report(&self, id: &str, path: &Path) -> Result<(), CsiError> {
        let unmounted = self.mounts.unmount_all(id, path).await;
        if let Err(error) = &unmounted {
            let (volume, pod) = (self.access.volumes.find(id).await.ok(), self.published_pods.pod_at(id, path));
            self.access.volumes.events.unmount_failed(volume.as_ref(), pod.as_ref(), &error_chain(error)).await;
        }
        unmounted
    }
}

/// Returns whether a volume id is a plain file name, so that a path made of it stays in its directory.
fn is_file_name(id: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    id.len() <= 128 && id.chars().all(allowed) && id.contains(|c: char| c.is_ascii_alphanumeric())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("0b5a2f4e-8d54-4f5c-9a0e-7d8f6f3c2b1a", true)]
    #[case("..", false)]
    #[case(".", false)]
    #[case("", false)]
    #[case("a/b", false)]
    #[case("../../etc/passwd", false)]
    #[case("a\0b", false)]
    fn only_plain_names_become_part_of_a_path(#[case] id: &str, #[case] expected: bool) {
        assert_eq!(is_file_name(id), expected);
    }
}
