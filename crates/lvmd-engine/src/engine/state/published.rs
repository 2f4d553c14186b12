//! Publishes what is cached of the volume groups: capacity, health, problems and the storage report.

use std::sync::Arc;

use lvm::Host;
use lvmd_config::{Capacity, ClassCapacity, DeviceClass, RefusedCreations};

use super::Shared;
use crate::engine::group::{Failure, Group};
use crate::engine::refusals::CreationOptions;
use crate::engine::report_entries::{group_entry, pools};
use crate::engine::storage_health::{self, class_refusal};
use crate::storage_report::{ClassEntry, StorageReport};

impl<R: Host> Shared<R> {
    /// Returns the capacity of all device classes. A missing volume group has none; an optional class without its group
    /// is left out.
    pub(in crate::engine) fn capacity(&self) -> Capacity {
        let (groups, classes) = (self.groups(), self.classes());
        let capacity_of = |class: &Arc<DeviceClass>| {
            let group = groups.get(&class.volume_group);
            let known = group.and_then(|group| group.usable());
            let is_offered = known.as_ref().is_some_and(|known| class.is_created(known)) || !class.optional;
            let options = |option_class: &str| CreationOptions {
                class: class.name.clone(),
                option_class: option_class.to_owned(),
            };
            let refused = RefusedCreations {
                refusal: group.and_then(|group| class_refusal(class, group)),
                withholds: |option_class: &str| {
                    group.is_some_and(|group| group.refusals.withholds(&options(option_class)))
                },
            };
            is_offered.then(|| ClassCapacity::of(class, &classes, known.as_deref(), refused))
        };
        Capacity { classes: classes.iter().filter_map(capacity_of).collect() }
    }

    /// Returns the storage report. An optional class without its volume group is left out, and so is the group.
    pub(in crate::engine) fn storage_report(&self) -> StorageReport {
        let (groups, classes) = (self.groups(), self.classes());
        // What was published last is at least as new as these groups, or the next publication follows.
        let capacity = self.capacity.borrow().clone();
        let is_listed = |group: &&Arc<Group>| {
            classes.requires(&group.name) || (group.cached().is_some() && self.has_volumes(group))
        };
        let listed: Vec<_> = groups.values().filter(is_listed).collect();
        let class_entries = capacity.classes.iter().filter_map(|class| {
            let configured = classes.get(&class.name)?;
            Some(ClassEntry::of(configured, class))
        });
        StorageReport {
            groups: listed.iter().map(|group| group_entry(group)).collect(),
            classes: class_entries.collect(),
            pools: listed.iter().filter_map(|group| group.cached()).flat_map(|group| pools(&group)).collect(),
            problems: storage_health::find_all_problems(&groups, &classes),
            disks: self.disks.read().clone(),
        }
    }

    /// Publishes capacity, health and the storage report from the cache to all watchers that they differ for.
    pub(in crate::engine) fn publish(&self) {
        // Computed inside, so that of two that publish at the same time the second publishes what both have stored.
        self.capacity.send_if_modified(|published| {
            let capacity = self.capacity();
            let differs = **published != capacity;
            *published = Arc::new(capacity);
            differs
        });
        self.lvm_works.send_if_modified(|published| {
            // A slow LVM is not dead, and a restart of lvmd only makes it wait once more. And one unusable group proves
            // nothing about the others.
            let has_failed = |group: &Group| group.stale_reason().is_some() && group.failure() == Failure::Other;
            let fails = |group: &Group| has_failed(group) && self.is_used(group);
            let works = !self.groups().values().any(|group| fails(group));
            std::mem::replace(published, works) != works
        });
        self.storage_problems.send_if_modified(|published| {
            let problems = storage_health::find_problems(&self.groups(), &self.classes());
            let differs = *published != problems;
            *published = problems;
            differs
        });
        self.storage_report.send_if_modified(|published| {
            let storage_report = self.storage_report();
            let differs = **published != storage_report;
            *published = Arc::new(storage_report);
            differs
        });
    }

    /// Notes that LVM could not report on a group.
    pub(in crate::engine) fn mark_stale(&self, group: &Group, error: &lvm::Error) {
        let failure = if matches!(error, lvm::Error::Timeout { .. }) {
            Failure::Slow
        } else if error.is_unusable_group() {
            Failure::UnusableGroup
        } else {
            Failure::Other
        };
        if group.mark_stale(&error.to_string(), failure) {
            let vg = &group.name;
            tracing::error!(%vg, %error, "cannot read the volume group; what lvmd knows of it may be outdated");
        }
        self.publish();
    }
}
