//! The specification of a cluster with the product.

use std::fmt::Write as _;
use std::path::PathBuf;

use anyhow::{Context, Result};
use topolvm_api::ApiFlavor;

use super::kustomization::manifests;
use crate::cluster::ClusterSpec;
use crate::node::NodeSpec;
use crate::sidecars::Sidecar;
use crate::size::GIB;

/// Volume group of [`TopolvmSpec::with_thin_class`].
pub const THIN_VG: &str = "thinvg";
/// Thin pool of [`TopolvmSpec::with_thin_class`].
pub const THIN_POOL: &str = "pool0";
/// Device class of [`TopolvmSpec::with_thin_class`].
pub const THIN_CLASS: &str = "thin";
/// Overprovision ratio of [`TopolvmSpec::with_thin_class`].
pub const THIN_OVERPROVISION: u64 = 20;

/// Device classes of [`TopolvmSpec::with_raid_classes`], and their volume groups. Volumes of the first are mirrored;
/// those of the second by the class `mirrored` of options for lvcreate.
pub const RAID_CLASSES: [&str; 2] = ["raid", "plain"];

/// lvmd.yaml with one device class on the volume group that every node of the test bed has. The spare is 0, so that
/// sizes are easy to calculate.
const DEFAULT_LVMD_CONFIG: &str = "\
socket-name: /run/topolvm/lvmd.sock
lvm-command-prefix: [/sbin/lvm]
device-classes:
- {name: ssd, volume-group: myvg1, default: true, spare-gb: 0}
";

/// The specification of a cluster with the product.
#[derive(Debug, Clone)]
pub struct TopolvmSpec {
    /// API group of all programs.
    pub flavor: ApiFlavor,
    /// The cluster without the product.
    pub cluster: ClusterSpec,
    /// The nodes.
    pub nodes: Vec<NodeSpec>,
    /// Directory of the product's programs.
    pub programs: PathBuf,
    /// Shell script that runs in each node before lvmd starts, and again when the programs are started after a restart
    /// of the node.
    pub node_script: String,
    /// Directory of the kustomization to apply.
    pub manifests: PathBuf,
    /// The file lvmd.yaml of all nodes.
    pub lvmd_config: String,
    /// True if topolvm-controller as a process does the work of the sidecars.
    pub embeds_controllers: bool,
    /// The sidecars to start.
    pub sidecars: Vec<Sidecar>,
    /// Further arguments of topolvm-controller.
    pub controller_arguments: Vec<String>,
    /// Further arguments of topolvm-node.
    pub node_arguments: Vec<String>,
    /// Embedded lvmd, in the process of topolvm-node.
    pub embed_lvmd: bool,
    /// Pods of the manifests run the product and its sidecars, with their roles; the cluster must have the images.
    /// Without, its programs are processes of the test bed, which tests can kill and replace, and the manifests'
    /// workloads are left out.
    pub in_pods: bool,
}

impl TopolvmSpec {
    /// Returns a specification with this number of standard nodes, the programs in this program's directory, and no
    /// sidecars: topolvm-controller does their work.
    pub fn nodes(number: u8) -> Result<Self> {
        Ok(Self {
            flavor: ApiFlavor::TopoLvm,
            cluster: ClusterSpec::default(),
            nodes: (1..=number).map(NodeSpec::number).collect(),
            programs: built_programs()?,
            node_script: String::new(),
            manifests: manifests().join("base"),
            lvmd_config: DEFAULT_LVMD_CONFIG.to_owned(),
            embeds_controllers: true,
            sidecars: Vec::new(),
            controller_arguments: Vec::new(),
            node_arguments: Vec::new(),
            embed_lvmd: false,
            in_pods: false,
        })
    }

    /// Sets the older API group: its manifests, and programs that use it.
    #[must_use]
    pub fn legacy(mut self) -> Self {
        self.flavor = ApiFlavor::Legacy;
        self.manifests = manifests().join("overlays/legacy");
        self
    }

    /// Replaces the controllers in topolvm-controller by csi-provisioner, csi-resizer and, where there are snapshots,
    /// csi-snapshotter.
    #[must_use]
    pub fn with_sidecars(mut self) -> Self {
        self.embeds_controllers = false;
        let has_snapshots = self.sidecars.contains(&Sidecar::SnapshotController);
        self.sidecars.extend([Sidecar::Provisioner, Sidecar::Resizer]);
        self.sidecars.extend(has_snapshots.then_some(Sidecar::Snapshotter));
        self
    }

    /// Adds snapshots: snapshot-controller with its definitions, and csi-snapshotter unless topolvm-controller does its
    /// work.
    #[must_use]
    pub fn with_snapshots(mut self) -> Self {
        self.sidecars.push(Sidecar::SnapshotController);
        self.sidecars.extend((!self.embeds_controllers).then_some(Sidecar::Snapshotter));
        self
    }

    /// Sets the flags of TopoLVM's chart for csi-provisioner: without `--strict-topology` above all. After
    /// [`with_sidecars`](Self::with_sidecars).
    #[must_use]
    pub fn with_upstream_provisioner(mut self) -> Self {
        for sidecar in &mut self.sidecars {
            if *sidecar == Sidecar::Provisioner {
                *sidecar = Sidecar::UpstreamProvisioner;
            }
        }
        self
    }

    /// The environment that sets the flavor of the programs.
    pub(super) fn environment(&self) -> Option<(String, String)> {
        (self.flavor == ApiFlavor::Legacy).then(|| ("USE_LEGACY".to_owned(), "true".to_owned()))
    }

    /// Adds the device class [`THIN_CLASS`]: a thin pool of 6 GiB, overprovisioned [`THIN_OVERPROVISION`] times, in the
    /// volume group [`THIN_VG`] on a separate disk.
    #[must_use]
    pub fn with_thin_class(mut self) -> Self {
        for node in &mut self.nodes {
            node.spare_disks.insert(0, 8 * GIB);
        }
        // Spare disks come after the one of the volume group
        let disk = "/dev/ubdd";
        // Writing to text cannot fail
        let _written = writeln!(
            self.node_script,
            "vgs {THIN_VG} >/dev/null 2>&1 || \
             {{ vgcreate -q {THIN_VG} {disk} && lvcreate -qy -L6g -T {THIN_VG}/{THIN_POOL}; }}"
        );
        let _written = writeln!(
            self.lvmd_config,
            "- {{name: {THIN_CLASS}, volume-group: {THIN_VG}, spare-gb: 0, type: thin, \
             thin-pool: {{name: {THIN_POOL}, overprovision-ratio: {THIN_OVERPROVISION}}}}}"
        );
        self
    }

    /// Adds the device classes [`RAID_CLASSES`], each in a volume group of the same name on two disks of 512 MiB. After
    /// [`with_thin_class`](Self::with_thin_class).
    #[must_use]
    pub fn with_raid_classes(mut self) -> Self {
        for node in &mut self.nodes {
            node.spare_disks.extend([GIB / 2; 4]);
        }
        for (group, disks) in RAID_CLASSES.iter().zip(["/dev/ubde /dev/ubdf", "/dev/ubdg /dev/ubdh"]) {
            // Writing to text cannot fail
            let _written = writeln!(self.node_script, "vgs {group} >/dev/null 2>&1 || vgcreate -q {group} {disks}");
            let _written = write!(self.lvmd_config, "- {{name: {group}, volume-group: {group}, spare-gb: 0");
            self.lvmd_config += if *group == "raid" { ", lvcreate-options: [--type=raid1]}\n" } else { "}\n" };
        }
        self.lvmd_config += "lvcreate-option-classes:\n- {name: mirrored, options: [--type=raid1]}\n";
        self
    }
}

/// Returns the directory of the workspace's programs, where cargo puts them: the directory of this program, or its
/// parent when this is a test.
fn built_programs() -> Result<PathBuf> {
    let program = std::env::current_exe().context("find this program's file")?;
    let mut directory = program.parent().context("this program is in no directory")?;
    if directory.ends_with("deps") {
        directory = directory.parent().context("this program is in no directory")?;
    }
    Ok(directory.to_owned())
}
