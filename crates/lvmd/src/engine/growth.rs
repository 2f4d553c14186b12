//! A volume to grow.

use std::sync::Arc;

use lvm::LvName;

use crate::device_class::DeviceClass;

/// A volume to grow, where its device class has volumes.
#[derive(Debug)]
pub(super) struct Growth {
    pub(super) class: Arc<DeviceClass>,
    pub(super) name: LvName,
    /// Size in bytes.
    pub(super) bytes: u64,
}
