//! LVM commands as values: built from typed parts, printable, comparable.

mod confinement;
mod disks;
mod pools;
mod relocation;

use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;

use crate::{HostSettings, LvName, Tag, VgName};

pub use pools::{NewPool, PoolSizes};

/// Sections of a full report: what a row is about, its fields, and more options.
const REPORT_SECTIONS: [(&str, &str, &[&str]); 5] = [
    (
        "vg",
        "vg_name,vg_uuid,vg_seqno,vg_size,vg_free,vg_extent_size,vg_missing_pv_count,vg_tags,pv_count,lv_count,\
         max_lv,vg_permissions,vg_systemid,vg_exported",
        &[],
    ),
    (
        "lv",
        "lv_uuid,lv_name,lv_path,lv_size,lv_kernel_major,lv_kernel_minor,origin,origin_size,pool_lv,lv_tags,lv_attr,\
         data_percent,metadata_percent,lv_metadata_size",
        &[],
    ),
    // In the order of the group, in which LVM allocates.
    ("pv", "pv_name,pv_uuid,pv_major,pv_minor,pv_size,pv_free,pv_missing,pv_allocatable,pv_tags", &["-O", "vg_name"]),
    ("pvseg", "pv_uuid,pvseg_start,pvseg_size", &["-S", "segtype=free"]),
    // Without linear and thin segments, which need no description, a report of thousands of volumes stays short.
    ("seg", "lv_uuid,segtype,stripes", &["-S", "segtype!=linear&&segtype!=thin&&segtype!=thin-pool"]),
];

/// Settings that `lvm.conf` must not change, as a value of `--config`: the form of reports, which marks hidden volumes;
/// the order of segments, of which the last counts; the beginning of messages, which distinguishes errors; that LVM
/// waits for a lock that another process holds; and that versions without one of these settings do not complain.
/// Everything else in `lvm.conf` is the administrator's.
const SETTINGS: &str = "report/binary_values_as_numeric=0 report/buffered=1 report/columns_as_rows=0 \
                        report/compact_output=0 report/compact_output_cols=\"\" report/list_item_separator=\",\" \
                        report/mark_hidden_devices=1 report/quoted=1 report/separator=\" \" \
                        report/segs_sort_full=\"vg_uuid,lv_uuid,seg_start\" log/command_names=0 log/prefix=\"  \" \
                        log/silent=0 log/verbose=0 global/wait_for_locks=1 config/checks=0";
/// More of them, which LVM's shell reads once, at its start, and refuses in `--config`.
const PROCESS_SETTINGS: &str = "report/output_format=\"basic\" log/report_command_log=0";

/// Most arguments of a line of LVM's shell (`MAX_ARGS`, less one).
const MAX_SHELL_WORDS: usize = 63;

/// Effect of a command. A [`CommandRunner`](crate::CommandRunner) may stop reading at any time, but not a
/// change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Only reads.
    Read,
    /// Changes metadata or data.
    Change,
}

/// One LVM command: what comes after the `lvm` program on its command line.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LvmCommand {
    args: Vec<String>,
    effect: Effect,
    /// Device files of the only disks that LVM sees; `None` for all that `lvm.conf` allows.
    disks: Option<Arc<[String]>>,
}

/// A thick or thin logical volume to create.
#[derive(Clone, Debug)]
pub struct NewVolume<'a> {
    /// Its volume group.
    pub vg: &'a VgName,
    /// The thin pool that it takes its extents from, in the same group; `None` for a thick volume.
    pub pool: Option<&'a LvName>,
    /// Its name.
    pub name: &'a LvName,
    /// Size in bytes, a multiple of 512; LVM rounds it up to whole extents.
    pub bytes: u64,
    /// Tags that it carries from the first moment.
    pub tags: &'a [Tag],
    /// Over how many devices it is striped.
    pub striping: Option<&'a Striping>,
    /// Options that the administrator adds to `lvcreate`, one argument per entry.
    pub options: &'a [String],
}

/// A thin snapshot of a thin volume to create, in the same pool.
#[derive(Clone, Debug)]
pub struct NewSnapshot<'a> {
    /// Its volume group.
    pub vg: &'a VgName,
    /// The thin volume whose present contents it gets.
    pub source: &'a LvName,
    /// Its name.
    pub name: &'a LvName,
    /// Tags that it carries from the first moment; it inherits none.
    pub tags: &'a [Tag],
    /// True if it is read-only.
    pub read_only: bool,
}

/// `lvcreate --stripes` and `--stripesize`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Striping {
    /// Over how many physical volumes.
    pub stripes: NonZeroU32,
    /// Size of one stripe in LVM's notation, such as `64k`; LVM's default when `None`.
    pub stripe_size: Option<String>,
}

impl LvmCommand {
    /// Reports these volume groups and the logical volumes in them, in one consistent answer. LVM reports on
    /// every volume group that it finds when `groups` is empty.
    pub fn report<'a>(groups: impl IntoIterator<Item = &'a VgName>) -> Self {
        // JSON would be the obvious form, but the LVM shell has no option for it. A section of a full report cannot be
        // switched off, only emptied (`-o,`).
        let mut args = vec!["fullreport", "--noheadings", "--nameprefixes", "--units", "b", "--nosuffix"];
        for (section, fields, options) in REPORT_SECTIONS {
            args.extend(["--configreport", section, "-o", fields]);
            args.extend(options);
        }
        args.extend(groups.into_iter().map(VgName::as_str));
        Self::new(Effect::Read, args)
    }

    /// Lists the names of all volume groups.
    pub fn group_names() -> Self {
        Self::new(Effect::Read, ["vgs", "--noheadings", "--nameprefixes", "-o", "vg_name"])
    }

    /// Reads the settings of `lvm.conf` that decide what LVM does at all, see [`HostSettings`]. It is not given
    /// settings of ours, which it would mistake for the host's.
    pub fn host_settings() -> Self {
        Self::new(Effect::Read, ["lvmconfig", "--type", "full"].into_iter().chain(HostSettings::NAMES.iter().copied()))
    }

    /// Creates a logical volume: old signatures are wiped and its beginning zeroed without asking.
    pub fn create(volume: &NewVolume<'_>) -> Self {
        let bytes = format!("{}b", volume.bytes);
        let pool = volume.pool.map(|pool| full_name(volume.vg, pool));
        let mut args = match &pool {
            // The pool determines the location: LVM accepts no group in addition to it.
            Some(pool) => vec!["lvcreate", "-T", pool, "-n", volume.name.as_str(), "-V", &bytes, "-W", "y", "-y"],
            None => vec!["lvcreate", "-n", volume.name.as_str(), "-L", &bytes, "-W", "y", "-y"],
        };
        args.extend(tag_options("--addtag", volume.tags));
        let stripes = volume.striping.map(|striping| striping.stripes.to_string());
        if let Some(stripes) = &stripes {
            args.extend(["-i", stripes]);
        }
        if let Some(size) = volume.striping.and_then(|striping| striping.stripe_size.as_deref()) {
            args.extend(["-I", size]);
        }
        args.extend(volume.options.iter().map(String::as_str));
        if pool.is_none() {
            args.push(volume.vg.as_str());
        }
        Self::new(Effect::Change, args)
    }

    /// Creates a thin snapshot as large as its source. It is active at once and at every activation of the group, which
    /// LVM would otherwise skip.
    pub fn snapshot(snapshot: &NewSnapshot<'_>) -> Self {
        let source = full_name(snapshot.vg, snapshot.source);
        let mut args = vec!["lvcreate", "-s", "-k", "n", "-n", snapshot.name.as_str()];
        if snapshot.read_only {
            args.extend(["-p", "r"]);
        }
        args.extend(tag_options("--addtag", snapshot.tags));
        args.push(&source);
        Self::new(Effect::Change, args)
    }

    /// Makes a volume larger. Unlike `lvresize` this can never make one smaller, and so has nothing to ask: in LVM's
    /// shell a question would take the next command for its answer.
    pub fn extend(vg: &VgName, name: &LvName, bytes: u64) -> Self {
        Self::new(Effect::Change, ["lvextend", "-y", "-L", &format!("{bytes}b"), &full_name(vg, name)])
    }

    /// Removes a logical volume, without asking, and with it everything that cannot exist without it: the snapshots of
    /// an origin, the volumes of a thin pool.
    pub fn remove(vg: &VgName, name: &LvName) -> Self {
        Self::new(Effect::Change, ["lvremove", "-f", &full_name(vg, name)])
    }

    /// Removes, without a prompt, the one logical volume with this identity, and only if it carries the tag, if one is
    /// given. LVM checks this while it holds the lock of the group, so a volume that another process has changed stays.
    /// LVM exits with success even if it removes nothing.
    pub fn remove_selected(vg: &VgName, uuid: &str, tag: Option<&str>) -> Self {
        // lvmreport(7), SELECTION: braces ask whether the tag is among those of the volume. No tag contains a quote.
        let tagged = tag.map_or_else(String::new, |tag| format!("&&lv_tags={{\"{tag}\"}}"));
        Self::new(Effect::Change, ["lvremove", "-f", "-S", &format!("lv_uuid={uuid}{tagged}"), vg.as_str()])
    }

    /// Lists the thin devices of a group's volumes and the transactions of its pools, read without LVM's lock, for a
    /// caller that holds it.
    pub fn thin_ids(vg: &VgName) -> Self {
        let fields = "lv_name,pool_lv,thin_id,transaction_id";
        Self::new(
            Effect::Read,
            ["lvs", "--readonly", "-a", "--noheadings", "--nameprefixes", "-o", fields, vg.as_str()],
        )
    }

    /// Prints the system ID of this machine.
    pub fn system_id() -> Self {
        Self::new(Effect::Read, ["systemid"])
    }

    /// Reads the value of a setting that LVM uses, its default included.
    pub fn setting(name: &str) -> Self {
        Self::new(Effect::Read, ["lvmconfig", "--type", "full", name])
    }

    /// Gives another name.
    pub fn rename(vg: &VgName, name: &LvName, new: &LvName) -> Self {
        Self::new(Effect::Change, ["lvrename", vg.as_str(), name.as_str(), new.as_str()])
    }

    /// Reloads the block device of a volume from the metadata, and resumes it if it is suspended.
    pub fn refresh(vg: &VgName, name: &LvName) -> Self {
        Self::new(Effect::Change, ["lvchange", "--refresh", &full_name(vg, name)])
    }

    /// Creates the block device of a logical volume, also of one with the activation skip flag.
    pub fn activate(vg: &VgName, name: &LvName) -> Self {
        Self::new(Effect::Change, ["lvchange", "-a", "y", "-K", &full_name(vg, name)])
    }

    /// Adds and takes away tags in one metadata change.
    pub fn change_tags(vg: &VgName, name: &LvName, add: &[Tag], remove: &[Tag]) -> Self {
        let target = full_name(vg, name);
        let mut args = vec!["lvchange"];
        args.extend(tag_options("--addtag", add));
        args.extend(tag_options("--deltag", remove));
        args.push(&target);
        Self::new(Effect::Change, args)
    }

    /// Takes these tags away from each of these logical volumes, as far as they carry them.
    pub fn remove_tags<'a>(
        vg: &VgName,
        names: impl IntoIterator<Item = &'a LvName>,
        tags: impl IntoIterator<Item = &'a Tag>,
    ) -> Self {
        let mut args = vec!["lvchange".to_owned()];
        for tag in tags {
            args.extend(["--deltag".to_owned(), tag.as_str().to_owned()]);
        }
        args.extend(names.into_iter().map(|name| full_name(vg, name)));
        Self::new(Effect::Change, args)
    }

    /// Adds and takes away tags of the logical volume with this identity, whatever its name is by now.
    pub fn change_tags_of(vg: &VgName, uuid: &str, add: &[Tag], remove: &[Tag]) -> Self {
        let selection = format!("lv_uuid={uuid}");
        let mut args = vec!["lvchange"];
        args.extend(tag_options("--addtag", add));
        args.extend(tag_options("--deltag", remove));
        args.extend(["-S", &selection, vg.as_str()]);
        Self::new(Effect::Change, args)
    }

    fn new<A: Into<String>>(effect: Effect, args: impl IntoIterator<Item = A>) -> Self {
        Self { args: args.into_iter().map(Into::into).collect(), effect, disks: None }
    }

    /// Returns the LVM sub-command, for example `lvcreate`.
    pub fn name(&self) -> &str {
        self.args.first().map_or("", String::as_str)
    }

    /// Returns the sub-command and its arguments.
    pub fn args(&self) -> &[String] {
        &self.args
    }

    /// Returns the arguments for a separate process: the sub-command, settings that the host's `lvm.conf` must not
    /// change, and the arguments. LVM accepts only one `--config`, so the settings in an administrator's options are
    /// merged into ours, and win.
    pub(crate) fn process_words(&self) -> Vec<String> {
        self.words(&format!("{SETTINGS} {PROCESS_SETTINGS}"))
    }

    fn words(&self, settings: &str) -> Vec<String> {
        let mut args = self.args.iter();
        let mut words: Vec<_> = args.next().cloned().into_iter().collect();
        if self.name() == "lvmconfig" {
            words.extend(args.cloned());
            return words;
        }
        let mut settings = settings.to_owned();
        if let Some(confinement) = self.confinement() {
            settings = format!("{settings} {confinement}");
        }
        let mut rest = Vec::new();
        while let Some(arg) = args.next() {
            let theirs = if arg == "--config" { args.next() } else { None };
            match theirs.map(String::as_str).or_else(|| arg.strip_prefix("--config=")) {
                Some(theirs) => settings = format!("{settings} {theirs}"),
                None => rest.push(arg.clone()),
            }
        }
        words.extend(["--config".to_owned(), settings]);
        words.extend(rest);
        words
    }

    /// Returns the command as a line for LVM's own shell, which splits it into arguments again; `None` if the shell
    /// cannot express it. In a quoted argument no character has a special meaning, and there are no other escapes.
    pub(crate) fn shell_line(&self) -> Option<String> {
        let words = self.words(SETTINGS);
        if words.len() > MAX_SHELL_WORDS {
            return None;
        }
        let quoted = |arg: &String| {
            let has = |character: char| arg.contains(character);
            match (arg.is_empty() || arg.contains(char::is_whitespace), has('\''), has('"')) {
                _ if has('\n') || has('\0') => None,
                (false, false, false) => Some(arg.clone()),
                (_, false, _) => Some(format!("'{arg}'")),
                (_, true, false) => Some(format!("\"{arg}\"")),
                (_, true, true) => None,
            }
        };
        Some(words.iter().map(quoted).collect::<Option<Vec<_>>>()?.join(" "))
    }

    /// Returns the effect of the command.
    pub fn effect(&self) -> Effect {
        self.effect
    }
}

/// As one would type it into a shell.
impl fmt::Display for LvmCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, arg) in self.args.iter().enumerate() {
            if index > 0 {
                f.write_str(" ")?;
            }
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_=+.,/:@%".contains(&byte);
            if !arg.is_empty() && arg.bytes().all(plain) {
                f.write_str(arg)?;
            } else {
                write!(f, "'{}'", arg.replace('\'', r"'\''"))?;
            }
        }
        Ok(())
    }
}

/// Tags that are added to a volume group or a logical volume and taken away from it.
#[derive(Clone, Copy, Debug, Default)]
pub struct TagChanges<'a> {
    /// Tags to add.
    pub add: &'a [Tag],
    /// Tags to take away.
    pub remove: &'a [Tag],
}

fn tag_options<'a>(option: &'a str, tags: &'a [Tag]) -> impl Iterator<Item = &'a str> {
    tags.iter().flat_map(move |tag| [option, tag.as_str()])
}

fn full_name(vg: &VgName, name: &LvName) -> String {
    format!("{vg}/{name}")
}

#[cfg(test)]
mod tests;
