//! The volume groups that the caller works in, and the disks to which LVM is confined there.
//!
//! A tenant can write LVM metadata with any names and identities into its volume, and LVM finds it as soon as a loop
//! device, an encrypted device or a partition lies on that volume. So commands see the disks of these groups and no
//! others, and no disk that lies on a volume counts as one.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::RwLock;

use crate::{LvmCommand, VgName, VolumeGroup, is_uuid};

/// Begins the names of volumes that are not called by the UID of their object: those in quarantine, for example.
const OWN_NAMES: &str = "topolvm.";

/// The groups by name, with the contents of their last reports.
#[derive(Debug, Default)]
pub(crate) struct ServedGroups(RwLock<BTreeMap<VgName, ServedGroup>>);

#[derive(Clone, Debug, Default)]
struct ServedGroup {
    disks: Vec<String>,
    system_id: Option<Box<str>>,
}

impl ServedGroups {
    /// Adds a group, unless it is known.
    pub(crate) fn add(&self, vg: &VgName) {
        if !self.0.read().contains_key(vg) {
            self.0.write().entry(vg.clone()).or_default();
        }
    }

    /// Stores the disks of a group, if it is one of these.
    pub(crate) fn store(&self, group: &VolumeGroup) {
        if let Some(served) = self.0.write().get_mut(&group.name) {
            served.disks = group.pvs.iter().filter(|pv| pv.device.is_some()).map(|pv| pv.path.clone()).collect();
            served.system_id.clone_from(&group.system_id);
        }
    }

    /// Returns the device files of the disks of all groups.
    pub(crate) fn disks(&self) -> Arc<[String]> {
        self.0.read().values().flat_map(|group| group.disks.iter().cloned()).collect()
    }

    /// Returns the groups that have a system ID, with it, among those that a command names, or a disk of theirs.
    pub(crate) fn named_system_ids(&self, command: &LvmCommand) -> Vec<(VgName, Box<str>)> {
        let groups = self.0.read();
        let is_named = |vg: &VgName, group: &ServedGroup| {
            let is_group = |arg: &str| arg.split('/').next() == Some(vg.as_str());
            let is_disk = |arg: &str| group.disks.iter().any(|disk| arg.starts_with(disk.as_str()));
            command.args().iter().any(|arg| is_group(arg) || is_disk(arg))
        };
        let named = groups.iter().filter(|(vg, group)| is_named(vg, group));
        named.filter_map(|(vg, group)| Some((vg.clone(), group.system_id.clone()?))).collect()
    }

    /// Returns the first of these volumes, given by their names in device-mapper, on which no physical volume may lie:
    /// one of these groups, or one that is named like the volumes of a tenant, as `GROUP/VOLUME`.
    pub(crate) fn find_volume(&self, mapper_names: &[String]) -> Option<String> {
        let groups = self.0.read();
        mapper_names.iter().filter_map(|name| split_mapper_name(name)).find_map(|(vg, volume)| {
            let is_served = vg.parse::<VgName>().is_ok_and(|vg| groups.contains_key(&vg));
            let is_tenants = is_uuid(&volume) || volume.starts_with(OWN_NAMES);
            (is_served || is_tenants).then(|| format!("{vg}/{volume}"))
        })
    }
}

/// Splits the name of a volume's device into group and volume: a dash separates them and, for hidden layers, follows
/// them, and the dashes of the names are doubled.
fn split_mapper_name(name: &str) -> Option<(String, String)> {
    let mut parts = vec![String::new()];
    let mut characters = name.chars().peekable();
    while let Some(character) = characters.next() {
        if character == '-' && characters.next_if_eq(&'-').is_none() {
            parts.push(String::new());
        } else {
            parts.last_mut()?.push(character);
        }
    }
    let mut parts = parts.into_iter();
    parts.next().zip(parts.next())
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "0b5a2f4e-8d54-4f5c-9a0e-7d8f6f3c2b1a";

    #[test]
    fn mapper_name_is_split_at_the_single_dash() {
        let split = |name| split_mapper_name(name).map(|(vg, volume)| format!("{vg}/{volume}"));
        assert_eq!(split("vg1-a").as_deref(), Some("vg1/a"));
        assert_eq!(split("my--vg-a--b").as_deref(), Some("my-vg/a-b"));
        assert_eq!(split("vg1-pool-tpool").as_deref(), Some("vg1/pool"));
        assert_eq!(split("a---b").as_deref(), Some("a-/b"));
        assert_eq!(split("crypt"), None);
    }

    #[test]
    fn find_volume_returns_served_and_tenant_volumes_only() {
        let served = ServedGroups::default();
        served.add(&"ssd".parse().unwrap());
        let find = |name: &str| served.find_volume(&[name.to_owned()]);
        assert_eq!(find("ssd-root").as_deref(), Some("ssd/root"));
        assert_eq!(find("system-root"), None);
        let tenants = format!("system-{}", UID.replace('-', "--"));
        assert_eq!(find(&tenants), Some(format!("system/{UID}")));
        assert_eq!(find("system-topolvm.wiping.x").as_deref(), Some("system/topolvm.wiping.x"));
        assert_eq!(find("crypt"), None);
    }
}
