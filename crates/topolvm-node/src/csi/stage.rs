//! `NodeStageVolume` and `NodeUnstageVolume`: a volume that appears once on the node, to be bound from there to each pod.
//! Served where the agent is told to announce them.

use std::path::{Path, PathBuf};

use super::access::Access;
use super::kubelet::is_staging;
use super::publish::{Volume, Wanted};
use super::request::{StageVolume, UnstageVolume};
use super::{Agent, Error};
use crate::mount::{DeviceNumber, Mounter};
use topolvm_runtime::error_chain;

impl<M: Mounter> Agent<M> {
    /// A block volume is only made sure to be there: its device node is at its place already.
    pub(super) async fn stage(&self, request: StageVolume) -> Result<(), Error> {
        let StageVolume { id, staging, access } = request;
        let (object, lv) = self.lv(&id).await?;
        let object = self.with_record(object, &id, &access).await?;
        let held = self.device(&object, &lv).await?;
        let device = held.device;
        match access {
            Access::Mount { filesystem, options, mkfs_options } => {
                // What pods may do with it is said when it is published
                let readonly = device.readonly || options.is_readonly();
                let options = options.in_mode(readonly);
                let other = self.mounter.other_targets(device.number, &staging).await?.into_iter().next();
                let volume = Volume { object: &object, lv: &lv, device, node: &held.node, other };
                let wanted = Wanted { filesystem, options: &options, mkfs_options: &mkfs_options, staging: None };
                self.publish_filesystem(&volume, &staging, &wanted).await
            }
            Access::Block { .. } => match self.mounter.mounts_at(&staging).await?.into_iter().next_back() {
                Some(mount) => Err(Error::OtherFilesystem { id, target: staging, found: mount.filesystem }),
                None => Ok(()),
            },
        }
    }

    /// As for `unpublish`, neither the LogicalVolume nor the LV is looked at. The directory is the caller's (CSI,
    /// NodeStageVolume).
    pub(super) async fn unstage(&self, request: UnstageVolume) -> Result<(), Error> {
        self.unmount_all(&request.staging).await
    }

    /// The path to bind a filesystem from; `None` where it is to be mounted, as it is without staging.
    pub(super) async fn source(
        &self,
        volume: &Volume<'_>,
        staging: Option<PathBuf>,
        target: &Path,
    ) -> Result<Option<PathBuf>, Error> {
        let Some(staging) = staging else { return Ok(None) };
        match self.mounter.mounts_at(&staging).await?.last() {
            Some(mount) if mount.device == volume.device.number => return Ok(Some(staging)),
            Some(_) => {
                return Err(Error::TargetTaken { target: staging, found: "something else is mounted there" });
            }
            None => {}
        }
        // Pods that were started before staging was switched on. kubelet stages nothing for a volume that it has
        // mounted, so that neither they nor further pods would get it again
        if volume.other.is_some() || !self.mounter.mounts_at(target).await?.is_empty() {
            return Ok(None);
        }
        Err(Error::NotStaged { id: volume.lv.name.clone(), staging })
    }

    /// Unmounts what an agent that announced staging has left for kubelet to unstage, which kubelet does not do while
    /// staging is not announced. Without it the LV would stay in use when its last pod has gone. Pods come first: whatever
    /// fails here is only logged.
    pub(super) async fn unstage_leftover(&self, target: &Path) {
        if self.stages {
            return;
        }
        let unmounted = async {
            let Some(mount) = self.mounter.mounts_at(target).await?.into_iter().next_back() else { return Ok(()) };
            let others = self.mounter.other_targets(mount.device, target).await?;
            if !others.iter().all(|other| is_staging(other)) {
                return Ok(());
            }
            for leftover in others {
                tracing::info!(path = %leftover.display(), "unmounts what an agent with --stage-volumes has left");
                self.unmount_all(&leftover).await?;
            }
            Ok::<(), Error>(())
        };
        if let Err(error) = unmounted.await {
            let error = error_chain(&error);
            tracing::warn!(error, "a staged volume may be left mounted; unmount it by hand when its pods have gone");
        }
    }

    /// Where else than at `target` a volume appears, its staging path left out.
    pub(super) async fn published_elsewhere(
        &self,
        device: DeviceNumber,
        target: &Path,
        staging: Option<&Path>,
    ) -> Result<Vec<PathBuf>, Error> {
        let mut others = self.mounter.other_targets(device, target).await?;
        if let Some(staging) = staging {
            // The mount table has other names for paths with links in them
            let unstaged = self.mounter.other_targets(device, staging).await?;
            others.retain(|other| unstaged.contains(other));
        }
        Ok(others)
    }
}
