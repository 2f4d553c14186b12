//! The port through which limits get into the kernel.

use std::fmt;
use std::sync::Arc;

use futures::future::BoxFuture;
use linux_mount::{DeviceNumber, LimitError, LimitsInForce, Mounter, PodLimits};
use topolvm_api::IoLimits;

type Limit =
    dyn Fn(String, DeviceNumber, IoLimits) -> BoxFuture<'static, Result<LimitsInForce, LimitError>> + Send + Sync;
type FindLost = dyn Fn(Vec<PodLimits>) -> BoxFuture<'static, Result<Vec<PodLimits>, LimitError>> + Send + Sync;

/// The port: a function from the UID of a pod, a device and limits to the limits that the kernel then has, and one that
/// finds those that it has no more.
pub(crate) struct LimitIo {
    limit: Box<Limit>,
    find_lost: Box<FindLost>,
}

impl LimitIo {
    /// Makes the port of a machine.
    pub(crate) fn new(mounter: impl Mounter) -> Self {
        let mounter = Arc::new(mounter);
        let mounter_of_checks = Arc::clone(&mounter);
        Self {
            limit: Box::new(move |pod, device, limits| {
                let mounter = Arc::clone(&mounter);
                Box::pin(async move { mounter.limit_io(&pod, device, &limits).await })
            }),
            find_lost: Box::new(move |expected| {
                let mounter = Arc::clone(&mounter_of_checks);
                Box::pin(async move { mounter.find_lost_limits(expected).await })
            }),
        }
    }

    /// Gives a pod these limits on a device and no others.
    pub(crate) async fn set(
        &self,
        pod: &str,
        device: DeviceNumber,
        limits: &IoLimits,
    ) -> Result<LimitsInForce, LimitError> {
        (self.limit)(pod.to_owned(), device, limits.clone()).await
    }

    /// Returns those limits that the kernel has no more.
    pub(crate) async fn find_lost(&self, expected: Vec<PodLimits>) -> Result<Vec<PodLimits>, LimitError> {
        (self.find_lost)(expected).await
    }
}

impl fmt::Debug for LimitIo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LimitIo")
    }
}
