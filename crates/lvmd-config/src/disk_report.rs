//! The report of the disks of a machine: which of them belong to a disk group, which could, and why others cannot.

use std::fmt;

use block_device::{Disk, Use};
use lvm::VgName;

use crate::disk_group::{Mode, NodeSelector};

/// The findings of the last scan of the disks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiskReport {
    /// All disks of the machine, in the order of their names.
    pub disks: Vec<DiskFinding>,
    /// All disk groups, in the order of the configuration.
    pub groups: Vec<GroupFinding>,
    /// The reason why the scan failed, or is still waiting because some disks do not answer. The rest of the report is
    /// then that of the previous scan.
    pub failure: Option<String>,
}

/// A disk and the decision about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskFinding {
    /// The disk.
    pub disk: Disk,
    /// The disk group that it is in, or the only one that selects it.
    pub group: Option<VgName>,
    /// The decision about it.
    pub state: DiskState,
}

/// The decision about a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DiskState {
    /// No disk group selects it, and it is in none.
    NotSelected,
    /// It is in the volume group of its disk group, which uses all of it or not.
    Member {
        /// True if it is larger than the group knows.
        has_grown: bool,
        /// Its evacuation, if it is to be emptied.
        evacuation: Option<Evacuation>,
    },
    /// It is blank, unused, and could be added to its disk group.
    Candidate,
    /// It is not added to the group that selects it, for these reasons.
    Refused(Vec<Refusal>),
}

/// The progress of the evacuation of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evacuation {
    /// Volumes are on it.
    Begun,
    /// Nothing is on it.
    Done,
}

/// A reason for which a disk is not added to a disk group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Several disk groups select it.
    SeveralGroups(Vec<VgName>),
    /// The kernel refuses to write to it.
    ReadOnly,
    /// Something uses it.
    InUse(Use),
    /// An unknown program holds an exclusive claim on it.
    Claimed,
    /// It, or its medium, is removable, and the group does not accept such disks.
    Removable,
    /// It is attached over a network, and the group does not accept such disks.
    Network(&'static str),
    /// Other disks have the same world-wide identity: they are paths to the same disk.
    SeveralPaths(Vec<String>),
    /// It is a physical volume of another group, or of none.
    PhysicalVolume(Option<VgName>),
    /// It has the signature of this format.
    Signature(String),
    /// It is not blank: there is data from this byte on.
    Data(u64),
    /// It could not be read.
    Unreadable(String),
    /// The group has as many disks as it may have.
    GroupFull(u32),
    /// The volume group exists without the tag of the disk group.
    GroupNotOurs {
        /// The group.
        vg: VgName,
        /// The tag that it lacks.
        tag: String,
    },
    /// The volume group that it is in, or that has the name of the disk group, is that of another machine.
    OtherMachine {
        /// The group.
        vg: VgName,
        /// The tag of the other machine.
        tag: String,
    },
    /// The volume group lacks physical volumes.
    GroupIncomplete(VgName, u64),
    /// A disk of the volume group is read-only, so that its metadata could not be changed everywhere.
    GroupReadOnly {
        /// The group.
        vg: VgName,
        /// The disk that is read-only.
        disk: String,
    },
    /// The disk group that selects it is for nodes with other labels.
    OtherNodes {
        /// The disk group.
        group: VgName,
        /// The nodes that it is for.
        nodes: NodeSelector,
    },
    /// The disk group that selects it is for nodes with these labels, and the labels of this node are not known yet.
    NodeLabelsUnknown {
        /// The disk group.
        group: VgName,
        /// The nodes that it is for.
        nodes: NodeSelector,
    },
    /// LVM refused it, or something changed at the last moment.
    Failed(String),
}

/// A disk group and its volume group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupFinding {
    /// Its name.
    pub name: VgName,
    /// The treatment of new disks.
    pub mode: Mode,
    /// The nodes that it is for.
    pub nodes: NodeSelector,
    /// True if this node is one of them; `None` while its labels are not known.
    pub is_for_node: Option<bool>,
    /// True if the volume group exists.
    pub exists: bool,
    /// True if the volume group carries the tag by which lvmd may extend it.
    pub is_ours: bool,
    /// Number of its disks, with those that are missing.
    pub disks: u64,
    /// Number of its disks that are missing.
    pub missing: u64,
}

impl DiskState {
    /// Returns the state as a keyword, which never changes.
    pub fn keyword(&self) -> &'static str {
        match self {
            Self::NotSelected => "not-selected",
            Self::Member { has_grown: false, .. } => "member",
            Self::Member { has_grown: true, .. } => "member-has-grown",
            Self::Candidate => "candidate",
            Self::Refused(_) => "refused",
        }
    }

    /// Returns the reasons for which a disk is not added.
    pub fn refusals(&self) -> &[Refusal] {
        if let Self::Refused(reasons) = self { reasons } else { &[] }
    }
}

impl Refusal {
    /// Returns the reason as the value of a label.
    pub fn label(&self) -> &'static str {
        match self {
            Self::SeveralGroups(_) => "several_groups",
            Self::ReadOnly => "read_only",
            Self::InUse(_) | Self::Claimed => "in_use",
            Self::Removable => "removable",
            Self::Network(_) => "network",
            Self::SeveralPaths(_) => "several_paths",
            Self::PhysicalVolume(_) => "physical_volume",
            Self::Signature(_) => "signature",
            Self::Data(_) => "data",
            Self::Unreadable(_) => "unreadable",
            Self::GroupFull(_) => "group_full",
            Self::GroupNotOurs { .. } => "group_not_ours",
            Self::OtherMachine { .. } => "other_machine",
            Self::GroupIncomplete(..) => "group_incomplete",
            Self::GroupReadOnly { .. } => "group_read_only",
            Self::OtherNodes { .. } => "other_nodes",
            Self::NodeLabelsUnknown { .. } => "node_labels_unknown",
            Self::Failed(_) => "failed",
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SeveralGroups(groups) => {
                let names: Vec<_> = groups.iter().map(VgName::as_str).collect();
                write!(
                    f,
                    "several disk groups select it: {}; make their selectors exclude each other",
                    names.join(", ")
                )
            }
            Self::ReadOnly => f.write_str("it is read-only"),
            Self::InUse(usage) => write!(f, "in use: {usage}"),
            Self::Claimed => f.write_str("in use: another program has opened it exclusively"),
            Self::Removable => {
                f.write_str("it is removable; only a disk group that lists its transport in transports adds it")
            }
            Self::Network(transport) => {
                write!(
                    f,
                    "it is attached by {transport}; only a disk group that lists this transport in transports adds it"
                )
            }
            Self::SeveralPaths(others) => write!(f, "it is the same disk as {}", others.join(", ")),
            Self::PhysicalVolume(Some(vg)) => write!(f, "it belongs to volume group {vg}"),
            Self::PhysicalVolume(None) => f.write_str(
                "it is a physical volume without a volume group; if it is not needed, make it blank with `pvremove`",
            ),
            Self::Signature(format) => write!(f, "has a signature: {format}"),
            Self::Data(offset) => write!(
                f,
                "it is not blank: it has data at byte {offset}; if the data is not needed, make it blank with \
                 `blkdiscard --zeroout`"
            ),
            Self::Unreadable(why) => write!(f, "it cannot be examined: {why}"),
            Self::GroupFull(most) => write!(f, "the group has reached max-disks ({most})"),
            Self::GroupNotOurs { vg, tag } => {
                write!(
                    f,
                    "volume group {vg} does not belong to the disk group; to assign it, run `vgchange --addtag {tag} \
                     {vg}`"
                )
            }
            Self::OtherMachine { vg, tag } => write!(
                f,
                "volume group {vg} belongs to another machine (tag {tag}); if no other machine uses it any more, run \
                 `vgchange --deltag {tag} {vg}`"
            ),
            Self::GroupIncomplete(vg, missing) => write!(f, "{missing} disks of volume group {vg} are missing"),
            Self::GroupReadOnly { vg, disk } => write!(f, "disk {disk} of volume group {vg} is read-only"),
            Self::OtherNodes { group, nodes } => {
                write!(f, "disk group {group} applies to nodes with the labels {nodes}, which this node does not have")
            }
            Self::NodeLabelsUnknown { group, nodes } => write!(
                f,
                "disk group {group} applies to nodes with the labels {nodes}, and topolvm-node has not reported the \
                 labels of this node yet"
            ),
            Self::Failed(why) => write!(f, "it could not be added: {why}"),
        }
    }
}

impl DiskFinding {
    /// Describes the state in one sentence. `mode` is that of the group, if it has one.
    pub fn describe(&self, mode: Option<Mode>) -> String {
        let group = self.group.as_ref().map_or("", VgName::as_str);
        match (&self.state, mode) {
            (DiskState::NotSelected, _) => "no disk group selects it".to_owned(),
            (DiskState::Member { evacuation: Some(Evacuation::Begun), .. }, _) => {
                format!("belongs to disk group {group}; its volumes are being moved to other disks of the group")
            }
            (DiskState::Member { evacuation: Some(Evacuation::Done), .. }, _) => {
                format!("belongs to disk group {group}; it is empty, and no volumes are allocated on it")
            }
            (DiskState::Member { has_grown: false, .. }, _) => format!("belongs to disk group {group}"),
            (DiskState::Member { has_grown: true, .. }, Some(Mode::Auto)) => {
                format!("belongs to disk group {group} and has grown; the group is extended")
            }
            (DiskState::Member { has_grown: true, .. }, _) => {
                format!(
                    "belongs to disk group {group} and has grown; extend the group with `pvresize {}`",
                    self.disk.path
                )
            }
            (DiskState::Candidate, Some(Mode::Auto)) => format!("is added to disk group {group}"),
            (DiskState::Candidate, _) => format!("would be added to disk group {group} (mode is report)"),
            (DiskState::Refused(reasons), _) => reasons.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "),
        }
    }
}

impl GroupFinding {
    /// Describes whether the group takes disks of this node.
    pub fn describe_place(&self) -> &'static str {
        match (self.is_for_node, self.exists) {
            (Some(true), _) => "applies to this node",
            (Some(false), false) => "does not apply to this node",
            (Some(false), true) => "does not apply to this node: it keeps its disks and gets no new disks",
            (None, _) => "waits for the labels of this node and gets no new disks until then",
        }
    }
}

impl DiskReport {
    /// Returns the mode of the group of a finding.
    pub fn mode_of(&self, finding: &DiskFinding) -> Option<Mode> {
        let group = finding.group.as_ref()?;
        self.groups.iter().find(|known| known.name == *group).map(|known| known.mode)
    }
}
