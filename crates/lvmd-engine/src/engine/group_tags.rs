//! Tags the volume groups of device classes: with the machine that works in them, so that another machine that sees the
//! same disks, or a copy of them, leaves them alone; and with the groups that classes had before, so that a volume in
//! one whose disks are away does not count as gone.

use std::sync::Arc;

use lvm::{Host, InvalidName, Tag, TagChanges, VolumeGroup};
use lvmd_config::tags::{self, FormerGroup};
use topolvm_runtime::error_chain;

use super::group::Group;
use super::state::{LockedGroup, Shared};
use crate::error::Error;

/// Tags the groups of all device classes.
pub(super) async fn tag_groups<R: Host>(shared: &Arc<Shared<R>>) {
    for group in shared.groups().into_values() {
        tag_group(&mut shared.handle(group).lock().await).await;
    }
}

/// Brings the tags of a group that a device class uses up to date. Returns whether it tried. A failure changes nothing
/// for the classes of the group.
pub(super) async fn tag_group<R: Host>(group: &mut LockedGroup<R>) -> bool {
    // LVM would note in the metadata that a disk which is away is missing, also when it has come back
    let can_be_tagged = |known: &Arc<VolumeGroup>| known.missing_pvs == 0 && group.shared().is_used(group);
    let Some(known) = group.usable().filter(can_be_tagged) else { return false };
    let (add, remove) = match outdated_tags(group.shared(), &known) {
        Ok((add, remove)) if add.is_empty() && remove.is_empty() => return false,
        Ok(changes) => changes,
        Err(error) => {
            tracing::error!(vg = %group.name, %error, "cannot tag the volume group");
            return true;
        }
    };
    let vg = &known.name;
    match group.lvm().change_group_tags(&known, TagChanges { add: &add, remove: &remove }).await {
        Ok(()) => {
            tracing::info!(%vg, ?add, ?remove, "changed the tags of the volume group");
            // A failure makes the group stale, and is logged there
            drop(group.refresh().await);
        }
        Err(error) => {
            let error = error_chain(&error);
            tracing::warn!(%vg, error, "cannot change the tags of the volume group; tried again later");
        }
    }
    true
}

/// Returns the tags that a group of a device class lacks, and those that are no longer true.
fn outdated_tags<R: Host>(shared: &Shared<R>, known: &VolumeGroup) -> Result<(Vec<Tag>, Vec<Tag>), InvalidName> {
    let machine = shared.reader().owner().filter(|tag| !known.has_tag(tag)).cloned();
    let groups = shared.groups();
    let present: Vec<_> = groups.values().filter_map(|group| Some((group, group.cached()?))).collect();
    let is_former =
        |group: &Group, known: &VolumeGroup| !shared.is_used(group) && known.volumes.iter().any(tags::is_managed);
    let former: Vec<_> =
        present.iter().filter(|(group, known)| is_former(group, known)).map(|(_, known)| known).collect();
    let named: Vec<_> = FormerGroup::named_by(known).collect();
    let new = former.iter().filter(|group| named.iter().all(|named| named.uuid != group.uuid));
    let add = machine.map(Ok).into_iter().chain(new.map(|group| FormerGroup::of(group).tag()));
    let is_known = |named: &&FormerGroup| present.iter().any(|(_, known)| known.uuid == named.uuid);
    let is_true = |named: &FormerGroup| former.iter().any(|group| group.uuid == named.uuid);
    let remove = named.iter().filter(is_known).filter(|named| !is_true(named)).map(FormerGroup::tag);
    Ok((add.collect::<Result<_, _>>()?, remove.collect::<Result<_, _>>()?))
}

/// Returns the groups that the tags of groups of device classes name.
pub(super) fn former_groups<R: Host>(shared: &Shared<R>) -> Vec<FormerGroup> {
    let groups = shared.groups();
    let used = groups.values().filter(|group| shared.is_used(group)).filter_map(|group| group.cached());
    used.flat_map(|known| FormerGroup::named_by(&known).collect::<Vec<_>>()).collect()
}

/// Fails if of one of the groups that classes had before nothing is known: it is not among these, and this process
/// never had a report on it.
pub(super) fn check_former_groups<R: Host>(shared: &Shared<R>, others: &[VolumeGroup]) -> Result<(), Error> {
    let reports: Vec<_> = shared.groups().values().filter_map(|group| group.last_report()).collect();
    let is_known = |former: &FormerGroup| {
        reports.iter().map(|known| &**known).chain(others).any(|known| known.uuid == former.uuid)
    };
    match former_groups(shared).into_iter().find(|former| !is_known(former)) {
        Some(former) => Err(Error::FormerGroupMissing { tag: former.tag()?, vg: former.name }),
        None => Ok(()),
    }
}
