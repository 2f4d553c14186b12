//! Settings of the host's `lvm.conf` that keep LVM from doing what it is told. An administrator may mean them, so they
//! are reported, never overridden.

use crate::VgName;

/// Settings of `lvm.conf` that keep LVM from making, changing or activating volumes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostSettings {
    /// `global/test`.
    test: bool,
    /// `global/metadata_read_only`.
    metadata_read_only: bool,
    /// `global/locking_type` 4 and 5, which stand for read-only and for no locks.
    locking_type: Option<u32>,
    /// `global/activation` is 0.
    no_activation: bool,
    /// `activation/volume_list`.
    volume_list: Option<Vec<String>>,
    /// `activation/read_only_volume_list`.
    read_only_volume_list: Option<Vec<String>>,
}

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
        let mut settings = Self::default();
        for line in String::from_utf8_lossy(output).lines() {
            let Some((name, value)) = line.trim().split_once('=') else { continue };
            match name {
                "test" => settings.test = value != "0",
                "metadata_read_only" => settings.metadata_read_only = value != "0",
                "locking_type" => settings.locking_type = value.parse().ok(),
                "activation" => settings.no_activation = value == "0",
                "volume_list" => settings.volume_list = Some(list(value)),
                "read_only_volume_list" => settings.read_only_volume_list = Some(list(value)),
                _ => {}
            }
        }
        settings
    }

    /// Returns one sentence for each setting that keeps LVM from working in these volume groups, with the remedy.
    pub fn obstacles(&self, groups: &[VgName]) -> Vec<String> {
        let mut obstacles = Vec::new();
        let mut tell = |is_so: bool, text: &str| {
            if is_so {
                obstacles.push(format!("lvm.conf on this node {text}"));
            }
        };
        tell(self.test, "sets global/test: LVM only pretends to change anything; set it to 0");
        tell(
            self.metadata_read_only,
            "sets global/metadata_read_only: no volume can be made, grown or removed; set it to 0",
        );
        tell(
            matches!(self.locking_type, Some(4 | 5)),
            "sets global/locking_type to 4 or 5: LVM reads only, or takes no locks; take the setting out",
        );
        tell(self.no_activation, "sets global/activation to 0: no volume gets a device; set it to 1");
        for group in groups {
            if let Some(list) = &self.volume_list
                && !names(list, group)
            {
                tell(
                    true,
                    &format!("does not name {group} in activation/volume_list: its volumes get no device; add it"),
                );
            }
            if self.read_only_volume_list.as_ref().is_some_and(|list| names(list, group)) {
                tell(
                    true,
                    &format!(
                        "names {group} in activation/read_only_volume_list: its volumes can only be read; take it out"
                    ),
                );
            }
        }
        obstacles
    }
}

/// Tells whether a list means all volumes of a group. Tags of the host (`@`) may mean them; whoever set them knows.
fn names(list: &[String], group: &VgName) -> bool {
    list.iter().any(|entry| entry == group.as_str() || entry.starts_with('@'))
}

/// Parses the words of `["a","b"]`, or of `"a"`.
fn list(value: &str) -> Vec<String> {
    let value = value.trim_start_matches('[').trim_end_matches(']');
    let words = value.split(',').map(|word| word.trim().trim_matches('"').to_owned());
    words.filter(|word| !word.is_empty()).collect()
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
        let told = obstacles(
            "test=1\nmetadata_read_only=1\nlocking_type=4\nactivation=0\nvolume_list=[\"vg1\",\"vg2/a\"]\n\
             read_only_volume_list=\"vg1\"\n",
        );
        let settings = [
            "global/test",
            "global/metadata_read_only",
            "global/locking_type",
            "global/activation",
            "names vg1 in activation/read_only_volume_list",
            "does not name vg2 in activation/volume_list",
        ];
        assert_eq!(told.len(), settings.len(), "{told:?}");
        for (told, setting) in told.iter().zip(settings) {
            assert!(told.contains(setting) && told.contains("; "), "{told}");
        }
    }

    #[test]
    fn an_empty_list_means_no_group() {
        assert_eq!(obstacles("volume_list=[]").len(), 2);
        assert!(obstacles("volume_list=[\"@*\"]").is_empty());
    }
}
