//! The capacity annotations of a pod or a node, out of all that it has.

use std::fmt;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use topolvm_api::ApiFlavor;

use super::Name;

/// Begin of the capacity annotations of both API groups.
const PREFIX: &str = "capacity.";

/// Keys and values of the annotations that begin as those of capacity do.
#[derive(Debug, Default)]
pub(super) struct CapacityAnnotations<'a>(Vec<(Name<'a>, Name<'a>)>);

impl CapacityAnnotations<'_> {
    /// Returns the device classes of an API group, with the texts of their annotations.
    pub(super) fn of(&self, flavor: ApiFlavor) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().filter_map(move |(key, value)| {
            Some((key.as_str().strip_prefix(flavor.capacity_prefix())?, value.as_str()))
        })
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for CapacityAnnotations<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(AnnotationsVisitor).map(Self)
    }
}

struct AnnotationsVisitor;

impl<'de> Visitor<'de> for AnnotationsVisitor {
    type Value = Vec<(Name<'de>, Name<'de>)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("annotations")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut ours = Vec::new();
        while let Some(key) = map.next_key::<Name<'de>>()? {
            if key.as_str().starts_with(PREFIX) {
                ours.push((key, map.next_value()?));
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(ours)
    }
}
