//! LVM tags that name the object and device class of an LV: `lvs -o +tags` on the node shows them, and identifies the
//! volumes if only the disks are left.

use crate::{ApiFlavor, LogicalVolume};

/// Returns the tags of an object's LV. A value that LVM does not allow in a tag is left out, so that no volume fails
/// because of its tags. `cluster` identifies the cluster, if that is known.
pub fn lvm_tags(flavor: ApiFlavor, volume: &LogicalVolume, cluster: Option<&str>) -> Vec<String> {
    let created = volume.metadata.creation_timestamp.as_ref().map(|time| time.0.as_second().to_string());
    let facts = [
        (flavor.logical_volume_tag(), volume.name()),
        (flavor.device_class_tag(), volume.spec.device_class.as_str()),
        (flavor.cluster_tag(), cluster.unwrap_or_default()),
        (flavor.created_tag(), created.as_deref().unwrap_or_default()),
    ];
    facts.into_iter().filter(|(_, value)| is_tag_value(value)).map(|(key, value)| format!("{key}={value}")).collect()
}

/// Returns the value of the first of these tags with a key.
pub fn tag_value<'a>(tags: &'a [String], key: &str) -> Option<&'a str> {
    tags.iter().find_map(|tag| tag.strip_prefix(key)?.strip_prefix('='))
}

/// Returns whether LVM allows a value in a tag (lvm(8), "TAGS": at most 1024 of these characters in all). Names of
/// Kubernetes have at most 253 of fewer.
fn is_tag_value(value: &str) -> bool {
    (1..=253).contains(&value.len()) && value.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use k8s_openapi::jiff::Timestamp;
    use rstest::rstest;

    use super::*;
    use crate::LogicalVolumeSpec;

    fn logical_volume(name: &str, class: &str) -> LogicalVolume {
        let spec =
            LogicalVolumeSpec { name: name.to_owned(), device_class: class.to_owned(), ..LogicalVolumeSpec::default() };
        LogicalVolume::new(ApiFlavor::TopoLvm, spec)
    }

    #[test]
    fn an_lv_names_its_object_and_its_class() {
        let mut volume = logical_volume("pvc-1", "ssd");
        volume.metadata.creation_timestamp = Some(Time(Timestamp::constant(7, 0)));
        let tags = ["topolvm.io/logicalvolume=pvc-1", "topolvm.io/device-class=ssd"];
        let more = ["topolvm.io/cluster=c1", "topolvm.io/created=7"];
        assert_eq!(lvm_tags(ApiFlavor::TopoLvm, &volume, Some("c1")), [tags, more].concat());
        let legacy = ["topolvm.cybozu.com/logicalvolume=pvc-1", "topolvm.cybozu.com/device-class=ssd"];
        volume.metadata.creation_timestamp = None;
        assert_eq!(lvm_tags(ApiFlavor::Legacy, &volume, None), legacy);
    }

    #[test]
    fn tag_value_is_found_by_the_whole_key() {
        let tags = ["topolvm.io/created-by=x".to_owned(), "topolvm.io/created=7".to_owned()];
        assert_eq!(tag_value(&tags, "topolvm.io/created"), Some("7"));
        assert_eq!(tag_value(&tags, "topolvm.io/cluster"), None);
    }

    #[rstest]
    #[case::default_class("")]
    #[case::not_in_the_alphabet("s,d")]
    #[case::not_in_the_alphabet_either("größe")]
    fn values_that_lvm_does_not_allow_in_tags_are_left_out(#[case] class: &str) {
        let volume = logical_volume("pvc-1", class);
        assert_eq!(lvm_tags(ApiFlavor::TopoLvm, &volume, None), ["topolvm.io/logicalvolume=pvc-1"]);
    }
}
