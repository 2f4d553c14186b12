//! The report of all physical volumes of a machine, for those who add disks to volume groups.

use super::{Fields, ReportError, read_rows};
use crate::{Device, VgName};

/// A physical volume with the properties that its volume group reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupDisk {
    /// The volume group that it is in.
    pub vg: Option<VgName>,
    /// Its tags.
    pub tags: Box<[Box<str>]>,
    /// Tags of the group.
    pub vg_tags: Box<[Box<str>]>,
    /// The tag by which the group is that of another machine.
    pub other_machine: Option<Box<str>>,
    /// Bytes in an extent of the group.
    pub extent_size: u64,
    /// Number of physical volumes of the group that are missing.
    pub missing_pvs: u64,
    /// Its device file, as LVM calls it.
    pub path: String,
    /// LVM's identity of it.
    pub uuid: String,
    /// Number of its device; `None` if that is missing.
    pub device: Option<Device>,
    /// Bytes that the group uses of it.
    pub size: u64,
    /// Bytes of it that volumes have.
    pub used: u64,
    /// Bytes of its device.
    pub device_size: u64,
    /// Bytes before the first extent.
    pub start: u64,
}

impl GroupDisk {
    /// Returns whether its device has space for at least one extent more than the group uses.
    pub fn has_grown(&self) -> bool {
        let used = self.start.saturating_add(self.size);
        self.extent_size > 0 && self.device.is_some() && self.device_size >= used.saturating_add(self.extent_size)
    }

    /// Returns whether its group carries the tag.
    pub fn is_tagged(&self, tag: &str) -> bool {
        self.vg_tags.iter().any(|existing| **existing == *tag)
    }
}

/// Parses the output of [`LvmCommand::physical_volumes`](crate::LvmCommand::physical_volumes).
pub(crate) fn physical_volumes(output: &[u8]) -> Result<Vec<GroupDisk>, ReportError> {
    let output = String::from_utf8_lossy(output);
    read_rows(&output).map(|fields| read_row(&fields?)).collect()
}

/// Parses the output of `LvmCommand::physical_volume_paths`: the device files of what is a physical volume.
pub(crate) fn physical_volume_paths(output: &[u8]) -> Result<Vec<String>, ReportError> {
    let output = String::from_utf8_lossy(output);
    let path = |fields: Fields<'_>| Ok((!fields.get("PV_UUID")?.is_empty()).then_some(fields.text("PV_NAME")?));
    read_rows(&output).filter_map(|fields| fields.and_then(path).transpose()).collect()
}

fn read_row(fields: &Fields<'_>) -> Result<GroupDisk, ReportError> {
    let is_missing = !fields.get("PV_MISSING")?.is_empty();
    let vg = fields.optional_text("VG_NAME")?.map(|name| VgName::try_from(name.into_string())).transpose()?;
    Ok(GroupDisk {
        vg,
        tags: fields.list("PV_TAGS")?,
        vg_tags: fields.list("VG_TAGS")?,
        other_machine: None,
        extent_size: fields.optional_number("VG_EXTENT_SIZE")?.unwrap_or_default(),
        missing_pvs: fields.optional_number("VG_MISSING_PV_COUNT")?.unwrap_or_default(),
        path: fields.text("PV_NAME")?,
        uuid: fields.text("PV_UUID")?,
        device: fields.device("PV_MAJOR", "PV_MINOR")?.filter(|_| !is_missing),
        size: fields.number("PV_SIZE")?,
        used: fields.optional_number("PV_USED")?.unwrap_or_default(),
        device_size: fields.optional_number("DEV_SIZE")?.unwrap_or_default(),
        start: fields.optional_number("PE_START")?.unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PVS: &str = "
  WARNING: Couldn't find device with uuid W6.
  LVM2_VG_NAME='ssd' LVM2_VG_TAGS='a,topolvm.io/disk-group=ssd' LVM2_VG_EXTENT_SIZE='4194304' \
    LVM2_VG_MISSING_PV_COUNT='1' LVM2_PV_NAME='/dev/sdb' LVM2_PV_UUID='V' LVM2_PV_MAJOR='8' LVM2_PV_MINOR='16' \
    LVM2_PV_MISSING='' LVM2_PV_SIZE='1069547520' LVM2_DEV_SIZE='1073741824' LVM2_PE_START='1048576' \
    LVM2_PV_TAGS='' LVM2_PV_USED='4194304'
  LVM2_VG_NAME='ssd' LVM2_VG_TAGS='a,topolvm.io/disk-group=ssd' LVM2_VG_EXTENT_SIZE='4194304' \
    LVM2_VG_MISSING_PV_COUNT='1' LVM2_PV_NAME='[unknown]' LVM2_PV_UUID='W6' LVM2_PV_MAJOR='-1' LVM2_PV_MINOR='-1' \
    LVM2_PV_MISSING='missing' LVM2_PV_SIZE='1069547520' LVM2_DEV_SIZE='0' LVM2_PE_START='1048576' \
    LVM2_PV_TAGS='' LVM2_PV_USED='4194304'
  LVM2_VG_NAME='' LVM2_VG_TAGS='' LVM2_VG_EXTENT_SIZE='0' LVM2_VG_MISSING_PV_COUNT='0' LVM2_PV_NAME='/dev/sdc' \
    LVM2_PV_UUID='Z' LVM2_PV_MAJOR='8' LVM2_PV_MINOR='32' LVM2_PV_MISSING='' LVM2_PV_SIZE='1073741824' \
    LVM2_DEV_SIZE='1073741824' LVM2_PE_START='1048576' \
    LVM2_PV_TAGS='' LVM2_PV_USED='4194304'
";

    #[test]
    fn members_missing_disks_and_free_disks_are_distinguished() {
        let disks = physical_volumes(PVS.as_bytes()).unwrap();
        let [member, missing, free] = &disks[..] else { unreachable!("{disks:?}") };
        assert_eq!(member.vg.as_ref().map(VgName::as_str), Some("ssd"));
        assert!(member.is_tagged("topolvm.io/disk-group=ssd") && !member.is_tagged("topolvm.io/disk-group"));
        assert_eq!((member.device, missing.device), (Some(Device { major: 8, minor: 16 }), None));
        assert_eq!((missing.missing_pvs, free.vg.as_ref()), (1, None));
    }

    #[test]
    fn a_disk_has_grown_when_another_extent_fits() {
        let member = physical_volumes(PVS.as_bytes()).unwrap().remove(0);
        assert!(!member.has_grown());
        let used = member.start + member.size;
        assert!(!GroupDisk { device_size: used + member.extent_size - 1, ..member.clone() }.has_grown());
        assert!(GroupDisk { device_size: used + member.extent_size, ..member.clone() }.has_grown());
        assert!(!GroupDisk { device_size: 2 * used, extent_size: 0, ..member }.has_grown());
    }
}
