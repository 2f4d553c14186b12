//! LVM's report: whatever `lvm` writes, it is understood whole or refused.
#![no_main]

use libfuzzer_sys::fuzz_target;
use lvm::report;

fuzz_target!(|output: &[u8]| {
    let Ok(groups) = report::parse(output) else { return };
    // Every group and every volume has a line of its own.
    let lines = String::from_utf8_lossy(output).lines().count();
    let volumes: usize = groups.iter().map(|group| group.volumes.len() + group.pvs.len()).sum();
    assert!(groups.len() + volumes <= lines, "{} groups and {volumes} volumes in {lines} lines", groups.len());
    for group in &groups {
        for volume in &group.volumes {
            assert!(volume.tags.iter().all(|tag| !tag.is_empty()), "{:?}", volume.tags);
            let _ = (volume.visible_size(), volume.mapper_name(&group.name), volume.attr.problem());
            assert!(group.volume(&volume.name).is_some());
            assert!(group.snapshots_of(&volume.name).count() <= group.volumes.len());
        }
    }
});
