//! Capacity annotations of Nodes: free bytes per device class.

use std::collections::BTreeMap;

use crate::{ApiFlavor, DEFAULT_DEVICE_CLASS_KEY};

/// Free bytes of each device class of one node, the default class under the empty name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeCapacity {
    free: BTreeMap<String, u64>,
}

impl NodeCapacity {
    /// Sets the free bytes of a class; the empty name is the default class.
    pub fn set(&mut self, device_class: &str, free_bytes: u64) {
        let class = if device_class == DEFAULT_DEVICE_CLASS_KEY { "" } else { device_class };
        self.free.insert(class.to_owned(), free_bytes);
    }

    /// Returns the free bytes of a class; none if the node does not have the class.
    pub fn free(&self, device_class: &str) -> Option<u64> {
        self.free.get(device_class).copied()
    }

    /// Parses the annotations of a Node. An annotation that is no number is left out, as if the class did not exist.
    pub fn from_annotations(flavor: ApiFlavor, annotations: &BTreeMap<String, String>) -> Self {
        let mut capacity = Self::default();
        for (key, value) in annotations {
            if let (Some(class), Ok(bytes)) = (key.strip_prefix(flavor.capacity_prefix()), value.parse()) {
                capacity.set(class, bytes);
            }
        }
        capacity
    }

    /// Returns the annotations to write. That of the default class is always there, 0 if there is no default class.
    pub fn to_annotations(&self, flavor: ApiFlavor) -> BTreeMap<String, String> {
        let mut annotations: BTreeMap<_, _> =
            self.free.iter().map(|(class, bytes)| (flavor.capacity_annotation(class), bytes.to_string())).collect();
        annotations.entry(flavor.capacity_annotation("")).or_insert_with(|| "0".to_owned());
        annotations
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn annotations_read_back_and_foreign_ones_are_ignored() {
        let mut capacity = NodeCapacity::default();
        capacity.set("", 5);
        capacity.set("ssd", 7);
        let mut annotations = capacity.to_annotations(ApiFlavor::TopoLvm);
        annotations.insert("capacity.topolvm.cybozu.com/ssd".to_owned(), "9".to_owned());
        annotations.insert("capacity.topolvm.io/hdd".to_owned(), "lots".to_owned());
        assert_eq!(NodeCapacity::from_annotations(ApiFlavor::TopoLvm, &annotations), capacity);
    }

    #[test]
    fn the_default_class_is_always_written() {
        let annotations = NodeCapacity::default().to_annotations(ApiFlavor::TopoLvm);
        assert_eq!(annotations, BTreeMap::from([("capacity.topolvm.io/00default".to_owned(), "0".to_owned())]));
    }
}
