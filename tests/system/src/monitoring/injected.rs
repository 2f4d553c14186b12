//! The alerts whose faults the cluster test injects; those of [`super::check_faults`] are all others.

/// The alert about a StorageClass with which csi-provisioner creates no volume.
pub const OF_REFUSED_CLASS: [&str; 1] = ["TopolvmDoctorFinding"];
/// Alerts about a full volume group, volumes that differ between LVM and the API server, a full filesystem and an
/// lvmd.yaml that is not valid.
pub const OF_VOLUMES: [&str; 7] = [
    "TopolvmDeviceClassNearlyFull",
    "TopolvmLvmdConfigNotTaken",
    "TopolvmVolumeFull",
    "TopolvmVolumeInactive",
    "TopolvmVolumeLost",
    "TopolvmVolumeNearlyFull",
    "TopolvmVolumesOrphaned",
];
/// Alerts about a node without lvmd.
pub const WITHOUT_LVMD: [&str; 2] = ["TopolvmAgentWithoutLvmd", "TopolvmTargetDown"];

/// Panels of the dashboard that have no data with storage capacity tracking and without a device class that wipes, each
/// with the reason. They have data in the cluster of [`super::check_faults`].
pub const WITHOUT_DATA_FOR_CAPACITY: [(&str, &str); 8] = [
    ("Certificates", NO_WEBHOOK),
    ("Extender", NO_WEBHOOK),
    ("Webhook call duration", NO_WEBHOOK),
    ("Webhook calls", NO_WEBHOOK),
    ("Extender call duration", NO_SCHEDULER),
    ("Extender results", NO_SCHEDULER),
    ("To be wiped", NO_WIPING),
    ("Wipe failures", NO_WIPING),
];
const NO_WEBHOOK: &str = "with storage capacity tracking there are no webhooks";
const NO_SCHEDULER: &str = "with storage capacity tracking there is no topolvm-scheduler";
const NO_WIPING: &str = "no device class of the test cluster wipes";

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::queries::queries_of_dashboard;
    use super::*;

    #[test]
    fn panels_without_data_are_panels_of_the_dashboard() {
        let panels: BTreeSet<String> = queries_of_dashboard().unwrap().into_iter().map(|query| query.panel).collect();
        for (panel, _) in WITHOUT_DATA_FOR_CAPACITY {
            assert!(panels.contains(panel), "there is no panel {panel}");
        }
    }
}
