//! Follows the page about cloud disks on a node: a running lvmd offers a disk with an old filesystem as a device class,
//! and the disk grows.

use anyhow::{Context as _, Result, ensure};
use system_tests::commands::{self, Commands};
use system_tests::manifests::{VolumeMode, claim, pod};
use system_tests::shared::TestCluster;
use testbed::node::Node;

/// Configuration of lvmd with the device class of the page, whose group is not there yet.
pub(crate) const LVMD_CONFIG: &str = "\
device-classes:
- {name: ssd, volume-group: myvg1, default: true, spare-gb: 10}
- {name: cloud, volume-group: cloud, spare-gb: 0, optional: true}
";
/// A disk that can be extended: a loop device on a file.
const MAKE_DISK: &str = "truncate -s 1G /var/lib/kubelet/disk && losetup -f /var/lib/kubelet/disk && \
                         losetup -j /var/lib/kubelet/disk | cut -d: -f1 | tr -d '\\n'";
const CAPACITY: &str = ".metadata.annotations.capacity\\.topolvm\\.io/cloud";
const TIMEOUT: &str = "--timeout=180s";

/// Runs the commands of the page where the product is installed with [`LVMD_CONFIG`], and cleans up.
pub(crate) fn check(shared: &TestCluster) -> Result<()> {
    let node = shared.node()?;
    let offered = shared.value("node", node.name(), CAPACITY)?;
    ensure!(offered.is_empty(), "the class is offered without its group: {offered}");

    let disk = node.script(MAKE_DISK)?;
    let listed = Commands::of("cloud-disks.md", "Find the disk")?.run_on(node)?;
    ensure!(listed.contains(disk.trim_start_matches("/dev/")), "{disk} is not in {listed}");
    node.script(&format!("mkfs.ext4 -q {disk}; ! vgcreate -qq cloud {disk} </dev/null 2>&1"))?;
    let signatures = Commands::of("cloud-disks.md", "What is on it")?.set("DISK", &disk).run_on(node)?;
    ensure!(signatures.contains("ext4"), "{signatures}");
    Commands::of("cloud-disks.md", "The volume group")?.set("DISK", &disk).run_on(node)?;
    let before = wait_for_capacity(shared, node, 0)?;
    node.script(&format!("truncate -s 2G /var/lib/kubelet/disk; losetup -c {disk}"))?;
    Commands::of("cloud-disks.md", "Grow the disk")?.set("DISK", &disk).run_on(node)?;
    wait_for_capacity(shared, node, before)?;

    let class = commands::manifests("cloud-disks.md", "The device class and the StorageClass")?;
    shared.cluster.apply(&class)?;
    shared.apply(&claim("cloud", "cloud", "320Mi", VolumeMode::Filesystem))?;
    shared.apply(&pod("cloud", "cloud", VolumeMode::Filesystem))?;
    shared.kubectl(&["wait", "--for=condition=Ready", "pod/cloud", TIMEOUT])?;
    let volumes = node.script("lvs --noheadings -o lv_name cloud")?;
    ensure!(!volumes.trim().is_empty(), "the volume is elsewhere");
    shared.kubectl(&["delete", "pod/cloud", "pvc/cloud", "storageclass/cloud", TIMEOUT])?;
    shared.cluster.ready("apiserver", || {
        let volumes = node.script("lvs --noheadings -o lv_name cloud")?;
        ensure!(volumes.trim().is_empty(), "the volume is left: {volumes}");
        Ok(())
    })?;
    node.script(&format!(
        "vgremove -qq cloud; pvremove -qq {disk}; losetup -d {disk}; rm /var/lib/kubelet/disk /root/wipefs-*.bak"
    ))?;
    Ok(())
}

/// Waits until the class has more bytes than these free, and returns them.
fn wait_for_capacity(shared: &TestCluster, node: &Node, before: u64) -> Result<u64> {
    let more = || {
        let free: u64 = shared.value("node", node.name(), CAPACITY)?.parse().context("the class is not offered")?;
        ensure!(free > before, "{free} bytes are free, as before");
        Ok(free)
    };
    // lvmd checks once a minute for a missing group
    shared.cluster.ready("apiserver", more).or_else(|_| shared.cluster.ready("apiserver", more))
}
