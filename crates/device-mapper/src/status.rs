//! Status lines of targets: thin pool, thin, RAID, mirror.

use std::num::ParseIntError;

/// A status that is not of the expected form.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidStatus {
    /// Too few fields.
    #[error("too few words")]
    Short,
    /// A number is none.
    #[error(transparent)]
    Number(#[from] ParseIntError),
}

/// Status of a `thin-pool` target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThinPoolStatus {
    /// Blocks of metadata in use and in all; `None` when the pool has failed.
    pub metadata: Option<Blocks>,
    /// Blocks of data in use and in all; `None` when the pool has failed.
    pub data: Option<Blocks>,
    /// Number of the last transaction that ended; `None` when the pool has failed.
    pub transaction: Option<u64>,
    /// A program reads the pool's metadata from a snapshot of it (`reserve_metadata_snap`).
    pub has_metadata_snapshot: bool,
    /// All that is neither fill nor transaction: mode, flags, `Fail`.
    pub condition: String,
}

/// Blocks in use and in all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocks {
    /// In use.
    pub used: u64,
    /// In all.
    pub total: u64,
}

impl Blocks {
    /// Returns the used blocks in percent, to two digits after the point as LVM shows it.
    #[expect(clippy::as_conversions, clippy::cast_precision_loss, reason = "a percentage needs no more precision")]
    pub fn percent(self) -> f64 {
        if self.total == 0 { 0.0 } else { (self.used as f64 * 10_000.0 / self.total as f64).round() / 100.0 }
    }
}

impl ThinPoolStatus {
    /// Reads `TRANSACTION USED/TOTAL USED/TOTAL HELD_ROOT MODE ...`, or one keyword if the pool has failed.
    pub fn parse(status: &str) -> Result<Self, InvalidStatus> {
        let words: Vec<_> = status.split_whitespace().collect();
        match words[..] {
            [condition] => Ok(Self {
                metadata: None,
                data: None,
                transaction: None,
                has_metadata_snapshot: false,
                condition: condition.to_owned(),
            }),
            [transaction, metadata, data, held_root, ref condition @ ..] => Ok(Self {
                transaction: Some(transaction.parse()?),
                has_metadata_snapshot: held_root != "-",
                metadata: Some(blocks(metadata)?),
                data: Some(blocks(data)?),
                condition: condition.join(" "),
            }),
            _ => Err(InvalidStatus::Short),
        }
    }
}

fn blocks(word: &str) -> Result<Blocks, InvalidStatus> {
    let (used, total) = word.split_once('/').ok_or(InvalidStatus::Short)?;
    Ok(Blocks { used: used.parse()?, total: total.parse()? })
}

/// Returns how many sectors of a thin device are mapped in the pool, from `MAPPED HIGHEST`; `None` if the pool has
/// failed.
pub fn thin_mapped_sectors(status: &str) -> Option<u64> {
    status.split_whitespace().next()?.parse().ok()
}

/// Status of a `raid` target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RaidStatus {
    /// One letter for each image: `A` in sync, `a` not yet, `D` dead.
    pub health: String,
    /// Differences between the images that the last check found.
    pub mismatches: u64,
}

impl RaidStatus {
    /// Reads `TYPE IMAGES HEALTH DONE/TOTAL ACTION MISMATCHES ...`.
    pub fn parse(status: &str) -> Result<Self, InvalidStatus> {
        let mut words = status.split_whitespace();
        let health = words.nth(2).ok_or(InvalidStatus::Short)?.to_owned();
        Ok(Self { health, mismatches: words.nth(2).ok_or(InvalidStatus::Short)?.parse()? })
    }
}

/// Returns whether a read or write of a device of a `mirror` target has failed, from `DEVICES DEVICE... DONE/TOTAL 1
/// HEALTH ...`: one letter of `HEALTH` for each device, `A` for a healthy one. A change of the table resets it.
pub fn mirror_has_failed(status: &str) -> Result<bool, InvalidStatus> {
    let mut words = status.split_whitespace();
    let devices: usize = words.next().ok_or(InvalidStatus::Short)?.parse()?;
    let health = words.nth(devices.saturating_add(2)).ok_or(InvalidStatus::Short)?;
    Ok(health.chars().any(|letter| letter != 'A'))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[test]
    fn a_thin_pool_says_how_full_it_is() {
        let status =
            ThinPoolStatus::parse("0 12/1024 160/640 - rw discard_passdown queue_if_no_space - 1024 ").unwrap();
        assert_eq!(status.metadata, Some(Blocks { used: 12, total: 1024 }));
        assert!((status.data.unwrap().percent() - 25.0).abs() < f64::EPSILON);
        assert_eq!(status.condition, "rw discard_passdown queue_if_no_space - 1024");
    }

    #[test]
    fn a_pool_that_failed_has_no_fill() {
        let status = ThinPoolStatus::parse("Fail").unwrap();
        assert_eq!((status.data, status.condition.as_str()), (None, "Fail"));
    }

    #[rstest]
    #[case("128 2175", Some(128))]
    #[case("0 -", Some(0))]
    #[case("Fail", None)]
    fn a_thin_device_says_how_much_of_it_was_written(#[case] status: &str, #[case] expected: Option<u64>) {
        assert_eq!(thin_mapped_sectors(status), expected);
    }

    #[rstest]
    #[case("2 98:0 7:0 13/40 1 AA 1 core", Ok(false))]
    #[case("2 98:0 7:0 39/40 1 AS 1 core", Ok(true))]
    #[case("2 98:0 7:0 40/40 1 DA 3 disk 254:3 A", Ok(true))]
    #[case("2 98:0 7:0 40/40", Err(InvalidStatus::Short))]
    #[case("18446744073709551615 a", Err(InvalidStatus::Short))]
    fn a_mirror_says_which_devices_have_failed(#[case] status: &str, #[case] expected: Result<bool, InvalidStatus>) {
        assert_eq!(mirror_has_failed(status), expected);
    }

    #[test]
    fn a_raid_says_which_images_it_has() {
        let status = RaidStatus::parse("raid1 2 AD 16384/16384 idle 5 0 -").unwrap();
        assert_eq!((status.health.as_str(), status.mismatches), ("AD", 5));
    }

    #[rstest]
    #[case("", "too few words")]
    #[case("0 1/2", "too few words")]
    #[case("0 1 2 - rw", "too few words")]
    #[case("0 a/2 1/2 - rw", "invalid digit")]
    #[case("a 1/2 1/2 - rw", "invalid digit")]
    fn thin_pool_status_of_another_form_is_an_error(#[case] status: &str, #[case] expected: &str) {
        let error = ThinPoolStatus::parse(status).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }

    #[rstest]
    #[case("", "too few words")]
    #[case("raid1 2", "too few words")]
    #[case("raid1 2 AA 1/1 idle", "too few words")]
    #[case("raid1 2 AA 1/1 idle many", "invalid digit")]
    fn raid_status_of_another_form_is_an_error(#[case] status: &str, #[case] expected: &str) {
        let error = RaidStatus::parse(status).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }

    #[test]
    fn an_empty_pool_is_not_full() {
        assert!(Blocks { used: 0, total: 0 }.percent().abs() < f64::EPSILON);
    }
}
