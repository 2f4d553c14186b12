//! Differences between the LogicalVolumes of the node and the LVs in its device classes, and their metrics.

use std::collections::BTreeSet;

use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::listing::{Listing, is_quarantined};

/// Most names of LVs in a line of the log.
const LOGGED: usize = 20;

/// Volumes of a node that are not as they should be.
#[derive(Debug, Default)]
pub(super) struct Differences {
    /// Number of objects whose LV is not in LVM.
    pub(super) lost: i64,
    /// LVs of objects that are ready, and that are not active all the same.
    pub(super) inactive: BTreeSet<String>,
    /// LVs that were made for an object which does not exist.
    pub(super) orphaned: BTreeSet<String>,
    /// Number of LVs in quarantine.
    pub(super) quarantined: i64,
}

impl Differences {
    /// Adds the LVs without an object.
    pub(super) fn add_orphans(&mut self, listing: &Listing) {
        let (kept, orphaned): (Vec<_>, Vec<_>) =
            listing.without_object.keys().cloned().partition(|name| is_quarantined(name));
        self.orphaned.extend(orphaned);
        self.quarantined = i64::try_from(kept.len()).unwrap_or(i64::MAX);
    }

    /// Logs the LVs that were not in `before`.
    pub(super) fn log_new(&self, before: &Self) {
        if let Some(lvs) = list_new(&self.inactive, &before.inactive) {
            tracing::warn!(lvs, "logical volumes are not active; topolvm-node activates each when a pod uses it");
        }
        if let Some(lvs) = list_new(&self.orphaned, &before.orphaned) {
            tracing::warn!(
                lvs,
                "logical volumes have no LogicalVolume, so they are never removed; list, restore or delete them with \
                 kubectl topolvm orphans"
            );
        }
    }
}

/// Lists the names that are new since the last time; `None` if there are none.
fn list_new(now: &BTreeSet<String>, before: &BTreeSet<String>) -> Option<String> {
    let new: Vec<&str> = now.difference(before).map(String::as_str).collect();
    let listed = new.get(..LOGGED).unwrap_or(&new).join(" ");
    match new.len().checked_sub(LOGGED) {
        _ if new.is_empty() => None,
        None | Some(0) => Some(listed),
        Some(more) => Some(format!("{listed} and {more} more")),
    }
}

/// Gauges of volumes that are lost, not active, orphaned or in quarantine.
#[derive(Clone, Debug, Default)]
pub struct VolumeGauges {
    lost: Gauge,
    inactive: Gauge,
    orphaned: Gauge,
    quarantined: Gauge,
}

impl VolumeGauges {
    /// Makes the gauges and registers them.
    pub fn register(registry: &mut Registry, node: &str) -> Self {
        let gauges = Self::default();
        let registry = registry.sub_registry_with_label(("node".into(), node.to_owned().into()));
        for (name, help, gauge) in [
            (
                "topolvm_lost_volumes",
                "LogicalVolumes of the node whose logical volume no longer exists in LVM because it was removed or \
                 renamed",
                &gauges.lost,
            ),
            (
                "topolvm_inactive_volumes",
                "Logical volumes of ready LogicalVolumes of the node that have no device",
                &gauges.inactive,
            ),
            (
                "topolvm_orphaned_volumes",
                "Logical volumes in the device classes of the node that were created for a LogicalVolume that does not \
                 exist",
                &gauges.orphaned,
            ),
            (
                "topolvm_quarantined_volumes",
                "Logical volumes in quarantine because their LogicalVolume does not exist",
                &gauges.quarantined,
            ),
        ] {
            registry.register(name, help, gauge.clone());
        }
        gauges
    }

    /// Sets the gauges.
    pub(super) fn show(&self, found: &Differences) {
        let count = |names: &BTreeSet<String>| i64::try_from(names.len()).unwrap_or(i64::MAX);
        self.lost.set(found.lost);
        self.inactive.set(count(&found.inactive));
        self.orphaned.set(count(&found.orphaned));
        self.quarantined.set(found.quarantined);
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use super::*;

    #[test]
    fn each_volume_is_listed_once_and_of_many_the_first() {
        let names = |range: Range<u32>| range.map(|number| format!("v{number:03}")).collect::<BTreeSet<_>>();
        let none = BTreeSet::new();
        assert_eq!(list_new(&names(0..2), &none).as_deref(), Some("v000 v001"));
        assert_eq!(list_new(&names(0..3), &names(0..2)).as_deref(), Some("v002"));
        assert_eq!(list_new(&names(0..2), &names(0..3)), None);
        let listed = names(0..20).into_iter().collect::<Vec<_>>().join(" ");
        assert_eq!(list_new(&names(0..20), &none), Some(listed.clone()));
        assert_eq!(list_new(&names(0..25), &none), Some(format!("{listed} and 5 more")));
    }
}
