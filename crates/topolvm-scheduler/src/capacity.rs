//! Free bytes of a node, and requested bytes of a pod, by device class, as capacity annotations have them.

use std::collections::BTreeMap;

use topolvm_api::ApiFlavor;

/// Requested bytes by device class.
pub(crate) type Requested = BTreeMap<String, u64>;

/// Free bytes of the device classes of a node. There may be thousands in memory, each with a few classes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Capacity(Box<[(Box<str>, Free)]>);

/// Free bytes of a device class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Free {
    /// As many.
    Bytes(u64),
    /// An annotation with this text, which is no number of bytes.
    Unreadable(Box<str>),
}

impl Capacity {
    /// Reads a node's annotations; those that are no capacity are left out.
    pub(crate) fn from_annotations<'a>(
        flavor: ApiFlavor,
        annotations: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Self {
        let ours = |(key, value): (&'a str, &'a str)| Some((key.strip_prefix(flavor.capacity_prefix())?, value));
        annotations.into_iter().filter_map(ours).collect()
    }

    /// Returns the free bytes of a device class; none if the node does not have the class.
    pub(crate) fn free(&self, class: &str) -> Option<&Free> {
        self.0.iter().find(|(name, _)| **name == *class).map(|(_, free)| free)
    }
}

/// From device classes and the texts of their annotations.
impl<'a> FromIterator<(&'a str, &'a str)> for Capacity {
    fn from_iter<I: IntoIterator<Item = (&'a str, &'a str)>>(annotations: I) -> Self {
        let free = |text: &str| text.parse().map_or_else(|_| Free::Unreadable(text.into()), Free::Bytes);
        Self(annotations.into_iter().map(|(class, text)| (class.into(), free(text))).collect())
    }
}
