//! The growth of a thin pool that fills up: when it is due, and how far it goes.

use lvm::{LogicalVolume, PoolSizes};

use super::pool_space::{GrowthSpace, MAX_METADATA, max_metadata_percent, round_down, round_up};

/// Percentage points by which metadata grow before LVM makes no volumes any more.
const METADATA_LEAD: f64 = 5.0;

/// `grow-at-percent` and what belongs to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolGrowth {
    /// Percentage of its data or metadata from which on the pool grows.
    pub at_percent: u32,
    /// Percentage of its size by which it grows.
    pub by_percent: u32,
    /// Bytes of data beyond which it does not grow.
    pub maximum: Option<u64>,
}

/// The growth that is due.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct DueGrowth {
    /// The sizes that the pool grows to.
    pub(super) sizes: PoolSizes,
    /// The first reason why it does not grow although it should.
    pub(super) limit: Option<Limit>,
}

/// A reason why a pool does not grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Limit {
    /// `maximum-size-gb`.
    Maximum,
    /// The volume group, less what its thick class keeps.
    Space,
    /// dm-thin has no more metadata.
    Metadata,
}

impl PoolGrowth {
    /// Returns the growth that the fill of a pool requires; nothing while the pool is inactive. Each growth brings the
    /// fill below the threshold, unless a limit stops it before. Then the next growth is due only after more space
    /// becomes free.
    pub(super) fn due(&self, pool: &LogicalVolume, space: &GrowthSpace) -> DueGrowth {
        let metadata = self.due_metadata(pool, space);
        let spent = metadata.ok().flatten().map_or(0, |bytes| cost(pool, bytes));
        let left = GrowthSpace { bytes: space.bytes.saturating_sub(spent), extent: space.extent };
        let data = self.due_data(pool, &left);
        DueGrowth {
            sizes: PoolSizes { data: data.ok().flatten(), metadata: metadata.ok().flatten() },
            limit: metadata.err().or_else(|| data.err()),
        }
    }

    fn due_data(&self, pool: &LogicalVolume, space: &GrowthSpace) -> Result<Option<u64>, Limit> {
        let at = f64::from(self.at_percent);
        let Some(percent) = pool.data_percent.filter(|percent| *percent >= at) else { return Ok(None) };
        let maximum = round_down(self.maximum.unwrap_or(u64::MAX), space.extent);
        if maximum <= pool.size {
            return Err(Limit::Maximum);
        }
        let wanted = self.enough(pool.size, percent, at, space.extent).min(maximum);
        let bytes = wanted.min(pool.size.saturating_add(space.bytes));
        if bytes > pool.size { Ok(Some(bytes)) } else { Err(Limit::Space) }
    }

    fn due_metadata(&self, pool: &LogicalVolume, space: &GrowthSpace) -> Result<Option<u64>, Limit> {
        let Some((percent, size)) = pool.metadata_percent.zip(pool.metadata_size) else { return Ok(None) };
        let at = f64::from(self.at_percent).min(max_metadata_percent(pool) - METADATA_LEAD);
        if percent < at {
            return Ok(None);
        }
        let maximum = round_down(MAX_METADATA, space.extent);
        if maximum <= size {
            return Err(Limit::Metadata);
        }
        let wanted = self.enough(size, percent, at, space.extent).min(maximum);
        // LVM keeps as many bytes again for their repair
        let bytes = wanted.min(size.saturating_add(round_down(space.bytes / 2, space.extent)));
        if bytes > size { Ok(Some(bytes)) } else { Err(Limit::Space) }
    }

    /// Returns the size by which the fill comes below the threshold, and which is larger by the percentage that the
    /// administrator wants.
    fn enough(&self, size: u64, percent: f64, at: f64, extent: u64) -> u64 {
        let larger = u128::from(size) * u128::from(self.by_percent.saturating_add(100)) / 100;
        let larger = u64::try_from(larger).unwrap_or(u64::MAX);
        let below = scale(size, percent / at).saturating_add(extent);
        round_up(larger.max(below), extent).unwrap_or(u64::MAX)
    }
}

/// Returns the bytes that metadata of this size take of the group beyond what they have now.
fn cost(pool: &LogicalVolume, metadata: u64) -> u64 {
    metadata.saturating_sub(pool.metadata_size.unwrap_or(0)).saturating_mul(2)
}

#[expect(
    clippy::as_conversions,
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the fill is known in percent only"
)]
fn scale(bytes: u64, factor: f64) -> u64 {
    (bytes as f64 * factor) as u64
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;
    const EXTENT: u64 = 4 * MIB;
    const GROWTH: PoolGrowth = PoolGrowth { at_percent: 80, by_percent: 20, maximum: None };

    fn pool(size: u64, data: f64, metadata: f64) -> LogicalVolume {
        LogicalVolume {
            name: "pool".into(),
            uuid: "u".into(),
            path: "".into(),
            size,
            device: None,
            origin: None,
            origin_size: None,
            pool: None,
            tags: Box::default(),
            attr: "twi-aotz--".parse().unwrap(),
            data_percent: Some(data),
            metadata_percent: Some(metadata),
            metadata_size: Some(64 * MIB),
            segment: None,
        }
    }

    fn due(growth: PoolGrowth, pool: &LogicalVolume, space: u64) -> (Option<u64>, Option<u64>, Option<Limit>) {
        let DueGrowth { sizes, limit } = growth.due(pool, &GrowthSpace { bytes: space, extent: EXTENT });
        (sizes.data, sizes.metadata, limit)
    }

    #[rstest]
    // By a fifth, in whole extents
    #[case(79.99, u64::MAX, (None, None, None))]
    #[case(80.0, u64::MAX, (Some(12 * GIB), None, None))]
    // A pool that has filled up meanwhile grows as far as it must, in one step
    #[case(99.9, u64::MAX, (Some(12_792 * MIB), None, None))]
    // As far as there is space
    #[case(80.0, GIB, (Some(11 * GIB), None, None))]
    #[case(80.0, EXTENT, (Some(10 * GIB + EXTENT), None, None))]
    #[case(80.0, 0, (None, None, Some(Limit::Space)))]
    fn data_grow_from_the_threshold_on(
        #[case] percent: f64,
        #[case] space: u64,
        #[case] expected: (Option<u64>, Option<u64>, Option<Limit>),
    ) {
        assert_eq!(due(GROWTH, &pool(10 * GIB, percent, 1.0), space), expected);
    }

    #[test]
    fn a_growth_brings_the_fill_below_the_threshold() {
        for percent in [80.0, 85.5, 92.0, 96.0, 96.1, 99.99, 100.0] {
            for size in [EXTENT, 100 * MIB, 10 * GIB, 3 << 40] {
                let (data, ..) = due(GROWTH, &pool(size, percent, 1.0), u64::MAX);
                let data = data.unwrap();
                assert!(data > scale(size, percent / 80.0), "{percent} {size} {data}");
                assert_eq!(data % EXTENT, 0);
            }
        }
    }

    #[test]
    fn the_maximum_is_kept_and_said() {
        let growth = PoolGrowth { maximum: Some(11 * GIB), ..GROWTH };
        assert_eq!(due(growth, &pool(10 * GIB, 90.0, 1.0), u64::MAX), (Some(11 * GIB), None, None));
        assert_eq!(due(growth, &pool(11 * GIB, 90.0, 1.0), u64::MAX), (None, None, Some(Limit::Maximum)));
        assert_eq!(due(growth, &pool(12 * GIB, 90.0, 1.0), u64::MAX), (None, None, Some(Limit::Maximum)));
        assert_eq!(due(growth, &pool(12 * GIB, 79.0, 1.0), u64::MAX), (None, None, None));
    }

    #[test]
    fn metadata_grow_on_their_own_and_take_twice_the_space() {
        let metadata = |percent, space| due(GROWTH, &pool(10 * GIB, 1.0, percent), space);
        assert_eq!(metadata(80.0, u64::MAX), (None, Some(80 * MIB), None));
        assert_eq!(metadata(79.9, u64::MAX), (None, None, None));
        assert_eq!(metadata(80.0, 3 * EXTENT), (None, Some(68 * MIB), None));
        assert_eq!(metadata(80.0, EXTENT), (None, None, Some(Limit::Space)));
        let most = LogicalVolume { metadata_size: Some(MAX_METADATA), ..pool(10 * GIB, 1.0, 95.0) };
        assert_eq!(due(GROWTH, &most, u64::MAX), (None, None, Some(Limit::Metadata)));
    }

    #[test]
    fn small_metadata_grow_before_lvm_makes_no_more_volumes() {
        let small = |percent| LogicalVolume { metadata_size: Some(8 * MIB), ..pool(10 * GIB, 1.0, percent) };
        assert_eq!(due(GROWTH, &small(69.9), u64::MAX), (None, None, None));
        assert_eq!(due(GROWTH, &small(70.0), u64::MAX), (None, Some(12 * MIB), None));
    }

    #[test]
    fn data_have_what_metadata_leave() {
        let both = pool(10 * GIB, 80.0, 80.0);
        assert_eq!(due(GROWTH, &both, u64::MAX), (Some(12 * GIB), Some(80 * MIB), None));
        assert_eq!(due(GROWTH, &both, 32 * MIB), (None, Some(80 * MIB), Some(Limit::Space)));
    }

    #[test]
    fn an_inactive_pool_does_not_grow() {
        let inactive = LogicalVolume { data_percent: None, metadata_percent: None, ..pool(10 * GIB, 0.0, 0.0) };
        assert_eq!(due(GROWTH, &inactive, u64::MAX), (None, None, None));
    }
}
