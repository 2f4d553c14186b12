//! Capacity annotations of Nodes: free bytes per device class, and per lvcreate option class where these differ.

use std::collections::BTreeMap;

use crate::{ApiFlavor, DEFAULT_DEVICE_CLASS_KEY, LayoutCapacity};

/// By device class and lvcreate option class; the empty option class is the options of the device class.
type Layouts = BTreeMap<String, BTreeMap<String, LayoutCapacity>>;

/// A device class of a node, as it is listed for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListedClass<'a> {
    /// Its name; empty for a default class whose name is unknown.
    pub name: &'a str,
    /// True for the default class.
    pub is_default: bool,
    /// Its free bytes.
    pub free: u64,
}

/// Free bytes of each device class of one node, the default class under the empty name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeCapacity {
    free: BTreeMap<String, u64>,
    /// Of those classes for which the node has option classes with other layouts.
    layouts: Layouts,
}

impl NodeCapacity {
    /// Sets the free bytes of a class; the empty name is the default class.
    pub fn set(&mut self, device_class: &str, free_bytes: u64) {
        self.free.insert(class_name(device_class), free_bytes);
    }

    /// Sets the capacity of a device class for volumes of an lvcreate option class. The empty option class is the
    /// options of the device class: without it the others do not count.
    pub fn set_layout(&mut self, device_class: &str, option_class: &str, capacity: LayoutCapacity) {
        self.layouts.entry(class_name(device_class)).or_default().insert(option_class.to_owned(), capacity);
    }

    /// Returns the free bytes of a class; none if the node does not have the class.
    pub fn free(&self, device_class: &str) -> Option<u64> {
        self.free.get(device_class).copied()
    }

    /// Returns the capacity of a device class for volumes of an lvcreate option class, which may be empty; none if the
    /// node does not have the device class. For an option class that the node does not publish it is that of the device
    /// class.
    pub fn layout(&self, device_class: &str, option_class: &str) -> Option<LayoutCapacity> {
        let free = self.free(device_class)?;
        let layouts = self.layouts.get(device_class);
        // Another agent, which does not know the annotation, leaves it as it was and changes the others
        let current = layouts.filter(|layouts| layouts.get("").is_some_and(|own| own.free == free));
        let layout = current.and_then(|layouts| layouts.get(option_class).or_else(|| layouts.get("")));
        Some(layout.copied().unwrap_or_else(|| LayoutCapacity::linear(free)))
    }

    /// Returns whether the node has no class at all.
    pub fn is_empty(&self) -> bool {
        self.free.is_empty()
    }

    /// Returns the names of the classes, without that of the default class.
    pub fn classes(&self) -> impl Iterator<Item = &str> {
        self.free.keys().map(String::as_str).filter(|class| !class.is_empty())
    }

    /// Returns whether there are classes and none of them is the default one. The bytes of the default class are also
    /// published under its own name; without a default class agents publish 0 for it, and TopoLVM's may publish
    /// nothing.
    pub fn lacks_default_class(&self) -> bool {
        let has_class_with = |bytes| self.classes().any(|class| self.free(class) == Some(bytes));
        let default = self.free("");
        self.classes().next().is_some() && default.is_none_or(|bytes| bytes == 0 && !has_class_with(0))
    }

    /// Returns each device class once. Nodes publish the default class a second time without its name; it is listed
    /// under its own name where exactly one class has as many free bytes, and else under the empty name.
    pub fn listed_classes(&self) -> Vec<ListedClass<'_>> {
        let unnamed = self.free("");
        let mut same = self.classes().filter(|class| unnamed.is_some() && self.free(class) == unnamed);
        let default = same.next().filter(|_| same.next().is_none());
        let is_listed = |class: &&String| !class.is_empty() || (default.is_none() && !self.lacks_default_class());
        let names = self.free.keys().filter(is_listed).map(String::as_str);
        let listed = names.filter_map(|name| {
            let is_default = name.is_empty() || default == Some(name);
            Some(ListedClass { name, is_default, free: self.free(name)? })
        });
        listed.collect()
    }

    /// Parses the annotations of a Node. An annotation that is no number is left out, as if the class did not exist.
    pub fn from_annotations(flavor: ApiFlavor, annotations: &BTreeMap<String, String>) -> Self {
        let mut capacity = Self::default();
        for (key, value) in annotations {
            if let (Some(class), Ok(bytes)) = (key.strip_prefix(flavor.capacity_prefix()), value.parse()) {
                capacity.set(class, bytes);
            }
        }
        let layouts = annotations.get(flavor.option_class_capacity());
        let layouts: Layouts = layouts.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
        capacity.layouts = layouts.into_iter().map(|(class, layouts)| (class_name(&class), layouts)).collect();
        capacity
    }

    /// Returns the annotations to write. That of the default class is always there, 0 if there is no default class.
    pub fn to_annotations(&self, flavor: ApiFlavor) -> BTreeMap<String, String> {
        let mut annotations: BTreeMap<_, _> =
            self.free.iter().map(|(class, bytes)| (flavor.capacity_annotation(class), bytes.to_string())).collect();
        annotations.entry(flavor.capacity_annotation("")).or_insert_with(|| "0".to_owned());
        let key = |class: &String| if class.is_empty() { DEFAULT_DEVICE_CLASS_KEY.to_owned() } else { class.clone() };
        let layouts: BTreeMap<_, _> = self.layouts.iter().map(|(class, layouts)| (key(class), layouts)).collect();
        if let (false, Ok(text)) = (layouts.is_empty(), serde_json::to_string(&layouts)) {
            annotations.insert(flavor.option_class_capacity().to_owned(), text);
        }
        annotations
    }
}

/// Returns the name of a device class in an annotation as it is here, where the default class has the empty name.
fn class_name(key: &str) -> String {
    if key == DEFAULT_DEVICE_CLASS_KEY { String::new() } else { key.to_owned() }
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
    fn layout_capacity_annotation_counts_only_if_class_bytes_match() {
        let mirrored = LayoutCapacity { free: 3, stripes: 1, images: 2 };
        let mut capacity = NodeCapacity::default();
        for class in ["", "ssd"] {
            capacity.set(class, 7);
            capacity.set_layout(class, "", LayoutCapacity::linear(7));
            capacity.set_layout(class, "mirrored", mirrored);
        }
        capacity.set("hdd", 9);
        let mut annotations = capacity.to_annotations(ApiFlavor::TopoLvm);
        let layouts = r#"{"":{"free":7,"stripes":1,"images":1},"mirrored":{"free":3,"stripes":1,"images":2}}"#;
        let expected = format!(r#"{{"00default":{layouts},"ssd":{layouts}}}"#);
        let key = ApiFlavor::TopoLvm.option_class_capacity();
        assert_eq!(annotations.get(key), Some(&expected));
        assert_eq!(NodeCapacity::from_annotations(ApiFlavor::TopoLvm, &annotations), capacity);
        assert_eq!(capacity.layout("", "mirrored"), Some(mirrored));
        assert_eq!(capacity.layout("ssd", "other"), Some(LayoutCapacity::linear(7)));
        assert_eq!(capacity.layout("hdd", "mirrored"), Some(LayoutCapacity::linear(9)));
        assert_eq!(capacity.layout("nvme", "mirrored"), None);

        annotations.insert("capacity.topolvm.io/ssd".to_owned(), "8".to_owned());
        let left_behind = NodeCapacity::from_annotations(ApiFlavor::TopoLvm, &annotations);
        assert_eq!(left_behind.layout("ssd", "mirrored"), Some(LayoutCapacity::linear(8)));
        annotations.insert(key.to_owned(), "{".to_owned());
        let unreadable = NodeCapacity::from_annotations(ApiFlavor::TopoLvm, &annotations);
        assert_eq!(unreadable.layout("", "mirrored"), Some(LayoutCapacity::linear(7)));
    }

    #[test]
    fn default_class_is_listed_once_and_named_if_unambiguous() {
        let listed = |classes: &[(&str, u64)]| {
            let mut capacity = NodeCapacity::default();
            for (class, bytes) in classes {
                capacity.set(class, *bytes);
            }
            let listed = capacity.listed_classes().into_iter();
            listed.map(|class| format!("{}{}", class.name, if class.is_default { "*" } else { "" })).collect::<Vec<_>>()
        };
        assert_eq!(listed(&[("", 7), ("hdd", 3), ("ssd", 7)]), ["hdd", "ssd*"]);
        assert_eq!(listed(&[("", 7), ("hdd", 7), ("ssd", 7)]), ["*", "hdd", "ssd"]);
        assert_eq!(listed(&[("", 0), ("ssd", 7)]), ["ssd"]);
        assert_eq!(listed(&[("", 5)]), ["*"]);
        assert_eq!(listed(&[("ssd", 5)]), ["ssd"]);
    }

    #[test]
    fn a_default_class_is_one_whose_bytes_are_those_of_a_class() {
        let capacity = |classes: &[(&str, u64)]| {
            let mut capacity = NodeCapacity::default();
            for (class, bytes) in classes {
                capacity.set(class, *bytes);
            }
            capacity
        };
        for lacking in [&[("ssd", 7)][..], &[("ssd", 7), ("", 0)]] {
            assert!(capacity(lacking).lacks_default_class(), "{lacking:?}");
        }
        for fine in [&[][..], &[("", 0)], &[("ssd", 7), ("", 7)], &[("ssd", 0), ("", 0)]] {
            assert!(!capacity(fine).lacks_default_class(), "{fine:?}");
        }
        assert_eq!(capacity(&[("", 1), ("ssd", 1), ("hdd", 2)]).classes().collect::<Vec<_>>(), ["hdd", "ssd"]);
    }

    #[test]
    fn the_default_class_is_always_written() {
        let annotations = NodeCapacity::default().to_annotations(ApiFlavor::TopoLvm);
        assert_eq!(annotations, BTreeMap::from([("capacity.topolvm.io/00default".to_owned(), "0".to_owned())]));
    }
}
