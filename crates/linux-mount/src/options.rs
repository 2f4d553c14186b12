//! Mount options, split into flags of mount(2) and data for the filesystem.

use rustix::mount::MountFlags;

/// Mount options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountOptions {
    /// Flags of mount(2).
    pub flags: MountFlags,
    /// Options of the filesystem, separated by commas.
    pub data: String,
}

/// Error of a mount option.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptionError {
    /// "rw" was given for a volume that is published read-only.
    #[error("mount option \"rw\" conflicts with a read-only volume; remove it from mountOptions")]
    Contradiction,
    /// The option would make mount(2) do something else than mount the volume.
    #[error("mount option {0:?} is not supported for volumes; remove it from mountOptions")]
    Forbidden(String),
    /// The option has a zero byte, which would cut the options short.
    #[error("mount options contain a NUL byte; remove it from mountOptions")]
    ZeroByte,
}

impl Default for MountOptions {
    fn default() -> Self {
        Self { flags: MountFlags::empty(), data: String::new() }
    }
}

impl MountOptions {
    /// Parses mount options, each of which may be a list with commas. A later option overrides an earlier one, as
    /// with mount(8).
    pub fn parse<S: AsRef<str>>(readonly: bool, options: &[S]) -> Result<Self, OptionError> {
        let mut flags = if readonly { MountFlags::RDONLY } else { MountFlags::empty() };
        let mut data: Vec<&str> = Vec::new();
        for option in options.iter().flat_map(|options| split_options(options.as_ref())) {
            if option.contains('\0') {
                return Err(OptionError::ZeroByte);
            }
            if readonly && option == "rw" {
                return Err(OptionError::Contradiction);
            }
            if let Some((set, _, flag)) = FLAGS.iter().find(|(set, clear, _)| [*set, *clear].contains(&option)) {
                flags.set(*flag, option == *set);
            } else if is_forbidden(option) {
                return Err(OptionError::Forbidden(option.to_owned()));
            } else if !is_ignored(option) {
                data.push(option);
            }
        }
        Ok(Self { flags, data: data.join(",") })
    }

    /// Adds an option of the filesystem, unless it is already set.
    #[must_use]
    pub fn with(mut self, option: &str) -> Self {
        if !split_options(&self.data).any(|known| known == option) {
            let separator = if self.data.is_empty() { "" } else { "," };
            self.data = format!("{}{separator}{option}", self.data);
        }
        self
    }

    /// Sets or clears read-only.
    #[must_use]
    pub fn in_mode(mut self, readonly: bool) -> Self {
        self.flags.set(MountFlags::RDONLY, readonly);
        self
    }

    /// Returns whether the mount is read-only.
    pub const fn is_readonly(&self) -> bool {
        self.flags.contains(MountFlags::RDONLY)
    }
}

/// Splits a list of options. A comma between quotes belongs to the option, as in
/// `context="system_u:object_r:container_file_t:s0:c1,c2"`, which kubelet sends on machines with SELinux.
fn split_options(list: &str) -> impl Iterator<Item = &str> {
    let mut quoted = false;
    list.split(move |c| {
        if c == '"' {
            quoted = !quoted;
        }
        c == ',' && !quoted
    })
    .map(str::trim)
    .filter(|option| !option.is_empty())
}

/// Options that set a flag of mount(2), the options that clear it, and the flag.
const FLAGS: [(&str, &str, MountFlags); 14] = [
    ("ro", "rw", MountFlags::RDONLY),
    ("nosuid", "suid", MountFlags::NOSUID),
    ("nodev", "dev", MountFlags::NODEV),
    ("noexec", "exec", MountFlags::NOEXEC),
    ("sync", "async", MountFlags::SYNCHRONOUS),
    ("noatime", "atime", MountFlags::NOATIME),
    ("nodiratime", "diratime", MountFlags::NODIRATIME),
    ("relatime", "norelatime", MountFlags::RELATIME),
    ("strictatime", "nostrictatime", MountFlags::STRICTATIME),
    ("lazytime", "nolazytime", MountFlags::LAZYTIME),
    ("mand", "nomand", MountFlags::PERMIT_MANDATORY_FILE_LOCKING),
    ("nosymfollow", "symfollow", MountFlags::NOSYMFOLLOW),
    ("silent", "loud", MountFlags::SILENT),
    // Nothing clears it, and no option is empty
    ("dirsync", "", MountFlags::DIRSYNC),
];

/// Options that mount a part of the device, or that name another one: the journal of ext4, the log and the real-time
/// part of XFS, more devices of Btrfs.
const DEVICE_OPTIONS: [&str; 8] =
    ["loop", "offset", "sizelimit", "journal_path", "journal_dev", "logdev", "rtdev", "device"];

/// Returns whether mount(2) would change a mount because of an option instead of making one, or use another device.
fn is_forbidden(option: &str) -> bool {
    matches!(
        option,
        "bind"
            | "rbind"
            | "remount"
            | "move"
            | "loop"
            | "shared"
            | "rshared"
            | "private"
            | "rprivate"
            | "slave"
            | "rslave"
            | "unbindable"
            | "runbindable"
    ) || option.split_once('=').is_some_and(|(name, _)| DEVICE_OPTIONS.contains(&name))
}

/// Returns whether an option is for mount(8) and fstab only.
fn is_ignored(option: &str) -> bool {
    matches!(
        option,
        "defaults" | "auto" | "noauto" | "nofail" | "_netdev" | "user" | "nouser" | "users" | "owner" | "group"
    ) || ["x-", "X-", "comment="].iter().any(|prefix| option.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(false, &[], MountFlags::empty(), "")]
    #[case(true, &[], MountFlags::RDONLY, "")]
    #[case(false, &["ro"], MountFlags::RDONLY, "")]
    #[case(false, &["ro", "rw"], MountFlags::empty(), "")]
    #[case(false, &["noatime", "discard"], MountFlags::NOATIME, "discard")]
    #[case(
        false,
        &["noatime,nodev,discard", "data=writeback"],
        MountFlags::NOATIME.union(MountFlags::NODEV),
        "discard,data=writeback"
    )]
    #[case(false, &["noexec", "exec", " nosuid "], MountFlags::NOSUID, "")]
    #[case(false, &["defaults,,nofail", "_netdev", "x-systemd.automount", "comment=a"], MountFlags::empty(), "")]
    #[case(
        false,
        &["context=\"system_u:object_r:t:s0:c1,c2\",noatime"],
        MountFlags::NOATIME,
        "context=\"system_u:object_r:t:s0:c1,c2\""
    )]
    #[case(true, &["commit=30", "norecovery"], MountFlags::RDONLY, "commit=30,norecovery")]
    fn options_are_flags_or_data(
        #[case] readonly: bool,
        #[case] options: &[&str],
        #[case] flags: MountFlags,
        #[case] data: &str,
    ) {
        let expected = MountOptions { flags, data: data.to_owned() };
        assert_eq!(MountOptions::parse(readonly, options), Ok(expected));
    }

    #[test]
    fn an_option_is_added_once() {
        let options = MountOptions::parse(false, &[""]).unwrap().with("nouuid");
        assert_eq!(options.data, "nouuid");
        let options = MountOptions::parse(false, &["nouuid,discard"]).unwrap().with("nouuid").with("noquota");
        assert_eq!(options.data, "nouuid,discard,noquota");
    }

    #[rstest]
    #[case(true, &["rw"], OptionError::Contradiction)]
    #[case(true, &["noatime,rw"], OptionError::Contradiction)]
    #[case(false, &["bind"], OptionError::Forbidden("bind".to_owned()))]
    #[case(false, &["noatime,remount"], OptionError::Forbidden("remount".to_owned()))]
    #[case(false, &["loop=/dev/loop3"], OptionError::Forbidden("loop=/dev/loop3".to_owned()))]
    #[case(false, &["journal_path=/dev/sda"], OptionError::Forbidden("journal_path=/dev/sda".to_owned()))]
    #[case(false, &["journal_dev=0x801"], OptionError::Forbidden("journal_dev=0x801".to_owned()))]
    #[case(false, &["noatime,logdev=/dev/sda"], OptionError::Forbidden("logdev=/dev/sda".to_owned()))]
    #[case(false, &["rtdev=/dev/sda"], OptionError::Forbidden("rtdev=/dev/sda".to_owned()))]
    #[case(false, &["device=/dev/sda"], OptionError::Forbidden("device=/dev/sda".to_owned()))]
    #[case(false, &["data=ordered\0"], OptionError::ZeroByte)]
    fn options_that_cannot_be_are_refused(
        #[case] readonly: bool,
        #[case] options: &[&str],
        #[case] error: OptionError,
    ) {
        assert_eq!(MountOptions::parse(readonly, options), Err(error));
    }
}
