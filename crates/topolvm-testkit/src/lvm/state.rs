//! Volume groups and logical volumes in memory.

use std::collections::BTreeMap;

use lvm::{LvmCommand, Output, Wipe};

use super::machine::FakeDisk;

/// Bytes in an extent of every fake volume group: LVM's default.
pub const EXTENT: u64 = 4 << 20;

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) groups: BTreeMap<String, Group>,
    /// Groups whose disks are away.
    pub(super) unplugged: BTreeMap<String, Group>,
    pub(super) disks: BTreeMap<String, FakeDisk>,
    next_minor: u32,
    next_uuid: u32,
    pub(super) devices_are_hidden: bool,
    /// The system ID of the machine (lvmsystemid(7)).
    pub(super) system_id: String,
    /// lvm.conf(5) `activation/thin_pool_autoextend_threshold`.
    pub(super) thin_pool_threshold: Option<u8>,
}

#[derive(Debug)]
pub(super) struct Group {
    pub(super) uuid: String,
    pub(super) seqno: u64,
    pub(super) tags: Vec<String>,
    pub(super) extents: u64,
    pub(super) pvs: u32,
    pub(super) missing_pvs: u32,
    /// Most volumes that it may have; 0 for any number.
    pub(super) max_volumes: usize,
    /// Name in device-mapper of the volume on which its physical volumes lie.
    pub(super) below: Option<String>,
    pub(super) system_id: String,
    pub(super) is_exported: bool,
    pub(super) is_unreadable: bool,
    pub(super) volumes: BTreeMap<String, FakeVolume>,
    pub(super) removed_unwiped: Vec<String>,
}

/// A logical volume of the fake LVM.
#[derive(Clone, Debug, PartialEq)]
pub struct FakeVolume {
    /// LVM's UUID, set when it is added to a group.
    pub uuid: String,
    /// Size in extents of 4 MiB.
    pub extents: u64,
    /// Extents allocated to it in its group: more than its size with redundancy, none in a thin pool.
    pub allocated: u64,
    /// `lv_attr` of the volume while it is active and closed.
    pub attr: String,
    /// LVM tags; the order has no meaning.
    pub tags: Vec<String>,
    /// Number of physical volumes that it is striped over.
    pub stripes: u64,
    /// Origin of a snapshot.
    pub origin: Option<String>,
    /// Thin pool of a thin volume.
    pub pool: Option<String>,
    /// Active: it has a block device.
    pub active: bool,
    /// Open: a program uses its block device.
    pub open: bool,
    /// Minor number of its block device.
    pub minor: u32,
    /// Held: its block device is open exclusively, to be wiped.
    pub held: bool,
    /// Bytes that have been wiped, from its beginning on.
    pub wiped: u64,
    /// Method by which its last part was wiped.
    pub wiped_by: Option<Wipe>,
    /// First byte of its device that cannot be written: it and all after it are I/O errors.
    pub broken_at: Option<u64>,
    /// The treatment of discards by a thin pool, as dm-thin names it.
    pub discards: &'static str,
    /// Sectors of a thin volume that are mapped in its pool.
    pub mapped_sectors: u64,
    /// Usage of the data of a thin pool, in percent.
    pub data_percent: f64,
    /// Usage of the metadata of a thin pool, in percent.
    pub metadata_percent: f64,
    /// Size of the metadata of a thin pool in extents; LVM keeps as many again.
    pub metadata_extents: u64,
    /// LVM's keyword for whether dmeventd monitors it.
    pub monitoring: &'static str,
}

impl FakeVolume {
    /// Makes a linear active volume of `bytes`, rounded up to extents.
    pub fn thick(bytes: u64) -> Self {
        let extents = bytes.div_ceil(EXTENT);
        Self {
            uuid: String::new(),
            extents,
            allocated: extents,
            attr: "-wi-a-----".to_owned(),
            tags: Vec::new(),
            stripes: 1,
            origin: None,
            pool: None,
            active: true,
            open: false,
            minor: 0,
            held: false,
            wiped: 0,
            wiped_by: None,
            broken_at: None,
            discards: "discard_passdown",
            mapped_sectors: 0,
            data_percent: 0.0,
            metadata_percent: 0.0,
            metadata_extents: 1,
            monitoring: "not monitored",
        }
    }

    /// Makes a thin pool of `bytes`.
    pub fn thin_pool(bytes: u64) -> Self {
        Self { attr: "twi-aotz--".to_owned(), ..Self::thick(bytes) }
    }

    /// Makes a thin volume of `bytes` in a pool.
    pub fn thin(bytes: u64, pool: &str) -> Self {
        Self { attr: "Vwi-a-tz--".to_owned(), allocated: 0, pool: Some(pool.to_owned()), ..Self::thick(bytes) }
    }

    /// Makes a copy-on-write snapshot with `bytes` for changes.
    pub fn snapshot(bytes: u64, origin: &str) -> Self {
        Self { attr: "swi-a-s---".to_owned(), origin: Some(origin.to_owned()), ..Self::thick(bytes) }
    }

    /// Returns its size in bytes.
    pub fn bytes(&self) -> u64 {
        self.extents * EXTENT
    }

    /// Returns LVM's segment type, unless it is linear or thin.
    pub(super) fn segment_type(&self) -> Option<&'static str> {
        match self.attr.get(..1) {
            Some("r") => Some("raid1"),
            Some("-") if self.stripes > 1 => Some("striped"),
            _ => None,
        }
    }

    /// Returns `lv_attr` as LVM reports it.
    pub(super) fn reported_attr(&self) -> String {
        let mut attr: Vec<char> = self.attr.chars().collect();
        if !self.active {
            attr[4] = '-';
        }
        if self.open || self.held {
            attr[5] = 'o';
        }
        attr.into_iter().collect()
    }
}

impl Group {
    pub(super) fn new(name: &str, bytes: u64, pvs: u32) -> Self {
        Self {
            uuid: format!("uuid-of-{name}"),
            seqno: 1,
            tags: Vec::new(),
            extents: bytes / EXTENT,
            pvs,
            missing_pvs: 0,
            max_volumes: 0,
            below: None,
            system_id: String::new(),
            is_exported: false,
            is_unreadable: false,
            volumes: BTreeMap::new(),
            removed_unwiped: Vec::new(),
        }
    }

    /// Returns the device file of a physical volume.
    pub(super) fn pv_path(&self, pv: u32) -> String {
        format!("/dev/{}{pv}", if self.below.is_some() { "loop" } else { "fake" })
    }

    pub(super) fn pv_paths(&self) -> impl Iterator<Item = String> {
        (0..self.pvs).map(|pv| self.pv_path(pv))
    }

    /// Returns the volume that a selection `lv_uuid=UUID` or `lv_uuid=UUID&&lv_tags={"TAG"}` matches.
    pub(super) fn select(&self, selection: &str) -> Result<Option<&str>, CommandError> {
        let invalid = || CommandError::usage(format!("Selection syntax error at '{selection}'."));
        let (uuid, tag) = match selection.split_once("&&") {
            Some((uuid, tag)) => {
                let tag = tag.strip_prefix("lv_tags={\"").and_then(|tag| tag.strip_suffix("\"}"));
                (uuid, Some(tag.ok_or_else(invalid)?))
            }
            None => (selection, None),
        };
        let uuid = uuid.strip_prefix("lv_uuid=").ok_or_else(invalid)?;
        let has = |volume: &FakeVolume| tag.is_none_or(|tag| volume.tags.iter().any(|existing| existing == tag));
        let mut selected = self.volumes.iter().filter(|(_, volume)| volume.uuid == uuid && has(volume));
        Ok(selected.next().map(|(name, _)| name.as_str()))
    }

    pub(super) fn free_extents(&self) -> u64 {
        let used = self.volumes.values().map(|volume| volume.allocated).sum();
        self.extents.saturating_sub(used)
    }

    /// Returns the free extents of a physical volume: those of the group are spread evenly.
    pub(super) fn free_extents_of(&self, pv: u32) -> u64 {
        self.share_of(pv, self.free_extents())
    }

    /// Returns the extents of a disk.
    pub(super) fn extents_of(&self, pv: u32) -> u64 {
        self.share_of(pv, self.extents)
    }

    /// Returns the part of extents that lie evenly on all disks.
    fn share_of(&self, pv: u32, extents: u64) -> u64 {
        let pvs = u64::from(self.pvs);
        extents / pvs + u64::from(u64::from(pv) < extents % pvs)
    }

    /// Removes a volume with those that depend on it. Thin snapshots forget where they came from.
    pub(super) fn remove(&mut self, name: &str) {
        for dependent in self.dependents(name) {
            self.volumes.remove(&dependent);
        }
        self.volumes.remove(name);
        for volume in self.volumes.values_mut().filter(|volume| volume.origin.as_deref() == Some(name)) {
            volume.origin = None;
        }
    }

    /// Returns the volumes that are removed with this one.
    pub(super) fn dependents(&self, name: &str) -> Vec<String> {
        let depends = |volume: &FakeVolume| match &volume.pool {
            // Thin snapshots live on without their origin.
            Some(pool) => pool == name,
            None => volume.origin.as_deref() == Some(name),
        };
        self.volumes.iter().filter(|(_, volume)| depends(volume)).map(|(name, _)| name.clone()).collect()
    }
}

impl State {
    /// Returns a group that a test names, which must exist.
    pub(super) fn group(&mut self, vg: &str) -> &mut Group {
        self.groups.get_mut(vg).expect("no such volume group in the fake LVM")
    }

    pub(super) fn add_volume(&mut self, vg: &str, name: &str, volume: FakeVolume) {
        let minor = self.next_minor;
        self.next_minor += 1;
        self.next_uuid += 1;
        let uuid = format!("lv-uuid-{}", self.next_uuid);
        let group = self.group(vg);
        group.seqno += 1;
        group.volumes.insert(name.to_owned(), FakeVolume { uuid, minor, ..volume });
    }

    pub(super) fn execute(&mut self, command: &LvmCommand) -> Output {
        let args: Vec<&str> = command.args().iter().skip(1).map(String::as_str).collect();
        match command.name() {
            "fullreport" => self.full_report(&args, command.visible_disks()),
            "systemid" => into_output(Ok(format!("  system ID: {}", self.system_id))),
            "pvs" if args.contains(&"-a") => into_output(Ok(self.physical_volume_paths())),
            "vgs" => into_output(Ok(self.group_names())),
            "pvs" => into_output(Ok(self.physical_volumes())),
            "vgchange" => into_output(self.vgchange(&args)),
            "vgcreate" => into_output(self.vgcreate(&args)),
            "vgextend" => into_output(self.vgextend(&args)),
            "pvresize" => into_output(self.pvresize(&args)),
            "lvmconfig" if args.contains(&"activation/thin_pool_autoextend_threshold") => {
                let threshold = self.thin_pool_threshold.unwrap_or(100);
                into_output(Ok(format!("thin_pool_autoextend_threshold={threshold}")))
            }
            // All settings have LVM's defaults
            "lvmconfig" => into_output(Ok(String::new())),
            "lvs" if args.contains(&"-a") => into_output(self.all_volumes(&args)),
            "lvs" => into_output(self.monitoring(&args)),
            "lvcreate" => into_output(self.lvcreate(&args)),
            "lvextend" => into_output(self.lvextend(&args)),
            "lvremove" => into_output(self.lvremove(&args)),
            "lvchange" => into_output(self.lvchange(&args)),
            "lvrename" => into_output(self.lvrename(&args)),
            other => into_output(Err(CommandError::usage(format!("Unknown command: {other}")))),
        }
    }
}

/// The failure of a command: exit status and message of LVM.
pub(super) struct CommandError {
    pub(super) code: i32,
    pub(super) stderr: String,
}

impl CommandError {
    /// Makes a failure with LVM's status `ECMD_FAILED`.
    pub(super) fn failed(message: impl Into<String>) -> Self {
        Self { code: 5, stderr: format!("  {}\n", message.into()) }
    }

    /// Makes a failure with LVM's status `EINVALID_CMD_LINE`.
    pub(super) fn usage(message: impl Into<String>) -> Self {
        Self { code: 3, stderr: format!("  {}\n  Error during parsing of command line.\n", message.into()) }
    }

    pub(super) fn already_exists(vg: &str, name: &str) -> Self {
        Self::failed(format!("Logical Volume \"{name}\" already exists in volume group \"{vg}\""))
    }

    pub(super) fn no_space(needed: u64, free: u64) -> Self {
        Self::failed(format!("Insufficient free space: {needed} extents needed, but only {free} available"))
    }

    pub(super) fn no_group(vg: &str) -> Self {
        Self::failed(format!("Volume group \"{vg}\" not found\n  Cannot process volume group {vg}"))
    }
}

fn into_output(result: Result<String, CommandError>) -> Output {
    match result {
        Ok(message) => Output { code: Some(0), stdout: format!("  {message}\n").into_bytes(), ..Output::default() },
        Err(CommandError { code, stderr }) => Output { code: Some(code), stderr, ..Output::default() },
    }
}
