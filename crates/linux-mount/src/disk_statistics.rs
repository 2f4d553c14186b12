//! I/O statistics of block devices, as the kernel counts them in /proc/diskstats
//! (Documentation/admin-guide/iostats.rst).

use std::collections::HashMap;
use std::path::Path;

use super::{DeviceNumber, MountError};

const TABLE: &str = "/proc/diskstats";
/// Bytes in a sector of the table, whatever the device has.
const SECTOR: u64 = 512;

/// I/O statistics of a block device since it came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskStatistics {
    /// Reads that have completed.
    pub reads: u64,
    /// Bytes that were read.
    pub read_bytes: u64,
    /// Milliseconds that all reads took together.
    pub read_ms: u64,
    /// Writes that have completed.
    pub writes: u64,
    /// Bytes that were written.
    pub written_bytes: u64,
    /// Milliseconds that all writes took together.
    pub write_ms: u64,
    /// Requests in flight.
    pub in_flight: u64,
    /// Milliseconds in which a request was in flight.
    pub io_ms: u64,
    /// Milliseconds that all requests have been in flight together.
    pub weighted_ms: u64,
}

/// Reads the statistics of all block devices. No device is opened.
pub(crate) fn read() -> Result<HashMap<DeviceNumber, DiskStatistics>, MountError> {
    let table = std::fs::read_to_string(TABLE).map_err(|error| MountError::io("read", Path::new(TABLE), error))?;
    Ok(table.lines().filter_map(parse_line).collect())
}

/// Parses a line: number and name of the device, and at least eleven counters. Newer kernels have more.
fn parse_line(line: &str) -> Option<(DeviceNumber, DiskStatistics)> {
    let mut words = line.split_ascii_whitespace();
    let device = DeviceNumber { major: words.next()?.parse().ok()?, minor: words.next()?.parse().ok()? };
    let mut counters = words.skip(1).map_while(|word| word.parse::<u64>().ok());
    let mut next = || counters.next();
    let (reads, _merged, read_sectors, read_ms) = (next()?, next()?, next()?, next()?);
    let (writes, _merged, written_sectors, write_ms) = (next()?, next()?, next()?, next()?);
    let (in_flight, io_ms, weighted_ms) = (next()?, next()?, next()?);
    let statistics = DiskStatistics {
        reads,
        read_bytes: read_sectors.saturating_mul(SECTOR),
        read_ms,
        writes,
        written_bytes: written_sectors.saturating_mul(SECTOR),
        write_ms,
        in_flight,
        io_ms,
        weighted_ms,
    };
    Some((device, statistics))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const STATISTICS: DiskStatistics = DiskStatistics {
        reads: 1,
        read_bytes: 3 * 512,
        read_ms: 4,
        writes: 5,
        written_bytes: 7 * 512,
        write_ms: 8,
        in_flight: 9,
        io_ms: 10,
        weighted_ms: 11,
    };

    #[rstest]
    #[case::of_linux_4("253       3 dm-3 1 2 3 4 5 6 7 8 9 10 11", Some(STATISTICS))]
    #[case::of_linux_6("253       3 dm-3 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17", Some(STATISTICS))]
    #[case::cut_off("253       3 dm-3 1 2 3 4 5 6 7 8 9 10", None)]
    #[case::no_number("253       3 dm-3 1 2 3 4 5 6 7 8 - 10 11", None)]
    #[case::empty("", None)]
    fn a_line_has_the_number_of_the_device_and_its_counters(
        #[case] line: &str,
        #[case] expected: Option<DiskStatistics>,
    ) {
        let device = DeviceNumber { major: 253, minor: 3 };
        assert_eq!(parse_line(line), expected.map(|statistics| (device, statistics)));
    }

    #[test]
    fn every_line_of_this_machine_is_understood() {
        let lines = std::fs::read_to_string(TABLE).unwrap().lines().count();
        assert_eq!(read().unwrap().len(), lines);
    }
}
