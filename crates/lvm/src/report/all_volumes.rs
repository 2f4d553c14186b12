//! The report of all volumes of a group, hidden ones as well.

use super::{Fields, ReportError, read_rows};
use crate::LvAttr;

/// A volume, which may be a hidden one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AnyVolume {
    /// Its name, without the brackets of a hidden one.
    pub(crate) name: String,
    /// LVM hides it: it is a part of something.
    pub(crate) is_hidden: bool,
    /// Its attributes.
    pub(crate) attr: LvAttr,
    /// LVM's name of the type of its first segment, for example `linear`.
    pub(crate) segment_type: String,
    /// Name of the volume that it is a part of.
    pub(crate) parent: Option<Box<str>>,
}

impl AnyVolume {
    /// Returns whether it is the volume in which LVM keeps the extents that it moves.
    pub(crate) fn is_move(&self) -> bool {
        self.is_hidden && self.name.starts_with("pvmove")
    }

    /// Returns whether it is the volume of a move whose extents have all arrived. LVM removes it at once, and never if
    /// it is killed before.
    pub(crate) fn is_ended_move(&self) -> bool {
        self.is_move() && self.segment_type == "error"
    }
}

/// Parses the output of [`LvmCommand::all_volumes`](crate::LvmCommand::all_volumes).
pub(crate) fn all_volumes(output: &[u8]) -> Result<Vec<AnyVolume>, ReportError> {
    let output = String::from_utf8_lossy(output);
    let mut volumes = read_rows(&output).map(|fields| read_row(&fields?)).collect::<Result<Vec<_>, _>>()?;
    // A volume has a row for each of its segments
    volumes.dedup_by(|next, first| next.name == first.name);
    Ok(volumes)
}

fn read_row(fields: &Fields<'_>) -> Result<AnyVolume, ReportError> {
    let shown = fields.get("LV_NAME")?;
    let hidden = shown.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
    let name = hidden.unwrap_or(shown).to_owned();
    let attr = fields.get("LV_ATTR")?.parse();
    let attr = attr.map_err(|source| ReportError::Attr { name: name.clone(), source })?;
    let (segment_type, parent) = (fields.text("SEGTYPE")?, fields.optional_text("LV_PARENT")?);
    Ok(AnyVolume { name, is_hidden: hidden.is_some(), attr, segment_type, parent })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As LVM 2.03.16 reports them.
    #[test]
    fn each_volume_is_read_once() {
        let row = |name: &str, attr: &str, segment_type: &str, parent: &str| {
            format!(
                "  LVM2_LV_NAME='{name}' LVM2_LV_ATTR='{attr}' LVM2_SEGTYPE='{segment_type}' \
                 LVM2_LV_PARENT='{parent}'\n"
            )
        };
        let rows = [
            row("pool", "twi---tz--", "thin-pool", ""),
            row("[pool_tdata]", "TRi-a-----", "linear", "pool"),
            row("[pool_tdata]", "TRi-a-----", "striped", "pool"),
            row("[pvmove0]", "vwc-a-v---", "error", ""),
        ];
        let volumes = all_volumes(rows.concat().as_bytes()).unwrap();
        let [pool, data, ended] = &volumes[..] else { unreachable!("{volumes:?}") };
        assert_eq!((pool.name.as_str(), pool.is_hidden, pool.parent.as_deref()), ("pool", false, None));
        assert_eq!((data.name.as_str(), data.is_hidden, data.parent.as_deref()), ("pool_tdata", true, Some("pool")));
        assert_eq!((data.segment_type.as_str(), data.is_ended_move()), ("linear", false));
        assert!(ended.is_ended_move());
    }
}
