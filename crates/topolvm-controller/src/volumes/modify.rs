//! Applies a VolumeAttributesClass to an existing volume.

use kube::api::{Patch, PatchParams};
use serde_json::{Map, Value, json};
use topolvm_api::{CREATED_BY, IoLimits, LogicalVolume};

use super::objects::api_error;
use super::{VolumeError, VolumeKind, Volumes};

impl Volumes {
    /// Sets the limits of a volume's I/O, all of them: what is not limited by the class is not limited any more. Its
    /// class of lvcreate options must be the same as before, because it is fixed when the volume is created.
    pub(crate) async fn modify(
        &self,
        id: &str,
        lvcreate_option_class: Option<&str>,
        limits: &IoLimits,
    ) -> Result<(), VolumeError> {
        loop {
            let object = self.objects.find_live(VolumeKind::Volume, id).await?;
            self.check_option_class(&object, lvcreate_option_class)?;
            if self.has_limits(&object, limits) || self.write_limits(&object, limits).await? {
                return Ok(());
            }
            // The object has changed meanwhile: read it again
        }
    }

    fn check_option_class(&self, object: &LogicalVolume, wanted: Option<&str>) -> Result<(), VolumeError> {
        match wanted {
            Some(wanted) if wanted != object.spec.lvcreate_option_class => Err(VolumeError::Immutable {
                key: self.objects.flavor.lvcreate_option_class_parameter(),
                is: object.spec.lvcreate_option_class.clone(),
                wanted: wanted.to_owned(),
            }),
            _ => Ok(()),
        }
    }

    /// Returns whether the object has exactly these limits.
    fn has_limits(&self, object: &LogicalVolume, limits: &IoLimits) -> bool {
        limits.annotations(self.objects.flavor).all(|(key, value)| object.annotation(key) == value.as_deref())
    }

    /// Writes the limits to the object. Returns `false` if the object has changed since it was read.
    async fn write_limits(&self, object: &LogicalVolume, limits: &IoLimits) -> Result<bool, VolumeError> {
        let name = object.name();
        let annotations: Map<String, Value> =
            limits.annotations(self.objects.flavor).map(|(key, value)| (key.to_owned(), json!(value))).collect();
        let version = &object.metadata.resource_version;
        let patch = json!({"metadata": {"resourceVersion": version, "annotations": annotations}});
        let params = PatchParams { field_manager: Some(CREATED_BY.to_owned()), ..PatchParams::default() };
        match self.objects.api().patch(name, &params, &Patch::Merge(&patch)).await {
            Ok(_) => {
                let node = object.spec.node_name.as_str();
                tracing::info!(name, node, %limits, "requested new I/O limits of the volume");
                Ok(true)
            }
            Err(kube::Error::Api(status)) if status.is_conflict() => Ok(false),
            Err(error) => Err(api_error("change the I/O limits of", name)(error)),
        }
    }
}
