//! Evaluates a disk without opening it: pure functions from the machine's disks, LVM's physical volumes and the disk
//! groups.

use std::collections::BTreeMap;

use block_device::{Disk, NETWORKS, Number};
use lvm::{GroupDisk, VgName};
use lvmd_config::{DiskFinding, DiskGroup, DiskGroups, DiskState, Evacuation, GroupFinding, NodeLabels, Refusal, tags};

/// Everything that is known before a disk is opened.
#[derive(Debug)]
pub(super) struct Facts<'a> {
    pub(super) groups: &'a DiskGroups,
    pub(super) pvs: &'a [GroupDisk],
    pub(super) group_findings: &'a [GroupFinding],
    /// The labels of this node, if they are known.
    labels: Option<&'a NodeLabels>,
    /// Paths of the disks by their world-wide identity.
    twins: BTreeMap<&'a str, Vec<&'a str>>,
    /// Paths of disks that are read-only, and the volume groups that they are in.
    read_only: BTreeMap<&'a VgName, &'a str>,
}

/// Returns what each disk group's volume group is like.
pub(super) fn find_groups(groups: &DiskGroups, pvs: &[GroupDisk], labels: Option<&NodeLabels>) -> Vec<GroupFinding> {
    groups.groups.iter().map(|group| find_group(group, pvs, labels)).collect()
}

fn find_group(group: &DiskGroup, pvs: &[GroupDisk], labels: Option<&NodeLabels>) -> GroupFinding {
    let members: Vec<_> = pvs.iter().filter(|pv| group_of(pv) == Some(&group.name)).collect();
    let count = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
    let tag = group.tag().ok();
    let is_tagged = |pv: &&GroupDisk| tag.as_ref().is_some_and(|tag| pv.is_tagged(tag.as_str()));
    GroupFinding {
        name: group.name.clone(),
        mode: group.mode,
        nodes: group.node_labels.clone(),
        is_for_node: group.node_labels.selects(labels),
        exists: !members.is_empty(),
        is_ours: members.first().is_some_and(is_tagged),
        disks: count(members.len()),
        missing: members.first().map_or(0, |pv| pv.missing_pvs),
    }
}

impl<'a> Facts<'a> {
    pub(super) fn new(
        groups: &'a DiskGroups,
        pvs: &'a [GroupDisk],
        group_findings: &'a [GroupFinding],
        labels: Option<&'a NodeLabels>,
        disks: &'a [Disk],
    ) -> Self {
        let mut twins: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for disk in disks {
            if let Some(wwid) = &disk.wwid {
                twins.entry(wwid).or_default().push(&disk.path);
            }
        }
        let read_only = disks.iter().filter(|disk| disk.read_only);
        let group = |disk: &'a Disk| Some((group_of(pv_of(pvs, disk.number)?)?, disk.path.as_str()));
        let read_only = read_only.filter_map(group).collect();
        Self { groups, pvs, group_findings, labels, twins, read_only }
    }

    /// Returns the finding for a disk before it is opened. A candidate still has to be opened.
    pub(super) fn evaluate(&self, disk: Disk) -> DiskFinding {
        let pv = pv_of(self.pvs, disk.number);
        if let Some(pv) = pv
            && let Some(group) = group_of(pv).and_then(|vg| self.groups.get(vg))
        {
            // The present selector does not matter: a changed selector removes no disk.
            let state = DiskState::Member { has_grown: pv.has_grown(), evacuation: evacuation_of(pv) };
            return DiskFinding { group: Some(group.name.clone()), disk, state };
        }
        let group = match self.group_for(&disk) {
            Ok(group) => group,
            Err((group, state)) => return DiskFinding { disk, group, state },
        };
        let mut refusals = self.refusals_of_disk(&disk, group);
        refusals.extend(pv.map(|pv| other_machine(pv).unwrap_or_else(|| Refusal::PhysicalVolume(pv.vg.clone()))));
        refusals.extend(self.refusal_of_group(group).filter(|refusal| !refusals.contains(refusal)));
        let state = if refusals.is_empty() { DiskState::Candidate } else { DiskState::Refused(refusals) };
        DiskFinding { disk, group: Some(group.name.clone()), state }
    }

    /// Returns the one group that selects a disk on this node, or the state if there is none, with the group that it
    /// is about. A group that may turn out to select it, too, keeps it from all others.
    fn group_for(&self, disk: &Disk) -> Result<&'a DiskGroup, (Option<VgName>, DiskState)> {
        let (mut here, mut waiting, mut elsewhere) = (Vec::new(), Vec::new(), Vec::new());
        for group in self.groups.groups.iter().filter(|group| group.selector.matches(disk)) {
            match group.node_labels.selects(self.labels) {
                Some(true) => here.push(group),
                Some(false) => elsewhere.push(group),
                None => waiting.push(group),
            }
        }
        let name_and_nodes = |group: &DiskGroup| (group.name.clone(), group.node_labels.clone());
        let (about, refusals): (_, Vec<_>) = match (here.as_slice(), waiting.as_slice(), elsewhere.as_slice()) {
            ([group], [], _) => return Ok(group),
            ([], [], []) => return Err((None, DiskState::NotSelected)),
            ([], [], _) => {
                let other = |(group, nodes)| Refusal::OtherNodes { group, nodes };
                (&elsewhere, elsewhere.iter().map(|group| other(name_and_nodes(group))).collect())
            }
            ([] | [_], ..) => {
                let unknown = |(group, nodes)| Refusal::NodeLabelsUnknown { group, nodes };
                (&waiting, waiting.iter().map(|group| unknown(name_and_nodes(group))).collect())
            }
            (several, ..) => {
                let names = several.iter().map(|group| group.name.clone()).collect();
                (&here, vec![Refusal::SeveralGroups(names)])
            }
        };
        let group = if let [group] = about.as_slice() { Some(group.name.clone()) } else { None };
        Err((group, DiskState::Refused(refusals)))
    }

    fn refusals_of_disk(&self, disk: &Disk, group: &DiskGroup) -> Vec<Refusal> {
        let mut refusals = Vec::new();
        if disk.read_only {
            refusals.push(Refusal::ReadOnly);
        }
        refusals.extend(disk.uses.iter().cloned().map(Refusal::InUse));
        let is_named = |transport: &str| group.selector.transports.contains(&transport);
        match disk.transport {
            Some(transport) if NETWORKS.contains(&transport) && !is_named(transport) => {
                refusals.push(Refusal::Network(transport));
            }
            Some(transport) if is_named(transport) => {}
            Some("usb") => refusals.push(Refusal::Removable),
            Some(_) | None if disk.removable => refusals.push(Refusal::Removable),
            Some(_) | None => {}
        }
        let others = disk.wwid.as_deref().and_then(|wwid| self.twins.get(wwid)).into_iter().flatten();
        let others: Vec<_> = others.filter(|path| **path != disk.path).map(|path| (*path).to_owned()).collect();
        if !others.is_empty() {
            refusals.push(Refusal::SeveralPaths(others));
        }
        refusals
    }

    fn refusal_of_group(&self, group: &DiskGroup) -> Option<Refusal> {
        let found = self.group_findings.iter().find(|found| found.name == group.name)?;
        if !found.exists {
            return self.pvs.iter().filter(|pv| pv.vg.as_ref() == Some(&group.name)).find_map(other_machine);
        }
        if !found.is_ours {
            let tag = group.tag().map(|tag| tag.as_str().to_owned()).unwrap_or_default();
            return Some(Refusal::GroupNotOurs { vg: group.name.clone(), tag });
        }
        if found.missing > 0 {
            return Some(Refusal::GroupIncomplete(group.name.clone(), found.missing));
        }
        // LVM would extend the group and leave the old metadata on that disk
        let disk = self.read_only.get(&group.name)?;
        Some(Refusal::GroupReadOnly { vg: group.name.clone(), disk: (*disk).to_owned() })
    }
}

/// Returns how far the evacuation of a physical volume is.
fn evacuation_of(pv: &GroupDisk) -> Option<Evacuation> {
    let is_done = pv.used == 0;
    tags::requests_evacuation(&pv.tags).then_some(if is_done { Evacuation::Done } else { Evacuation::Begun })
}

/// Returns the volume group of this machine that a physical volume is in.
fn group_of(pv: &GroupDisk) -> Option<&VgName> {
    pv.vg.as_ref().filter(|_| pv.other_machine.is_none())
}

/// Returns the reason for which a physical volume is left alone that is in a volume group of another machine.
fn other_machine(pv: &GroupDisk) -> Option<Refusal> {
    let (vg, tag) = (pv.vg.clone()?, pv.other_machine.as_deref()?.to_owned());
    Some(Refusal::OtherMachine { vg, tag })
}

/// Returns the physical volume on the device of this number.
fn pv_of(pvs: &[GroupDisk], number: Number) -> Option<&GroupDisk> {
    let is_on =
        |pv: &&GroupDisk| pv.device.is_some_and(|device| (device.major, device.minor) == (number.major, number.minor));
    pvs.iter().find(is_on)
}

/// Refuses the candidates that a group has no place for, the last in the order of their names.
pub(super) fn limit_candidates(findings: &mut [DiskFinding], groups: &DiskGroups, group_findings: &[GroupFinding]) {
    let mut disks: BTreeMap<VgName, u64> =
        group_findings.iter().map(|group| (group.name.clone(), group.disks)).collect();
    for finding in findings.iter_mut().filter(|finding| finding.state == DiskState::Candidate) {
        let Some(group) = finding.group.as_ref().and_then(|name| groups.get(name)) else { continue };
        let count = disks.entry(group.name.clone()).or_default();
        match group.max_disks {
            Some(most) if *count >= u64::from(most) => {
                finding.state = DiskState::Refused(vec![Refusal::GroupFull(most)]);
            }
            _ => *count += 1,
        }
    }
}

#[cfg(test)]
mod tests;
