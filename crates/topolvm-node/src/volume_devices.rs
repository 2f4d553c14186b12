//! Devices of the node's volumes as lvmd listed them last: what the metrics of volumes need of lvmd, so that asking
//! for metrics does not ask lvmd.

use std::collections::HashMap;
use std::sync::Arc;

use linux_mount::DeviceNumber;
use lvmd_client::Lv;
use parking_lot::Mutex;

/// The device of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VolumeDevice {
    /// Number; `None` while the LV is not active.
    pub(crate) number: Option<DeviceNumber>,
    /// Bytes that a thin volume uses in its pool, if lvmd reports them.
    pub(crate) thin_used_bytes: Option<u64>,
}

/// The devices of volumes by name of the device class and volume id.
type Devices = HashMap<String, HashMap<Box<str>, VolumeDevice>>;

/// The devices of the node's volumes. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct VolumeDevices(Arc<Mutex<Devices>>);

impl VolumeDevices {
    /// Replaces the devices of a device class by those of these LVs.
    pub(crate) fn replace<'a>(&self, class: &str, lvs: impl Iterator<Item = &'a Lv>) {
        let device = |lv: &Lv| VolumeDevice { number: lv.number, thin_used_bytes: lv.thin_used_bytes };
        let devices: HashMap<_, _> = lvs.map(|lv| (lv.name.as_str().into(), device(lv))).collect();
        let mut classes = self.0.lock();
        if devices.is_empty() {
            classes.remove(class);
        } else {
            classes.insert(class.to_owned(), devices);
        }
    }

    /// Returns the device of a volume, whose LogicalVolume names this device class.
    pub(crate) fn get(&self, class: &str, id: &str) -> Option<VolumeDevice> {
        self.0.lock().get(class)?.get(id).copied()
    }
}
