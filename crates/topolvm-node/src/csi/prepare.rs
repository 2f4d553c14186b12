//! What is done to a device before its filesystem is mounted: found, made, checked, or refused. Nothing is ever
//! overwritten that could be somebody's data.

use topolvm_api::LogicalVolume;

use super::access::Access;
use super::publish::{Volume, Wanted};
use super::request::RequestError;
use super::{Agent, Error};
use crate::Filesystem;
use crate::mount::{Contents, Mounter, recovery_hint};

/// What became of a filesystem that can be mounted now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Prepared {
    /// It was there.
    Found,
    /// It was made, and is empty.
    Made,
}

impl<M: Mounter> Agent<M> {
    /// The object with its record of a filesystem. The watch may not have shown a record that was just written, and a
    /// device without a record may be formatted, so that the absence of one is asked of the API server.
    pub(super) async fn with_record(
        &self,
        object: LogicalVolume,
        id: &str,
        access: &Access,
    ) -> Result<LogicalVolume, Error> {
        match access {
            Access::Mount { options, .. }
                if !options.is_readonly() && self.volumes.recorded_filesystem(&object).is_none() =>
            {
                Ok(self.volumes.read(&object, id).await?)
            }
            Access::Mount { .. } | Access::Block { .. } => Ok(object),
        }
    }

    /// Makes sure that the volume holds the filesystem and that it can be mounted. A device is made anew when it never
    /// had a filesystem, or when an administrator has given up what lies on it.
    pub(super) async fn prepare(&self, volume: &Volume<'_>, wanted: &Wanted<'_>) -> Result<Prepared, Error> {
        let Wanted { filesystem, options, .. } = *wanted;
        let (id, device) = (&volume.lv.name, volume.node);
        let recorded = self.volumes.recorded_filesystem(volume.object);
        let recorded = recorded.and_then(|name| Filesystem::parse(name).ok());
        let contents = self.mounter.contents(device, recorded).await?;
        if contents != Contents::Filesystem(filesystem.to_string()) {
            self.make(volume, wanted, contents).await?;
            self.missing.found(id);
            return Ok(Prepared::Made);
        }
        self.missing.found(id);
        if volume.other.is_some() || volume.device.readonly {
            return Ok(Prepared::Found);
        }
        if !options.is_readonly() {
            let checked = self.mounter.check(device, filesystem).await;
            checked.map_err(|error| error.of_device(&volume.lv.path))?;
        }
        if !volume.object.spec.source.is_empty() {
            self.mounter.separate(device, filesystem, id).await?;
        }
        Ok(Prepared::Found)
    }

    /// Makes the filesystem on a device that does not show it, or says why not.
    async fn make(&self, volume: &Volume<'_>, wanted: &Wanted<'_>, contents: Contents) -> Result<(), Error> {
        let Wanted { filesystem, options, .. } = *wanted;
        let (id, device) = (&volume.lv.name, &volume.lv.path);
        let recorded = self.volumes.recorded_filesystem(volume.object);
        if !options.is_readonly() && volume.other.is_none() {
            // An object with a record is as the watch has shown it, and the wish in it may be too new for that, or
            // taken back
            let read = if recorded.is_some() { Some(self.volumes.read(volume.object, id).await?) } else { None };
            if self.volumes.is_given_up(read.as_ref().unwrap_or(volume.object), filesystem) {
                tracing::warn!(volume = id, ?contents, "makes a filesystem where the annotation gives up the data");
                return self.format(volume, wanted).await;
            }
        }
        let reformat = || self.volumes.reformat_command(volume.object, filesystem);
        let other_contents = |found| {
            Err(Error::OtherContents { id: id.clone(), wanted: filesystem.to_string(), found, reformat: reformat() })
        };
        match contents {
            Contents::Filesystem(found) if recorded == Some(&found) => other_contents(found),
            contents if let Some(recorded) = recorded => {
                let hint = Filesystem::parse(recorded).map_or("with the programs of that filesystem", recovery_hint);
                let error = Error::FilesystemMissing {
                    id: id.clone(),
                    device: device.clone(),
                    recorded: recorded.to_owned(),
                    found: describe(contents),
                    remedy: format!(
                        "Recover the filesystem on the node ({hint}), or, if the data is not needed: {}",
                        reformat()
                    ),
                };
                self.missing.retain(|id| !self.volumes.is_surely_unknown(id));
                self.missing.lost(id, error.to_string());
                self.volumes.tell_missing_filesystem(volume.object, &error.to_string()).await;
                Err(error)
            }
            // In a thick volume it is what a deleted one has left; copies are thin, where what nobody wrote is zero
            Contents::Unmarked if !volume.object.spec.source.is_empty() => {
                Err(Error::CopiedData { id: id.clone(), reformat: reformat() })
            }
            Contents::Blank | Contents::Unmarked if options.is_readonly() => Err(Error::BlankReadOnly(id.clone())),
            Contents::Blank | Contents::Unmarked => match &volume.other {
                // As a block volume: what a pod has written there need not look like anything
                Some(other) => Err(Error::UsedRaw { id: id.clone(), other: other.clone() }),
                None => self.format(volume, wanted).await,
            },
            Contents::Filesystem(found) | Contents::Other(found) => other_contents(found),
        }
    }

    /// Runs mkfs. Only here do the options for it have to be right: a volume that has its filesystem is mounted whatever they say.
    async fn format(&self, volume: &Volume<'_>, wanted: &Wanted<'_>) -> Result<(), Error> {
        let options = wanted.mkfs_options.as_ref().map_err(|error| RequestError::from(error.clone()))?;
        Ok(self.mounter.format(volume.node, wanted.filesystem, options).await?)
    }
}

/// What lies on a device, in words.
fn describe(contents: Contents) -> String {
    match contents {
        Contents::Blank => "nothing".to_owned(),
        Contents::Unmarked => "data without a signature".to_owned(),
        Contents::Filesystem(found) | Contents::Other(found) => found,
    }
}
