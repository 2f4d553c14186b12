//! Decides which disks LVM sees, and which of the groups that it reports are this machine's.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::Arc;

use super::{Lvm, succeeded};
use crate::report::physical_volume_paths;
use crate::{Devices as _, Effect, Error, Host, LvmCommand, RunError, Tag, TagChanges, VgName, VolumeGroup};

/// The volume below a disk that does not count as one, or the reason why it is not known.
pub(super) type Below = io::Result<String>;

impl<R: Host> Lvm<R> {
    /// Adds a volume group that the caller works in, with its last report: commands see its disks, and its volumes are
    /// no disks.
    pub fn serve(&self, vg: &VgName, reported: Option<&VolumeGroup>) {
        self.served.add(vg);
        if let Some(group) = reported {
            self.served.store(group);
        }
    }

    /// Returns the LVM of a machine that marks its volume groups with this tag, `KEY=VALUE`. A group with another value
    /// belongs to another machine.
    #[must_use]
    pub fn owned_by(self, tag: Option<Tag>) -> Self {
        Self { owner: tag, ..self }
    }

    /// Returns the tag of the volume groups of this machine.
    pub fn owner(&self) -> Option<&Tag> {
        self.owner.as_ref()
    }

    /// Changes the tags of a volume group, unless it lacks a disk by now.
    pub async fn change_group_tags(&self, group: &VolumeGroup, tags: TagChanges<'_>) -> Result<(), Error> {
        self.change_pvs(&group.name, &LvmCommand::change_group_tags(&group.name, &group.uuid, tags)).await
    }

    /// Returns the tag with which another machine marked a volume group that has these tags.
    pub(super) fn other_owner<'a>(&self, tags: &'a [Box<str>]) -> Option<&'a str> {
        let owner = self.owner.as_ref()?.as_str();
        let key = owner.split_inclusive('=').next()?;
        tags.iter().map(|tag| &**tag).find(|tag| tag.starts_with(key) && *tag != owner)
    }

    /// Returns the commands for an LVM that sees the disks of the served groups and these, as far as they do not lie on
    /// volumes, and nothing else. Fails if a group that is to be changed belongs to another machine by now.
    pub(super) async fn confine(&self, commands: &[LvmCommand], more: &[&str]) -> Result<Vec<LvmCommand>, Error> {
        let served = self.served.disks();
        if served.is_empty() {
            return Ok(commands.to_vec());
        }
        let disks: Arc<[String]> = served.iter().cloned().chain(more.iter().map(|&disk| disk.to_owned())).collect();
        let forged = self.disks_on_volumes(disks.to_vec()).await?;
        let disks = if forged.is_empty() {
            disks
        } else {
            disks.iter().filter(|disk| !forged.contains_key(*disk)).cloned().collect()
        };
        let changes = commands.iter().filter(|command| command.effect() == Effect::Change);
        let system_ids: BTreeMap<_, _> = changes.flat_map(|command| self.served.named_system_ids(command)).collect();
        for (vg, system_id) in &system_ids {
            self.check_system_id(vg, system_id).await?;
        }
        Ok(commands.iter().map(|command| command.clone().confined_to(Arc::clone(&disks))).collect())
    }

    /// Returns those of these device files that lie on a volume, or on what is not known.
    pub(super) async fn disks_on_volumes(&self, paths: Vec<String>) -> Result<HashMap<String, Below>, Error> {
        let (devices, served) = (self.runner.devices(), Arc::clone(&self.served));
        let resolving = tokio::task::spawn_blocking(move || {
            let below = |path: &str| match devices.volumes_below(path) {
                Ok(volumes) => served.find_volume(&volumes).map(Ok),
                // It has gone, and LVM sees no more of it
                Err(error) if error.kind() == io::ErrorKind::NotFound => None,
                Err(error) => Some(Err(error)),
            };
            paths.into_iter().filter_map(|path| below(&path).map(|below| (path, below))).collect()
        });
        let failed = |error| Error::Run { command: "lvm".to_owned(), source: RunError::Read(io::Error::other(error)) };
        resolving.await.map_err(failed)
    }

    /// Fails if a group is not for this machine to use, and stores its disks otherwise.
    pub(super) async fn check_group(&self, group: &VolumeGroup) -> Result<(), Error> {
        let vg = &group.name;
        let paths = group.pvs.iter().filter(|pv| pv.device.is_some()).map(|pv| pv.path.clone()).collect();
        if let Some((disk, below)) = self.disks_on_volumes(paths).await?.into_iter().next() {
            return Err(match below {
                Ok(volume) => Error::OnVolume { vg: vg.clone(), disk, volume },
                Err(source) => Error::UnknownDisk { vg: vg.clone(), disk, source },
            });
        }
        if let Some(tag) = self.other_owner(&group.tags) {
            let (vg, tag) = (vg.clone(), tag.to_owned());
            return Err(Error::OtherMachine { vg, tag, group: Box::new(group.clone()) });
        }
        if group.exported {
            return Err(Error::ExportedGroup(vg.clone()));
        }
        if let Some(system_id) = &group.system_id {
            self.check_system_id(vg, system_id).await?;
        }
        self.served.store(group);
        Ok(())
    }

    /// Fails if a system ID is neither that of this machine nor one that the administrator allows here. LVM does not
    /// check it again in a shell that has reported on active volumes.
    async fn check_system_id(&self, vg: &VgName, system_id: &str) -> Result<(), Error> {
        let command = LvmCommand::system_id();
        let local = self.ask_unconfined(&command, |output| Ok(parse_system_id(succeeded(&command, output)?))).await?;
        if local == system_id {
            return Ok(());
        }
        let allowed = self.setting("local/extra_system_ids", |ids| Some(ids.to_owned())).await.unwrap_or_default();
        if allowed.split(['[', ']', ',']).any(|id| id.trim().trim_matches('"') == system_id) {
            return Ok(());
        }
        Err(Error::ForeignGroup { vg: vg.clone(), system_id: system_id.to_owned() })
    }

    /// Reports a group once more, after `error`, without the disks that lie on volumes and, if there are several groups
    /// of the name, without those that other machines marked. The error stays if there are none.
    pub(super) async fn report_without_others(
        &self,
        vg: &VgName,
        report: LvmCommand,
        error: Error,
    ) -> Result<VolumeGroup, Error> {
        let listed = self.parse_unconfined(&LvmCommand::physical_volume_paths(), physical_volume_paths).await;
        let Ok(mut disks) = listed else { return Err(error) };
        let forged = self.disks_on_volumes(disks.clone()).await?;
        let foreign = if matches!(error, Error::DuplicateName { .. }) {
            self.disks_of_other_machines(vg).await?
        } else {
            BTreeMap::new()
        };
        if forged.is_empty() && foreign.is_empty() {
            return Err(error);
        }
        for (disk, below) in &forged {
            let below = below.as_ref().map_or_else(ToString::to_string, Clone::clone);
            tracing::warn!(disk, below, "ignoring a physical volume that a user created inside a logical volume");
        }
        for (disk, tag) in &foreign {
            tracing::warn!(%vg, disk, tag, "ignoring the disk of another machine's volume group of the same name");
        }
        disks.retain(|disk| !forged.contains_key(disk) && !foreign.contains_key(disk));
        let reported = if disks.is_empty() {
            Err(Error::GroupNotFound(vg.clone()))
        } else {
            self.report_group(vg, report.confined_to(disks.into())).await
        };
        match reported {
            // All of them are other machines', and so the name is not free
            Err(Error::GroupNotFound(_)) if !foreign.is_empty() => Err(error),
            reported => reported,
        }
    }

    /// Reports the groups of this name that other machines marked, each as [`Error::OtherMachine`] unless that fails.
    pub(super) async fn groups_of_other_machines(&self, vg: &VgName) -> Result<Vec<Result<VolumeGroup, Error>>, Error> {
        let mut disks: BTreeMap<_, Vec<String>> = BTreeMap::new();
        for (disk, tag) in self.disks_of_other_machines(vg).await? {
            disks.entry(tag).or_default().push(disk);
        }
        let mut found = Vec::with_capacity(disks.len());
        for disks in disks.into_values() {
            found.push(self.report_group(vg, LvmCommand::report([vg]).confined_to(disks.into())).await);
        }
        Ok(found)
    }

    /// Returns the disks of groups of this name that other machines marked, with their tags.
    async fn disks_of_other_machines(&self, vg: &VgName) -> Result<BTreeMap<String, Box<str>>, Error> {
        let listed = self.all_physical_volumes().await?;
        let of_name = listed.into_iter().filter(|disk| disk.vg.as_ref() == Some(vg));
        Ok(of_name.filter_map(|disk| Some((disk.path, disk.other_machine?))).collect())
    }
}

/// Parses the output of `lvm systemid`, which ends with the system ID of the machine, if it has one.
fn parse_system_id(output: &[u8]) -> String {
    let output = String::from_utf8_lossy(output);
    output.split_once(':').map(|(_, id)| id.trim().to_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_id_is_read_after_the_colon() {
        assert_eq!(parse_system_id(b"  system ID: node1\n"), "node1");
        assert_eq!(parse_system_id(b"  system ID: \n"), "");
        assert_eq!(parse_system_id(b""), "");
    }
}
