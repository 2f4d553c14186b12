//! Prepares the filesystem of a device before it is mounted: finds, formats or checks it, or refuses. Data that may be
//! in use is never overwritten.

use std::collections::HashMap;
use std::sync::Arc;

use linux_mount::{Contents, Filesystem, MountError, Mounter};
use parking_lot::Mutex;
use topolvm_api::LogicalVolume;

use super::CsiError;
use super::capability::Access;
use super::error::RequestError;
use super::volume::{Volume, WantedFilesystem};
use super::volume_access::VolumeAccess;

/// Origin of the filesystem on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Prepared {
    /// It was on the device.
    Existing,
    /// mkfs has made it; it is empty.
    Formatted,
}

/// Messages about volumes whose recorded filesystem was missing when they were to be mounted, by volume id. Calls about
/// the health of a volume start no process, and read them here.
pub(super) type MissingFilesystems = Arc<Mutex<HashMap<String, String>>>;

/// Prepares the filesystems of devices.
#[derive(Debug)]
pub(super) struct FilesystemPreparation<M> {
    pub(super) access: Arc<VolumeAccess<M>>,
    pub(super) missing: MissingFilesystems,
}

impl<M: Mounter> FilesystemPreparation<M> {
    /// Reads the object again from the API server if it has no record of a filesystem and the volume is published for
    /// writing. The watch may not have shown a record that was just written, and a device without a record may be
    /// formatted.
    pub(super) async fn load_record(
        &self,
        object: LogicalVolume,
        id: &str,
        access: &Access,
    ) -> Result<LogicalVolume, CsiError> {
        match access {
            Access::Mount { options, .. }
                if !options.is_readonly() && self.access.volumes.recorded_filesystem(&object).is_none() =>
            {
                Ok(self.access.volumes.read_from_api_server(&object, id).await?)
            }
            Access::Mount { .. } | Access::Block { .. } => Ok(object),
        }
    }

    /// Prepares the filesystem so that it can be mounted. A device is formatted when it never had a filesystem, or
    /// when an administrator has given up its contents.
    pub(super) async fn prepare(
        &self,
        volume: &Volume<'_>,
        wanted: &WantedFilesystem<'_>,
    ) -> Result<Prepared, CsiError> {
        let WantedFilesystem { filesystem, options, .. } = *wanted;
        let (id, device) = (&volume.lv.name, volume.node);
        let recorded = self.access.volumes.recorded_filesystem(volume.object);
        let recorded = recorded.and_then(|name| Filesystem::parse(name).ok());
        let contents = self.access.mounter.probe_contents(device, recorded).await?;
        if contents != Contents::Filesystem(filesystem.to_string()) {
            self.format_or_refuse(volume, wanted, contents).await?;
            self.missing.lock().remove(id);
            return Ok(Prepared::Formatted);
        }
        self.missing.lock().remove(id);
        if volume.other.is_some() || volume.device.readonly {
            return Ok(Prepared::Existing);
        }
        if !options.is_readonly()
            && let Err(error) = self.access.mounter.check_filesystem(device, filesystem).await
        {
            return Err(self.explain_failed_check(volume, error).await.into());
        }
        if !volume.object.spec.source.is_empty() {
            self.access.mounter.set_unique_uuid(device, filesystem, id).await?;
        }
        Ok(Prepared::Existing)
    }

    /// Returns the error of a filesystem that could not be checked: with what uses its device, if anything does.
    async fn explain_failed_check(&self, volume: &Volume<'_>, error: MountError) -> MountError {
        let (device, number) = (&volume.lv.path, volume.device.number);
        if matches!(error, MountError::Failed { .. })
            && let Ok(true) = self.access.mounter.is_claimed(volume.node).await
            && let Ok(holders) = self.access.mounter.find_device_holders(number, device).await
            && !holders.is_empty()
        {
            return MountError::Held { device: device.clone(), holders };
        }
        error.of_device(device)
    }

    /// Formats a device that does not hold the filesystem, or refuses with what it holds.
    async fn format_or_refuse(
        &self,
        volume: &Volume<'_>,
        wanted: &WantedFilesystem<'_>,
        contents: Contents,
    ) -> Result<(), CsiError> {
        let WantedFilesystem { filesystem, options, .. } = *wanted;
        let id = &volume.lv.name;
        if !options.is_readonly() && volume.other.is_none() && self.is_reformat_requested(volume, filesystem).await? {
            tracing::warn!(volume = id, ?contents, "makes a filesystem where the annotation gives up the data");
            return self.format(volume, wanted).await;
        }
        let is_other = |recorded: &&str| contents != Contents::Filesystem((*recorded).to_owned());
        if let Some(recorded) = self.access.volumes.recorded_filesystem(volume.object).filter(is_other) {
            return Err(self.report_missing_filesystem(volume, filesystem, recorded, contents).await);
        }
        let reformat = || self.access.volumes.reformat_command(volume.object, filesystem);
        match contents {
            // On a thick volume unrecognized data are remains of a deleted volume; copies are thin, and their unwritten
            // blocks are zero
            Contents::Other(_) | Contents::Unrecognized if !volume.object.spec.source.is_empty() => {
                let found = describe_contents(contents);
                Err(CsiError::CopiedData { id: id.clone(), found, reformat: reformat() })
            }
            Contents::Filesystem(found) | Contents::Other(found) => {
                let wanted = filesystem.to_string();
                Err(CsiError::OtherContents { id: id.clone(), wanted, found, reformat: reformat() })
            }
            Contents::Blank | Contents::Unrecognized if options.is_readonly() => {
                Err(CsiError::BlankReadOnly(id.clone()))
            }
            Contents::Blank | Contents::Unrecognized => match &volume.other {
                // As a block volume: the data of a pod need not have a known signature
                Some(other) => Err(CsiError::UsedRaw { id: id.clone(), other: other.clone() }),
                None => self.format(volume, wanted).await,
            },
        }
    }

    /// Returns whether an administrator has asked to have the volume formatted with `filesystem`. An object with a
    /// record is as the watch has shown it: the annotation may be newer than that, or removed.
    async fn is_reformat_requested(&self, volume: &Volume<'_>, filesystem: Filesystem) -> Result<bool, CsiError> {
        if self.access.volumes.recorded_filesystem(volume.object).is_none() {
            return Ok(self.access.volumes.is_reformat_requested(volume.object, filesystem));
        }
        let object = self.access.volumes.read_from_api_server(volume.object, &volume.lv.name).await?;
        Ok(self.access.volumes.is_reformat_requested(&object, filesystem))
    }

    /// Makes the error of a recorded filesystem that is missing, stores it for the volume condition, and publishes an
    /// Event.
    async fn report_missing_filesystem(
        &self,
        volume: &Volume<'_>,
        wanted: Filesystem,
        recorded: &str,
        contents: Contents,
    ) -> CsiError {
        let id = &volume.lv.name;
        let hint = Filesystem::parse(recorded).map_or("with the tools of that filesystem", Filesystem::recovery_hint);
        let reformat = self.access.volumes.reformat_command(volume.object, wanted);
        let error = CsiError::FilesystemMissing {
            id: id.clone(),
            device: volume.lv.path.clone(),
            recorded: recorded.to_owned(),
            found: describe_contents(contents),
            remedy: format!("Recover the filesystem on the node ({hint}), or, if the data is not needed: {reformat}"),
        };
        let message = error.to_string();
        self.access.volumes.events.filesystem_missing(volume.object, &message).await;
        let mut missing = self.missing.lock();
        missing.retain(|id, _| !self.access.volumes.is_known_to_be_absent(id));
        missing.insert(id.clone(), message);
        error
    }

    /// Runs mkfs. Its options are checked only here: a volume that has its filesystem is mounted regardless of them.
    async fn format(&self, volume: &Volume<'_>, wanted: &WantedFilesystem<'_>) -> Result<(), CsiError> {
        let options = wanted.mkfs_options.as_ref().map_err(|error| RequestError::from(error.clone()))?;
        Ok(self.access.mounter.format(volume.node, wanted.filesystem, options).await?)
    }
}

/// Describes the contents of a device.
fn describe_contents(contents: Contents) -> String {
    match contents {
        Contents::Blank => "nothing".to_owned(),
        Contents::Unrecognized => "data without a signature".to_owned(),
        Contents::Filesystem(found) | Contents::Other(found) => found,
    }
}
