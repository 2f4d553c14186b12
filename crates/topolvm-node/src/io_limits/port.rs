//! The port through which limits get into the kernel.

use std::fmt;
use std::sync::Arc;

use futures::future::BoxFuture;
use topolvm_api::IoLimits;

use crate::mount::{DeviceNumber, LimitError, LimitsInForce, Mounter};

type Limit =
    dyn Fn(String, DeviceNumber, IoLimits) -> BoxFuture<'static, Result<LimitsInForce, LimitError>> + Send + Sync;

/// The port: a function from the UID of a pod, a device and limits to the limits that the kernel then has.
pub(crate) struct LimitIo(Box<Limit>);

impl LimitIo {
    /// Makes the port of a machine.
    pub(crate) fn new(mounter: impl Mounter) -> Self {
        let mounter = Arc::new(mounter);
        Self(Box::new(move |pod, device, limits| {
            let mounter = Arc::clone(&mounter);
            Box::pin(async move { mounter.limit_io(&pod, device, &limits).await })
        }))
    }

    /// Gives a pod these limits on a device and no others.
    pub(super) async fn set(
        &self,
        pod: &str,
        device: DeviceNumber,
        limits: &IoLimits,
    ) -> Result<LimitsInForce, LimitError> {
        (self.0)(pod.to_owned(), device, limits.clone()).await
    }
}

impl fmt::Debug for LimitIo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LimitIo")
    }
}
