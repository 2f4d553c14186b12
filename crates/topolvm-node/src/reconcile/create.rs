//! Makes the LV of an object that has none.

use std::sync::Arc;

use tonic::Code;
use topolvm_api::{LogicalVolume, parse_bytes};
use topolvm_runtime::grpc::GrpcCode as _;

use super::{Error, Reconciler, name, ownership};
use crate::lvmd::NewLv;

impl Reconciler {
    /// The object with its volume, or `None` where there can be none: the status then says why, and the controller, which
    /// waits for it, deletes the object.
    pub(super) async fn create(&self, volume: &LogicalVolume) -> Result<Option<Arc<LogicalVolume>>, Error> {
        if volume.failure().is_some() {
            return Ok(None);
        }
        let size_bytes = match parse_bytes(&volume.spec.size) {
            Ok(bytes) => bytes,
            Err(error) => return self.give_up(volume, Code::InvalidArgument, &error.to_string()).await,
        };
        if !volume.spec.source.is_empty() {
            let message = "volumes from a snapshot or from another volume are not supported by this node agent";
            return self.give_up(volume, Code::Unimplemented, message).await;
        }
        let wanted = NewLv {
            name: volume.uid(),
            device_class: &volume.spec.device_class,
            lvcreate_option_class: &volume.spec.lvcreate_option_class,
            size_bytes,
            tags: &ownership::tags(self.flavor, volume),
        };
        match self.lvmd.create(wanted).await {
            Ok(bytes) => {
                tracing::info!(volume = name(volume), lv = volume.uid(), bytes, "made the logical volume");
                self.report_size(volume, bytes).await.map(Some)
            }
            // A restart of lvmd fails nobody's volume: the controller would delete the object and begin anew
            Err(error) if error.is_transient() => Err(Error::LvmdAway(error)),
            Err(error) => self.give_up(volume, error.code(), &error.detail()).await,
        }
    }

    async fn give_up(
        &self,
        volume: &LogicalVolume,
        code: Code,
        message: &str,
    ) -> Result<Option<Arc<LogicalVolume>>, Error> {
        self.report_failure(volume, code, message).await?;
        Ok(None)
    }
}
