//! Metrics of each volume of the node: size, usage and I/O, with claim, device class and pods as labels. They are read
//! at each scrape and not kept: I/O from /proc/diskstats, filesystems by statfs(2), the rest from the state of the
//! agent. A scrape starts no process, opens no device, and calls neither lvmd nor the API server.

mod labels;
mod series;

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use linux_mount::{DeviceNumber, DiskStatistics, FilesystemUsage, Mounter};
use lvmd_client::DeviceClasses;
use prometheus_client::registry::Registry;
use published_pods::PublishedPods;
use tokio::sync::watch;
use tokio::time::timeout;
use topolvm_api::{ApiFlavor, LogicalVolume};
use topolvm_kube::LogicalVolumes;
use topolvm_runtime::MetricsPage;

use crate::filesystem_usages::{FilesystemUsages, TABLE_DEADLINE};
use crate::limit_io::LimitIo;
use crate::volume_devices::{VolumeDevice, VolumeDevices};
use series::VolumeSeries;

/// Collects the metrics of the node's volumes.
#[derive(Debug)]
pub(crate) struct VolumeMetrics<M> {
    pub(crate) flavor: ApiFlavor,
    pub(crate) node: String,
    pub(crate) volumes: LogicalVolumes,
    pub(crate) devices: VolumeDevices,
    pub(crate) device_classes: watch::Receiver<DeviceClasses>,
    pub(crate) published_pods: PublishedPods,
    pub(crate) io_limiter: Arc<dyn LimitIo>,
    pub(crate) filesystems: FilesystemUsages<M>,
}

/// Claim, time of creation and name of a volume.
type SortKey<'a> = (Option<(&'a str, &'a str)>, Reverse<Option<&'a Time>>, &'a str);

/// Figures of the kernel about devices.
#[derive(Debug, Default)]
struct KernelTables {
    statistics: HashMap<DeviceNumber, DiskStatistics>,
    usages: HashMap<DeviceNumber, FilesystemUsage>,
}

impl<M: Mounter> VolumeMetrics<M> {
    /// Makes the metrics page of a registry and of the volumes.
    pub(crate) fn into_page(self, registry: Registry) -> MetricsPage {
        let shared = Arc::new(self);
        MetricsPage::from(Arc::new(registry)).with_collector(move |page| {
            let volumes = Arc::clone(&shared);
            async move { volumes.append_to(page).await }
        })
    }

    /// Appends the metrics of all volumes to a page.
    async fn append_to(&self, mut page: String) -> String {
        let objects = self.volumes.state();
        let volumes = objects.iter().map(AsRef::as_ref).filter(|volume| is_volume(volume));
        // With their keys, because a lookup of these for each comparison would take most of the time
        let mut volumes: Vec<_> = volumes.map(|volume| (self.sort_key(volume), volume)).collect();
        volumes.sort_unstable_by_key(|(key, _)| *key);
        let devices: Vec<_> = volumes.iter().map(|(_, volume)| self.device(volume)).collect();
        let tables = self.read_tables(&devices).await;
        let mut series = Vec::with_capacity(volumes.len());
        let mut last_claim = None;
        for (((claim, ..), volume), device) in volumes.into_iter().zip(devices) {
            let is_exported_by_claim = claim.is_some() && claim != last_claim;
            last_claim = claim;
            series.push(self.series(volume, device, is_exported_by_claim, &tables));
        }
        series::write(&mut page, &self.node, &series);
        page
    }

    fn claim<'a>(&self, volume: &'a LogicalVolume) -> Option<(&'a str, &'a str)> {
        volume.claim(self.flavor)
    }

    /// Returns the key by which volumes are sorted: of two volumes of one claim, which was deleted and recreated, the
    /// newer comes first.
    fn sort_key<'a>(&self, volume: &'a LogicalVolume) -> SortKey<'a> {
        (self.claim(volume), Reverse(volume.metadata.creation_timestamp.as_ref()), volume.name())
    }

    fn device(&self, volume: &LogicalVolume) -> Option<VolumeDevice> {
        self.devices.get(&volume.spec.device_class, volume.volume_id()?)
    }

    /// Reads the kernel's tables of these devices. Omits those that the kernel does not return in time.
    async fn read_tables(&self, devices: &[Option<VolumeDevice>]) -> KernelTables {
        let numbers = devices.iter().flatten().filter_map(|device| device.number);
        let statistics = timeout(TABLE_DEADLINE, self.filesystems.mounter.disk_statistics());
        let (statistics, usages) = tokio::join!(statistics, self.filesystems.measure(numbers));
        KernelTables { statistics: statistics.ok().and_then(Result::ok).unwrap_or_default(), usages }
    }

    fn series(
        &self,
        volume: &LogicalVolume,
        device: Option<VolumeDevice>,
        is_exported_by_claim: bool,
        tables: &KernelTables,
    ) -> VolumeSeries {
        let number = device.and_then(|device| device.number);
        let pods = volume.volume_id().map(|id| self.published_pods.names(id)).unwrap_or_default();
        let rates = volume.volume_id().map(|id| self.io_limiter.rates(id));
        let class = self.class_name(&volume.spec.device_class);
        VolumeSeries {
            volume: volume.name().to_owned(),
            labels: labels::write_labels(self.claim(volume).unwrap_or_default(), &class, &pods),
            is_exported_by_claim,
            size_bytes: volume.current_bytes(),
            thin_used_bytes: device.and_then(|device| device.thin_used_bytes),
            filesystem: number.and_then(|number| tables.usages.get(&number)).copied(),
            statistics: number.and_then(|number| tables.statistics.get(&number)).copied(),
            io_limits: rates.unwrap_or_default(),
        }
    }

    /// Returns the name of a device class; that of the default class for the empty name, if it is known.
    fn class_name(&self, name: &str) -> String {
        let classes = self.device_classes.borrow();
        let default = if name.is_empty() { classes.default_class.as_deref() } else { None };
        default.unwrap_or(name).to_owned()
    }
}

/// Returns whether an object is a volume that has been made, and no snapshot.
fn is_volume(volume: &LogicalVolume) -> bool {
    volume.volume_id().is_some() && !volume.is_snapshot()
}
