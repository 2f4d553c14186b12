//! The workbench of each test: fresh volume groups on the guest's disks.

use std::process::{Command, Output};

use lvm::{LvName, Lvm, NewVolume, SystemRunner, Tag, VgName, VolumeGroup};

/// The two disks.
pub(crate) const DISKS: [&str; 2] = ["/dev/ubda", "/dev/ubdb"];
pub(crate) const MIB: u64 = 1 << 20;
/// Bytes in an extent: LVM's default.
pub(crate) const EXTENT: u64 = 4 * MIB;

/// Runs a program that must succeed.
pub(crate) fn must(program: &str, args: &[&str]) -> String {
    let output = run(program, args);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {args:?}: {stderr}");
    String::from_utf8(output.stdout).unwrap()
}

/// Runs a program.
pub(crate) fn run(program: &str, args: &[&str]) -> Output {
    Command::new(program).args(args).output().unwrap()
}

/// Volume groups that vanish with everything in them at the end of a test.
pub(crate) struct Groups(Vec<String>);

impl Groups {
    /// One volume group on each of these sets of disks.
    pub(crate) fn new(groups: &[(&str, &[&str])]) -> Self {
        for disk in DISKS {
            must("wipefs", &["-aq", disk]);
        }
        for (name, disks) in groups {
            must("vgcreate", &[&["-qy", name], *disks].concat());
        }
        Self(groups.iter().map(|(name, _)| (*name).to_owned()).collect())
    }

    /// `myvg1` on one disk.
    pub(crate) fn one() -> Self {
        Self::new(&[("myvg1", &DISKS[..1])])
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        for group in &self.0 {
            // A test may have renamed or removed it; what stays is wiped before the next test.
            drop(run("vgremove", &["-ffqy", group]));
        }
    }
}

/// LVM as lvmd uses it unless configured otherwise.
pub(crate) fn lvm() -> Lvm<SystemRunner> {
    Lvm::new(SystemRunner::new(SystemRunner::DEFAULT_PREFIX).unwrap())
}

pub(crate) fn vg(name: &str) -> VgName {
    name.parse().unwrap()
}

pub(crate) fn lv(name: &str) -> LvName {
    name.parse().unwrap()
}

/// Runs something asynchronous to its end.
pub(crate) fn wait<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap().block_on(future)
}

/// The tag of a volume that is being made.
pub(crate) fn making() -> Tag {
    "making".parse().unwrap()
}

/// A plain volume in `myvg1`.
pub(crate) async fn create(lvm: &Lvm<SystemRunner>, name: &str, bytes: u64) -> Result<(), lvm::Error> {
    let (vg, name, tags) = (vg("myvg1"), lv(name), [making()]);
    let volume = NewVolume { vg: &vg, pool: None, name: &name, bytes, tags: &tags, striping: None, options: &[] };
    lvm.create(&volume, &making()).await.done
}

pub(crate) async fn myvg1(lvm: &Lvm<SystemRunner>) -> VolumeGroup {
    lvm.volume_group(&vg("myvg1")).await.unwrap()
}
