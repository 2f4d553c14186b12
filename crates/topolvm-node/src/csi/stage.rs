//! `NodeStageVolume`: mounts a filesystem once on the node, to be bound from there to each pod. Announced with
//! `--stage-volumes`.

use std::path::{Path, PathBuf};

use linux_mount::Mounter;
use topolvm_runtime::error_chain;

use super::capability::Access;
use super::request::StageVolume;
use super::volume::{Volume, WantedFilesystem};
use super::{Agent, CsiError, kubelet_paths};

impl<M: Mounter> Agent<M> {
    /// Stages a volume. Of a raw block volume only the LV is activated: its device node is at its place already.
    pub(super) async fn stage(&self, request: StageVolume) -> Result<(), CsiError> {
        let StageVolume { id, staging, access } = request;
        self.access.mounter.check_shared(&staging).await?;
        let (object, lv) = self.access.find_volume(&id).await?;
        let object = self.filesystems.preparation.load_record(object, &id, &access).await?;
        let opened = self.access.open_device(&object, &lv).await?;
        let device = opened.device;
        match access {
            Access::Mount { filesystem, options, mkfs_options } => {
                // Staged for writing even if pods only read: that is decided when it is published
                let readonly = device.readonly || options.is_readonly();
                let options = options.in_mode(readonly);
                let other = self.access.mounter.other_targets(device.number, &staging).await?.into_iter().next();
                let volume = Volume { object: &object, lv: &lv, device, node: &opened.node, other };
                let wanted =
                    WantedFilesystem { filesystem, options: &options, mkfs_options: &mkfs_options, staging: None };
                self.filesystems.publish(&volume, &staging, &wanted).await
            }
            Access::Block { .. } => match self.access.mounter.mounts_at(&staging).await?.into_iter().next_back() {
                Some(mount) => Err(CsiError::OtherFilesystem { id, target: staging, found: mount.filesystem }),
                None => Ok(()),
            },
        }
    }

    /// Returns the staging path to bind the filesystem from; `None` if it is to be mounted, as it is without staging.
    pub(super) async fn find_bind_source(
        &self,
        volume: &Volume<'_>,
        staging: Option<PathBuf>,
        target: &Path,
    ) -> Result<Option<PathBuf>, CsiError> {
        let Some(staging) = staging else { return Ok(None) };
        match self.access.mounter.mounts_at(&staging).await?.last() {
            Some(mount) if mount.device == volume.device.number => return Ok(Some(staging)),
            Some(_) => {
                return Err(CsiError::TargetTaken { target: staging, found: "something else is mounted on it" });
            }
            None => {}
        }
        // Pods that were started before staging was switched on. kubelet stages nothing for a volume that it has
        // mounted, so that neither they nor further pods would get it again
        if volume.other.is_some() || !self.access.mounter.mounts_at(target).await?.is_empty() {
            return Ok(None);
        }
        Err(CsiError::NotStaged { id: volume.lv.name.clone(), staging })
    }

    /// Unmounts staging mounts that an agent with `--stage-volumes` has left. kubelet does not unstage them while
    /// staging is not announced, and the LV would stay in use when its last pod has gone. Unpublishing comes first: a
    /// failure here is only logged.
    pub(super) async fn unmount_leftover_staging(&self, id: &str, target: &Path) {
        if self.stages {
            return;
        }
        let unmounted = async {
            let Some(mount) = self.access.mounter.mounts_at(target).await?.into_iter().next_back() else {
                return Ok(());
            };
            let others = self.access.mounter.other_targets(mount.device, target).await?;
            if !others.iter().all(|other| kubelet_paths::is_staging_path(other)) {
                return Ok(());
            }
            for leftover in others {
                tracing::info!(path = %leftover.display(), "unmounting a volume that was staged with --stage-volumes");
                self.mounts.unmount_all(id, &leftover).await?;
            }
            Ok::<(), CsiError>(())
        };
        if let Err(error) = unmounted.await {
            tracing::warn!(
                error = error_chain(&error),
                "a staged volume may still be mounted; unmount it manually after its pods have ended"
            );
        }
    }
}
