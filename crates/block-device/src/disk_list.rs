//! Reads the disks of a machine and their uses from sysfs and `/proc`.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::io;
use std::path::Path;

use crate::attachment::find_transport;
use crate::line::{read_number, read_text};
use crate::mounts::{Mount, parse_number, read_mounts, read_swaps};
use crate::{Disk, Number, Use};

/// Sysfs counts sizes in these, whatever the sectors of the disk are (sysfs-block in the kernel's documentation).
const SECTOR: u64 = 512;
/// Begins the names of block devices that are no disks although a device of the machine is behind them: drives for
/// media that are taken out, memory of the firmware, devices of a network, and what is made of other block devices.
const NO_DISKS: [&str; 14] =
    ["bcache", "dm-", "drbd", "fd", "loop", "md", "mtdblock", "nbd", "pmem", "ram", "rbd", "sr", "zd", "zram"];
/// Ends of the names of the areas of a memory card that are for the firmware.
const CARD_AREAS: [&str; 3] = ["boot0", "boot1", "rpmb"];

/// Everything that the whole machine uses block devices for.
struct Uses {
    mounts: Vec<Mount>,
    swaps: Vec<String>,
    /// The files of loop devices, by the name of the device.
    loops: Vec<(String, String)>,
}

/// Reads all disks.
pub(crate) fn read(root: &Path) -> io::Result<Vec<Disk>> {
    let block = root.join("sys/block");
    let (ids, bus_paths) = (read_links(&root.join("dev/disk/by-id")), read_links(&root.join("dev/disk/by-path")));
    let uses = Uses { mounts: read_mounts(root)?, swaps: read_swaps(root)?, loops: read_loops(&block)? };
    let mut disks = Vec::new();
    for name in read_names(&block)? {
        let directory = block.join(&name);
        // It may go at any moment
        let Some(disk) = read_disk(&directory, &name) else { continue };
        let links = |links: &HashMap<String, BTreeSet<String>>| {
            links.get(&name).into_iter().flatten().cloned().collect::<Vec<_>>()
        };
        let uses = uses.of(&block, &directory, &name, disk.number);
        disks.push(Disk { ids: links(&ids), bus_paths: links(&bus_paths), uses, ..disk });
    }
    Ok(disks)
}

/// Reads the number that distinguishes a disk from those that had its name before; 0 if the kernel counts none.
pub(crate) fn read_sequence(root: &Path, name: &str) -> u64 {
    read_number(&root.join("sys/block").join(name).join("diskseq")).unwrap_or_default()
}

/// Reads a disk without its links and uses; `None` for what is none.
fn read_disk(directory: &Path, name: &str) -> Option<Disk> {
    let is_other = NO_DISKS.iter().any(|prefix| name.starts_with(prefix));
    let is_card_area = name.starts_with("mmcblk") && CARD_AREAS.iter().any(|end| name.ends_with(end));
    // What the kernel only makes up has no device behind it; a path to an NVMe namespace is hidden behind its head
    let is_hidden = read_number(&directory.join("hidden")) == Some(1);
    if is_other || is_card_area || is_hidden || !directory.join("device").exists() {
        return None;
    }
    let size = read_number(&directory.join("size")).filter(|sectors| *sectors > 0)?;
    let first = |files: &[&str]| files.iter().find_map(|file| read_text(&directory.join(file)));
    let place = fs::canonicalize(directory).ok()?;
    Some(Disk {
        name: name.to_owned(),
        path: format!("/dev/{}", name.replace('!', "/")),
        number: parse_number(&read_text(&directory.join("dev"))?)?,
        sequence: read_number(&directory.join("diskseq")).unwrap_or_default(),
        size: size.saturating_mul(SECTOR),
        read_only: read_number(&directory.join("ro")) != Some(0),
        rotational: read_number(&directory.join("queue/rotational")).map(|turns| turns == 1),
        removable: read_number(&directory.join("removable")) == Some(1),
        model: first(&["device/model", "device/name"]),
        serial: first(&["serial", "device/serial"]).or_else(|| read_scsi_serial(directory)),
        wwid: first(&["wwid", "device/wwid"]),
        transport: find_transport(directory, &place.to_string_lossy()),
        ids: Vec::new(),
        bus_paths: Vec::new(),
        uses: Vec::new(),
    })
}

impl Uses {
    /// Returns everything that uses a disk, its partitions, or what is made of these.
    fn of(&self, block: &Path, directory: &Path, name: &str, number: Number) -> Vec<Use> {
        let partitions = read_partitions(directory, name);
        let mut uses: Vec<_> = partitions.iter().map(|(name, _)| Use::Partition(name.clone())).collect();
        let mut devices = vec![(name.to_owned(), Some(number))];
        for (partition, number) in &partitions {
            devices.push((partition.clone(), *number));
        }
        let directories = partitions.iter().map(|(name, _)| directory.join(name)).chain([directory.to_owned()]);
        let mut holders: Vec<_> = directories.flat_map(|directory| read_holders(&directory)).collect();
        let mut seen = BTreeSet::new();
        while let Some(holder) = holders.pop() {
            if seen.insert(holder.clone()) {
                let directory = block.join(&holder);
                devices.push((holder.clone(), read_text(&directory.join("dev")).and_then(|text| parse_number(&text))));
                holders.extend(read_holders(&directory));
            }
        }
        uses.extend(seen.into_iter().map(Use::Holder));
        for (device, number) in &devices {
            self.add_uses_of(device, *number, &mut uses);
        }
        uses
    }

    fn add_uses_of(&self, device: &str, number: Option<Number>, uses: &mut Vec<Use>) {
        let path = format!("/dev/{}", device.replace('!', "/"));
        for mount in &self.mounts {
            let is_device = mount.number.is_some() && mount.number == number || mount.source == path;
            if is_device {
                uses.push(Use::Mounted { device: device.to_owned(), directory: mount.directory.clone() });
            } else if mount.filesystem == "devtmpfs" && mount.root == path.trim_start_matches("/dev") {
                uses.push(Use::Published(mount.directory.clone()));
            }
        }
        uses.extend(self.swaps.iter().filter(|swap| **swap == path).map(|_| Use::Swap(device.to_owned())));
        let loops = self.loops.iter().filter(|(_, file)| *file == path);
        uses.extend(loops.map(|(name, _)| Use::Loop(name.clone())));
    }
}

/// Returns the partitions of a disk and their numbers.
fn read_partitions(directory: &Path, name: &str) -> Vec<(String, Option<Number>)> {
    let mut partitions: Vec<_> = read_names(directory)
        .unwrap_or_default()
        .into_iter()
        .filter(|entry| entry.starts_with(name) && directory.join(entry).join("partition").exists())
        .collect();
    partitions.sort();
    let number = |partition: &String| parse_number(&read_text(&directory.join(partition).join("dev"))?);
    partitions.into_iter().map(|partition| (partition.clone(), number(&partition))).collect()
}

fn read_holders(directory: &Path) -> Vec<String> {
    read_names(&directory.join("holders")).unwrap_or_default()
}

/// Reads the files of loop devices.
fn read_loops(block: &Path) -> io::Result<Vec<(String, String)>> {
    let names = read_names(block)?.into_iter().filter(|name| name.starts_with("loop"));
    Ok(names.filter_map(|name| Some((name.clone(), read_text(&block.join(name).join("loop/backing_file"))?))).collect())
}

/// Reads the symbolic links in a directory of `/dev/disk`, by the name of the device that they lead to. Without udev
/// there are none.
fn read_links(directory: &Path) -> HashMap<String, BTreeSet<String>> {
    let mut links: HashMap<String, BTreeSet<String>> = HashMap::new();
    for name in read_names(directory).unwrap_or_default() {
        let target = fs::read_link(directory.join(&name)).ok();
        if let Some(device) = target.as_deref().and_then(Path::file_name) {
            links.entry(device.to_string_lossy().into_owned()).or_default().insert(name);
        }
    }
    links
}

/// Returns the sorted names in a directory.
fn read_names(directory: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(directory)? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

/// Reads the serial number of a SCSI disk, page 0x80 of its vital product data (SPC-4): four bytes and the number.
fn read_scsi_serial(directory: &Path) -> Option<String> {
    let page = fs::read(directory.join("device/vpd_pg80")).ok()?;
    let serial = String::from_utf8_lossy(page.get(4..)?).trim_matches(['\0', ' ']).to_owned();
    (!serial.is_empty()).then_some(serial)
}

#[cfg(test)]
mod tests;
