//! What lvmd said last about the state of its volume groups and thin pools.

use lvm::{LvAttr, Problem};
use topolvm_proto::lvmd::{WatchItem, WatchResponse};

/// The device classes of this node, as lvmd described them last.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pools {
    /// Whether lvmd answers now.
    pub is_connected: bool,
    /// In lvmd's order.
    pub classes: Vec<ClassState>,
    /// Free bytes of the default class. Nothing else says which class that is.
    pub default_free: u64,
}

/// One device class.
#[derive(Clone, Debug, PartialEq)]
pub struct ClassState {
    /// Its name.
    pub name: String,
    /// Size of the volume group in bytes; 0 when the group is not there.
    pub group_bytes: u64,
    /// The thin pool of a thin class.
    pub thin_pool: Option<ThinPool>,
    /// Bytes that new volumes may have.
    pub free: u64,
}

/// A thin pool.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ThinPool {
    /// Its size in bytes; 0 when the pool is not there.
    pub bytes: u64,
    /// How much of its space for data is used, in percent.
    pub data_percent: f64,
    /// How much of its space for metadata is used, in percent.
    pub metadata_percent: f64,
    /// What LVM says is wrong with it. TopoLVM's lvmd does not tell.
    pub problem: Option<Problem>,
}

impl Pools {
    /// The class of this name. The empty name is the default class; it is `None` where more than one class may be that.
    pub fn class(&self, name: &str) -> Option<&ClassState> {
        if !name.is_empty() {
            return self.classes.iter().find(|class| class.name == name);
        }
        let mut candidates = self.classes.iter().filter(|class| class.free == self.default_free);
        candidates.next().filter(|_| candidates.next().is_none())
    }
}

impl From<&WatchResponse> for Pools {
    fn from(reading: &WatchResponse) -> Self {
        let classes = reading.items.iter().map(ClassState::from).collect();
        Self { is_connected: true, classes, default_free: reading.free_bytes }
    }
}

impl From<&WatchItem> for ClassState {
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
            // Thin classes offer what may still be promised
            free: item.thin_pool.as_ref().map_or(item.free_bytes, |pool| pool.overprovision_bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(class: &str, free_bytes: u64) -> WatchItem {
        WatchItem { device_class: class.to_owned(), free_bytes, size_bytes: 100, thin_pool: None }
    }

    #[test]
    fn the_default_class_is_told_by_its_free_space() {
        let reading = WatchResponse { free_bytes: 5, items: vec![item("hdd", 4), item("ssd", 5)] };
        let pools = Pools::from(&reading);
        assert_eq!(pools.class("").unwrap().name, "ssd");
        assert_eq!(pools.class("hdd").unwrap().name, "hdd");
        assert_eq!(pools.class("nosuch"), None);
    }

    #[test]
    fn a_default_class_that_cannot_be_told_from_another_is_none() {
        let reading = WatchResponse { free_bytes: 5, items: vec![item("hdd", 5), item("ssd", 5)] };
        assert_eq!(Pools::from(&reading).class(""), None);
    }
}
