//! Adds up the bytes that the volumes of a pod will take, by device class. Pure.

use std::collections::BTreeMap;

use topolvm_api::{GIB, ParseQuantityError, parse_bytes};
use topolvm_capacity::ClassParameters;
use topolvm_capacity::minimum_allocation::{MinimumAllocation, VolumeMode};

use crate::objects::ClaimSpec;

/// The bytes that count for a claim without a size.
const DEFAULT_SIZE: u64 = GIB;

/// Bytes by device class; the empty name is the node's default class.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RequestedCapacity {
    by_class: BTreeMap<String, u64>,
    in_whole_gib: u64,
}

impl RequestedCapacity {
    /// Adds the volume of a claim: its requested size, but at least the minimum for its mode and filesystem.
    pub(crate) fn add(
        &mut self,
        claim: &ClaimSpec,
        class: &ClassParameters,
        minimums: &MinimumAllocation,
    ) -> Result<(), ParseQuantityError> {
        let requested = claim.size.as_ref().map(parse_bytes).transpose()?;
        let requested = requested.filter(|bytes| *bytes > 0).unwrap_or(DEFAULT_SIZE);
        let mode = if claim.is_block { VolumeMode::Block } else { VolumeMode::Filesystem(class.filesystem.clone()) };
        let bytes = requested.max(minimums.for_mode(&mode));
        let sum = self.by_class.entry(class.classes.device_class.to_string()).or_default();
        *sum = sum.saturating_add(bytes);
        self.in_whole_gib = self.in_whole_gib.saturating_add(whole_gib(bytes)).min(MAX_WHOLE_GIB);
        Ok(())
    }

    /// Returns whether no volume was added.
    pub(crate) fn is_empty(&self) -> bool {
        self.by_class.is_empty()
    }

    /// Returns the bytes of all classes, with each volume rounded up to whole GiB, as TopoLVM before 0.5 had it.
    pub(crate) fn total_in_whole_gib(&self) -> u64 {
        self.in_whole_gib
    }

    /// Iterates over device classes and their bytes.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, u64)> {
        self.by_class.iter().map(|(class, bytes)| (class.as_str(), *bytes))
    }
}

/// The largest quantity in whole GiB, in bytes.
const MAX_WHOLE_GIB: u64 = i64::MAX.unsigned_abs() / GIB * GIB;

/// Rounds bytes up to whole GiB, but not beyond what a quantity can be.
fn whole_gib(bytes: u64) -> u64 {
    bytes.checked_next_multiple_of(GIB).unwrap_or(MAX_WHOLE_GIB).min(MAX_WHOLE_GIB)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use topolvm_api::ApiFlavor;
    use topolvm_testkit::fixtures::{claim, storage_class};

    use super::*;

    const MIB: u64 = 1 << 20;
    const MINIMUMS: MinimumAllocation =
        MinimumAllocation { block: 8 * MIB, ext4: 32 * MIB, xfs: 300 * MIB, btrfs: 200 * MIB };

    fn capacity(size: &str, mode: Option<&str>, filesystem: Option<(&str, &str)>) -> u64 {
        let class = match filesystem {
            Some((key, name)) => storage_class("c").parameter(key, name),
            None => storage_class("c"),
        };
        let class = ClassParameters::from_class(ApiFlavor::TopoLvm, &class.build()).unwrap();
        let mut spec = claim("data").sized(size).build().spec.unwrap();
        spec.volume_mode = mode.map(str::to_owned);
        let mut capacity = RequestedCapacity::default();
        capacity.add(&spec.into(), &class, &MINIMUMS).unwrap();
        total(&capacity)
    }

    fn total(capacity: &RequestedCapacity) -> u64 {
        capacity.iter().map(|(_, bytes)| bytes).fold(0, u64::saturating_add)
    }

    #[rstest]
    #[case::exact("500Mi", None, 500 * MIB)]
    #[case::odd("2147483647", None, 2 * GIB - 1)]
    #[case::nothing_asked("0", None, GIB)]
    #[case::no_filesystem_named("1Mi", None, 32 * MIB)]
    #[case::xfs("1Mi", Some(("csi.storage.k8s.io/fstype", "xfs")), 300 * MIB)]
    #[case::as_older_classes_say_it("1Mi", Some(("fsType", "btrfs")), 200 * MIB)]
    #[case::unknown("1Mi", Some(("csi.storage.k8s.io/fstype", "zfs")), MIB)]
    fn filesystems_count_as_asked_but_not_below_their_minimum(
        #[case] size: &str,
        #[case] filesystem: Option<(&str, &str)>,
        #[case] bytes: u64,
    ) {
        assert_eq!(capacity(size, Some("Filesystem"), filesystem), bytes);
        assert_eq!(capacity(size, None, filesystem), bytes);
    }

    #[test]
    fn raw_block_volumes_have_a_minimum_of_their_own() {
        assert_eq!(capacity("1Mi", Some("Block"), Some(("csi.storage.k8s.io/fstype", "xfs"))), 8 * MIB);
    }

    #[test]
    fn classes_of_other_drivers_are_not_ours() {
        let foreign = storage_class("c").provisioner("ebs.example").build();
        assert_eq!(ClassParameters::from_class(ApiFlavor::TopoLvm, &foreign), None);
        assert_eq!(ClassParameters::from_class(ApiFlavor::Legacy, &storage_class("c").build()), None);
    }

    #[test]
    fn a_sum_beyond_all_numbers_is_the_largest_one() {
        let mut capacity = RequestedCapacity::default();
        let class = ClassParameters::from_class(ApiFlavor::TopoLvm, &storage_class("c").build()).unwrap();
        let wanted = claim("data").sized("9223372036854775807").build().spec.unwrap().into();
        for _ in 0..3 {
            capacity.add(&wanted, &class, &MINIMUMS).unwrap();
        }
        assert_eq!(total(&capacity), u64::MAX);
        assert_eq!(capacity.total_in_whole_gib(), MAX_WHOLE_GIB);
        assert!(i64::try_from(MAX_WHOLE_GIB).is_ok());
    }

    #[rstest]
    #[case::two_of_one_and_a_half(&["1536Mi", "1536Mi"], 4)]
    #[case::whole_ones(&["1Gi", "2Gi"], 3)]
    #[case::one_more_byte(&["1073741825"], 2)]
    #[case::small_ones(&["1Mi", "1Mi", "1Mi"], 3)]
    #[case::nothing_asked(&["0"], 1)]
    fn in_whole_gib_each_volume_counts_separately(#[case] sizes: &[&str], #[case] gib: u64) {
        let mut capacity = RequestedCapacity::default();
        for (size, name) in sizes.iter().zip(["ssd", "hdd"].iter().cycle()) {
            let class =
                ClassParameters::from_class(ApiFlavor::TopoLvm, &storage_class(name).device_class(name).build())
                    .unwrap();
            capacity.add(&claim("data").sized(size).build().spec.unwrap().into(), &class, &MINIMUMS).unwrap();
        }
        assert_eq!(capacity.total_in_whole_gib(), gib * GIB);
    }
}
