//! Status of device-mapper devices: how full a thin pool is, whether a RAID has lost an image, how often a
//! device is open. Read with ioctl(2) from `/dev/mapper/control`; nothing is ever changed.
//!
//! Formats: the kernel's `include/uapi/linux/dm-ioctl.h` and its documents on `thin-pool` and `dm-raid`.

mod control;
mod message;
mod status;

pub use control::Control;
pub use message::{Info, MessageError, Target};
pub use status::{RaidStatus, ThinPoolStatus, mirror_has_failed, thin_mapped_sectors};
