//! The devices below a block device: what it is made of, as the kernel knows it.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;

use crate::Number;
use crate::line::read_text;
use crate::mounts::parse_number;

/// Begins the UUID in device-mapper of each device that LVM makes.
const LVM_UUID: &str = "LVM-";

/// Returns the names in device-mapper of all LVM volumes that a device is or lies on, directly or through partitions,
/// device-mapper, md and loop devices. `root` is the directory with the machine's own `/dev`, `/proc` and `/sys`.
///
/// A device of which the kernel does not show what it is made of is an error: it could lie on anything.
pub fn lvm_volumes_below(root: &Path, device: Number) -> io::Result<Vec<String>> {
    let (mut volumes, mut seen, mut pending) = (Vec::new(), BTreeSet::new(), vec![device]);
    while let Some(device) = pending.pop() {
        if !seen.insert((device.major, device.minor)) {
            continue;
        }
        let directory = root.join(format!("sys/dev/block/{}:{}", device.major, device.minor));
        // The link leads to the directory of a partition within that of its disk
        let directory = fs::canonicalize(&directory)?;
        if read_text(&directory.join("dm/uuid")).is_some_and(|uuid| uuid.starts_with(LVM_UUID)) {
            volumes.extend(read_text(&directory.join("dm/name")));
        }
        if directory.join("partition").exists() {
            let disk = directory.parent().ok_or(io::ErrorKind::NotFound)?;
            pending.push(read_device_number(disk)?);
        }
        for slave in fs::read_dir(directory.join("slaves")).into_iter().flatten() {
            pending.push(read_device_number(&slave?.path())?);
        }
        if let Some(file) = read_text(&directory.join("loop/backing_file")) {
            pending.extend(device_of_file(root, &file)?);
        }
    }
    Ok(volumes)
}

fn read_device_number(directory: &Path) -> io::Result<Number> {
    let number = read_text(&directory.join("dev")).and_then(|text| parse_number(&text));
    number
        .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("{} has no device number", directory.display())))
}

/// Returns the block device that is the file of a loop device, or that holds it; `None` for a filesystem without a
/// device, such as tmpfs.
fn device_of_file(root: &Path, file: &str) -> io::Result<Option<Number>> {
    let unknown = |why: String| io::Error::other(format!("cannot determine the device of the loop file {file}: {why}"));
    let found = fs::metadata(root.join(file.trim_start_matches('/'))).map_err(|error| unknown(error.to_string()))?;
    let device = match found.file_type() {
        kind if kind.is_block_device() => found.rdev(),
        kind if kind.is_file() => found.dev(),
        _ => return Err(unknown("the path is neither a file nor a block device".to_owned())),
    };
    let number = Number { major: rustix::fs::major(device), minor: rustix::fs::minor(device) };
    Ok((number.major != 0).then_some(number))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A machine below a directory of its own.
    struct Machine(tempfile::TempDir);

    impl Machine {
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        /// Adds a device in this directory of `/sys/block`, with further files.
        fn add(&self, place: &str, number: &str, files: &[(&str, &str)]) {
            let directory = self.0.path().join("sys/block").join(place);
            fs::create_dir_all(&directory).unwrap();
            for (name, text) in files.iter().chain(&[("dev", number)]) {
                let file = directory.join(name);
                fs::create_dir_all(file.parent().unwrap()).unwrap();
                fs::write(file, format!("{text}\n")).unwrap();
            }
            let links = self.0.path().join("sys/dev/block");
            fs::create_dir_all(&links).unwrap();
            symlink(directory, links.join(number)).unwrap();
        }

        /// Makes one device a part of another.
        fn stack(&self, name: &str, below: &str) {
            let slaves = self.0.path().join("sys/block").join(name).join("slaves");
            fs::create_dir_all(&slaves).unwrap();
            symlink(self.0.path().join("sys/block").join(below), slaves.join(below)).unwrap();
        }

        fn volumes_below(&self, major: u32, minor: u32) -> io::Result<Vec<String>> {
            lvm_volumes_below(self.0.path(), Number { major, minor })
        }
    }

    #[test]
    fn stack_of_a_plain_disk_has_no_volumes() {
        let machine = Machine::new();
        machine.add("sda", "8:0", &[]);
        machine.add("sda/sda1", "8:1", &[("partition", "1")]);
        assert!(machine.volumes_below(8, 0).unwrap().is_empty());
        assert!(machine.volumes_below(8, 1).unwrap().is_empty());
    }

    #[test]
    fn stack_shows_volumes_below_partitions_crypt_and_raid() {
        let machine = Machine::new();
        machine.add("sda", "8:0", &[]);
        machine.add("dm-0", "254:0", &[("dm/uuid", "LVM-abc"), ("dm/name", "vg1-a")]);
        machine.stack("dm-0", "sda");
        machine.add("dm-0/dm-0p1", "259:0", &[("partition", "1")]);
        machine.add("dm-1", "254:1", &[("dm/uuid", "CRYPT-LUKS2-x"), ("dm/name", "crypt")]);
        machine.stack("dm-1", "dm-0");
        machine.add("md0", "9:0", &[]);
        machine.stack("md0", "dm-1");
        for (major, minor) in [(254, 0), (259, 0), (254, 1), (9, 0)] {
            assert_eq!(machine.volumes_below(major, minor).unwrap(), ["vg1-a"], "{major}:{minor}");
        }
    }

    #[test]
    fn stack_of_a_loop_with_an_unreachable_file_is_an_error() {
        let machine = Machine::new();
        machine.add("loop0", "7:0", &[("loop/backing_file", "/var/gone (deleted)")]);
        fs::create_dir_all(machine.0.path().join("var")).unwrap();
        machine.add("loop1", "7:1", &[("loop/backing_file", "/var")]);
        for (minor, expected) in
            [(0, "device of the loop file /var/gone (deleted): "), (1, "device of the loop file /var: the path is")]
        {
            let error = machine.volumes_below(7, minor).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn stack_of_a_device_that_does_not_exist_is_an_error() {
        assert_eq!(Machine::new().volumes_below(8, 0).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn stack_on_a_device_without_a_number_is_an_error() {
        let machine = Machine::new();
        machine.add("md0", "9:0", &[]);
        machine.add("sda", "8:0", &[]);
        machine.stack("md0", "sda");
        fs::remove_file(machine.0.path().join("sys/block/sda/dev")).unwrap();
        let error = machine.volumes_below(9, 0).unwrap_err().to_string();
        assert!(error.ends_with("sda has no device number"), "{error}");
    }
}
