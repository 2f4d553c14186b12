//! Keeps an LV whose device node somebody still has, although nobody has it open: LVM would remove it, and the next volume with the same device
//! number would be open to whoever has the old node.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use futures::future::BoxFuture;
use topolvm_api::LogicalVolume;

use super::{Error, Reconciler};
use crate::mount::{self, DeviceNumber, DeviceUse};

type Find = dyn Fn(DeviceNumber, PathBuf) -> BoxFuture<'static, Result<Vec<DeviceUse>, mount::Error>> + Send + Sync;

/// Finds out where the node of a device is, given the device and the path of its LV.
#[derive(Clone)]
pub struct FindDeviceUses(Arc<Find>);

impl FindDeviceUses {
    /// Asks this function.
    pub fn new<F>(find: impl Fn(DeviceNumber, PathBuf) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<Vec<DeviceUse>, mount::Error>> + Send + 'static,
    {
        Self(Arc::new(move |device, lv| Box::pin(find(device, lv))))
    }
}

impl fmt::Debug for FindDeviceUses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FindDeviceUses").finish_non_exhaustive()
    }
}

impl Reconciler {
    /// Fails while the node of the LV's device is anywhere but where LVM has made it. What cannot be listed has no known device; the removal
    /// says what is wrong with it.
    pub(super) async fn check_unused(&self, volume: &LogicalVolume) -> Result<(), Error> {
        let Some(FindDeviceUses(find)) = &self.device_uses else { return Ok(()) };
        let lv = match self.lvmd.find(volume.uid(), &volume.spec.device_class).await {
            Ok(Some(lv)) => lv,
            Err(error) if error.is_transient() => return Err(Error::LvmdAway(error)),
            Ok(None) | Err(_) => return Ok(()),
        };
        let Some(number) = lv.number else { return Ok(()) };
        let uses = find(number, lv.path).await.map_err(Error::DeviceUses)?;
        if uses.is_empty() { Ok(()) } else { Err(Error::InUse(uses)) }
    }
}
