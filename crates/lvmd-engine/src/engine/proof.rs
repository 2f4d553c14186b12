//! Tests with a small volume whether LVM creates volumes at all: after it failed to create one that fits, and where
//! only such a test can show it. The volume carries the tag of an unfinished one and is removed at once.

use lvm::{Host, LogicalVolume, LvName};
use lvmd_config::tags;
use topolvm_runtime::error_chain;

use super::active_part::deactivate_blocking_part;
use super::creation::{Creation, PROBE_BYTES};
use super::refusals::CreationOptions;
use super::state::LockedGroup;
use super::thin_device::check_thin_volume_is_empty;
use super::unfinished::remove_unfinished;
use crate::error::Error;

/// An option that keeps LVM from archiving the metadata: those of a proof are never needed.
const WITHOUT_ARCHIVE: &str = "--config=backup/archive=0";

/// The result of a proof.
enum Proof {
    /// LVM created the volume.
    Accepted,
    /// LVM refused it.
    Refused(String),
    /// There is no space for it, or LVM failed for an unrelated reason.
    Nothing,
}

/// Stores what a creation shows: after a success LVM refuses none with these options, and after a failure that may have
/// nothing to do with the one request a proof decides.
pub(super) async fn learn_from_creation<R: Host>(
    group: &mut LockedGroup<R>,
    creation: &Creation,
    created: Result<LogicalVolume, Error>,
) -> Result<LogicalVolume, Error> {
    let options = creation.option_names();
    match created {
        Ok(created) => {
            note_accepted(group, &options);
            Ok(created)
        }
        Err(Error::Lvm(error)) if may_be_refusal(&error) => {
            let is_known = group.refusals.reason(&options).is_some();
            let proof = if is_known { Proof::Refused(error_chain(&error)) } else { prove(group, creation).await };
            match proof {
                Proof::Refused(why) => {
                    note_refused(group, &options, why.clone());
                    Err(Error::ClassRefused { class: options.class, why })
                }
                Proof::Accepted | Proof::Nothing => Err(error.into()),
            }
        }
        Err(error) => Err(error),
    }
}

/// Proves what is due in a group whose cache is up to date.
pub(super) async fn prove_refusals<R: Host>(group: &mut LockedGroup<R>) {
    let Some(known) = group.cached() else { return };
    let classes = group.shared().classes();
    group.refusals.retain(|options| Creation::of_probe(&classes, &known.name, options).is_some());
    for options in group.refusals.due(known.seqno) {
        let Some(creation) = Creation::of_probe(&group.shared().classes(), &known.name, &options) else { continue };
        match prove(group, &creation).await {
            Proof::Refused(why) => note_refused(group, &options, why),
            // Without space there is nothing to publish, and the next creation decides
            Proof::Accepted | Proof::Nothing => note_accepted(group, &options),
        }
    }
}

fn note_accepted<R: Host>(group: &mut LockedGroup<R>, options: &CreationOptions) {
    if group.refusals.note_accepted(options) {
        tracing::info!(vg = %group.name, class = options.class, "LVM creates volumes in the device class");
        group.shared().publish();
    }
}

fn note_refused<R: Host>(group: &mut LockedGroup<R>, options: &CreationOptions, why: String) {
    if group.refusals.reason(options).is_none() {
        let CreationOptions { class, option_class } = options;
        tracing::error!(
            vg = %group.name, class, option_class, error = why,
            "LVM refuses new volumes in the device class, whose capacity is 0 until it creates one"
        );
    }
    let seqno = group.cached().map_or(0, |known| known.seqno);
    group.refusals.note_refused(options.clone(), why, seqno);
    group.shared().publish();
}

/// Creates a small volume as `creation` would be, and removes it. A process that stops proves nothing any more.
async fn prove<R: Host>(group: &mut LockedGroup<R>, creation: &Creation) -> Proof {
    if group.shared().shutdown.is_cancelled() {
        return Proof::Nothing;
    }
    let mut created = create_and_remove(group, creation).await;
    if let Err(Error::Lvm(error)) = &created
        && deactivate_blocking_part(group, error).await
    {
        created = create_and_remove(group, creation).await;
    }
    match created {
        Ok(true) => Proof::Accepted,
        Err(Error::Lvm(error)) if may_be_refusal(&error) => Proof::Refused(error_chain(&error)),
        Ok(false) | Err(_) => Proof::Nothing,
    }
}

/// Returns whether there was space for the volume.
async fn create_and_remove<R: Host>(group: &mut LockedGroup<R>, creation: &Creation) -> Result<bool, Error> {
    let name = tags::probe_name()?;
    let known = group.current().await?;
    if let Some(left) = known.volume(name.as_str()).filter(|left| group.shared().instance.is_creating(left)) {
        remove_unfinished(group, &known, left).await?;
    }
    let known = group.try_cached()?;
    let Ok(bytes) = creation.check_space(&known, PROBE_BYTES) else { return Ok(false) };
    let making = group.shared().instance.new_making_tag()?;
    let mut options = creation.options().to_vec();
    options.push(WITHOUT_ARCHIVE.to_owned());
    let tags = tags::of_new_volume(&[], &making, None, None)?;
    let volume = creation.new_volume(&known.name, &name, bytes, &tags, &options);
    let created = group.lvm().create_unfinished(&volume).await;
    let created = group.store_outcome(created);
    if created.is_ok()
        && let Some(pool) = volume.pool
        && let Some(probe) = group.cached().and_then(|known| known.volume(name.as_str()).cloned())
    {
        check_thin_volume_is_empty(group, pool, &name, probe).await?;
    }
    remove_probe(group, &name).await;
    created?;
    Ok(true)
}

async fn remove_probe<R: Host>(group: &mut LockedGroup<R>, name: &LvName) {
    let Some(known) = group.cached() else { return };
    let is_ours = |probe: &&LogicalVolume| group.shared().instance.is_creating(probe);
    let Some(probe) = known.volume(name.as_str()).filter(is_ours) else { return };
    let (vg, making) = (&known.name, tags::making_tag(probe));
    let removed = group.lvm().remove_if(vg, name, &probe.uuid, making).await;
    if let Err(error) = group.store_outcome(removed) {
        let error = error_chain(&error);
        tracing::warn!(%vg, %name, error, "cannot remove the volume of a proof; it is tried again");
    }
}

/// Returns whether LVM's answer may have nothing to do with the one request. A thin device without a volume is about
/// the next device of the pool, which a proof must not get.
fn may_be_refusal(error: &lvm::Error) -> bool {
    matches!(error, lvm::Error::Exit { .. } | lvm::Error::NoSpace(_) | lvm::Error::PartIsActive { .. })
}
