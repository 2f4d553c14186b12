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
    /// Name of the default class, where it is known.
    pub default_class: Option<String>,
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
    /// The class of this name. The empty name is the default class.
    pub fn class(&self, name: &str) -> Option<&ClassState> {
        let name = if name.is_empty() { self.default_class.as_deref()? } else { name };
        self.classes.iter().find(|class| class.name == name)
    }
}

/// TopoLVM's lvmd tells of the default class nothing but its free bytes, which more than one class may have.
fn with_free(classes: &[ClassState], free: u64) -> Option<&ClassState> {
    let mut candidates = classes.iter().filter(|class| class.free == free);
    candidates.next().filter(|_| candidates.next().is_none())
}

impl From<&WatchResponse> for Pools {
    fn from(reading: &WatchResponse) -> Self {
        let classes: Vec<_> = reading.items.iter().map(ClassState::from).collect();
        let default_class = if reading.default_class.is_empty() {
            with_free(&classes, reading.free_bytes).map(|class| class.name.clone())
        } else {
            Some(reading.default_class.clone())
        };
        Self { is_connected: true, classes, default_class }
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
    use rstest::rstest;

    use super::*;

    fn item(class: &str, free_bytes: u64) -> WatchItem {
        WatchItem { device_class: class.to_owned(), free_bytes, size_bytes: 100, ..WatchItem::default() }
    }

    #[rstest]
    #[case::named("ssd", 5, Some("ssd"))]
    #[case::told_by_its_free_space("", 4, Some("ssd"))]
    #[case::like_another("", 5, None)]
    fn the_empty_name_is_the_default_class(#[case] named: &str, #[case] other: u64, #[case] expected: Option<&str>) {
        let items = vec![item("hdd", other), item("ssd", 5)];
        let pools = Pools::from(&WatchResponse { free_bytes: 5, items, default_class: named.to_owned() });
        assert_eq!(pools.class("").map(|class| class.name.as_str()), expected);
        assert_eq!(pools.class("hdd").unwrap().name, "hdd");
        assert_eq!(pools.class("nosuch"), None);
    }
}
