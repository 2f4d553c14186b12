//! State of the device classes, as lvmd reported it last: volume groups and thin pools.

use lvm::{LvAttr, Problem};
use topolvm_proto::lvmd::{WatchItem, WatchResponse};

/// The device classes of this node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeviceClasses {
    /// True while lvmd answers; otherwise the rest may be out of date.
    pub is_connected: bool,
    /// Device classes in lvmd's order.
    pub classes: Vec<DeviceClass>,
    /// Name of the default class, if it is known.
    pub default_class: Option<String>,
}

/// State of a device class.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceClass {
    /// Its name.
    pub name: String,
    /// Size of the volume group in bytes; 0 if the group does not exist.
    pub group_bytes: u64,
    /// The thin pool of a thin class.
    pub thin_pool: Option<ThinPool>,
    /// Bytes available to new volumes: of a thin class the virtual capacity that is not provisioned yet.
    pub free_bytes: u64,
}

/// State of a thin pool.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ThinPool {
    /// Size in bytes; 0 if the pool does not exist.
    pub bytes: u64,
    /// Used data, in percent.
    pub data_percent: f64,
    /// Used metadata, in percent.
    pub metadata_percent: f64,
    /// Problem that `lv_attr` of the pool shows. TopoLVM's lvmd does not send it.
    pub problem: Option<Problem>,
}

impl DeviceClasses {
    /// Returns the class of this name. The empty name is the default class.
    pub fn class(&self, name: &str) -> Option<&DeviceClass> {
        let name = if name.is_empty() { self.default_class.as_deref()? } else { name };
        self.classes.iter().find(|class| class.name == name)
    }
}

/// Returns the only class with so many free bytes. TopoLVM's lvmd reports nothing else about the default class, and
/// several classes may have the same free space.
fn class_with_free_bytes(classes: &[DeviceClass], free_bytes: u64) -> Option<&DeviceClass> {
    let mut candidates = classes.iter().filter(|class| class.free_bytes == free_bytes);
    candidates.next().filter(|_| candidates.next().is_none())
}

impl From<&WatchResponse> for DeviceClasses {
    fn from(reading: &WatchResponse) -> Self {
        let classes: Vec<_> = reading.items.iter().map(DeviceClass::from).collect();
        let default_class = if reading.default_class.is_empty() {
            class_with_free_bytes(&classes, reading.free_bytes).map(|class| class.name.clone())
        } else {
            Some(reading.default_class.clone())
        };
        Self { is_connected: true, classes, default_class }
    }
}

impl From<&WatchItem> for DeviceClass {
    fn from(item: &WatchItem) -> Self {
        let thin_pool = item.thin_pool.as_ref().map(|pool| ThinPool {
            bytes: pool.size_bytes,
            data_percent: pool.data_percent,
            metadata_percent: pool.metadata_percent,
            problem: pool.attr.parse().ok().and_then(LvAttr::problem),
        });
        Self {
            name: item.device_class.clone(),
            group_bytes: item.size_bytes,
            thin_pool,
            // Thin classes offer the virtual capacity that is not provisioned yet
            free_bytes: item.thin_pool.as_ref().map_or(item.free_bytes, |pool| pool.overprovision_bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn item(class: &str, free_bytes: u64) -> WatchItem {
        WatchItem { device_class: class.to_owned(), free_bytes, size_bytes: 100, ..WatchItem::default() }
    }

    #[rstest]
    #[case::named("ssd", 5, Some("ssd"))]
    #[case::found_by_its_free_space("", 4, Some("ssd"))]
    #[case::like_another("", 5, None)]
    fn the_empty_name_is_the_default_class(#[case] named: &str, #[case] other: u64, #[case] expected: Option<&str>) {
        let items = vec![item("hdd", other), item("ssd", 5)];
        let device_classes =
            DeviceClasses::from(&WatchResponse { free_bytes: 5, items, default_class: named.to_owned() });
        assert_eq!(device_classes.class("").map(|class| class.name.as_str()), expected);
        assert_eq!(device_classes.class("hdd").unwrap().name, "hdd");
        assert_eq!(device_classes.class("nosuch"), None);
    }
}
