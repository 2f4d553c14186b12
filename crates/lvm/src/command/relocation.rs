//! Commands about physical volumes that are emptied and leave their volume group.

use super::{Effect, LvmCommand};
use crate::{LvName, Tag, VgName};

/// Has LVM copy in the process that is started, which lvmd knows and waits for, and not in a daemon.
const OWN_PROCESS: [&str; 2] = ["--config", "global/use_lvmpolld=0"];

/// Options of `lvs` for the report of all volumes.
const ALL_VOLUMES: [&str; 5] = ["-a", "--noheadings", "--nameprefixes", "-o", "lv_name,lv_attr,segtype,lv_parent"];

impl LvmCommand {
    /// Lists which extents of a group's physical volumes belong to which volume, hidden ones as well.
    pub fn used_ranges(vg: &VgName) -> Self {
        let fields = "pv_uuid,pvseg_start,pvseg_size,lv_name,lv_parent,lv_attr,segtype,move_pv_uuid,pe_start";
        let selection = format!("vg_name={vg}&&segtype!=free");
        let form = ["--segments", "--noheadings", "--nameprefixes", "--units", "b", "--nosuffix"];
        let options = form.into_iter().chain(["-o", fields, "-S", &selection]);
        Self::new(Effect::Read, ["pvs"].into_iter().chain(options))
    }

    /// Moves the extents from `first` to `last` of a physical volume to another of its group, and returns after they
    /// have arrived. The command disables LVM's placement policy: LVM then takes an image of which a part is already on
    /// the other disk for another image of the same RAID. So the caller must know the contents of the target. If an
    /// earlier command has begun to move extents from the same physical volume, LVM moves those instead.
    pub fn move_extents(from: &str, (first, last): (u64, u64), to: Option<&str>) -> Self {
        let range = format!("{from}:{first}-{last}");
        let words =
            ["pvmove"].into_iter().chain(OWN_PROCESS).chain(["--alloc", "anywhere", "-i", "1", &range]).chain(to);
        Self::new(Effect::Change, words)
    }

    /// Ends the move of extents of a physical volume: what is not moved yet stays where it was, with all that was
    /// written meanwhile.
    pub fn abort_move(from: &str) -> Self {
        Self::new(Effect::Change, ["pvmove"].into_iter().chain(OWN_PROCESS).chain(["--abort", from]))
    }

    /// Lists all volumes of a group, hidden ones as well, with what they are parts of.
    pub fn all_volumes(vg: &VgName) -> Self {
        Self::new(Effect::Read, ["lvs"].into_iter().chain(ALL_VOLUMES).chain([vg.as_str()]))
    }

    /// Lists the same without LVM's lock, for a caller that holds it. The states of the volumes are missing.
    pub fn all_volumes_under_lock(vg: &VgName) -> Self {
        Self::new(Effect::Read, ["lvs", "--readonly"].into_iter().chain(ALL_VOLUMES).chain([vg.as_str()]))
    }

    /// Removes the hidden volume of a move that has ended. LVM refuses one that goes on.
    pub fn remove_ended_move(vg: &VgName, volume: &str) -> Self {
        Self::new(Effect::Change, ["lvremove", "-y", &format!("{vg}/{volume}")])
    }

    /// Deactivates a hidden part of a volume. LVM refuses one that is in use.
    pub fn deactivate_part(vg: &VgName, part: &str) -> Self {
        Self::new(Effect::Change, ["lvchange", "-an", &format!("{vg}/{part}")])
    }

    /// Allows or forbids LVM to make volumes on a physical volume, and changes its tags, in one command, which takes no
    /// selection.
    pub fn change_pv(pv: &str, allocatable: bool, add: &[Tag], remove: &[Tag]) -> Self {
        let mut args = vec!["pvchange", "-x", if allocatable { "y" } else { "n" }];
        args.extend(super::tag_options("--addtag", add));
        args.extend(super::tag_options("--deltag", remove));
        args.push(pv);
        Self::new(Effect::Change, args)
    }

    /// Makes a volume of just these extents of a physical volume, each range by its first and last one. What is in them
    /// is not touched.
    pub fn create_of_extents(vg: &VgName, name: &LvName, pv: &str, ranges: &[(u64, u64)], tags: &[Tag]) -> Self {
        let count: u64 = ranges.iter().map(|(first, last)| last.saturating_sub(*first).saturating_add(1)).sum();
        let ranges: Vec<_> = ranges.iter().map(|(first, last)| format!(":{first}-{last}")).collect();
        let (count, place) = (count.to_string(), format!("{pv}{}", ranges.concat()));
        let mut args = vec!["lvcreate", "--type", "linear", "--alloc", "anywhere", "-n", name.as_str(), "-l", &count];
        args.extend(["-Wn", "-Zn", "-y"]);
        args.extend(super::tag_options("--addtag", tags));
        args.extend([vg.as_str(), &place]);
        Self::new(Effect::Change, args)
    }

    /// Gives a RAID replacements for its lost disks, as far as there is free space (lvmraid(7), "Repair").
    pub fn repair_mirror(vg: &VgName, name: &LvName) -> Self {
        Self::new(Effect::Change, ["lvconvert", "-y", "--repair", &super::full_name(vg, name)])
    }

    /// Forgets the missing physical volumes of a group on which nothing is. Without `--force` LVM removes no volume.
    pub fn forget_missing_disks(vg: &VgName) -> Self {
        Self::new(Effect::Change, ["vgreduce", "--removemissing", vg.as_str()])
    }

    /// Takes a physical volume out of its group. LVM refuses one that is used, and the last one.
    pub fn reduce_group(vg: &VgName, pv: &str) -> Self {
        Self::new(Effect::Change, ["vgreduce", vg.as_str(), pv])
    }
}
