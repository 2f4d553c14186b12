//! Volume groups that LVM of a node finds and that are not the node's: in a tenant's volume, on a disk of another
//! machine.

use std::collections::BTreeMap;
use std::fmt;
use std::fmt::Write as _;

use anyhow::{Result, ensure};
use testbed::node::Node;
use testbed::topolvm::TopolvmSpec;

use super::state::THICK_VG;
use system_tests::isolated_lvm::{DEVICE, RUN_WITH_ONE_DEVICE};

/// Class and volume group that each node is configured for, and that no node has.
const LATE_CLASS: &str = "late";
const LATE_VG: &str = "latevg";
/// Size of the disk in bytes.
const DISK: u64 = 64 << 20;

/// A volume group that is not the node's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ForeignGroup {
    /// It has the name of the default class's group.
    UsedName,
    /// The same, and the system id of another machine.
    UsedNameOfOther,
    /// It has the name of a group that the node is configured for and does not have.
    LateName,
    /// The same, and the system id of another machine.
    LateNameOfOther,
}

impl ForeignGroup {
    /// Groups that a tenant creates.
    pub(super) const OF_TENANTS: [Self; 3] = [Self::UsedName, Self::LateName, Self::LateNameOfOther];
    /// Groups on a disk. Without a system id one with a missing name is the node's, and of two with a used name LVM
    /// uses neither.
    pub(super) const ON_DISKS: [Self; 2] = [Self::UsedNameOfOther, Self::LateNameOfOther];

    const fn name(self) -> &'static str {
        match self {
            Self::UsedName | Self::UsedNameOfOther => THICK_VG,
            Self::LateName | Self::LateNameOfOther => LATE_VG,
        }
    }

    const fn options(self) -> &'static str {
        match self {
            Self::UsedName | Self::LateName => "",
            Self::UsedNameOfOther | Self::LateNameOfOther => "--systemid another-machine",
        }
    }
}

/// A group on a device of a node.
pub(super) struct CreatedGroup<'a> {
    node: &'a Node,
    device: String,
    /// SHA-256 of the label and the metadata.
    before: String,
}

impl<'a> CreatedGroup<'a> {
    /// Creates the group, and removes the hints, so that LVM of the node scans all devices.
    pub(super) fn create(node: &'a Node, group: ForeignGroup, device: &str) -> Result<Self> {
        let count = "rm -f /run/lvm/hints; vgs --foreign --noheadings -o vg_uuid | wc -l";
        let found = node.script(count)?;
        let name = group.name();
        let make = format!("vgcreate -qq {} {name} {DEVICE}", group.options());
        node.script(&format!("unshare -m sh -ec '{RUN_WITH_ONE_DEVICE}' sh {device} {make}"))?;
        let now = node.script(count)?;
        ensure!(now.trim() > found.trim(), "LVM of {} does not see {name} on {device}", node.name());
        let mut created = Self { node, device: device.to_owned(), before: String::new() };
        created.before = created.hash()?;
        Ok(created)
    }

    /// Checks that the group is unchanged and that the node does not offer its free space.
    pub(super) fn check(&self, published: &BTreeMap<String, u64>) -> Result<()> {
        ensure!(self.hash()? == self.before, "the group on {} of {} was changed", self.device, self.node.name());
        ensure!(!published.contains_key(LATE_CLASS), "{} offers the group on {}", self.node.name(), self.device);
        Ok(())
    }

    /// Overwrites the group.
    pub(super) fn remove(self) -> Result<()> {
        let zero = format!("dd if=/dev/zero of={} bs=1M count=1 oflag=direct conv=notrunc status=none", self.device);
        self.node.script(&zero).map(drop)
    }

    fn hash(&self) -> Result<String> {
        self.node.script(&format!("dd if={} bs=1M count=1 iflag=direct status=none | sha256sum", self.device))
    }
}

/// Adds a blank disk to all nodes, their last, and a class whose volume group no node has.
pub(super) fn with_foreign_disk(mut spec: TopolvmSpec) -> TopolvmSpec {
    for node in &mut spec.nodes {
        node.spare_disks.push(DISK);
    }
    // Writing to text cannot fail
    let _written =
        writeln!(spec.lvmd_config, "- {{name: {LATE_CLASS}, volume-group: {LATE_VG}, optional: true, spare-gb: 0}}");
    spec
}

impl fmt::Display for ForeignGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a volume group {}", self.name())?;
        if self.options().is_empty() { Ok(()) } else { write!(f, " of another machine") }
    }
}
