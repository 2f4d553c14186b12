//! LVM metadata that is not the machine's, and that its LVM finds, for random tests: a tenant writes it into a volume
//! to which a loop device is attached, as kubelet does, or a disk of another machine appears.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt as _;

use system_tests::isolated_lvm::{DEVICE, RUN_WITH_ONE_DEVICE};
use tonic::Code;

use crate::daemon::{Client, code};
use crate::fixture::{EXTENT, MIB, Random, run, run_ok};

/// Class whose volume group the machine does not have, as an element of the classes in lvmd's configuration.
pub(crate) const LATE_CLASS: &str = "  - {name: late, volume-group: latevg, optional: true, spare-gb: 0}\n";
/// Lines of lvmlocal.conf with which the LVM that a test runs by hand does not find any of it.
pub(crate) const UNSEEN: &str = "devices { hints=\"none\" global_filter=[\"r|/dev/loop.*|\"] }";
/// Image of the disk of another machine.
const DISK: &str = "/run/foreign-disk";

const OTHER_MACHINE: [&str; 2] = ["--systemid", "another-machine"];
/// Volume groups that a tenant creates, with options of `vgcreate`: one with the name of the machine's group, and ones
/// with the name that a class waits for.
const OF_TENANTS: [(&str, &[&str]); 3] = [("myvg1", &[]), ("latevg", &[]), ("latevg", &OTHER_MACHINE)];
/// Volume groups on a disk. Without a system id the second would be the machine's.
const ON_DISKS: [(&str, &[&str]); 2] = [("myvg1", &OTHER_MACHINE), ("latevg", &OTHER_MACHINE)];

/// Number of times that each kind was there.
pub(crate) type Counts = BTreeMap<&'static str, u32>;

/// A volume group that is not the machine's, on a loop device.
#[derive(Debug)]
pub(crate) struct ForeignMetadata {
    pub(crate) kind: &'static str,
    pub(crate) group: &'static str,
    /// Volume of the tenant, or image of the disk.
    path: String,
    loop_device: String,
    /// The beginning, before the metadata was written and after.
    before: Vec<u8>,
    written: Vec<u8>,
}

impl ForeignMetadata {
    /// Has a tenant write metadata into a volume of the machine.
    pub(crate) fn of_tenant(random: &mut Random, volume: &str) -> Self {
        Self::write("tenant", random.one_of(&OF_TENANTS), format!("/dev/myvg1/{volume}"), |path, create| {
            create(path);
            attach(path)
        })
    }

    /// Connects a disk of another machine.
    pub(crate) fn of_disk(random: &mut Random) -> Self {
        File::create(DISK).unwrap().set_len(16 * MIB).unwrap();
        Self::write("disk", random.one_of(&ON_DISKS), DISK.to_owned(), |path, create| {
            let device = attach(path);
            create(&device);
            device
        })
    }

    fn write(
        kind: &'static str,
        (group, options): &(&'static str, &[&str]),
        path: String,
        connect: impl FnOnce(&str, &dyn Fn(&str)) -> String,
    ) -> Self {
        let before = beginning(&path);
        let loop_device = connect(&path, &|device| {
            let create = [&["vgcreate", "-qq", "-s", "1m"], *options, &[group, DEVICE]].concat();
            run_ok("unshare", &[&["-m", "sh", "-ec", RUN_WITH_ONE_DEVICE, "sh", device], &create[..]].concat());
        });
        // LVM does not look at devices that it knows to have no metadata
        drop(std::fs::remove_file("/run/lvm/hints"));
        run_ok("env", &["-u", "LVM_SYSTEM_DIR", "pvs", "--foreign", &loop_device]);
        let written = beginning(&path);
        Self { kind, group, path, loop_device, before, written }
    }

    /// Checks that lvmd has neither changed it nor offers it, and takes it away.
    pub(crate) async fn end(self, client: &Client, context: &str) {
        let created = client.create_in("late", "late", EXTENT).await;
        assert_eq!(code(created), Code::FailedPrecondition, "{context}: {} of a {}", self.group, self.kind);
        let is_unchanged = beginning(&self.path) == self.written;
        assert!(is_unchanged, "{context}: {} of a {} was changed", self.group, self.kind);
    }
}

impl Drop for ForeignMetadata {
    fn drop(&mut self) {
        drop(run("losetup", &["-d", &self.loop_device]));
        if let Ok(device) = File::options().write(true).open(&self.path) {
            drop(device.write_all_at(&self.before, 0));
            drop(device.sync_all());
        }
    }
}

fn attach(path: &str) -> String {
    run_ok("losetup", &["-f", "--show", path]).trim().to_owned()
}

/// Reads the label and the metadata.
fn beginning(path: &str) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(MIB).unwrap()];
    File::open(path).unwrap().read_exact_at(&mut bytes, 0).unwrap();
    bytes
}
