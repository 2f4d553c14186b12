//! Grows volumes.

use std::sync::Arc;

use lvm::{FullName, Host, LogicalVolume, LvName, VolumeGroup};

use super::group::Group;
use super::growth::Growth;
use super::locate::Scope;
use super::preconditions::{check_no_missing_pvs, round_up_to_extents, space_beside};
use super::state::Engine;
use crate::device_class::DeviceClass;
use crate::error::Error;
use crate::tags;

/// The next step until a volume is large enough.
enum NextStep {
    /// Nothing: it is.
    Return(Box<LogicalVolume>),
    /// LVM has to make it as many bytes large.
    Extend(Arc<VolumeGroup>, u64),
}

impl<R: Host> Engine<R> {
    /// Grows a volume to at least this many bytes and returns it. A volume never gets smaller: one that is large enough
    /// stays as it is, and is activated if it has no device.
    pub async fn resize(&self, class: &str, name: LvName, bytes: u64) -> Result<LogicalVolume, Error> {
        let requested = name.clone();
        let place = self.group_of_class(class).ok().map(|(group, class)| {
            let growth = Growth { class, name: name.clone(), bytes };
            Arc::new(group.growths.push(growth))
        });
        self.change_volume(class, &requested, async move |engine: Self, group: Arc<Group>, scope: Scope| {
            match place.and_then(|place| place.leave()) {
                Some(volume) => Ok(volume),
                None => engine.resize_in_group(&group, &scope, &name, bytes).await,
            }
        })
        .await
    }

    async fn resize_in_group(
        &self,
        group: &Group,
        scope: &Scope,
        name: &LvName,
        bytes: u64,
    ) -> Result<LogicalVolume, Error> {
        let (known, mut size) = match self.prepare_growth(group, scope, name, bytes).await? {
            NextStep::Return(volume) => return Ok(*volume),
            NextStep::Extend(known, size) => (known, size),
        };
        if let Some(batch) = self.plan_growths(group, name, size, &known) {
            if let Some(grown) = self.resize_batch(group, batch).await {
                return Ok(grown);
            }
            size = match self.prepare_growth(group, scope, name, bytes).await? {
                NextStep::Return(volume) => return Ok(*volume),
                NextStep::Extend(_, size) => size,
            };
        }
        self.store_outcome(group, self.inner.lvm.resize(&group.name, name, size).await)?;
        group.created_volume(name)
    }

    /// Checks that a volume can grow. The caller holds the group's lock.
    async fn prepare_growth(&self, group: &Group, scope: &Scope, name: &LvName, bytes: u64) -> Result<NextStep, Error> {
        let known = self.current(group).await?;
        let (volume, class) = self.find_in_scope(scope, &known, name)?;
        let not_allowed = |why: &str| Error::NotAllowed(FullName::new(&group.name, name), why.to_owned());
        if tags::is_unfinished(volume) {
            return Err(not_allowed("is unfinished; create it again"));
        }
        if tags::is_wiping(volume) {
            return Err(not_allowed("is being wiped; remove it again"));
        }
        if bytes <= volume.visible_size() {
            return Ok(NextStep::Return(Box::new(self.ensure_active(group, volume).await?)));
        }
        if !volume.attr.is_thin() && volume.origin.is_some() {
            return Err(not_allowed("is a copy-on-write snapshot and cannot be resized"));
        }
        let size = check_space(volume, class.as_deref(), &known, bytes)?;
        Ok(NextStep::Extend(known, size))
    }
}

/// Returns the size in bytes after rounding. Fails if LVM cannot make the volume that large.
pub(super) fn check_space(
    volume: &LogicalVolume,
    class: Option<&DeviceClass>,
    group: &VolumeGroup,
    bytes: u64,
) -> Result<u64, Error> {
    check_no_missing_pvs(group)?;
    // The layout that the volume has counts, not that of its class: it may have been created with other options.
    let layout = volume.layout();
    let space = space_beside(volume, &layout, class, group)?;
    let current = volume.visible_size();
    // Extents of a volume are whole, so what is larger than it now is at least one extent larger.
    let size = round_up_to_extents(group, bytes, layout.step());
    size.filter(|size| space.fits(&layout, size.saturating_sub(current)))
        .ok_or(Error::NoSpace { free: space.bytes, requested: bytes.saturating_sub(current) })
}
