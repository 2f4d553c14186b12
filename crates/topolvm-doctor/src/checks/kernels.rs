//! Checks of the nodes' kernels.

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::StorageClass;
use kube_core::ResourceExt;

use super::classes::makes;
use crate::facts::Facts;
use crate::finding::Finding;
use crate::objects::list_names;
use crate::read_error::{ReadError, read};

/// The first version of Linux that knows what mkfs.xfs of the image makes: bigtime and inobtcount.
const XFS_KERNEL: (u32, u32) = (5, 10);

pub(super) fn check(facts: &Facts) -> Result<Vec<Finding>, ReadError> {
    let classes = facts.our_classes()?;
    let makes_xfs = |class: &&&StorageClass| makes(class, "xfs");
    let xfs: Vec<_> = classes.iter().filter(makes_xfs).map(|class| class.name_any()).collect();
    let registered = facts.registered_nodes()?;
    let is_old =
        |node: &&Node| registered.contains(&node.name_any()) && kernel(node).is_some_and(|kernel| kernel < XFS_KERNEL);
    let old: Vec<_> = read(&facts.nodes)?.iter().filter(is_old).map(ResourceExt::name_any).collect();
    let mut findings = Vec::new();
    if !xfs.is_empty() && !old.is_empty() {
        let (major, minor) = XFS_KERNEL;
        findings.push(Finding::fail(
            format!(
                "StorageClass {} uses xfs, but the kernel of {} is older than Linux {major}.{minor}",
                list_names(xfs),
                list_names(old)
            ),
            "upgrade the kernel, or create a StorageClass with the mkfs options -m bigtime=0,inobtcount=0",
        ));
    }
    Ok(Finding::ok_if_none(findings, "all kernels support the filesystems in use"))
}

/// Returns the version of Linux that kubelet reports.
fn kernel(node: &Node) -> Option<(u32, u32)> {
    let version = &node.status.as_ref()?.node_info.as_ref()?.kernel_version;
    let mut numbers = version.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}
