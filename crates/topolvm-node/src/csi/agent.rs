//! The agent: what carries out the calls of the Node service, put together.

use std::path::PathBuf;
use std::sync::Arc;

use kube::{Api, Client};
use linux_mount::{HungPaths, Mounter};
use lvmd_client::{DeviceClasses, LvmdClient};
use published_pods::PublishedPods;
use tokio::sync::watch;

use super::filesystems::Filesystems;
use super::health::HealthReports;
use super::mounts::Mounts;
use super::prepare::{FilesystemPreparation, MissingFilesystems};
use super::volume_access::VolumeAccess;
use crate::filesystem_usages::FilesystemUsages;
use crate::growth_reports::GrowthReports;
use crate::limit_io::{LimitIo, NoLimits};
use crate::volume_devices::VolumeDevices;
use crate::volume_metrics::VolumeMetrics;
use crate::volumes::Volumes;

/// Carries out the calls of the CSI Node service on this machine.
#[derive(Debug)]
pub struct Agent<M> {
    pub(super) access: Arc<VolumeAccess<M>>,
    pub(super) mounts: Arc<Mounts<M>>,
    pub(super) filesystems: Filesystems<M>,
    pub(super) health: HealthReports<M>,
    /// Directory of the device nodes that versions before 0.33 made.
    pub(super) legacy_devices: PathBuf,
    /// True when volumes are staged before they are published.
    pub(super) stages: bool,
    pub(super) published_pods: PublishedPods,
    pub(super) io_limiter: Arc<dyn LimitIo>,
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
        let access = Arc::new(VolumeAccess { volumes, lvmd, mounter });
        let mounts = Arc::new(Mounts::new(Arc::clone(&access)));
        let missing = MissingFilesystems::default();
        Self {
            filesystems: Filesystems {
                access: Arc::clone(&access),
                mounts: Arc::clone(&mounts),
                preparation: FilesystemPreparation { access: Arc::clone(&access), missing: Arc::clone(&missing) },
            },
            health: HealthReports {
                access: Arc::clone(&access),
                device_classes,
                hung_paths: HungPaths::default(),
                missing_filesystems: missing,
            },
            access,
            mounts,
            legacy_devices,
            stages,
            published_pods: PublishedPods::default(),
            io_limiter: Arc::new(NoLimits),
        }
    }

    /// Has the agent limit the I/O of pods before they have their volumes.
    #[must_use]
    pub(crate) fn limiting_io(self, io_limiter: Arc<dyn LimitIo>) -> Self {
        Self { io_limiter, ..self }
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
            flavor: self.access.volumes.flavor,
            node: self.access.volumes.node.clone(),
            volumes: self.access.volumes.own.clone(),
            devices,
            device_classes: self.health.device_classes.clone(),
            published_pods: self.published_pods.clone(),
            io_limiter: Arc::clone(&self.io_limiter),
            filesystems: self.filesystem_usages(),
        }
    }

    /// Makes the reports of volumes that are too small, whose devices are found in `devices`.
    pub(crate) fn growth_reports(&self, devices: VolumeDevices, client: Client) -> GrowthReports<M>
    where
        M: Clone,
    {
        let flavor = self.access.volumes.flavor;
        GrowthReports {
            flavor,
            api: Api::all_with(client, &flavor),
            volumes: self.access.volumes.own.clone(),
            devices,
            filesystems: self.filesystem_usages(),
        }
    }

    /// Measures mounted filesystems, and shares with the calls which of them hang.
    fn filesystem_usages(&self) -> FilesystemUsages<M>
    where
        M: Clone,
    {
        FilesystemUsages { hung_paths: self.health.hung_paths.clone(), mounter: self.access.mounter.clone() }
    }
}
