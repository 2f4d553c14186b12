//! The port through which the reconciler finds the uses that block the removal of a device but that LVM does not
//! detect. LVM would remove an LV while another process has its device node but has not opened it. The next volume with
//! the same device number would then be accessible through the old node.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use futures::future::BoxFuture;
use linux_mount::{DeviceNumber, DeviceUse, MountError, Mounter};

type Find = dyn Fn(DeviceNumber, PathBuf) -> BoxFuture<'static, Result<Vec<DeviceUse>, MountError>> + Send + Sync;

/// The port: functions from a device and the path of its LV to the uses of the device.
pub struct FindDeviceUses {
    uses: Box<Find>,
    holders: Box<Find>,
}

impl FindDeviceUses {
    /// Makes the port of a machine.
    pub fn new(mounter: impl Mounter) -> Self {
        let mounter = Arc::new(mounter);
        let other = Arc::clone(&mounter);
        Self {
            uses: Box::new(move |device, lv| {
                let mounter = Arc::clone(&mounter);
                Box::pin(async move { mounter.find_device_uses(device, &lv).await })
            }),
            holders: Box::new(move |device, lv| {
                let mounter = Arc::clone(&other);
                Box::pin(async move { mounter.find_device_holders(device, &lv).await })
            }),
        }
    }

    /// Finds the uses of a device, given its number and the path of its LV.
    pub(super) async fn find(&self, device: DeviceNumber, lv: PathBuf) -> Result<Vec<DeviceUse>, MountError> {
        (self.uses)(device, lv).await
    }

    /// Finds what keeps a device that LVM does not remove.
    pub(super) async fn find_holders(&self, device: DeviceNumber, lv: PathBuf) -> Result<Vec<DeviceUse>, MountError> {
        (self.holders)(device, lv).await
    }
}

impl fmt::Debug for FindDeviceUses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FindDeviceUses")
    }
}
