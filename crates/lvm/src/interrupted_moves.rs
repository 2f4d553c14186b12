//! Devices that a pvmove has left in the kernel when it was killed: suspended, so that all their users wait
//! indefinitely, or with a loaded table that is not in force. LVM cannot continue with either: it waits indefinitely
//! for a suspended part of a pool, it activates tables that lead to moves unknown to its metadata, and it forgets that
//! it has suspended a device with such a table.
//!
//! At its beginning and at its end a pvmove loads tables, suspends their devices, commits its metadata, and resumes. So
//! the table of each device that agrees with the metadata is the right one, and one of its two does.

use crate::active_parts::is_active_alone;
use crate::report::{AnyVolume, all_volumes};
use crate::volume::{is_device_of_move, mapper_name};
use crate::{Error, Host, Lvm, LvmCommand, RepairError, VgName};

/// The table that is right for a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Remedy {
    /// The table that is in force; the loaded one is cleared.
    Live,
    /// The loaded table comes into force.
    Loaded,
}

/// A device of device-mapper as `dmsetup info` describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mapped {
    name: String,
    is_suspended: bool,
    /// A table is loaded that is not in force.
    is_loaded: bool,
    /// Major and minor number, as tables name devices.
    number: String,
}

/// The state of a device by the metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    /// It is the volume of a move.
    Move { has_ended: bool },
    /// It is another volume.
    Volume { is_moved: bool },
}

impl<R: Host> Lvm<R> {
    /// Resumes the devices of a group that a killed pvmove left suspended or with a loaded table, with the tables that
    /// match the metadata. Returns the names of these devices. Removes devices of moves that the metadata does not
    /// list. There is nothing to do where [no device is that of a move](crate::is_device_of_move).
    pub async fn resume_interrupted_moves(&self, vg: &VgName) -> Result<Vec<String>, RepairError> {
        let lock = self.hold_group_lock(vg).await?;
        let volumes = self.parse(&LvmCommand::all_volumes_under_lock(vg), all_volumes).await?;
        let listed = ["info", "-c", "--noheadings", "--separator", "|", "-o", "name,attr,major,minor"];
        let listed = self.program("dmsetup", &listed).await?;
        let mapped: Vec<_> = listed.lines().filter_map(Mapped::parse).collect();
        let moves: Vec<_> = mapped.iter().filter(|device| is_device_of_move(vg, &device.name)).collect();
        let numbers: Vec<_> = moves.iter().map(|device| device.number.as_str()).collect();
        let (mut found, mut results) = (Vec::new(), Vec::new());
        // From below: a device that is resumed may wait for what it lies on
        for (name, expected) in devices_of(vg, &volumes) {
            let Some(device) = mapped.iter().find(|device| device.name == name) else { continue };
            if device.is_suspended || device.is_loaded {
                // What goes wrong with one device is no reason to leave others suspended
                results.push(self.resume(device, expected, &numbers).await);
                found.push(name);
            }
        }
        for unknown in moves {
            if !volumes.iter().any(|volume| mapper_name(vg, &volume.name, "") == unknown.name) {
                // Another LVM may have it open for a moment, to see what is on it
                let removed = self.program("dmsetup", &["remove", "--retry", &unknown.name]).await;
                results.push(removed.map(drop));
                found.push(unknown.name.clone());
            }
        }
        drop(lock);
        results.into_iter().collect::<Result<(), _>>().map(|()| found)
    }

    /// Removes the volumes of moves that have ended, and deactivates parts that are active while their volume is not:
    /// LVM moves a part of a volume that is not active so, and refuses to activate the volume afterwards. Returns the
    /// names of both.
    pub async fn clear_up_interrupted_moves(&self, vg: &VgName) -> Result<Vec<String>, Error> {
        let mut found = Vec::new();
        for volume in self.parse(&LvmCommand::all_volumes(vg), all_volumes).await? {
            let command = match &volume {
                volume if volume.is_ended_move() => LvmCommand::remove_ended_move(vg, &volume.name),
                volume if is_active_alone(volume) => LvmCommand::deactivate_part(vg, &volume.name),
                _ => continue,
            };
            self.change_pvs(vg, &command).await?;
            found.push(volume.name);
        }
        Ok(found)
    }

    async fn resume(&self, device: &Mapped, expected: Expected, moves: &[&str]) -> Result<(), RepairError> {
        let name = device.name.as_str();
        let live = self.program("dmsetup", &["table", name]).await?;
        let loaded = self.program("dmsetup", &["table", "--inactive", name]).await?;
        let inconsistent = || {
            RepairError::Inconsistent(format!(
                "neither `dmsetup table {name}` nor `dmsetup table --inactive {name}` matches the LVM metadata; \
                 compare them with `lvs -a -o+devices`, and load the correct table"
            ))
        };
        let remedy = remedy(&live, &loaded, expected, moves).ok_or_else(inconsistent)?;
        if remedy == Remedy::Live && device.is_loaded {
            self.program("dmsetup", &["clear", name]).await?;
        }
        if remedy == Remedy::Loaded || device.is_suspended {
            self.program("dmsetup", &["resume", name]).await?;
        }
        Ok(())
    }
}

/// Returns the names of the devices that volumes have with what is expected of them, those first on which others lie:
/// moves, hidden volumes, the layers of pools, the others.
fn devices_of(vg: &VgName, volumes: &[AnyVolume]) -> Vec<(String, Expected)> {
    let mut devices = Vec::new();
    for volume in volumes {
        let (level, expected) = if volume.is_move() {
            (0, Expected::Move { has_ended: volume.is_ended_move() })
        } else {
            (if volume.is_hidden { 1 } else { 3 }, Expected::Volume { is_moved: volume.attr.is_locked() })
        };
        devices.push((level, mapper_name(vg, &volume.name, ""), expected));
        if volume.attr.is_thin_pool() {
            devices.push((2, mapper_name(vg, &volume.name, "-tpool"), Expected::Volume { is_moved: false }));
        }
    }
    devices.sort_by_key(|(level, ..)| *level);
    devices.into_iter().map(|(_, name, expected)| (name, expected)).collect()
}

/// Returns which of the tables of a device is as expected; the one in force if both are, as it is smaller when LVM was
/// killed while it made a volume larger.
fn remedy(live: &str, loaded: &str, expected: Expected, moves: &[&str]) -> Option<Remedy> {
    let is_expected = |table: &str| {
        let mut words = table.split_whitespace();
        let is_right = match expected {
            // LVM shows what of a move waits or has arrived as linear
            Expected::Move { has_ended } => (words.nth(2) == Some("error")) == has_ended,
            Expected::Volume { is_moved } => words.any(|word| moves.contains(&word)) == is_moved,
        };
        !table.is_empty() && is_right
    };
    match (is_expected(live), is_expected(loaded)) {
        (true, _) => Some(Remedy::Live),
        (false, true) => Some(Remedy::Loaded),
        (false, false) => None,
    }
}

impl Mapped {
    /// Parses `NAME|ATTR|MAJOR|MINOR`. The attributes are (L)ive, (I)nactive, (s)uspended, (r)ead-only or (w)ritable.
    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.trim().split('|');
        let (name, attr, major, minor) = (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
        Some(Self {
            name: name.to_owned(),
            is_suspended: attr.contains('s'),
            is_loaded: attr.contains('I'),
            number: format!("{major}:{minor}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const MOVES: [&str; 1] = ["254:11"];
    const DISK: &str = "0 32768 linear 98:48 2048";
    const OTHER_DISK: &str = "0 32768 linear 98:32 2048";
    const MOVE: &str = "0 32768 linear 254:11 0";
    const MIRROR: &str = "0 32768 mirror core 1 4096 2 98:48 2048 98:32 2048";
    const ERROR: &str = "0 8192 error";

    /// The states in which LVM 2.03.16 was found when it was killed.
    #[rstest]
    #[case::begun_and_not_committed(DISK, MOVE, Expected::Volume { is_moved: false }, Some(Remedy::Live))]
    #[case::begun_and_committed(DISK, MOVE, Expected::Volume { is_moved: true }, Some(Remedy::Loaded))]
    #[case::ended_and_not_committed(MOVE, OTHER_DISK, Expected::Volume { is_moved: true }, Some(Remedy::Live))]
    #[case::ended_and_committed(MOVE, OTHER_DISK, Expected::Volume { is_moved: false }, Some(Remedy::Loaded))]
    #[case::only_suspended(DISK, "", Expected::Volume { is_moved: false }, Some(Remedy::Live))]
    #[case::neither(MOVE, "", Expected::Volume { is_moved: false }, None)]
    #[case::move_that_begins("", MIRROR, Expected::Move { has_ended: false }, Some(Remedy::Loaded))]
    #[case::move_that_goes_on(MIRROR, ERROR, Expected::Move { has_ended: false }, Some(Remedy::Live))]
    #[case::move_that_has_ended(MIRROR, ERROR, Expected::Move { has_ended: true }, Some(Remedy::Loaded))]
    fn the_table_that_agrees_with_the_metadata_is_the_right_one(
        #[case] live: &str,
        #[case] loaded: &str,
        #[case] expected: Expected,
        #[case] found: Option<Remedy>,
    ) {
        assert_eq!(remedy(live, loaded, expected, &MOVES), found);
    }

    #[test]
    fn what_lies_below_is_resumed_first() {
        let volume = |name: &str, attr: &str, is_hidden| AnyVolume {
            name: name.to_owned(),
            is_hidden,
            attr: attr.parse().unwrap(),
            segment_type: "mirror".to_owned(),
            parent: None,
        };
        let volumes = [
            volume("pool", "twi-XXtz--", false),
            volume("pool_tmeta", "ewI-XX----", true),
            volume("pvmove0", "p-C-XXm---", true),
        ];
        let found = devices_of(&"my-vg".parse().unwrap(), &volumes);
        let expected = [
            ("my--vg-pvmove0", Expected::Move { has_ended: false }),
            ("my--vg-pool_tmeta", Expected::Volume { is_moved: true }),
            ("my--vg-pool-tpool", Expected::Volume { is_moved: false }),
            ("my--vg-pool", Expected::Volume { is_moved: false }),
        ];
        assert_eq!(found, expected.map(|(name, expected)| (name.to_owned(), expected)));
    }

    #[test]
    fn devices_are_read_as_dmsetup_lists_them() {
        let device = Mapped::parse("leaving-pool_tmeta|LIsw|254|0").unwrap();
        assert!(device.is_suspended && device.is_loaded);
        assert_eq!((device.name.as_str(), device.number.as_str()), ("leaving-pool_tmeta", "254:0"));
        let device = Mapped::parse("  leaving-a|L--w|254|7").unwrap();
        assert_eq!((device.name.as_str(), device.is_suspended, device.is_loaded), ("leaving-a", false, false));
        assert_eq!(Mapped::parse("No devices found"), None);
    }
}
