//! `pvs`, `vgcreate`, `vgextend` and `pvresize`, with LVM's rules and messages, and `blkid`.

use std::fmt::Write as _;

use lvm::Output;

use super::change::Result;
use super::machine::FakeDisk;
use super::state::{CommandError, EXTENT, Group, State};

/// Bytes before the first extent of a physical volume.
const START: u64 = 1 << 20;

impl State {
    /// Lists the disks that are in a volume group; the others are no physical volumes.
    pub(super) fn physical_volumes(&self) -> String {
        let mut text = String::new();
        for (name, disk) in &self.disks {
            let Some((vg, group)) = disk.vg.as_ref().and_then(|vg| Some((vg, self.groups.get(vg)?))) else { continue };
            let (path, major, minor, missing) = if disk.is_missing {
                ("[unknown]", "-1".to_owned(), "-1".to_owned(), "missing")
            } else {
                let number = disk.disk.number;
                (disk.disk.path.as_str(), number.major.to_string(), number.minor.to_string(), "")
            };
            let (tags, missing_pvs, size, used) = (group.tags.join(","), group.missing_pvs, disk.disk.size, disk.used);
            // Writing to a String cannot fail
            let _ = writeln!(
                text,
                "  LVM2_VG_NAME='{vg}' LVM2_VG_TAGS='{tags}' LVM2_VG_EXTENT_SIZE='{EXTENT}' \
                 LVM2_VG_MISSING_PV_COUNT='{missing_pvs}' LVM2_PV_NAME='{path}' LVM2_PV_UUID='uuid-of-{name}' \
                 LVM2_PV_MAJOR='{major}' LVM2_PV_MINOR='{minor}' LVM2_PV_MISSING='{missing}' LVM2_PV_SIZE='{used}' \
                 LVM2_PV_USED='0' LVM2_PV_TAGS='' LVM2_DEV_SIZE='{size}' LVM2_PE_START='{START}'"
            );
        }
        text
    }

    pub(super) fn vgcreate(&mut self, args: &[&str]) -> Result {
        let ["--config", _, tags @ .., vg, path] = args else {
            return Err(CommandError::usage("Invalid arguments"));
        };
        if self.groups.contains_key(*vg) {
            return Err(CommandError::failed(format!("A volume group called {vg} already exists.")));
        }
        let bytes = self.take_disk(path, vg)?;
        let mut group = Group::new(vg, bytes, 1);
        group.tags.extend(tags.iter().filter(|word| **word != "--addtag").map(|tag| (*tag).to_owned()));
        self.groups.insert((*vg).to_owned(), group);
        Ok(format!("Volume group \"{vg}\" successfully created"))
    }

    pub(super) fn vgchange(&mut self, args: &[&str]) -> Result {
        let [changes @ .., "-S", _, vg] = args else { return Err(CommandError::usage("Invalid arguments")) };
        if !self.groups.contains_key(*vg) {
            return Err(CommandError::no_group(vg));
        }
        let group = self.group(vg);
        for change in changes.chunks(2) {
            match change {
                ["--addtag", tag] => group.tags.push((*tag).to_owned()),
                ["--deltag", tag] => group.tags.retain(|own| own != tag),
                _ => return Err(CommandError::usage("Invalid arguments")),
            }
        }
        group.seqno += 1;
        Ok(format!("Volume group \"{vg}\" successfully changed"))
    }

    pub(super) fn vgextend(&mut self, args: &[&str]) -> Result {
        let ["--config", _, vg, path] = args else { return Err(CommandError::usage("Invalid arguments")) };
        if !self.groups.contains_key(*vg) {
            return Err(CommandError::no_group(vg));
        }
        let bytes = self.take_disk(path, vg)?;
        let group = self.group(vg);
        group.extents += bytes / EXTENT;
        group.pvs += 1;
        group.seqno += 1;
        Ok(format!("Volume group \"{vg}\" successfully extended"))
    }

    pub(super) fn pvresize(&mut self, args: &[&str]) -> Result {
        let [path] = args else { return Err(CommandError::usage("Invalid arguments")) };
        let disk = self.disk(path)?;
        let (before, vg) = (disk.used, disk.vg.clone());
        disk.used = usable(disk.disk.size);
        let grown = disk.used - before;
        if let Some(group) = vg.and_then(|vg| self.groups.get_mut(&vg)) {
            group.extents += grown / EXTENT;
            group.seqno += 1;
        }
        Ok(format!("Physical volume \"{path}\" changed"))
    }

    /// Makes a disk a physical volume of a group unless something is on it, and returns its usable bytes. The prompt
    /// whether a signature may be wiped gets no answer.
    fn take_disk(&mut self, path: &str, vg: &str) -> Result<u64> {
        let disk = self.disk(path)?;
        if disk.is_claimed {
            return Err(CommandError::failed(format!("Can't open {path} exclusively.  Mounted filesystem?")));
        }
        if disk.signature.is_some() {
            return Err(CommandError::failed(format!(
                "Aborted wiping of signature.\n  1 existing signature left on the \
                                                     device.\n  Aborting pvcreate on {path}."
            )));
        }
        disk.used = usable(disk.disk.size);
        disk.vg = Some(vg.to_owned());
        disk.signature = Some("LVM2_member".to_owned());
        Ok(disk.used)
    }

    fn disk(&mut self, path: &str) -> Result<&mut FakeDisk> {
        let found = self.disks.values_mut().find(|disk| disk.disk.path == path && !disk.is_missing);
        found.ok_or_else(|| CommandError::failed(format!("No device found for {path}.")))
    }

    /// Counts the disks of each group that are pulled out. Groups without own disks stay as they are.
    pub(super) fn count_missing_disks(&mut self) {
        for (vg, group) in &mut self.groups {
            let mut members = self.disks.values().filter(|disk| disk.vg.as_ref() == Some(vg)).peekable();
            if members.peek().is_some() {
                let missing = members.filter(|disk| disk.is_missing).count();
                group.missing_pvs = u32::try_from(missing).unwrap_or(u32::MAX);
                group.seqno += 1;
            }
        }
    }

    /// Answers as blkid(8) with `--probe` does.
    pub(super) fn blkid(&self, args: &[String]) -> Output {
        let path = args.last().map(String::as_str).unwrap_or_default();
        let found = self.disks.values().find(|disk| disk.disk.path == path);
        match found.and_then(|disk| disk.signature.as_ref()) {
            Some(signature) => {
                Output { code: Some(0), stdout: format!("TYPE={signature}\n").into_bytes(), ..Output::default() }
            }
            None => Output { code: Some(2), ..Output::default() },
        }
    }
}

fn usable(bytes: u64) -> u64 {
    bytes.saturating_sub(START) / EXTENT * EXTENT
}
