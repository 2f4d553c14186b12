//! Reports which volumes are too small, of those whose claims may grow automatically.
//!
//! The controller has written to their LogicalVolumes how much space must be free. Filesystems send no event when they
//! fill up, so the agent measures them every few seconds. It writes to the API server when a volume becomes too small,
//! and when it is large enough again.

mod decision;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use kube::Api;
use kube::api::{Patch, PatchParams};
use linux_mount::{DeviceNumber, FilesystemUsage, Mounter};
use serde_json::json;
use tokio::time::MissedTickBehavior;
use topolvm_api::{ApiFlavor, GrowthThresholds, LogicalVolume};
use topolvm_kube::LogicalVolumes;
use topolvm_kube::api_server::{self, ApiError, DEADLINE};
use topolvm_runtime::{CancellationToken, error_chain};

use crate::events::FIELD_MANAGER;
use crate::filesystem_usages::FilesystemUsages;
use crate::volume_devices::VolumeDevices;
use decision::{Measurement, decide};

/// Time between two measurements.
const INTERVAL: Duration = Duration::from_secs(10);

/// Reports which volumes of the node are too small.
#[derive(Debug)]
pub(crate) struct GrowthReports<M> {
    pub(crate) flavor: ApiFlavor,
    pub(crate) api: Api<LogicalVolume>,
    pub(crate) volumes: LogicalVolumes,
    pub(crate) devices: VolumeDevices,
    pub(crate) filesystems: FilesystemUsages<M>,
}

/// The last measurement of volumes, by UID of their objects.
type Measurements = HashMap<String, Measurement>;

impl<M: Mounter> GrowthReports<M> {
    /// Measures and reports until `shutdown` is cancelled.
    pub(crate) async fn run(self, shutdown: CancellationToken) -> anyhow::Result<()> {
        let reporting = async {
            // False only when the process ends
            if !self.volumes.wait_until_listed().await {
                return;
            }
            let mut last = Measurements::new();
            let mut ticks = tokio::time::interval(INTERVAL);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                self.report(&mut last).await;
            }
        };
        shutdown.run_until_cancelled(reporting).await;
        Ok(())
    }

    /// Measures the volumes that may grow automatically, and corrects their objects.
    async fn report(&self, last: &mut Measurements) {
        let concerned =
            |volume: &Arc<LogicalVolume>| self.thresholds(volume).is_some() || self.reported(volume).is_some();
        let volumes: Vec<_> = self.volumes.state().into_iter().filter(concerned).collect();
        last.retain(|uid, _| volumes.iter().any(|volume| volume.uid() == uid));
        if volumes.is_empty() {
            return;
        }
        let usages = self.filesystems.measure(volumes.iter().filter_map(|volume| self.device(volume))).await;
        for volume in volumes.iter().filter(|volume| !volume.is_deleting()) {
            let usage = self.device(volume).and_then(|number| usages.get(&number)).copied();
            let (reported, too_small_at) = (self.reported(volume), self.too_small_at(volume, usage, last));
            if reported == too_small_at {
                continue;
            }
            match self.write(volume, too_small_at).await {
                Ok(()) => tracing::info!(volume = volume.name(), too_small_at, ?usage, "reported the size of a volume"),
                Err(error) => {
                    let (volume, error) = (volume.name(), error_chain(&error));
                    tracing::warn!(volume, error, "cannot report that the volume needs to be expanded; retrying later");
                }
            }
        }
    }

    /// Returns the size at which the volume is too small, if it is, as its object should report it.
    fn too_small_at(
        &self,
        volume: &LogicalVolume,
        usage: Option<FilesystemUsage>,
        last: &mut Measurements,
    ) -> Option<u64> {
        let thresholds = self.thresholds(volume)?;
        let reported = self.reported(volume);
        let (Some(size), Some(usage)) = (volume.current_bytes(), usage) else { return reported };
        let before = last.get(volume.uid()).copied();
        let (measurement, too_small_at) = decide(before, reported, size, &usage, thresholds);
        last.insert(volume.uid().to_owned(), measurement);
        too_small_at
    }

    fn thresholds(&self, volume: &LogicalVolume) -> Option<GrowthThresholds> {
        volume.annotation(self.flavor.growth_thresholds())?.parse().ok()
    }

    /// Returns the size at which the volume is too small as its object reports it.
    fn reported(&self, volume: &LogicalVolume) -> Option<u64> {
        volume.annotation(self.flavor.too_small_at())?.parse().ok()
    }

    fn device(&self, volume: &LogicalVolume) -> Option<DeviceNumber> {
        self.devices.get(&volume.spec.device_class, volume.volume_id()?)?.number
    }

    /// Writes the size at which the volume is too small to its object. Fails if that is another one of the same name
    /// by now.
    async fn write(&self, volume: &LogicalVolume, too_small_at: Option<u64>) -> Result<(), ApiError> {
        let value = too_small_at.map(|bytes| bytes.to_string());
        // The UID in a merge patch is a precondition
        let patch = json!({"metadata": {"uid": volume.uid(), "annotations": {self.flavor.too_small_at(): value}}});
        let (params, patch) = (PatchParams::apply(FIELD_MANAGER), Patch::Merge(patch));
        api_server::call(DEADLINE, self.api.patch(volume.name(), &params, &patch)).await.map(drop)
    }
}
