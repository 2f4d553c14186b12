//! The disks of volume groups.

use std::slice;

use super::{Lvm, succeeded};
use crate::report::{GroupDisk, physical_volumes};
use crate::{Error, Host, LvmCommand, Tag, VgName};

impl<R: Host> Lvm<R> {
    /// Lists all physical volumes of the machine, without those that lie on volumes. If another machine has marked a
    /// group as its own, only that mark is returned: its other tags have no meaning on this machine.
    pub async fn physical_volumes(&self) -> Result<Vec<GroupDisk>, Error> {
        let mut listed = self.all_physical_volumes().await?;
        let paths = listed.iter().filter(|disk| disk.device.is_some()).map(|disk| disk.path.clone());
        let forged = self.disks_on_volumes(paths.collect()).await?;
        listed.retain(|disk| !forged.contains_key(&disk.path));
        Ok(listed)
    }

    /// Lists all physical volumes of the machine, also those that lie on volumes.
    pub(super) async fn all_physical_volumes(&self) -> Result<Vec<GroupDisk>, Error> {
        let mut listed = self.parse_unconfined(&LvmCommand::physical_volumes(), physical_volumes).await?;
        for disk in &mut listed {
            disk.other_machine = self.other_owner(&disk.vg_tags).map(Into::into);
            if disk.other_machine.is_some() {
                disk.vg_tags = Box::default();
            }
        }
        Ok(listed)
    }

    /// Creates a volume group of this machine with this tag on a disk. Fails if LVM finds a signature there.
    pub async fn create_group(&self, vg: &VgName, tag: &Tag, disk: &str) -> Result<(), Error> {
        let tags: Vec<_> = [tag].into_iter().chain(self.owner()).cloned().collect();
        self.change_disks(&LvmCommand::create_group(vg, &tags, disk), disk).await
    }

    /// Adds a disk to a volume group. Fails if LVM finds a signature there.
    pub async fn extend_group(&self, vg: &VgName, disk: &str) -> Result<(), Error> {
        self.change_disks(&LvmCommand::extend_group(vg, disk), disk).await
    }

    /// Makes a physical volume as large as its disk.
    pub async fn resize_disk(&self, disk: &str) -> Result<(), Error> {
        self.change_disks(&LvmCommand::resize_disk(disk), disk).await
    }

    /// Returns the type of a signature that the host's blkid(8) finds on a disk; `None` if it finds none. An undecided
    /// result is an error.
    pub async fn signature(&self, disk: &str) -> Result<Option<String>, String> {
        let args = ["--probe", "--output", "export", disk].map(str::to_owned);
        let output = self.runner.run_program("blkid", &args).await.map_err(|error| error.to_string())?;
        let text = String::from_utf8_lossy(&output.stdout);
        let value = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)).map(str::to_owned);
        match output.code {
            Some(0) => Ok(Some(value("TYPE=").or_else(|| value("PTTYPE=")).unwrap_or_else(|| "unknown".to_owned()))),
            // The exit status is the same for a disk that it cannot open, but then it prints a reason
            Some(2) if text.trim().is_empty() && output.stderr.trim().is_empty() => Ok(None),
            Some(8) => Ok(Some("several".to_owned())),
            _ => Err(format!("blkid: {}", output.stderr.trim())),
        }
    }

    /// Runs one command in a separate process, in which LVM's prompts get no answer.
    async fn change_disks(&self, command: &LvmCommand, disk: &str) -> Result<(), Error> {
        let commands = slice::from_ref(command);
        let confined = self.confine(commands, &[disk]).await?;
        let output = self.run_unconfined(&confined).await;
        let done = output.and_then(|output| succeeded(command, &output).map(drop));
        self.runner.record_outcome(commands, done.as_ref().err());
        done
    }
}
