//! LVM's reports with `--nameprefixes`: one line for each group, physical and logical volume, `LVM2_FIELD='value'` for
//! each field. Lists are separated by commas, "none" is empty or -1.

mod all_volumes;
mod physical_volumes;
mod used_ranges;

use std::collections::HashMap;
use std::fmt::Display;
use std::str::FromStr;

use crate::{Device, InvalidLvAttr, InvalidName, LogicalVolume, LvName, PhysicalVolume, Segment, VgName, VolumeGroup};

pub(crate) use all_volumes::{AnyVolume, all_volumes};
pub use physical_volumes::GroupDisk;
pub(crate) use physical_volumes::{physical_volume_paths, physical_volumes};
pub use used_ranges::UsedRange;
pub(crate) use used_ranges::used_ranges;

/// Begins each field, and so each line that belongs to a report.
pub(crate) const PREFIX: &str = "LVM2_";

/// `vg_permissions` of a volume group whose metadata may be changed.
const WRITABLE: &str = "writeable";

/// A report that LVM wrote and that cannot be understood.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// Not a line of fields.
    #[error("invalid report line: {0:?}")]
    Line(String),
    /// Without a field that was asked for.
    #[error("field {0} is missing")]
    Field(&'static str),
    /// A number is none.
    #[error("{field} is {value:?}, which is not a number")]
    Number {
        /// The field.
        field: &'static str,
        /// Its value.
        value: String,
    },
    /// A volume group name that LVM cannot have created.
    #[error(transparent)]
    Name(#[from] InvalidName),
    /// Volume attributes of another form.
    #[error("attributes of logical volume {name:?}")]
    Attr {
        /// Of which volume.
        name: String,
        /// The reason.
        source: InvalidLvAttr,
    },
    /// A volume before the group that it belongs to.
    #[error("a volume without a volume group")]
    Order,
    /// The parts of the report contradict each other, because it broke off or the group changed meanwhile.
    #[error("{0}")]
    Inconsistent(String),
    /// A volume that cannot be in one piece, without its segments.
    #[error("RAID volume {0} without a segment")]
    Segment(String),
    /// LVM succeeded without reporting this volume group.
    #[error("volume group {0} is missing")]
    Absent(VgName),
}

/// Parses the volume groups in the output of [`LvmCommand::report`](crate::LvmCommand::report), among whatever else
/// commands wrote.
pub fn parse(output: &[u8]) -> Result<Vec<VolumeGroup>, ReportError> {
    let output = String::from_utf8_lossy(output);
    let mut groups: Vec<GroupReport> = Vec::new();
    for fields in read_rows(&output) {
        let fields = fields?;
        if fields.0.contains_key("VG_NAME") {
            groups.push(GroupReport::read(&fields)?);
            continue;
        }
        let GroupReport { group, areas, .. } = groups.last_mut().ok_or(ReportError::Order)?;
        if fields.0.contains_key("SEGTYPE") {
            let segment = fields.segment()?;
            let uuid = fields.get("LV_UUID")?;
            // The last one counts: LVM grows a volume as its end is.
            if let Some(volume) = group.volumes.iter_mut().find(|volume| *volume.uuid == *uuid) {
                volume.segment = Some(Box::new(segment));
            }
        } else if fields.0.contains_key("PVSEG_START") {
            areas.push((fields.text("PV_UUID")?, fields.number("PVSEG_START")?, fields.number("PVSEG_SIZE")?));
        } else if fields.0.contains_key("PV_NAME") {
            group.pvs.push(fields.physical_volume()?);
        } else {
            group.volumes.push(fields.logical_volume()?);
        }
    }
    groups.into_iter().map(GroupReport::complete).collect()
}

/// Parses the names in the output of [`LvmCommand::group_names`](crate::LvmCommand::group_names).
pub(crate) fn group_names(output: &[u8]) -> Result<Vec<VgName>, ReportError> {
    let output = String::from_utf8_lossy(output);
    read_rows(&output).map(|fields| Ok(VgName::try_from(fields?.text("VG_NAME")?)?)).collect()
}

/// A thin volume, or a thin pool, with its device and transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ThinVolume {
    /// Its name; hidden volumes in brackets.
    pub(crate) name: Box<str>,
    /// Its thin pool.
    pub(crate) pool: Option<Box<str>>,
    /// Id of its thin device in the pool.
    pub(crate) device: Option<u32>,
    /// Of a pool: its transaction; of a thin volume: that in which it was made.
    pub(crate) transaction: Option<u64>,
}

impl ThinVolume {
    /// Returns whether the volume has this thin device of the pool.
    pub(crate) fn is_device(&self, pool: &LvName, id: u32) -> bool {
        self.pool.as_deref() == Some(pool.as_str()) && self.device == Some(id)
    }
}

/// Parses the volumes in the output of [`LvmCommand::thin_ids`](crate::LvmCommand::thin_ids).
pub(crate) fn thin_ids(output: &[u8]) -> Result<Vec<ThinVolume>, ReportError> {
    let output = String::from_utf8_lossy(output);
    read_rows(&output)
        .map(|fields| {
            let fields = fields?;
            Ok(ThinVolume {
                name: fields.get("LV_NAME")?.into(),
                pool: fields.optional_text("POOL_LV")?,
                device: fields.optional_number("THIN_ID")?,
                transaction: fields.optional_number("TRANSACTION_ID")?,
            })
        })
        .collect()
}

/// Parses the output of [`LvmCommand::monitoring`](crate::LvmCommand::monitoring).
pub(crate) fn is_monitored(output: &[u8]) -> Result<bool, ReportError> {
    let output = String::from_utf8_lossy(output);
    let mut rows = read_rows(&output);
    let row = rows.next().ok_or(ReportError::Field("SEG_MONITOR"))??;
    Ok(row.get("SEG_MONITOR")? == "monitored")
}

/// A group, and the number of volumes that it claims to have: a truncated report must not look like a smaller group.
struct GroupReport {
    group: VolumeGroup,
    pvs: usize,
    volumes: usize,
    /// Free areas: on which physical volume, where, and how long, in extents.
    areas: Vec<(String, u64, u64)>,
}

impl GroupReport {
    fn read(fields: &Fields<'_>) -> Result<Self, ReportError> {
        let group = VolumeGroup {
            name: VgName::try_from(fields.text("VG_NAME")?)?,
            uuid: fields.text("VG_UUID")?,
            seqno: fields.number("VG_SEQNO")?,
            size: fields.number("VG_SIZE")?,
            free: fields.number("VG_FREE")?,
            extent_size: fields.number("VG_EXTENT_SIZE")?,
            missing_pvs: fields.number("VG_MISSING_PV_COUNT")?,
            tags: fields.list("VG_TAGS")?,
            max_volumes: fields.number("MAX_LV")?,
            is_writable: fields.get("VG_PERMISSIONS")? == WRITABLE,
            system_id: fields.optional_text("VG_SYSTEMID")?,
            exported: !fields.get("VG_EXPORTED")?.is_empty(),
            pvs: Vec::new(),
            volumes: Vec::new(),
        };
        Ok(Self { group, pvs: fields.number("PV_COUNT")?, volumes: fields.number("LV_COUNT")?, areas: Vec::new() })
    }

    fn complete(self) -> Result<VolumeGroup, ReportError> {
        let Self { mut group, pvs, volumes, mut areas } = self;
        areas.sort_by_key(|(_, start, _)| *start);
        for pv in &mut group.pvs {
            pv.free_areas = areas.iter().filter(|(uuid, ..)| *uuid == pv.uuid).map(|(.., size)| *size).collect();
        }
        for (what, counted, listed) in
            [("physical volumes", pvs, group.pvs.len()), ("logical volumes", volumes, group.volumes.len())]
        {
            if counted != listed {
                let vg = &group.name;
                let why = format!("volume group {vg} has {counted} {what} and {listed} are listed");
                return Err(ReportError::Inconsistent(why));
            }
        }
        // Taken for linear, its growth would be checked against a fraction of what it takes.
        if let Some(volume) = group.volumes.iter().find(|volume| volume.attr.is_raid() && volume.segment.is_none()) {
            return Err(ReportError::Segment(volume.name.to_string()));
        }
        for pv in &group.pvs {
            let listed = pv.free_areas.iter().fold(0, |sum: u64, area| sum.saturating_add(*area));
            let listed = listed.saturating_mul(group.extent_size);
            if listed != pv.free {
                let (vg, PhysicalVolume { uuid, free, .. }) = (&group.name, pv);
                let what = format!("physical volume {uuid} of volume group {vg}");
                return Err(ReportError::Inconsistent(format!("{what} has {free} bytes free and areas of {listed}")));
            }
        }
        Ok(group)
    }
}

/// Reads the lines of a report among whatever else commands wrote.
fn read_rows(output: &str) -> impl Iterator<Item = Result<Fields<'_>, ReportError>> {
    output.lines().map(str::trim).filter(|line| line.starts_with(PREFIX)).map(Fields::read)
}

/// One line.
struct Fields<'a>(HashMap<&'a str, &'a str>);

impl<'a> Fields<'a> {
    fn read(line: &'a str) -> Result<Self, ReportError> {
        let broken = || ReportError::Line(line.chars().take(200).collect());
        let mut fields = HashMap::new();
        let mut rest = line;
        while !rest.is_empty() {
            let (name, value) = rest.strip_prefix(PREFIX).and_then(|rest| rest.split_once("='")).ok_or_else(broken)?;
            // LVM quotes nothing in a value, so it ends where the next field begins.
            let (value, next) = match value.split_once("' LVM2_") {
                Some((value, _)) => (value, value.len() + "' ".len()),
                None => (value.strip_suffix('\'').ok_or_else(broken)?, value.len()),
            };
            fields.insert(name, value);
            let start = PREFIX.len() + name.len() + "='".len() + next;
            rest = rest.get(start..).ok_or_else(broken)?;
        }
        Ok(Self(fields))
    }

    fn get(&self, field: &'static str) -> Result<&'a str, ReportError> {
        self.0.get(field).copied().ok_or(ReportError::Field(field))
    }

    fn text(&self, field: &'static str) -> Result<String, ReportError> {
        self.get(field).map(str::to_owned)
    }

    /// Returns the text of a field; `None` when it is empty.
    fn optional_text(&self, field: &'static str) -> Result<Option<Box<str>>, ReportError> {
        self.get(field).map(|value| (!value.is_empty()).then(|| value.into()))
    }

    /// Returns the entries of a list.
    fn list(&self, field: &'static str) -> Result<Box<[Box<str>]>, ReportError> {
        Ok(self.get(field)?.split(',').filter(|entry| !entry.is_empty()).map(Box::from).collect())
    }

    fn number<N: FromStr<Err: Display>>(&self, field: &'static str) -> Result<N, ReportError> {
        let value = self.get(field)?;
        value.parse().map_err(|_| ReportError::Number { field, value: value.to_owned() })
    }

    fn optional_number<N: FromStr<Err: Display>>(&self, field: &'static str) -> Result<Option<N>, ReportError> {
        if self.get(field)?.is_empty() { Ok(None) } else { self.number(field).map(Some) }
    }

    /// Returns the number of a device; `None` when it is -1 or empty.
    fn device(&self, major: &'static str, minor: &'static str) -> Result<Option<Device>, ReportError> {
        Ok(match (self.get(major)?.parse(), self.get(minor)?.parse()) {
            (Ok(major), Ok(minor)) => Some(Device { major, minor }),
            _ => None,
        })
    }

    fn physical_volume(&self) -> Result<PhysicalVolume, ReportError> {
        let is_missing = !self.get("PV_MISSING")?.is_empty();
        let is_allocatable = !self.get("PV_ALLOCATABLE")?.is_empty();
        Ok(PhysicalVolume {
            path: self.text("PV_NAME")?,
            uuid: self.text("PV_UUID")?,
            device: self.device("PV_MAJOR", "PV_MINOR")?.filter(|_| !is_missing),
            size: self.number("PV_SIZE")?,
            free: self.number("PV_FREE")?,
            free_areas: Vec::new(),
            allocatable: is_allocatable && !is_missing,
            tags: self.list("PV_TAGS")?,
        })
    }

    fn logical_volume(&self) -> Result<LogicalVolume, ReportError> {
        let name = self.get("LV_NAME")?;
        let attr = match self.get("LV_ATTR")?.parse() {
            Ok(attr) => attr,
            Err(source) => return Err(ReportError::Attr { name: name.to_owned(), source }),
        };
        Ok(LogicalVolume {
            name: name.into(),
            uuid: self.get("LV_UUID")?.into(),
            path: self.get("LV_PATH")?.into(),
            size: self.number("LV_SIZE")?,
            device: self.device("LV_KERNEL_MAJOR", "LV_KERNEL_MINOR")?,
            origin: self.optional_text("ORIGIN")?,
            origin_size: self.optional_number("ORIGIN_SIZE")?,
            pool: self.optional_text("POOL_LV")?,
            tags: self.list("LV_TAGS")?,
            attr,
            data_percent: self.optional_number("DATA_PERCENT")?,
            metadata_percent: self.optional_number("METADATA_PERCENT")?,
            metadata_size: self.optional_number("LV_METADATA_SIZE")?,
            segment: None,
        })
    }

    fn segment(&self) -> Result<Segment, ReportError> {
        Ok(Segment { segment_type: self.get("SEGTYPE")?.into(), images: self.number("STRIPES")? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Layout;

    /// As LVM 2.03.16 writes it after a change.
    const REPORT: &str = "
  Logical volume \"z\" created.
  LVM2_VG_NAME='vg2' LVM2_VG_UUID='hFbcse-zjbv' LVM2_VG_SEQNO='12' LVM2_VG_SIZE='1069547520' \
    LVM2_VG_FREE='1065353216' LVM2_VG_EXTENT_SIZE='4194304' LVM2_VG_MISSING_PV_COUNT='0' \
    LVM2_VG_TAGS='topolvm.io/disk-group=vg2' LVM2_PV_COUNT='1' LVM2_LV_COUNT='1' LVM2_MAX_LV='0' \
    LVM2_VG_PERMISSIONS='writeable' LVM2_VG_SYSTEMID='' LVM2_VG_EXPORTED=''
  LVM2_PV_NAME='/dev/sdb' LVM2_PV_UUID='VMFgxf-ZH20' LVM2_PV_MAJOR='98' LVM2_PV_MINOR='16' LVM2_PV_SIZE='1069547520' \
    LVM2_PV_FREE='1065353216' LVM2_PV_MISSING='' LVM2_PV_ALLOCATABLE='allocatable' LVM2_PV_TAGS='a,b'
  LVM2_PV_UUID='VMFgxf-ZH20' LVM2_PVSEG_START='200' LVM2_PVSEG_SIZE='55'
  LVM2_PV_UUID='VMFgxf-ZH20' LVM2_PVSEG_START='0' LVM2_PVSEG_SIZE='199'
  LVM2_LV_UUID='ejNx40' LVM2_LV_NAME='z' LVM2_LV_PATH='/dev/vg2/z' LVM2_LV_SIZE='4194304' LVM2_LV_KERNEL_MAJOR='254' \
    LVM2_LV_KERNEL_MINOR='3' LVM2_ORIGIN='' LVM2_ORIGIN_SIZE='' LVM2_POOL_LV='' LVM2_LV_TAGS='a,topolvm.io/b=c' \
    LVM2_LV_ATTR='-wi-a-----' LVM2_DATA_PERCENT='' LVM2_METADATA_PERCENT='' LVM2_LV_METADATA_SIZE=''
  

  LVM2_VG_NAME='vg1' LVM2_VG_UUID='9dzmnA-pCOu' LVM2_VG_SEQNO='3' LVM2_VG_SIZE='0' LVM2_VG_FREE='0' \
    LVM2_VG_EXTENT_SIZE='4194304' LVM2_VG_MISSING_PV_COUNT='1' LVM2_VG_TAGS='a,b' LVM2_PV_COUNT='1' \
    LVM2_LV_COUNT='0' LVM2_MAX_LV='0' LVM2_VG_PERMISSIONS='writeable' LVM2_VG_SYSTEMID='node1' \
    LVM2_VG_EXPORTED='exported'
  LVM2_PV_NAME='[unknown]' LVM2_PV_UUID='LfQSKA-Q33w' LVM2_PV_MAJOR='-1' LVM2_PV_MINOR='-1' LVM2_PV_SIZE='0' \
    LVM2_PV_FREE='0' LVM2_PV_MISSING='missing' LVM2_PV_ALLOCATABLE='allocatable' LVM2_PV_TAGS=''
  
";

    /// Returns the report with these values in place of the usual ones of its logical volume.
    fn report(changes: &[(&str, &str)]) -> String {
        REPORT
            .lines()
            .map(|line| {
                if !line.contains("LVM2_LV_NAME") {
                    return line.to_owned();
                }
                let fields = Fields::read(line.trim()).unwrap().0.into_iter().map(|(name, usual)| {
                    let changed = changes.iter().find(|(changed, _)| changed.to_uppercase() == name);
                    format!("LVM2_{name}='{}'", changed.map_or(usual, |(_, value)| *value))
                });
                fields.collect::<Vec<_>>().join(" ")
            })
            .collect::<Vec<_>>()
            .join("\n")
    }

    fn volume(changes: &[(&str, &str)]) -> Result<LogicalVolume, ReportError> {
        parse(report(changes).as_bytes()).map(|mut groups| groups.remove(0).volumes.remove(0))
    }

    #[test]
    fn a_report_lists_the_groups_with_what_is_in_them() {
        let groups = parse(REPORT.as_bytes()).unwrap();
        assert_eq!(groups.iter().map(|group| group.name.as_str()).collect::<Vec<_>>(), ["vg2", "vg1"]);
        let [vg2, vg1] = &groups[..] else { panic!() };
        assert_eq!((vg2.size, vg2.free, vg2.extent_size, vg2.seqno), (1_069_547_520, 1_065_353_216, 4_194_304, 12));
        assert_eq!((vg1.missing_pvs, vg1.volumes.len()), (1, 0));
        assert_eq!((vg2.system_id.as_deref(), vg2.exported), (None, false));
        assert_eq!((vg1.system_id.as_deref(), vg1.exported), (Some("node1"), true));
        let volume = vg2.volume("z").unwrap();
        assert_eq!(volume.device, Some(Device { major: 254, minor: 3 }));
        assert_eq!(*volume.tags, ["a", "topolvm.io/b=c"].map(Box::from));
        assert_eq!(volume.visible_size(), 4_194_304);
        let pv = &vg2.pvs[0];
        assert_eq!((pv.path.as_str(), pv.device), ("/dev/sdb", Some(Device { major: 98, minor: 16 })));
        assert!(pv.allocatable);
        assert_eq!(pv.free_areas, [199, 55]);
    }

    #[test]
    fn a_missing_physical_volume_has_no_device_and_nothing_to_give() {
        let groups = parse(REPORT.as_bytes()).unwrap();
        let pv = &groups[1].pvs[0];
        assert_eq!((pv.device, pv.allocatable), (None, false));
    }

    #[test]
    fn an_inactive_volume_has_no_device() {
        let volume =
            volume(&[("lv_kernel_major", "-1"), ("lv_kernel_minor", "-1"), ("lv_attr", "-wi-------")]).unwrap();
        assert_eq!(volume.device, None);
    }

    #[test]
    fn a_volume_without_tags_has_none() {
        assert!(volume(&[("lv_tags", "")]).unwrap().tags.is_empty());
    }

    #[test]
    fn a_copy_on_write_snapshot_looks_as_large_as_its_origin() {
        let snapshot = [("lv_attr", "swi-a-s---"), ("origin", "y"), ("origin_size", "8388608")];
        assert_eq!(volume(&snapshot).unwrap().visible_size(), 8_388_608);
        let thin = [("lv_attr", "Vwi-a-tz--"), ("origin", "y"), ("origin_size", "8388608"), ("pool_lv", "pool")];
        assert_eq!(volume(&thin).unwrap().visible_size(), 4_194_304);
    }

    #[test]
    fn percentages_are_read_where_there_are_any() {
        let pool =
            volume(&[("lv_attr", "twi-aotz--"), ("data_percent", "12.34"), ("metadata_percent", "0.50")]).unwrap();
        assert_eq!((pool.data_percent, pool.metadata_percent), (Some(12.34), Some(0.5)));
    }

    #[test]
    fn a_report_that_is_cut_off_says_nothing_or_is_an_error() {
        let whole = REPORT.trim_end().len();
        let second = REPORT.find("LVM2_VG_NAME='vg1'").unwrap();
        for end in 0..whole {
            let Some(cut) = REPORT.get(..end) else { continue };
            match parse(cut.as_bytes()) {
                Err(_) => {}
                // Cut between groups: what is there is whole, and the other is plainly absent.
                Ok(groups) if groups.len() == 1 => assert!(end <= second + "LVM2".len() + 1, "{end}"),
                Ok(groups) => assert!(groups.is_empty(), "{end}"),
            }
        }
    }

    #[test]
    fn a_report_with_fewer_volumes_than_it_counts_is_an_error() {
        let without: Vec<_> = REPORT.lines().filter(|line| !line.contains("LVM2_LV_NAME")).collect();
        let error = parse(without.join("\n").as_bytes()).unwrap_err();
        assert_eq!(error.to_string(), "volume group vg2 has 1 logical volumes and 0 are listed");
    }

    #[test]
    fn a_report_with_other_free_areas_than_free_space_is_an_error() {
        let without: Vec<_> = REPORT.lines().filter(|line| !line.contains("PVSEG_START='200'")).collect();
        let error = parse(without.join("\n").as_bytes()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "physical volume VMFgxf-ZH20 of volume group vg2 has 1065353216 bytes free and areas of 834666496"
        );
    }

    #[test]
    fn a_size_that_is_no_number_is_an_error() {
        let error = volume(&[("lv_size", "4.00m")]).unwrap_err();
        assert_eq!(error.to_string(), r#"LV_SIZE is "4.00m", which is not a number"#);
    }

    const RAID: [(&str, &str); 1] = [("lv_attr", "rwi-a-r---")];

    #[test]
    fn a_volume_is_laid_out_as_its_last_segment() {
        let of = |kind: &str, stripes: u16| {
            format!("  LVM2_LV_UUID='ejNx40' LVM2_SEGTYPE='{kind}' LVM2_STRIPES='{stripes}'\n")
        };
        let line = REPORT.lines().find(|line| line.contains("LVM2_LV_NAME")).unwrap();
        let with = |segments: &str| REPORT.replace(line, &format!("{line}\n{segments}"));
        let volume = |text: &str| parse(text.as_bytes()).unwrap().remove(0).volumes.remove(0);
        assert_eq!(volume(REPORT).layout(), Layout::parse(&[], None));
        assert_eq!(volume(&with(&(of("striped", 3) + &of("striped", 2)))).layout().to_string(), "striped, 2 stripes");
        assert_eq!(volume(&with(&of("raid1", 3))).layout().to_string(), "raid1, 3 copies");
    }

    #[test]
    fn a_raid_volume_without_its_segments_is_an_error() {
        assert!(matches!(volume(&RAID), Err(ReportError::Segment(name)) if name == "z"));
    }

    #[test]
    fn attributes_of_another_form_are_an_error() {
        assert!(matches!(volume(&[("lv_attr", "-wi-a")]), Err(ReportError::Attr { .. })));
    }
}
