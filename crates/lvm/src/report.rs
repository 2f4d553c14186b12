//! LVM's `--reportformat json`: every value is a string, lists are separated by commas, "none" is empty or -1.

use std::fmt::Display;
use std::str::FromStr;

use serde::Deserialize;

use crate::{Device, InvalidLvAttr, InvalidName, LogicalVolume, VgName, VolumeGroup};

/// A report that LVM wrote and that cannot be understood.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// Not JSON, cut off, or without a field that was asked for.
    #[error("not a complete JSON report")]
    Json(#[from] serde_json::Error),
    /// A number is none.
    #[error("{field} is {value:?}, which is not a number")]
    Number {
        /// Which field.
        field: &'static str,
        /// What stands there.
        value: String,
    },
    /// A volume group name that nobody can have created.
    #[error(transparent)]
    Name(#[from] InvalidName),
    /// Volume attributes of another form.
    #[error("attributes of logical volume {name:?}")]
    Attr {
        /// Of which volume.
        name: String,
        /// What is wrong.
        source: InvalidLvAttr,
    },
    /// LVM ended well without saying anything about this volume group.
    #[error("volume group {0} is not in it")]
    Absent(VgName),
}

#[derive(Deserialize)]
struct Document {
    report: Vec<Section>,
}

/// There is one section for each volume group.
#[derive(Deserialize)]
struct Section {
    #[serde(default)]
    vg: Vec<RawGroup>,
    #[serde(default)]
    lv: Vec<RawVolume>,
}

#[derive(Deserialize)]
#[expect(clippy::struct_field_names, reason = "LVM's names")]
struct RawGroup {
    vg_name: String,
    vg_uuid: String,
    vg_size: String,
    vg_free: String,
    vg_extent_size: String,
    vg_missing_pv_count: String,
}

#[derive(Deserialize)]
struct RawVolume {
    lv_uuid: String,
    lv_name: String,
    lv_path: String,
    lv_size: String,
    lv_kernel_major: String,
    lv_kernel_minor: String,
    origin: String,
    origin_size: String,
    pool_lv: String,
    lv_tags: String,
    lv_attr: String,
    data_percent: String,
    metadata_percent: String,
}

/// The volume groups in the output of [`LvmCommand::report`](crate::LvmCommand::report).
pub(crate) fn parse(json: &[u8]) -> Result<Vec<VolumeGroup>, ReportError> {
    let document: Document = serde_json::from_slice(json)?;
    let mut groups = Vec::with_capacity(document.report.len());
    for section in document.report {
        // Physical volumes that belong to no group have a section without a group.
        let Some(group) = section.vg.into_iter().next().filter(|group| !group.vg_name.is_empty()) else {
            continue;
        };
        let volumes = section.lv.into_iter().map(RawVolume::into_volume).collect::<Result<_, _>>()?;
        groups.push(VolumeGroup {
            name: VgName::try_from(group.vg_name)?,
            uuid: group.vg_uuid,
            size: number("vg_size", &group.vg_size)?,
            free: number("vg_free", &group.vg_free)?,
            extent_size: number("vg_extent_size", &group.vg_extent_size)?,
            missing_pvs: number("vg_missing_pv_count", &group.vg_missing_pv_count)?,
            volumes,
        });
    }
    Ok(groups)
}

impl RawVolume {
    fn into_volume(self) -> Result<LogicalVolume, ReportError> {
        let attr = match self.lv_attr.parse() {
            Ok(attr) => attr,
            Err(source) => {
                return Err(ReportError::Attr { name: self.lv_name, source });
            }
        };
        let device = match (self.lv_kernel_major.parse(), self.lv_kernel_minor.parse()) {
            (Ok(major), Ok(minor)) => Some(Device { major, minor }),
            // -1 or empty: not active
            _ => None,
        };
        Ok(LogicalVolume {
            name: self.lv_name,
            uuid: self.lv_uuid,
            path: self.lv_path,
            size: number("lv_size", &self.lv_size)?,
            device,
            origin: some(self.origin),
            origin_size: optional_number("origin_size", &self.origin_size)?,
            pool: some(self.pool_lv),
            tags: self.lv_tags.split(',').filter(|tag| !tag.is_empty()).map(str::to_owned).collect(),
            attr,
            data_percent: optional_number("data_percent", &self.data_percent)?,
            metadata_percent: optional_number("metadata_percent", &self.metadata_percent)?,
        })
    }
}

fn some(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}

fn number<N: FromStr<Err: Display>>(field: &'static str, value: &str) -> Result<N, ReportError> {
    value.parse().map_err(|_| ReportError::Number { field, value: value.to_owned() })
}

fn optional_number<N: FromStr<Err: Display>>(field: &'static str, value: &str) -> Result<Option<N>, ReportError> {
    if value.is_empty() { Ok(None) } else { number(field, value).map(Some) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As LVM 2.03.16 writes it, spaces shortened.
    const REPORT: &str = r#"{ "report": [
        { "vg": [ {"vg_name":"vg2", "vg_uuid":"hFbcse-zjbv", "vg_size":"1069547520", "vg_free":"1065353216", "vg_extent_size":"4194304", "vg_missing_pv_count":"0"} ],
          "pv": [ {} ],
          "lv": [
            {"lv_uuid":"ejNx40", "lv_name":"z", "lv_path":"/dev/vg2/z", "lv_size":"4194304", "lv_kernel_major":"254", "lv_kernel_minor":"3", "origin":"", "origin_size":"", "pool_lv":"", "lv_tags":"a,topolvm.io/b=c", "lv_attr":"-wi-a-----", "data_percent":"", "metadata_percent":""}
          ],
          "pvseg": [ {}, {} ], "seg": [ {} ] },
        { "vg": [ {"vg_name":"vg1", "vg_uuid":"9dzmnA-pCOu", "vg_size":"0", "vg_free":"0", "vg_extent_size":"4194304", "vg_missing_pv_count":"1"} ],
          "lv": [] },
        { "vg": [], "pv": [ {} ] }
    ] }"#;

    /// A report on one volume with these values in place of the usual ones.
    fn report(changes: &[(&str, &str)]) -> String {
        let mut report: serde_json::Value = serde_json::from_str(REPORT).unwrap();
        for (field, value) in changes {
            report["report"][0]["lv"][0][*field] = (*value).into();
        }
        report.to_string()
    }

    fn volume(changes: &[(&str, &str)]) -> Result<LogicalVolume, ReportError> {
        parse(report(changes).as_bytes()).map(|mut groups| groups.remove(0).volumes.remove(0))
    }

    #[test]
    fn a_report_has_one_section_for_each_group() {
        let groups = parse(REPORT.as_bytes()).unwrap();
        assert_eq!(groups.iter().map(|group| group.name.as_str()).collect::<Vec<_>>(), ["vg2", "vg1"]);
        let [vg2, vg1] = &groups[..] else { panic!() };
        assert_eq!((vg2.size, vg2.free, vg2.extent_size), (1_069_547_520, 1_065_353_216, 4_194_304));
        assert_eq!((vg1.missing_pvs, vg1.volumes.len()), (1, 0));
        let volume = vg2.volume("z").unwrap();
        assert_eq!(volume.device, Some(Device { major: 254, minor: 3 }));
        assert_eq!(volume.tags, ["a", "topolvm.io/b=c"]);
        assert_eq!(volume.visible_size(), 4_194_304);
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
    fn a_report_that_is_cut_off_is_an_error() {
        for end in [0, 1, 20, REPORT.len() / 2, REPORT.len() - 1] {
            assert!(matches!(parse(&REPORT.as_bytes()[..end]), Err(ReportError::Json(_))), "{end}");
        }
    }

    #[test]
    fn a_size_that_is_no_number_is_an_error() {
        let error = volume(&[("lv_size", "4.00m")]).unwrap_err();
        assert_eq!(error.to_string(), r#"lv_size is "4.00m", which is not a number"#);
    }

    #[test]
    fn attributes_of_another_form_are_an_error() {
        assert!(matches!(volume(&[("lv_attr", "-wi-a")]), Err(ReportError::Attr { .. })));
    }
}
