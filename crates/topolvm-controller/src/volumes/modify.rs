//! Checks what a VolumeAttributesClass says about a volume that exists.

use super::{VolumeError, VolumeKind, Volumes};

impl Volumes {
    /// Checks that the volume has this class of lvcreate options already: they are fixed when the volume is created.
    pub(crate) async fn check_modification(
        &self,
        id: &str,
        lvcreate_option_class: Option<&str>,
    ) -> Result<(), VolumeError> {
        let object = self.find_live(VolumeKind::Volume, id).await?;
        match lvcreate_option_class {
            Some(wanted) if wanted != object.spec.lvcreate_option_class => Err(VolumeError::Immutable {
                key: self.flavor.lvcreate_option_class_parameter(),
                is: object.spec.lvcreate_option_class,
                wanted: wanted.to_owned(),
            }),
            _ => Ok(()),
        }
    }
}
