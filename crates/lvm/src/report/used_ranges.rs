//! The report of the extents of physical volumes that volumes have.

use super::{Fields, ReportError, read_rows};
use crate::LvAttr;

/// A range of extents of a physical volume that a logical volume has, which may be a hidden one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsedRange {
    /// LVM's identity of the physical volume.
    pub pv: String,
    /// The first extent.
    pub start: u64,
    /// Number of extents.
    pub length: u64,
    /// Name of the volume, without the brackets of a hidden one.
    pub volume: String,
    /// Name of the volume that it is a part of.
    pub parent: Option<String>,
    /// Attributes of the volume.
    pub attr: LvAttr,
    /// LVM's name of the type of the segment, for example `linear`.
    pub segment_type: String,
    /// Of a volume in which a pvmove keeps what it has begun to move: LVM's identity of the physical volume that this
    /// is moved from.
    pub moved_from: Option<String>,
    /// Bytes before the first extent of the physical volume.
    pub disk_start: u64,
}

/// Parses the output of [`LvmCommand::used_ranges`](crate::LvmCommand::used_ranges).
pub(crate) fn used_ranges(output: &[u8]) -> Result<Vec<UsedRange>, ReportError> {
    let output = String::from_utf8_lossy(output);
    read_rows(&output).map(|fields| read_row(&fields?)).collect()
}

fn read_row(fields: &Fields<'_>) -> Result<UsedRange, ReportError> {
    let plain = |name: &str| name.trim_start_matches('[').trim_end_matches(']').to_owned();
    let volume = plain(fields.get("LV_NAME")?);
    let attr = fields.get("LV_ATTR")?.parse().map_err(|source| ReportError::Attr { name: volume.clone(), source })?;
    Ok(UsedRange {
        pv: fields.text("PV_UUID")?,
        start: fields.number("PVSEG_START")?,
        length: fields.number("PVSEG_SIZE")?,
        parent: fields.optional_text("LV_PARENT")?.map(|parent| plain(&parent)),
        segment_type: fields.text("SEGTYPE")?,
        moved_from: fields.optional_text("MOVE_PV_UUID")?.map(Into::into),
        disk_start: fields.number("PE_START")?,
        volume,
        attr,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_volumes_have_their_names_without_brackets() {
        let row = "  LVM2_PV_UUID='V' LVM2_PVSEG_START='7' LVM2_PVSEG_SIZE='3' LVM2_LV_NAME='[m_rimage_0]' \
                   LVM2_LV_PARENT='m' LVM2_LV_ATTR='iwi-aor---' LVM2_SEGTYPE='linear' LVM2_MOVE_PV_UUID='' \
                   LVM2_PE_START='1048576'\n";
        let ranges = used_ranges(row.as_bytes()).unwrap();
        let [range] = &ranges[..] else { unreachable!("{ranges:?}") };
        assert_eq!((range.volume.as_str(), range.parent.as_deref()), ("m_rimage_0", Some("m")));
        assert_eq!((range.start, range.length, range.moved_from.as_deref()), (7, 3, None));
        assert_eq!(range.disk_start, 1 << 20);
    }
}
