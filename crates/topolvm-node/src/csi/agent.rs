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
use crate::limit_io::LimitIo;
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

/// Settings and further parts of an agent.
#[derive(Debug)]
pub struct AgentOptions {
    /// Directory in which versions before 0.33 created device nodes, which is `/dev/topolvm`; unpublishing removes
    /// them.
    pub legacy_devices: PathBuf,
    /// True when volumes are staged before they are published.
    pub stages: bool,
    /// Stores to which pods volumes are published.
    pub published_pods: PublishedPods,
    /// Limits the I/O of pods before they have their volumes.
    pub io_limiter: Arc<dyn LimitIo>,
}

impl<M: Mounter> Agent<M> {
    /// Creates an agent for the volumes of this node. `device_classes` is the last state that lvmd reported.
    pub fn new(
        volumes: Volumes,
        lvmd: LvmdClient,
        mounter: M,
        device_classes: watch::Receiver<DeviceClasses>,
        options: AgentOptions,
    ) -> Self {
        let AgentOptions { legacy_devices, stages, published_pods, io_limiter } = options;
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
            published_pods,
            io_limiter,
        }
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
