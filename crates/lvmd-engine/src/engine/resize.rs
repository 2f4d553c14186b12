//! Grows volumes.

use std::sync::Arc;

use lvm::{FullName, Host, LogicalVolume, LvName, VolumeGroup};
use lvmd_config::tags;

use super::growth::check_space;
use super::resize_batch::Batch;
use super::scope::Scope;
use super::state::LockedGroup;
use crate::error::Error;

/// The growth of a volume where it was found.
pub(super) struct Resize {
    pub(super) scope: Scope,
    pub(super) name: LvName,
    /// Size in bytes.
    pub(super) bytes: u64,
}

/// The next step until a volume is large enough.
enum NextStep {
    /// Nothing: it is.
    Return(Box<LogicalVolume>),
    /// LVM has to make it as many bytes large.
    Extend(Arc<VolumeGroup>, u64),
}

impl Resize {
    /// Grows the volume, together with others that wait for the same lock if possible.
    pub(super) async fn run<R: Host>(&self, group: &mut LockedGroup<R>) -> Result<LogicalVolume, Error> {
        let (known, mut size) = match self.prepare(group).await? {
            NextStep::Return(volume) => return Ok(*volume),
            NextStep::Extend(known, size) => (known, size),
        };
        if let Some(batch) = Batch::plan(group, &self.name, size, &known) {
            if let Some(grown) = batch.grow(group).await {
                return Ok(grown);
            }
            size = match self.prepare(group).await? {
                NextStep::Return(volume) => return Ok(*volume),
                NextStep::Extend(_, size) => size,
            };
        }
        let resized = group.lvm().resize(&known.name, &self.name, size).await;
        group.store_outcome(resized)?;
        group.created_volume(&self.name)
    }

    /// Checks that the volume can grow.
    async fn prepare<R: Host>(&self, group: &mut LockedGroup<R>) -> Result<NextStep, Error> {
        let Self { scope, name, bytes } = self;
        let known = group.current().await?;
        let (volume, class) = scope.find(&group.shared().classes(), &known, name)?;
        let not_allowed = |why: &str| Error::NotAllowed(FullName::new(&known.name, name), why.to_owned());
        if tags::is_unfinished(volume) {
            return Err(not_allowed("is unfinished; create it again"));
        }
        if tags::is_wiping(volume) {
            return Err(not_allowed("is being wiped; remove it again"));
        }
        if *bytes <= volume.visible_size() {
            return Ok(NextStep::Return(Box::new(group.ensure_active(volume).await?)));
        }
        if !volume.attr.is_thin() && volume.origin.is_some() {
            return Err(not_allowed("is a copy-on-write snapshot and cannot be resized"));
        }
        let size = check_space(volume, class.as_deref(), &known, *bytes)?;
        Ok(NextStep::Extend(known, size))
    }
}
