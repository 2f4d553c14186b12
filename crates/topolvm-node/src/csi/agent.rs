//! Volume lookup, opening of devices, and the caches that the calls of the Node service share.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use kube::{Api, Client};
use linux_mount::{DeviceNumber, HungPaths, MountError, Mounter, OpenDevice, PathKind};
use parking_lot::Mutex;
use tokio::sync::watch;
use topolvm_api::LogicalVolume;

use super::CsiError;
use super::discard_queue::DiscardQueue;
use crate::capacity::DeviceClasses;
use crate::filesystem_usages::FilesystemUsages;
use crate::growth_reports::GrowthReports;
use crate::io_limits::IoLimiter;
use crate::lvmd_client::{Lv, LvmdClient};
use crate::published_pods::PublishedPods;
use crate::volume_devices::VolumeDevices;
use crate::volume_metrics::VolumeMetrics;
use crate::volumes::{LookupError, Volumes};

/// Carries out the calls of the CSI Node service on this machine.
#[derive(Debug)]
pub struct Agent<M> {
    pub(super) volumes: Volumes,
    pub(super) lvmd: LvmdClient,
    pub(super) mounter: M,
    pub(super) device_classes: watch::Receiver<DeviceClasses>,
    /// Directory of the device nodes that versions before 0.33 made.
    pub(super) legacy_devices: PathBuf,
    /// True when volumes are staged before they are published.
    pub(super) stages: bool,
    pub(super) hung_paths: HungPaths,
    /// Messages about volumes whose recorded filesystem was missing when they were to be mounted, by volume id. Calls
    /// about the health of a volume start no process, and read them here.
    pub(super) missing_filesystems: Mutex<HashMap<String, String>>,
    pub(super) discards: DiscardQueue,
    /// Paths at which the growth of a filesystem waits until it is thawed.
    pub(super) frozen_growths: HungPaths,
    pub(super) published_pods: PublishedPods,
    pub(super) io_limiter: Option<IoLimiter>,
}

impl<M: Mounter> Agent<M> {
    /// Creates an agent for the volumes of this node. `device_classes` is the last state that lvmd reported. Versions
    /// before 0.33 created device nodes in `legacy_devices`, which is `/dev/topolvm`; unpublishing removes them. With
    /// `stages`, volumes are staged before they are published.
    pub fn new(
        volumes: Volumes,
        lvmd: LvmdClient,
        mounter: M,
        device_classes: watch::Receiver<DeviceClasses>,
        legacy_devices: PathBuf,
        stages: bool,
    ) -> Self {
        Self {
            volumes,
            lvmd,
            mounter,
            device_classes,
            legacy_devices,
            stages,
            hung_paths: HungPaths::default(),
            missing_filesystems: Mutex::default(),
            discards: DiscardQueue::default(),
            frozen_growths: HungPaths::default(),
            published_pods: PublishedPods::default(),
            io_limiter: None,
        }
    }

    /// Has the agent limit the I/O of pods before they have their volumes.
    #[must_use]
    pub(crate) fn limiting_io(self, limiter: IoLimiter) -> Self {
        Self { io_limiter: Some(limiter), ..self }
    }

    /// Has the agent store there to which pods volumes are published.
    #[must_use]
    pub fn storing_pods(self, published_pods: PublishedPods) -> Self {
        Self { published_pods, ..self }
    }

    /// Makes the metrics of the volumes, whose devices are found in `devices`.
    pub(crate) fn volume_metrics(&self, devices: VolumeDevices) -> VolumeMetrics<M>
    where
        M: Clone,
    {
        VolumeMetrics {
            flavor: self.volumes.flavor,
            node: self.volumes.node.clone(),
            volumes: self.volumes.own.clone(),
            devices,
            device_classes: self.device_classes.clone(),
            published_pods: self.published_pods.clone(),
            io_limiter: self.io_limiter.clone(),
            filesystems: self.filesystem_usages(),
        }
    }

    /// Makes the reports of volumes that are too small, whose devices are found in `devices`.
    pub(crate) fn growth_reports(&self, devices: VolumeDevices, client: Client) -> GrowthReports<M>
    where
        M: Clone,
    {
        let flavor = self.volumes.flavor;
        GrowthReports {
            flavor,
            api: Api::all_with(client, &flavor),
            volumes: self.volumes.own.clone(),
            devices,
            filesystems: self.filesystem_usages(),
        }
    }

    /// Measures mounted filesystems, and shares with the calls which of them hang.
    fn filesystem_usages(&self) -> FilesystemUsages<M>
    where
        M: Clone,
    {
        FilesystemUsages { hung_paths: self.hung_paths.clone(), mounter: self.mounter.clone() }
    }

    /// Finds the LogicalVolume object and the LV of a volume id.
    pub(super) async fn find_volume(&self, id: &str) -> Result<(LogicalVolume, Lv), CsiError> {
        tracing::Span::current().record("volume", id);
        let volume = match self.volumes.find(id).await {
            Err(error @ LookupError::Unknown { .. }) => return Err(self.check_lv(id, error).await),
            found => found?,
        };
        let lv = self.lvmd.find(id, &volume.spec.device_class).await?;
        Ok((volume, lv.ok_or_else(|| CsiError::NoLv(id.to_owned()))?))
    }

    /// Checks whether the LV of a volume without a LogicalVolume exists, and returns the matching error.
    async fn check_lv(&self, id: &str, error: LookupError) -> CsiError {
        // With a name lvmd searches all its volume groups
        match self.lvmd.find(id, "").await {
            Ok(Some(lv)) => CsiError::ObjectGone { lv: lv.path, error },
            Ok(None) => CsiError::NeitherObjectNorLv(error),
            Err(_) => error.into(),
        }
    }

    /// Opens the device of an LV, and activates the LV first if it is not active, for example after a boot of a machine
    /// without automatic activation. The path that LVM reports is a link, and is only trusted while it leads to the
    /// device number that lvmd reports: where udev has stopped, it can lead to another volume.
    pub(super) async fn open_device(&self, volume: &LogicalVolume, lv: &Lv) -> Result<OpenDevice, CsiError> {
        if let Some(number) = lv.number {
            match self.mounter.open_device(&lv.path, number).await {
                Err(MountError::NoDevice(_)) => {}
                opened => return Ok(opened?),
            }
        }
        tracing::info!(volume = lv.name, path = %lv.path.display(), "activating the logical volume");
        // The protocol has no call for it. lvmd activates what it is asked to work on; growing to the present size
        // changes nothing else, and can make nothing that has just been removed
        if let Err(error) = self.lvmd.resize(&lv.name, &volume.spec.device_class, lv.size_bytes).await {
            tracing::warn!(volume = lv.name, error = error.detail(), "lvmd failed to activate the logical volume");
        }
        let active = self.lvmd.find(&lv.name, &volume.spec.device_class).await?;
        let active = active.ok_or_else(|| CsiError::NoLv(lv.name.clone()))?;
        let number = active.number.ok_or_else(|| MountError::NoDevice(active.path.clone()))?;
        Ok(self.mounter.open_device(&active.path, number).await?)
    }

    /// Checks that a path leads to this device now; [`MountError::WrongDevice`] if it does not.
    pub(super) async fn check_leads_to(&self, path: &Path, wanted: DeviceNumber) -> Result<(), CsiError> {
        let found = match self.mounter.inspect_path(path).await? {
            PathKind::BlockDevice(number) if number == wanted => return Ok(()),
            PathKind::BlockDevice(number) => Some(number),
            PathKind::Absent | PathKind::Directory | PathKind::Other => None,
        };
        Err(MountError::WrongDevice { path: path.to_owned(), found, wanted }.into())
    }
}
