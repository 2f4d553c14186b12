//! The port through which pods get limits of I/O on their volumes.

use std::fmt;

use futures::FutureExt as _;
use futures::future::{BoxFuture, ready};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use linux_mount::DeviceNumber;
use lvmd_client::LvmdError;
use published_pods::PodInfo;
use topolvm_api::{LogicalVolume, VolumeIoLimits, io_limited_condition};

/// Limits the I/O of the pods that have volumes.
pub trait LimitIo: fmt::Debug + Send + Sync {
    /// Limits a pod that is about to get a volume. A failure does not keep the pod from starting.
    fn limit_before_use<'a>(
        &'a self,
        volume: &'a LogicalVolume,
        device: DeviceNumber,
        pod: &'a PodInfo,
    ) -> BoxFuture<'a, ()>;

    /// Limits all pods that have a volume, and returns whether the condition of its object must be written.
    fn limit_volume<'a>(&'a self, volume: &'a LogicalVolume) -> BoxFuture<'a, Result<bool, LvmdError>>;

    /// Returns the condition about limits for the status of an object.
    fn condition(&self, volume: &LogicalVolume, now: Timestamp) -> Option<Condition>;

    /// Returns the ids of the volumes that a pod has.
    fn volumes_of_pod(&self, uid: &str) -> Vec<String>;

    /// Returns the limits of a volume, for its metrics.
    fn rates(&self, id: &str) -> VolumeIoLimits;

    /// Forgets an object that is gone.
    fn forget(&self, volume: &LogicalVolume);
}

/// Limits nothing, and leaves what another process has written: for an agent that is put together without I/O limits.
#[derive(Clone, Copy, Debug)]
pub struct NoLimits;

impl LimitIo for NoLimits {
    fn limit_before_use<'a>(&'a self, _: &'a LogicalVolume, _: DeviceNumber, _: &'a PodInfo) -> BoxFuture<'a, ()> {
        ready(()).boxed()
    }

    fn limit_volume<'a>(&'a self, _: &'a LogicalVolume) -> BoxFuture<'a, Result<bool, LvmdError>> {
        ready(Ok(false)).boxed()
    }

    fn condition(&self, volume: &LogicalVolume, _: Timestamp) -> Option<Condition> {
        io_limited_condition(volume).cloned()
    }

    fn volumes_of_pod(&self, _: &str) -> Vec<String> {
        Vec::new()
    }

    fn rates(&self, _: &str) -> VolumeIoLimits {
        VolumeIoLimits::default()
    }

    fn forget(&self, _: &LogicalVolume) {}
}
