//! Commands about the disks of volume groups. None of them answers a prompt of LVM: each must run in a separate process
//! without input, where LVM takes the end of its input for "no". So a disk on which LVM finds a signature stays as it
//! is.

use super::{Effect, LvmCommand, TagChanges, tag_options};
use crate::{Tag, VgName};

/// Makes LVM search for signatures with libblkid, which knows most of them, whatever lvm.conf sets.
const ALL_SIGNATURES: [&str; 2] = ["--config", "allocation/use_blkid_wiping=1"];

impl LvmCommand {
    /// Lists all physical volumes of the machine, those of no group as well, with their groups.
    pub fn physical_volumes() -> Self {
        let fields = "vg_name,vg_tags,vg_extent_size,vg_missing_pv_count,pv_name,pv_uuid,pv_major,pv_minor,pv_missing,\
                      pv_size,pv_used,pv_tags,dev_size,pe_start";
        let options = ["--noheadings", "--nameprefixes", "--units", "b", "--nosuffix", "-o", fields];
        Self::new(Effect::Read, ["pvs"].into_iter().chain(options))
    }

    /// Lists the device files of all physical volumes, and of those that LVM takes for copies of others.
    pub(crate) fn physical_volume_paths() -> Self {
        Self::new(Effect::Read, ["pvs", "-a", "--noheadings", "--nameprefixes", "-o", "pv_name,pv_uuid"])
    }

    /// Creates a volume group with these tags on a disk, which becomes a physical volume in the same command: there is
    /// no moment at which it is one and in no group.
    pub fn create_group(vg: &VgName, tags: &[Tag], disk: &str) -> Self {
        let options = tag_options("--addtag", tags).chain([vg.as_str(), disk]);
        Self::new(Effect::Change, ["vgcreate"].into_iter().chain(ALL_SIGNATURES).chain(options))
    }

    /// Changes the tags of the volume group with this identity, if no disk of it is missing at the moment at which LVM
    /// has its lock.
    pub fn change_group_tags(vg: &VgName, uuid: &str, tags: TagChanges<'_>) -> Self {
        let selection = format!("vg_uuid={uuid}&&vg_missing_pv_count=0");
        let changes = tag_options("--addtag", tags.add).chain(tag_options("--deltag", tags.remove));
        Self::new(Effect::Change, ["vgchange"].into_iter().chain(changes).chain(["-S", &selection, vg.as_str()]))
    }

    /// Adds a disk to a volume group; see [`create_group`](Self::create_group).
    pub fn extend_group(vg: &VgName, disk: &str) -> Self {
        Self::new(Effect::Change, ["vgextend"].into_iter().chain(ALL_SIGNATURES).chain([vg.as_str(), disk]))
    }

    /// Makes a physical volume as large as its disk. Without a size LVM only ever makes it smaller where nothing lies,
    /// and never asks.
    pub fn resize_disk(disk: &str) -> Self {
        Self::new(Effect::Change, ["pvresize", disk])
    }
}
