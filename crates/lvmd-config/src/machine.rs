//! The identity of this machine in the tags of volume groups and volumes.

use std::fs;
use std::path::Path;

use lvm::{InvalidName, Tag};

/// Begins the tag of a volume group; the machine that works in it follows.
const MACHINE: &str = "topolvm.io/machine=";

/// A machine, and the time since it was booted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Its machine-id(5).
    id: String,
    /// The kernel's identity of the boot.
    boot: String,
}

impl Machine {
    /// Reads the identity of the machine below this directory, `/` or `/proc/1/root`; `None` if it has none.
    pub fn read(root: &Path) -> Option<Self> {
        let read = |file: &str| {
            let text = fs::read_to_string(root.join(file)).ok()?;
            let id: String = text.trim().chars().filter(|character| *character != '-').collect();
            // systemd writes "uninitialized" until the first boot is complete
            (id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit())).then_some(id)
        };
        Some(Self { id: read("etc/machine-id")?, boot: read("proc/sys/kernel/random/boot_id")? })
    }

    /// Returns the tag of the volume groups that this machine works in.
    pub fn tag(&self) -> Result<Tag, InvalidName> {
        format!("{MACHINE}{}", self.id).parse()
    }

    /// Returns what names the machine and the boot in the tag of a volume.
    pub(crate) fn mark(&self) -> String {
        format!("{}:{}", self.id, self.boot)
    }

    /// Returns whether a machine's mark in a tag is that of another machine.
    pub(crate) fn is_other(&self, mark: &str) -> bool {
        mark.split(':').next() != Some(&self.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "3d1219c7c4c5404aaa1f6d2a48adfda4";

    fn machine(id: &str) -> Option<Machine> {
        let root = tempfile::tempdir().unwrap();
        let random = root.path().join("proc/sys/kernel/random");
        fs::create_dir_all(&random).unwrap();
        fs::create_dir_all(root.path().join("etc")).unwrap();
        fs::write(random.join("boot_id"), "0b5a2f4e-8d54-4f5c-9a0e-7d8f6f3c2b1a\n").unwrap();
        fs::write(root.path().join("etc/machine-id"), format!("{id}\n")).unwrap();
        Machine::read(root.path())
    }

    #[test]
    fn machine_id_names_the_group_and_the_boot_the_volume() {
        let machine = machine(ID).unwrap();
        assert_eq!(machine.tag().unwrap().as_str(), format!("topolvm.io/machine={ID}"));
        assert_eq!(machine.mark(), format!("{ID}:0b5a2f4e8d544f5c9a0e7d8f6f3c2b1a"));
        assert!(!machine.is_other(&machine.mark()));
        assert!(machine.is_other("ffffffffffffffffffffffffffffffff:0b5a2f4e8d544f5c9a0e7d8f6f3c2b1a"));
    }

    #[test]
    fn machine_without_an_id_has_no_identity() {
        assert_eq!(machine(""), None);
        assert_eq!(machine("uninitialized"), None);
        assert_eq!(Machine::read(Path::new("/no/such/directory")), None);
    }
}
