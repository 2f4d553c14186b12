use std::os::unix::fs::symlink;

use super::*;

/// A machine that is a directory with the files that the kernel would show.
struct FakeFiles(tempfile::TempDir);

impl FakeFiles {
    fn new() -> Self {
        let files = Self(tempfile::tempdir().unwrap());
        files.write("proc/1/mountinfo", "");
        files.write("proc/swaps", "Filename Type Size Used Priority\n");
        fs::create_dir_all(files.0.path().join("sys/block")).unwrap();
        files
    }

    fn write(&self, file: &str, text: &str) {
        let file = self.0.path().join(file);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }

    /// Adds a block device of 1 MiB at a place below `/sys/devices`.
    fn add(&self, name: &str, number: &str, place: &str) {
        let directory = format!("sys/devices/{place}/block/{name}");
        for (file, text) in [("dev", number), ("size", "2048"), ("ro", "0"), ("removable", "0")] {
            self.write(&format!("{directory}/{file}"), text);
        }
        if !place.starts_with("virtual") {
            self.write(&format!("{directory}/device/model"), "A disk        \n");
        }
        symlink(format!("../devices/{place}/block/{name}"), self.0.path().join("sys/block").join(name)).unwrap();
    }

    fn read(&self) -> Vec<Disk> {
        read(self.0.path()).unwrap()
    }

    fn uses(&self) -> Vec<String> {
        self.read().remove(0).uses.iter().map(ToString::to_string).collect()
    }
}

const SATA: &str = "pci0000:00/0000:00:1f.2/ata1/host0/target0:0:0/0:0:0:0";

#[test]
fn a_disk_is_described_by_sysfs_and_udevs_links() {
    let files = FakeFiles::new();
    files.add("sda", "8:0", SATA);
    files.write("sys/block/sda/queue/rotational", "1\n");
    files.write("sys/block/sda/device/vpd_pg80", "\0\u{1}\0\u{8}  WD-123 ");
    files.write("sys/block/sda/device/wwid", "naa.5000\n");
    files.write("sys/block/sda/diskseq", "9\n");
    let by_id = files.0.path().join("dev/disk/by-id");
    fs::create_dir_all(&by_id).unwrap();
    for id in ["wwn-0x5000", "ata-A_disk_WD-123"] {
        symlink("../../sda", by_id.join(id)).unwrap();
    }
    symlink("../../sda1", by_id.join("ata-A_disk_WD-123-part1")).unwrap();
    let disk = files.read().remove(0);
    assert_eq!((disk.path.as_str(), disk.number, disk.size), ("/dev/sda", Number { major: 8, minor: 0 }, 1 << 20));
    assert_eq!((disk.model.as_deref(), disk.serial.as_deref()), (Some("A disk"), Some("WD-123")));
    assert_eq!((disk.wwid.as_deref(), disk.sequence), (Some("naa.5000"), 9));
    assert_eq!((disk.rotational, disk.transport, disk.read_only), (Some(true), Some("sata"), false));
    assert_eq!(disk.ids, ["ata-A_disk_WD-123", "wwn-0x5000"]);
    assert_eq!(disk.stable_name(), Some("ata-A_disk_WD-123"));
    assert!(disk.uses.is_empty());
}

#[test]
fn what_is_no_disk_is_left_out() {
    let files = FakeFiles::new();
    for (name, place) in [
        ("loop0", "virtual"),
        ("dm-0", "virtual"),
        ("nullb0", "virtual"),
        ("sr0", SATA),
        ("mmcblk0boot0", "platform/mmc_host/mmc0"),
        ("mmcblk0", "platform/mmc_host/mmc0"),
        ("nvme0c0n1", "pci/nvme/nvme0"),
        ("sdb", SATA),
    ] {
        files.add(name, "7:0", place);
    }
    files.write("sys/block/nvme0c0n1/hidden", "1");
    files.write("sys/block/sdb/size", "0");
    let names: Vec<_> = files.read().into_iter().map(|disk| disk.name).collect();
    assert_eq!(names, ["mmcblk0"]);
}

#[test]
fn disk_uses_include_partitions_holders_mounts_and_swap() {
    let files = FakeFiles::new();
    files.add("sda", "8:0", SATA);
    files.add("dm-0", "253:0", "virtual");
    files.add("dm-1", "253:1", "virtual");
    files.write("sys/block/sda/sda1/partition", "1");
    files.write("sys/block/sda/sda1/dev", "8:1");
    files.write("sys/block/sda/sda1/holders/dm-0", "");
    files.write("sys/block/dm-0/holders/dm-1", "");
    files.write(
        "proc/1/mountinfo",
        "1 0 253:1 / / rw - ext4 /dev/mapper/root rw\n2 1 8:17 / /mnt rw - xfs /dev/sdb1 rw\n",
    );
    files.write("proc/swaps", "Filename Type Size Used Priority\n/dev/dm-0 partition 1 0 -2\n");
    let expected =
        ["has the partition sda1", "is used by dm-0", "is used by dm-1", "dm-1 is mounted at /", "dm-0 is swap space"];
    let mut uses = files.uses();
    uses.sort();
    let mut sorted = expected.map(str::to_owned);
    sorted.sort();
    assert_eq!(uses, sorted);
}

#[test]
fn disk_uses_include_btrfs_mount_block_volume_and_loop_device() {
    let files = FakeFiles::new();
    files.add("sda", "8:0", SATA);
    files.add("loop3", "7:3", "virtual");
    files.write("sys/block/loop3/loop/backing_file", "/dev/sda\n");
    files.write(
        "proc/1/mountinfo",
        "1 0 0:35 / /data rw - btrfs /dev/sda rw\n2 0 0:5 /sda /pods/x rw - devtmpfs udev rw\n\
         3 0 0:5 / /dev rw - devtmpfs udev rw\n",
    );
    assert_eq!(
        files.uses(),
        [
            "sda is mounted at /data",
            "its device is mounted at /pods/x",
            "is the backing file of \
                                                                                              loop3"
        ]
    );
}

#[test]
fn transport_of_a_network_disk_is_derived_from_its_path() {
    for (place, transport) in [
        ("platform/host3/session1/target3:0:0/3:0:0:1", Some("iscsi")),
        ("pci/host1/rport-1:0-0/target1:0:0/1:0:0:0", Some("fc")),
        ("pci/usb2/2-1/2-1:1.0/host4/target4:0:0/4:0:0:0", Some("usb")),
        ("pci/virtio2", Some("virtio")),
        ("pci/host0/port-0:0/end_device-0:0/target0:0:0/0:0:0:0", Some("sas")),
        ("platform/uml-blkdev.0", None),
    ] {
        let files = FakeFiles::new();
        files.add("sda", "8:0", place);
        assert_eq!(files.read().remove(0).transport, transport, "{place}");
    }
    for (kernel, transport) in [("pcie", Some("nvme")), ("tcp", Some("nvme-tcp")), ("carrier-pigeon", None)] {
        let files = FakeFiles::new();
        files.add("nvme0n1", "259:0", "pci/nvme/nvme0");
        files.write("sys/block/nvme0n1/device/transport", kernel);
        assert_eq!(files.read().remove(0).transport, transport, "{kernel}");
    }
}

#[test]
fn a_machine_that_cannot_be_read_whole_is_an_error() {
    let files = FakeFiles::new();
    files.add("sda", "8:0", SATA);
    let hidden = files.0.path().join("hidden");
    for unreadable in ["proc/1/mountinfo", "proc/swaps", "sys/block"] {
        let unreadable = files.0.path().join(unreadable);
        fs::rename(&unreadable, &hidden).unwrap();
        assert_eq!(read(files.0.path()).unwrap_err().kind(), io::ErrorKind::NotFound, "{unreadable:?}");
        fs::rename(&hidden, &unreadable).unwrap();
        assert_eq!(files.read().len(), 1, "{unreadable:?}");
    }
}

#[test]
fn mounts_of_this_process_replace_unreadable_ones() {
    let files = FakeFiles::new();
    files.add("sda", "8:0", SATA);
    fs::remove_dir_all(files.0.path().join("proc/1")).unwrap();
    files.write("proc/self/mountinfo", "1 0 8:0 / /data rw - ext4 /dev/sda rw\n");
    assert_eq!(files.uses(), ["sda is mounted at /data"]);
}
