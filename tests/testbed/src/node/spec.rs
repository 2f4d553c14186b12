//! The specification of a node: name, address, disks, memory.

use std::collections::BTreeMap;
use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::size::GIB;

/// The specification of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeSpec {
    /// Name in Kubernetes, and of the directory below `nodes`.
    pub name: String,
    /// Address, from 10.77.0.2 to 10.77.0.254. Its pods are in 10.244.N.0/24, N being the last number.
    pub address: Ipv4Addr,
    /// Sizes in bytes of the disks of the volume group `myvg1`: `/dev/ubdc`, `/dev/ubdd`, ... Only written blocks take
    /// memory of the machine.
    pub vg_disks: Vec<u64>,
    /// Sizes in bytes of blank disks that nothing uses, after those of `myvg1`.
    pub spare_disks: Vec<u64>,
    /// Memory in bytes. Only used memory is taken from the machine.
    pub memory: u64,
    /// RAID 6 in the kernel, which then measures at boot which of its algorithms is the fastest, for 0.9 s. Without, a
    /// RAID 6 volume crashes the node.
    pub raid6: bool,
    /// CPU that the guest is pinned to; the one with the fewest guests when not given.
    pub cpu: Option<usize>,
    /// Labels of the Node, set by kubelet, which refuses most labels under `kubernetes.io`.
    pub labels: BTreeMap<String, String>,
    /// Lines of kubelet's configuration in addition to those that the node needs.
    pub kubelet_config: String,
}

/// Alpha calls of CSI, and volumes measured every 10 to 20 seconds, so that tests need not wait: by default a kubelet
/// makes none and measures every one to two minutes.
const KUBELET_CONFIG: &str = "featureGates: {CSIVolumeHealth: true}\nvolumeStatsAggPeriod: 10s\n";

impl NodeSpec {
    /// Returns the specification of `node1` at 10.77.0.11, and so on up to 240: one disk of 8 GiB in `myvg1`, 2 GiB of
    /// memory.
    pub fn number(number: u8) -> Self {
        Self {
            name: format!("node{number}"),
            address: Ipv4Addr::new(10, 77, 0, number.saturating_add(10)),
            vg_disks: vec![8 * GIB],
            spare_disks: Vec::new(),
            memory: 2 * GIB,
            raid6: false,
            cpu: None,
            labels: BTreeMap::new(),
            kubelet_config: KUBELET_CONFIG.to_owned(),
        }
    }

    /// Returns the path of the last disk, after those of kubelet and containerd and of the volume group.
    pub fn last_disk(&self) -> Result<String> {
        let index = u8::try_from(1 + self.vg_disks.len() + self.spare_disks.len())?;
        Ok(format!("/dev/ubd{}", char::from(b'a' + index)))
    }

    pub(super) fn read(directory: &Path) -> Result<Self> {
        let path = directory.join(FILE);
        let text = fs::read(&path).with_context(|| format!("read {}", path.display()))?;
        serde_json::from_slice(&text).with_context(|| format!("{} is damaged", path.display()))
    }

    pub(super) fn write(&self, directory: &Path) -> Result<()> {
        let text = serde_json::to_vec_pretty(self).context("write the specification as JSON")?;
        fs::write(directory.join(FILE), text).with_context(|| format!("write to {}", directory.display()))
    }
}

const FILE: &str = "spec.json";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_numbered_from_10_77_0_11() {
        let spec = NodeSpec::number(2);
        assert_eq!((spec.name.as_str(), spec.address.to_string().as_str()), ("node2", "10.77.0.12"));
    }
}
