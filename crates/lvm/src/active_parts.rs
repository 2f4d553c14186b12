//! Parts of volumes that are active in the kernel without the volume, which LVM then refuses to activate.

use crate::report::{AnyVolume, all_volumes};
use crate::{Error, Host, Lvm, LvmCommand, State, VgName};

impl<R: Host> Lvm<R> {
    /// Deactivates the part of a volume that a killed LVM has left active without the volume. Returns whether there was
    /// one of this name. LVM activates a part for an administrator to read only, and such a part is left alone.
    pub async fn deactivate_left_part(&self, vg: &VgName, part: &str) -> Result<bool, Error> {
        let volumes = self.parse(&LvmCommand::all_volumes(vg), all_volumes).await?;
        let is_left = |volume: &AnyVolume| volume.name == part && is_active_alone(volume) && volume.attr.is_writable();
        if !volumes.iter().any(is_left) {
            return Ok(false);
        }
        self.change_pvs(vg, &LvmCommand::deactivate_part(vg, part)).await?;
        Ok(true)
    }
}

/// Returns whether a part of a volume is active without the volume, which would hold it open.
pub(crate) fn is_active_alone(volume: &AnyVolume) -> bool {
    volume.is_hidden && volume.parent.is_some() && volume.attr.state() == State::Active && !volume.attr.is_open()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn part_that_is_not_open_is_active_alone() {
        let part = |name: &str, attr: &str, parent: Option<&str>| AnyVolume {
            name: name.to_owned(),
            is_hidden: true,
            attr: attr.parse().unwrap(),
            segment_type: "linear".to_owned(),
            parent: parent.map(Into::into),
        };
        assert!(is_active_alone(&part("pool_tdata", "TRi-a-----", Some("pool"))));
        assert!(!is_active_alone(&part("pool_tdata", "Twi-ao----", Some("pool"))));
        assert!(!is_active_alone(&part("pool_tmeta", "ewi-------", Some("pool"))));
        assert!(!is_active_alone(&part("lvol0_pmspare", "ewi-a-----", None)));
        assert!(!is_active_alone(&part("m_rimage_0", "iwi-aor---", Some("m"))));
    }
}
