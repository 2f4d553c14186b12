//! The way in which a disk is attached, from its place among the devices of sysfs.

use std::fs;
use std::path::Path;

use crate::line::read_text;

/// All distinguished ways in which disks are attached.
pub const TRANSPORTS: &[&str] = &[
    "nvme",
    "sata",
    "sas",
    "virtio",
    "mmc",
    "usb",
    "xen",
    "hyperv",
    "scsi",
    "iscsi",
    "fc",
    "nvme-tcp",
    "nvme-rdma",
    "nvme-fc",
    "nvme-loop",
];
/// Those by which other machines may have the same disk.
pub const NETWORKS: &[&str] = &["iscsi", "fc", "nvme-tcp", "nvme-rdma", "nvme-fc", "nvme-loop"];

/// Parts of paths below `/sys/devices` and what they mean, the first that is found; those of networks and of USB lead
/// through SCSI as well.
const PLACES: [(&str, &str); 11] = [
    ("/session", "iscsi"),
    ("/rport-", "fc"),
    ("/usb", "usb"),
    ("/end_device-", "sas"),
    ("/ata", "sata"),
    ("/mmc_host/", "mmc"),
    ("/virtio", "virtio"),
    ("/vbd-", "xen"),
    ("/vmbus", "hyperv"),
    ("/VMBUS", "hyperv"),
    ("/host", "scsi"),
];

/// Returns the way in which a disk is attached. `directory` is that of the disk, `place` where it leads.
pub(crate) fn find_transport(directory: &Path, place: &str) -> Option<&'static str> {
    if place.contains("/nvme") {
        return nvme_transport(&directory.join("device"));
    }
    PLACES.iter().find(|(part, _)| place.contains(part)).map(|(_, transport)| *transport)
}

/// Returns the transport of an NVMe controller, or of those of a subsystem with several paths: one over a network
/// counts more than one that is not.
fn nvme_transport(device: &Path) -> Option<&'static str> {
    let mut found: Vec<_> = read_text(&device.join("transport")).into_iter().collect();
    for entry in fs::read_dir(device).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with("nvme") {
            found.extend(read_text(&entry.path().join("transport")));
        }
    }
    let name = |transport: &str| match transport {
        "pcie" | "apple-nvme" => Some("nvme"),
        "tcp" => Some("nvme-tcp"),
        "rdma" => Some("nvme-rdma"),
        "fc" => Some("nvme-fc"),
        "loop" => Some("nvme-loop"),
        _ => None,
    };
    // One that is not known could be a network
    let names: Option<Vec<_>> = found.iter().map(|transport| name(transport)).collect();
    let names = names?;
    names.iter().find(|name| NETWORKS.contains(name)).or_else(|| names.first()).copied()
}
