//! Confines LVM to some disks.

use std::sync::Arc;

use super::LvmCommand;

/// Commands that change which disks are physical volumes of which group. LVM keeps its devices file and its hints up to
/// date in them, so these stay as the administrator has them.
const CHANGING_DISKS: [&str; 5] = ["vgcreate", "vgextend", "vgreduce", "pvresize", "pvcreate"];

impl LvmCommand {
    /// Returns the command for an LVM that sees these disks, by their device files, and no others.
    #[must_use]
    pub(crate) fn confined_to(self, disks: Arc<[String]>) -> Self {
        Self { disks: Some(disks), ..self }
    }

    /// Returns the device files of the only disks that LVM sees; `None` if it sees all that `lvm.conf` allows.
    pub fn visible_disks(&self) -> Option<&[String]> {
        self.disks.as_deref()
    }

    /// Returns the settings of lvm.conf(5) for that; `None` if it may see all that `lvm.conf` allows.
    ///
    /// `devices/global_filter` stays as it is and applies as well. A devices file would replace the filter, and each
    /// command would rewrite the hints, which were written for another filter.
    pub(super) fn confinement(&self) -> Option<String> {
        let accepted = self.disks.as_ref()?.iter().map(|disk| format!("\"a|^{}$|\"", as_pattern(disk)));
        let filter = accepted.chain(["\"r|.*|\"".to_owned()]).collect::<Vec<_>>().join(",");
        let others = if CHANGING_DISKS.contains(&self.name()) {
            ""
        } else {
            " devices/use_devicesfile=0 devices/hints=\"none\""
        };
        Some(format!("devices/filter=[{filter}]{others}"))
    }
}

/// Returns the regular expression for a path. A character that may mean something in one, or in a string of LVM's
/// configuration, becomes one that means any character.
fn as_pattern(path: &str) -> String {
    let plain = |character: char| character.is_ascii_alphanumeric() || "/_-:=,@%".contains(character);
    path.chars().map(|character| if plain(character) { character } else { '.' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn confined(command: LvmCommand, disks: &[&str]) -> String {
        command.confined_to(disks.iter().map(|&disk| disk.to_owned()).collect()).process_words().join(" ")
    }

    #[test]
    fn confined_command_accepts_only_these_disks() {
        let vg = "vg1".parse().unwrap();
        let words = confined(LvmCommand::report([&vg]), &["/dev/sdb", "/dev/mapper/a+b"]);
        let settings = "devices/filter=[\"a|^/dev/sdb$|\",\"a|^/dev/mapper/a.b$|\",\"r|.*|\"] \
                        devices/use_devicesfile=0 devices/hints=\"none\"";
        assert!(words.contains(settings), "{words}");
        let nothing = confined(LvmCommand::report([&vg]), &[]);
        assert!(nothing.contains("devices/filter=[\"r|.*|\"] "), "{nothing}");
        assert!(!LvmCommand::report([&vg]).process_words().join(" ").contains("devices/"));
    }

    #[test]
    fn confined_command_that_adds_a_disk_keeps_the_devices_file() {
        let words = confined(LvmCommand::extend_group(&"vg1".parse().unwrap(), "/dev/sdc"), &["/dev/sdb", "/dev/sdc"]);
        assert!(words.contains("devices/filter=") && !words.contains("use_devicesfile"), "{words}");
    }
}
