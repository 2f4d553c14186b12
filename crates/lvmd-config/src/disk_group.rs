//! Disk groups: which disks may become a part of which volume group, and who adds them.

mod node_labels;
mod overlap;
mod selector;

use std::time::Duration;

use lvm::{InvalidName, Tag, VgName};

pub use node_labels::{InvalidLabel, NodeLabels, NodeSelector, WantedLabel, parse_node_labels};
pub use selector::{Pattern, Selector};

/// Begins the tag of a volume group and of a thin pool that lvmd may extend; the name of the disk group follows.
const OWNED: &str = "topolvm.io/disk-group=";

/// The treatment of a disk that could be added to a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// It is reported.
    #[default]
    Report,
    /// It is added.
    Auto,
}

impl Mode {
    /// Returns its keyword in the configuration.
    pub const fn keyword(self) -> &'static str {
        match self {
            Self::Report => "report",
            Self::Auto => "auto",
        }
    }
}

/// One disk group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskGroup {
    /// Its name, which is that of its volume group.
    pub name: VgName,
    /// The treatment of new disks.
    pub mode: Mode,
    /// The disks that it is for.
    pub selector: Selector,
    /// The nodes that it is for.
    pub node_labels: NodeSelector,
    /// Number of disks that it may have; `None` for any.
    pub max_disks: Option<u32>,
}

/// All disk groups of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiskGroups {
    /// The groups, in the order of the configuration.
    pub groups: Vec<DiskGroup>,
    /// Time between two scans of all disks; `None` to scan after kernel events only.
    pub rescan_interval: Option<Duration>,
    /// Time for which a disk must be seen blank and unused before it is added.
    pub settle_time: Duration,
}

impl DiskGroup {
    /// Returns the tag of the group's volume group.
    pub fn tag(&self) -> Result<Tag, InvalidName> {
        disk_group_tag(&self.name)
    }
}

/// Returns the tag of the volume group of the disk group with this name.
pub fn disk_group_tag(name: &VgName) -> Result<Tag, InvalidName> {
    format!("{OWNED}{name}").parse()
}

impl DiskGroups {
    /// Returns the group of this name.
    pub fn get(&self, name: &VgName) -> Option<&DiskGroup> {
        self.groups.iter().find(|group| group.name == *name)
    }

    /// Returns of each group whether it is for a node with these labels; `None` of those that wait for them.
    pub fn placements(&self, labels: Option<&NodeLabels>) -> Vec<Option<bool>> {
        self.groups.iter().map(|group| group.node_labels.selects(labels)).collect()
    }

    /// Returns the first two groups that select the same disks of some node whatever disks there are.
    pub(crate) fn find_overlap(&self) -> Option<(&DiskGroup, &DiskGroup)> {
        let pairs = self
            .groups
            .iter()
            .enumerate()
            .flat_map(|(index, one)| self.groups.iter().skip(index + 1).map(move |other| (one, other)));
        let share_nodes = |one: &DiskGroup, other: &DiskGroup| !one.node_labels.excludes(&other.node_labels);
        pairs
            .into_iter()
            .find(|(one, other)| share_nodes(one, other) && overlap::is_certain(&one.selector, &other.selector))
    }
}
