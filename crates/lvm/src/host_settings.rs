//! Settings of the host's `lvm.conf` that keep LVM from carrying out commands. They may be intended, so they are
//! reported, never overridden.

use std::collections::HashMap;

use crate::VgName;

/// Settings of `lvm.conf` that keep LVM from making, changing or activating volumes: values by name, without section.
#[derive(Clone, Debug)]
pub struct HostSettings(HashMap<String, String>);

/// A setting of the whole host: its name, its values that are an obstacle, and what they do.
type Obstacle = (&'static str, fn(&str) -> bool, &'static str);

const OBSTACLES: [Obstacle; 4] = [
    ("test", |value| value != "0", "enables global/test: LVM changes nothing; set it to 0"),
    (
        "metadata_read_only",
        |value| value != "0",
        "enables global/metadata_read_only: volumes cannot be created, expanded or removed; set it to 0",
    ),
    (
        "locking_type",
        |value| matches!(value, "4" | "5"),
        "sets global/locking_type to 4 or 5: LVM is read-only or does not lock; remove the setting",
    ),
    ("activation", |value| value == "0", "sets global/activation to 0: volumes are not activated; set it to 1"),
];

impl HostSettings {
    pub(crate) const NAMES: &[&str] = &[
        "global/test",
        "global/metadata_read_only",
        "global/locking_type",
        "global/activation",
        "activation/volume_list",
        "activation/read_only_volume_list",
    ];

    /// Parses the output of `lvmconfig`: `name=value` lines. A list that is not set is not written.
    pub(crate) fn parse(output: &[u8]) -> Self {
        let output = String::from_utf8_lossy(output);
        let settings = output.lines().filter_map(|line| line.trim().split_once('='));
        Self(settings.map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
    }

    /// Returns one sentence for each setting that keeps LVM from working in these volume groups, with the remedy.
    pub fn obstacles(&self, groups: &[VgName]) -> Vec<String> {
        let is_set = |name: &str, to: fn(&str) -> bool| self.0.get(name).is_some_and(|value| to(value));
        let of_host = OBSTACLES.iter().filter(|(name, obstacle, _)| is_set(name, *obstacle));
        let of_host = of_host.map(|(.., text)| (*text).to_owned());
        let of_groups = groups.iter().flat_map(|group| self.obstacles_of_group(group));
        of_host.chain(of_groups).map(|text| format!("lvm.conf on this node {text}")).collect()
    }

    fn obstacles_of_group(&self, group: &VgName) -> impl Iterator<Item = String> {
        let is_named = |list: &str| self.0.get(list).map(|list| names(list, group));
        let not_named = (is_named("volume_list") == Some(false))
            .then(|| format!("does not list {group} in activation/volume_list: its volumes are not activated; add it"));
        let named = (is_named("read_only_volume_list") == Some(true)).then(|| {
            format!("lists {group} in activation/read_only_volume_list: its volumes are read-only; remove it")
        });
        not_named.into_iter().chain(named)
    }
}

/// Returns whether a list, `["a","b"]` or `"a"`, contains all volumes of a group. Tags of the host (`@`) are assumed to
/// contain them: only the administrator knows their meaning.
fn names(list: &str, group: &VgName) -> bool {
    let mut words = list.trim_matches(['[', ']']).split(',').map(|word| word.trim().trim_matches('"'));
    words.any(|word| word == group.as_str() || word.starts_with('@'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn obstacles(output: &str) -> Vec<String> {
        HostSettings::parse(output.as_bytes()).obstacles(&["vg1".parse().unwrap(), "vg2".parse().unwrap()])
    }

    #[test]
    fn the_defaults_are_no_obstacle() {
        assert!(obstacles("test=0\nmetadata_read_only=0\nlocking_type=1\nactivation=1\n").is_empty());
        assert!(obstacles("").is_empty());
    }

    #[test]
    fn each_obstacle_is_named_with_its_setting_and_its_remedy() {
        let found = obstacles(
            "test=1\nmetadata_read_only=1\nlocking_type=4\nactivation=0\nvolume_list=[\"vg1\",\"vg2/a\"]\n\
             read_only_volume_list=\"vg1\"\n",
        );
        let settings = [
            "global/test",
            "global/metadata_read_only",
            "global/locking_type",
            "global/activation",
            "lists vg1 in activation/read_only_volume_list",
            "does not list vg2 in activation/volume_list",
        ];
        assert_eq!(found.len(), settings.len(), "{found:?}");
        for (obstacle, setting) in found.iter().zip(settings) {
            assert!(obstacle.contains(setting) && obstacle.contains("; "), "{obstacle}");
        }
    }

    #[test]
    fn an_empty_list_means_no_group() {
        assert_eq!(obstacles("volume_list=[]").len(), 2);
        assert!(obstacles("volume_list=[\"@*\"]").is_empty());
    }
}
