//! The thin pool of a device class, and when LVM refuses to create volumes in it.

use lvm::{LogicalVolume, LvName, Problem, VolumeGroup};

use super::overprovision::OverprovisionRatio;
use super::pool_growth::PoolGrowth;
use super::pool_share::PoolShare;
use super::pool_space::max_metadata_percent;

/// The thin pool of a thin class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThinPool {
    /// Its name in the volume group.
    pub name: LvName,
    /// Its overprovision ratio: the virtual capacity of the pool as a multiple of its size.
    pub overprovision: OverprovisionRatio,
    /// Percentage of its data or metadata above which LVM creates no volumes in it (lvm.conf(5)
    /// `activation/thin_pool_autoextend_threshold`).
    pub threshold: u32,
    /// The part of a disk group of which lvmd makes it; `None` for a pool of the administrator's.
    pub share: Option<PoolShare>,
    /// The growth by its fill; `None` for none.
    pub growth: Option<PoolGrowth>,
}

/// The reason for which LVM creates no volumes in a thin pool, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PoolRefusal {
    /// More space helps.
    Full(String),
    /// Only a repair helps.
    Broken(String),
}

/// LVM's own threshold: a pool takes volumes until it is full.
pub(crate) const DEFAULT_THRESHOLD: u32 = 100;

impl ThinPool {
    /// Returns the pool from a report, if it is in the group and is a thin pool.
    pub fn find<'a>(&self, group: &'a VolumeGroup) -> Option<&'a LogicalVolume> {
        group.volume(self.name.as_str()).filter(|volume| volume.attr.is_thin_pool())
    }

    /// Returns why LVM creates no volumes in this pool now; `None` while it does. The conditions are those of LVM2,
    /// `thin_pool_below_threshold`. The cached fill of the pool is at most some seconds old.
    pub(crate) fn refusal(&self, pool: &LogicalVolume) -> Option<PoolRefusal> {
        match pool.attr.problem() {
            Some(problem @ (Problem::ThinPoolFailed | Problem::CheckNeeded)) => {
                return Some(PoolRefusal::Broken(problem.to_string()));
            }
            // The kernel makes the metadata read-only when they are full.
            Some(problem @ (Problem::ThinPoolOutOfDataSpace | Problem::ThinPoolMetadataReadOnly)) => {
                return Some(PoolRefusal::Full(problem.to_string()));
            }
            Some(_) | None => {}
        }
        let threshold = f64::from(self.threshold.min(DEFAULT_THRESHOLD));
        let max_metadata = max_metadata_percent(pool);
        let (data, metadata) = (pool.data_percent.unwrap_or(0.0), pool.metadata_percent.unwrap_or(0.0));
        if data >= 100.0 || data > threshold {
            Some(PoolRefusal::Full(format!(
                "{data} % of its data space is used, and LVM creates no volumes above {threshold} %"
            )))
        } else if metadata > threshold || metadata >= max_metadata {
            let max = threshold.min(max_metadata);
            Some(PoolRefusal::Full(format!(
                "{metadata} % of its metadata space is used, and LVM creates no volumes above {max:.2} %"
            )))
        } else {
            None
        }
    }
}
