//! What a VolumeAttributesClass may say about a volume that exists.

use super::{Error, Kind, Volumes};

impl Volumes {
    /// Succeeds when the volume is what is wanted already. What a volume is made of is decided when it is made.
    pub(crate) async fn modify(&self, id: &str, lvcreate_option_class: Option<&str>) -> Result<(), Error> {
        let volume = self
            .find(Kind::Volume, id)
            .await?
            .filter(|volume| !volume.is_deleting())
            .ok_or_else(|| Error::Unknown { kind: Kind::Volume, id: id.to_owned() })?;
        match lvcreate_option_class {
            Some(wanted) if wanted != volume.spec.lvcreate_option_class => Err(Error::Fixed {
                key: self.flavor.lvcreate_option_class_parameter(),
                is: volume.spec.lvcreate_option_class,
                wanted: wanted.to_owned(),
            }),
            _ => Ok(()),
        }
    }
}
