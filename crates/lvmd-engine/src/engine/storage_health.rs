//! Problems of the storage while lvmd and LVM work: missing disks, a hanging LVM, volumes that cannot be wiped. The
//! health service `storage`, `systemctl status` and the log report them.

use std::collections::BTreeMap;
use std::sync::Arc;

use lvm::{FullName, VgName, VolumeGroup};
use lvmd_config::{DeviceClass, DeviceClasses, PoolRefusal};

use super::group::{Failure, Group};
use super::preconditions::{check_creates_volumes, check_pool_zeroes, thin_pool_missing};
use super::refusals::CreationOptions;
use crate::error::Error;
use crate::storage_report::EvacuationEntry;

/// Returns all problems of these volume groups, one sentence each.
pub(super) fn find_problems(groups: &BTreeMap<VgName, Arc<Group>>, classes: &DeviceClasses) -> Vec<String> {
    let mut problems = Vec::new();
    for group in groups.values() {
        let (vg, cached) = (&group.name, group.cached());
        let is_used = classes.uses(vg);
        if let Some(known) = cached.as_ref().filter(|known| is_used && known.missing_pvs > 0) {
            let missing = known.missing_pvs;
            problems.push(Error::PhysicalVolumesMissing { vg: vg.clone(), missing }.to_string());
        }
        if let Some(why) = group.stale_reason().filter(|_| is_used && group.failure() == Failure::Slow) {
            problems.push(format!(
                "LVM does not answer in time about volume group {vg}: {why}; look for a disk that hangs and for an lvm \
                 command that holds its lock"
            ));
        }
        for (name, why) in group.wipe_progress.failing() {
            problems.push(format!("{vg}/{name} cannot be wiped: {why}"));
        }
        let Some(known) = cached else { continue };
        problems.extend(known.pvs.iter().filter_map(|pv| {
            let evacuation = group.evacuation.entry_of(pv).filter(EvacuationEntry::is_blocked)?;
            Some(format!("the disk {} of volume group {vg} cannot be emptied: {}", pv.path, evacuation.message))
        }));
        let of_group = classes.iter().filter(|class| class.volume_group == *vg);
        problems.extend(of_group.filter_map(|class| Some(check_pool_zeroes(class, &known).err()?.to_string())));
    }
    problems
}

/// Returns the same and all that is not the disks' fault or does not hold up lvmd: groups that LVM does not find or
/// cannot read, pools that are missing or take no volumes, volumes of which a part has failed. None of the texts has
/// what changes all the time, because each change of one is sent to watchers.
pub(super) fn find_all_problems(groups: &BTreeMap<VgName, Arc<Group>>, classes: &DeviceClasses) -> Vec<String> {
    let mut problems = find_problems(groups, classes);
    for group in groups.values().filter(|group| classes.uses(&group.name)) {
        let vg = &group.name;
        if let Some(why) = group.stale_reason().filter(|_| group.failure() != Failure::Slow) {
            problems.push(format!("LVM fails for volume group {vg}: {why}"));
        }
        match group.cached() {
            Some(known) => {
                let of_group = classes.iter().filter(|class| class.volume_group == *vg);
                problems.extend(of_group.filter_map(|class| describe_pool(class, &known)));
                problems.extend(describe_refusals(group, &known));
                problems.extend(group.pool_maintenance.problems());
                problems.extend(describe_failed_volumes(&known));
            }
            None if group.stale_reason().is_none() && classes.requires(vg) => {
                problems.push(Error::VolumeGroupMissing(vg.clone()).to_string());
            }
            None => {}
        }
    }
    problems
}

/// Returns why LVM creates no volumes in a class; `None` if it does, or that is not known.
pub(super) fn class_refusal(class: &DeviceClass, group: &Group) -> Option<String> {
    let known = group.cached()?;
    let learned = || {
        let why = group.refusals.reason(&CreationOptions::of_class(&class.name))?;
        Some(Error::ClassRefused { class: class.name.clone(), why })
    };
    check_creates_volumes(class, &known).err().or_else(learned).map(|error| error.to_string())
}

/// Returns why LVM creates no volumes, for each reason that is no missing disk and no thin pool.
fn describe_refusals(group: &Group, known: &VolumeGroup) -> impl Iterator<Item = String> {
    let learned = group.refusals.all().into_iter().map(|(CreationOptions { class, option_class }, why)| {
        let class = if option_class.is_empty() { class } else { format!("{class} with option class {option_class}") };
        Error::ClassRefused { class, why }.to_string()
    });
    known.refusal().into_iter().chain(learned)
}

/// Returns why the thin pool of a class takes no volumes.
fn describe_pool(class: &DeviceClass, group: &VolumeGroup) -> Option<String> {
    let pool = class.thin_pool.as_ref()?;
    if pool.find(group).is_none() {
        // The maintenance of pools reports why lvmd has not created it.
        if pool.share.is_some() {
            return None;
        }
        return Some(thin_pool_missing(pool, group).to_string());
    }
    let name = FullName::new(&group.name, &pool.name);
    let error = match class.refusing_pool(group)?.1 {
        PoolRefusal::Full(_) => Error::PoolFull(name, "its data or metadata are nearly full".to_owned()),
        PoolRefusal::Broken(why) => Error::PoolBroken(name, why),
    };
    Some(error.to_string())
}

/// Returns a sentence for each kind of fault that `lv_attr` shows of volumes of a group. Pools have separate sentences.
fn describe_failed_volumes(group: &VolumeGroup) -> impl Iterator<Item = String> {
    let mut by_problem = BTreeMap::<String, Vec<&str>>::new();
    for volume in group.volumes.iter().filter(|volume| !volume.attr.is_thin_pool()) {
        if let Some(problem) = volume.attr.problem() {
            by_problem.entry(problem.to_string()).or_default().push(&volume.name);
        }
    }
    let vg = &group.name;
    by_problem.into_iter().filter_map(move |(problem, names)| match names.as_slice() {
        [] => None,
        [name] => Some(format!("logical volume {vg}/{name}: {problem}")),
        [first, others @ ..] => Some(format!("logical volumes {vg}/{first} and {} more: {problem}", others.len())),
    })
}

/// Logs once that physical volumes went missing or came back.
pub(super) fn log_missing_pvs(vg: &VgName, before: u64, now: u64) {
    if now > 0 && now != before {
        let error = Error::PhysicalVolumesMissing { vg: vg.clone(), missing: now }.to_string();
        tracing::error!(%vg, error, "the capacity of a volume group is 0");
    } else if now < before {
        tracing::info!(%vg, "all physical volumes of the volume group are there again");
    }
}
