//! The smallest size of a volume for each volume mode and filesystem (`--minimum-allocation-*`). Pure.
//!
//! CreateVolume and GetCapacity need it, the pod webhook, which adds up what the volumes of a pod will take, and the
//! reservations of claims.

mod args;

use topolvm_api::FILESYSTEMS;

pub use args::MinimumAllocation;

/// StorageClass parameters that name the filesystem for external-provisioner; the second is the older one. It compares
/// their names in lower case and refuses a class that has both.
const FILESYSTEM_PARAMETERS: [&str; 2] = ["csi.storage.k8s.io/fstype", "fstype"];

/// Kubernetes' `volumeMode`, with the filesystem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VolumeMode {
    /// A device.
    Block,
    /// With this filesystem; empty is the node's default.
    Filesystem(String),
}

impl MinimumAllocation {
    /// Returns the smallest size in bytes for a volume mode; 0 for a filesystem that is not made.
    #[must_use]
    pub fn for_mode(&self, mode: &VolumeMode) -> u64 {
        match mode {
            VolumeMode::Block => self.block,
            VolumeMode::Filesystem(filesystem) => match filesystem.as_str() {
                "" | "ext4" => self.ext4,
                "xfs" => self.xfs,
                "btrfs" => self.btrfs,
                _ => 0,
            },
        }
    }
}

/// Returns whether a StorageClass parameter of this name selects the filesystem.
pub fn is_filesystem_parameter(name: &str) -> bool {
    FILESYSTEM_PARAMETERS.iter().any(|parameter| name.eq_ignore_ascii_case(parameter))
}

/// Returns the filesystem that these parameters of a StorageClass name; empty where they leave it to the node.
pub fn filesystem_parameter<'a>(parameters: impl IntoIterator<Item = (&'a String, &'a String)>) -> &'a str {
    let mut named = parameters.into_iter().filter(|(name, _)| is_filesystem_parameter(name));
    named.next().map_or("", |(_, filesystem)| filesystem)
}

/// Returns whether the agents can make a filesystem of this name; the empty name leaves it to them. The name goes to
/// mkfs and to the kernel as it is, and theirs are in lower case.
pub fn is_supported_filesystem(name: &str) -> bool {
    name.is_empty() || FILESYSTEMS.contains(&name)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(VolumeMode::Block, 8)]
    #[case(VolumeMode::Filesystem(String::new()), 32)]
    #[case(VolumeMode::Filesystem("ext4".to_owned()), 32)]
    #[case(VolumeMode::Filesystem("xfs".to_owned()), 300)]
    #[case(VolumeMode::Filesystem("btrfs".to_owned()), 200)]
    #[case(VolumeMode::Filesystem("XFS".to_owned()), 0)]
    #[case(VolumeMode::Filesystem("zfs".to_owned()), 0)]
    fn the_minimum_depends_on_the_volume_mode_and_the_filesystem(#[case] mode: VolumeMode, #[case] minimum: u64) {
        let minimums = MinimumAllocation { block: 8, ext4: 32, xfs: 300, btrfs: 200 };
        assert_eq!(minimums.for_mode(&mode), minimum);
    }
}
