//! Creates read-only snapshots of several volumes of one volume group with the contents of one moment: all of them or
//! none.

use std::collections::BTreeMap;
use std::sync::Arc;

use lvm::{FullName, Host, LogicalVolume, LvName, NewSnapshot, Tag, VolumeGroup};
use lvmd_config::tags;
use topolvm_runtime::error_chain;

use super::scope::{RequestedClass, Scope};
use super::snapshot::{CreateSnapshot, Snapshot};
use super::state::LockedGroup;
use super::thin_device::clear_obstacle;
use super::unfinished::{NameState, remove_unfinished};
use crate::error::Error;

/// A snapshot of the group that does not exist yet.
struct Planned {
    name: LvName,
    source: LvName,
    making: Tag,
    tags: Vec<Tag>,
}

/// Creates the snapshots. Returns those that exist if all do.
pub(super) async fn snapshot_in_group<R: Host>(
    group: &mut LockedGroup<R>,
    wanted: Vec<CreateSnapshot>,
) -> Result<Vec<LogicalVolume>, Error> {
    let members = find_members(group, wanted).await?;
    if let Some(existing) = find_existing(group, &members).await? {
        return Ok(existing);
    }
    match create(group, &members).await {
        Err(mut error) => {
            let pool = members.first().map(|(_, pool)| pool);
            let pool = pool.filter(|pool| members.iter().all(|(_, other)| other == *pool));
            if clear_obstacle(group, pool, &mut error).await { create(group, &members).await } else { Err(error) }
        }
        created => created,
    }
}

/// Returns each snapshot with the pool of its source. Fails if a source is in another volume group.
async fn find_members<R: Host>(
    group: &mut LockedGroup<R>,
    wanted: Vec<CreateSnapshot>,
) -> Result<Vec<(Snapshot, LvName)>, Error> {
    let mut members = Vec::with_capacity(wanted.len());
    for wanted in wanted {
        let scope = match group.shared().class(&wanted.device_class) {
            Ok(class) if class.volume_group == group.name => Scope::Class(class),
            _ => Scope::Machine(RequestedClass::of(&group.shared().classes(), &wanted.device_class)),
        };
        if group.current().await?.volume(wanted.source.as_str()).is_none() {
            return Err(Error::SourceElsewhere { name: wanted.source, vg: group.name.clone() });
        }
        let snapshot = Snapshot { scope, wanted };
        let pool = snapshot.pool(group).await?;
        members.push((snapshot, pool));
    }
    Ok(members)
}

/// Returns the snapshots if all of them exist, and `None` if none does. Those that exist have the contents of their own
/// moment, to which no others can be added.
async fn find_existing<R: Host>(
    group: &mut LockedGroup<R>,
    members: &[(Snapshot, LvName)],
) -> Result<Option<Vec<LogicalVolume>>, Error> {
    let (mut existing, mut missing) = (Vec::new(), None);
    for (snapshot, pool) in members {
        match snapshot.prepare(group, pool).await? {
            NameState::Exists(volume) => existing.push(*volume),
            NameState::Free(_) => missing = Some(snapshot.wanted.name.clone()),
        }
    }
    match (missing, existing.is_empty()) {
        (None, _) => Ok(Some(existing)),
        (Some(_), true) => Ok(None),
        (Some(missing), false) => {
            let existing = existing.iter().map(|volume| format!("{}/{}", group.name, volume.name)).collect();
            Err(Error::SnapshotGroupIncomplete { missing: FullName::new(&group.name, &missing), existing })
        }
    }
}

async fn create<R: Host>(
    group: &mut LockedGroup<R>,
    members: &[(Snapshot, LvName)],
) -> Result<Vec<LogicalVolume>, Error> {
    let known = group.current().await?;
    let planned = plan(group, &known, members)?;
    let active: Vec<_> =
        planned.iter().map(|member| &member.source).filter(|source| is_active(&known, source)).collect();
    let snapshots: Vec<_> = planned
        .iter()
        .map(|Planned { name, source, making, tags }| {
            (NewSnapshot { vg: &known.name, source, name, tags, read_only: true }, making)
        })
        .collect();
    let created = group.lvm().snapshot_group(&known.name, &snapshots, &active).await;
    let done = group.store_outcome(created.changed).map_err(|error| {
        // For the caller "not found" would mean that what it named is proven absent
        if let lvm::Error::VolumeNotFound(name) = error { Error::Vanished(name) } else { error.into() }
    });
    if done.is_ok() && created.ready.iter().all(|is_ready| *is_ready) {
        return planned.iter().map(|member| group.created_volume(&member.name)).collect();
    }
    remove_all(group, &planned).await;
    done?;
    // Another lvmd with the same socket has removed what was created here
    let lost = planned.iter().zip(&created.ready).find(|(_, is_ready)| !**is_ready);
    Err(lost.map_or(Error::Stopping, |(member, _)| Error::BeingMade(FullName::new(&known.name, &member.name))))
}

/// Decides tags and checks the space for all snapshots together.
fn plan<R: Host>(
    group: &LockedGroup<R>,
    known: &Arc<VolumeGroup>,
    members: &[(Snapshot, LvName)],
) -> Result<Vec<Planned>, Error> {
    let classes = group.shared().classes();
    let mut bytes_in_pools = BTreeMap::<&LvName, u64>::new();
    let mut planned = Vec::with_capacity(members.len());
    for (snapshot, pool) in members {
        let wanted = &snapshot.wanted;
        let bytes = bytes_in_pools.entry(pool).or_default();
        *bytes = snapshot.check_space(&classes, known, *bytes)?;
        let making = group.shared().instance.new_making_tag()?;
        let tags = tags::of_new_volume(&wanted.tags, &making, Some(&wanted.source), None)?;
        let (name, source) = (wanted.name.clone(), wanted.source.clone());
        planned.push(Planned { name, source, making, tags });
    }
    Ok(planned)
}

/// Removes what was made of a group that is not complete. Only what carries its tag is.
async fn remove_all<R: Host>(group: &mut LockedGroup<R>, planned: &[Planned]) {
    for member in planned {
        let removed = async {
            let known = group.current().await?;
            match known.volume(member.name.as_str()).filter(|volume| volume.has_tag(&member.making)) {
                Some(volume) => remove_unfinished(group, &known, volume).await,
                None => Ok(()),
            }
        };
        if let Err(error) = removed.await {
            let (vg, error) = (&group.name, error_chain(&error));
            tracing::error!(%vg, name = %member.name, error, "a snapshot stays unfinished until it is asked for again");
        }
    }
}

/// Returns whether a source has a device, whose filesystem has to be frozen.
fn is_active(known: &VolumeGroup, source: &LvName) -> bool {
    known.volume(source.as_str()).is_some_and(|volume| volume.device.is_some())
}
