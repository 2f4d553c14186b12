//! Grows the LV of an object that asks for more than it has.

use tonic::Code;
use topolvm_api::{LogicalVolume, parse_bytes};
use topolvm_runtime::grpc::GrpcCode as _;

use super::{Error, Reconciler};
use crate::lvmd;

impl Reconciler {
    /// Leaves alone what is large enough. A size that nobody knows is learned by asking for the wanted one.
    pub(super) async fn expand(&self, volume: &LogicalVolume) -> Result<(), Error> {
        let wanted = match parse_bytes(&volume.spec.size) {
            Ok(bytes) => bytes,
            Err(error) => {
                self.report_failure(volume, Code::InvalidArgument, &error.to_string()).await?;
                return Err(error.into());
            }
        };
        if volume.current_bytes().is_some_and(|current| current >= wanted) {
            // The failure was about a size that is not asked for any more
            if volume.failure().is_some() {
                self.clear_failure(volume).await?;
            }
            return Ok(());
        }
        let wish = self.wish(volume);
        if volume.failure().is_some() && self.lock_answered().get(volume.uid()) != Some(&wish) {
            self.clear_failure(volume).await?;
        }
        match self.resize(volume, wanted).await {
            Ok(bytes) => {
                tracing::info!(volume = volume.name(), lv = volume.uid(), bytes, "the logical volume has its size");
                self.report_size(volume, bytes).await?;
                Ok(())
            }
            Err(error) if error.is_transient() => Err(Error::LvmdAway(error)),
            Err(error) => {
                self.report_failure(volume, error.code(), &error.detail()).await?;
                self.lock_answered().insert(volume.uid().to_owned(), wish);
                Err(Error::Expand(error))
            }
        }
    }

    /// What the controller changes when it asks for growth.
    fn wish(&self, volume: &LogicalVolume) -> String {
        let annotations = volume.metadata.annotations.as_ref();
        let asked_at = annotations.and_then(|annotations| annotations.get(self.flavor.resize_requested_at()));
        format!("{} {}", volume.spec.size.0, asked_at.map_or("", String::as_str))
    }

    async fn resize(&self, volume: &LogicalVolume, wanted: u64) -> Result<u64, lvmd::Error> {
        let class = &volume.spec.device_class;
        match self.lvmd.resize(volume.uid(), class, wanted).await? {
            // lvmd before 0.36.5 answers without the size
            0 => {
                let lv = self.lvmd.find(volume.uid(), class).await?;
                Ok(lv.map_or(wanted, |lv| lv.size_bytes))
            }
            bytes => Ok(bytes),
        }
    }
}
