//! Makes the LV of an object that has none.

use std::sync::Arc;

use tonic::Code;
use topolvm_api::{LogicalVolume, parse_bytes};
use topolvm_runtime::grpc::GrpcCode as _;

use super::source::Source;
use super::{Error, Reconciler, ownership};
use crate::lvmd::{self, Absence, NewCopy, NewLv};

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
        let source = match self.source(volume).await? {
            Ok(source) => source,
            Err(refusal) => return self.give_up(volume, refusal.code(), &refusal.to_string()).await,
        };
        let is_first = self.lock_attempted().insert(volume.uid().to_owned());
        match self.make(volume, source.as_ref(), size_bytes).await {
            Ok(bytes) => {
                tracing::info!(volume = volume.name(), lv = volume.uid(), bytes, "made the logical volume");
                self.hand_over(volume, bytes).await
            }
            // A restart of lvmd fails nobody's volume: the controller would delete the object and begin anew
            Err(error) if error.is_transient() => Err(Error::LvmdAway(error)),
            Err(error) => {
                if is_first && is_refusal(error.code()) {
                    self.lock_attempted().remove(volume.uid());
                }
                self.give_up(volume, error.code(), &error.detail()).await
            }
        }
    }

    /// Writes down what was made. When the object turns out to be gone, because the watch lags behind, nobody would ever
    /// remove its LV.
    async fn hand_over(&self, volume: &LogicalVolume, bytes: u64) -> Result<Option<Arc<LogicalVolume>>, Error> {
        let error = match self.report_size(volume, bytes).await {
            Ok(written) => return Ok(Some(written)),
            Err(error) => error,
        };
        if !error.says_gone() || !self.is_gone(volume).await? {
            return Err(error);
        }
        tracing::warn!(volume = volume.name(), lv = volume.uid(), "the object is gone; removes the LV made for it");
        match self.lvmd.remove(volume.uid(), &volume.spec.device_class).await {
            Ok(()) => {}
            Err(error) if error.absence() != Absence::Unknown => {}
            Err(error) if error.is_transient() => return Err(Error::LvmdAway(error)),
            Err(error) => return Err(Error::Remove(error)),
        }
        self.forget(volume);
        Ok(None)
    }

    async fn make(&self, volume: &LogicalVolume, source: Option<&Source>, size_bytes: u64) -> Result<u64, lvmd::Error> {
        let (name, device_class) = (volume.uid(), volume.spec.device_class.as_str());
        let tags = &ownership::tags(self.flavor, volume);
        if let Some(Source { lv, access }) = source {
            self.lvmd.copy(NewCopy { name, device_class, source: lv, access: *access, size_bytes, tags }).await
        } else {
            let lvcreate_option_class = &volume.spec.lvcreate_option_class;
            self.lvmd.create(NewLv { name, device_class, lvcreate_option_class, size_bytes, tags }).await
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

/// Codes with which lvmd refuses a wish before anything is made.
pub(super) const fn is_refusal(code: Code) -> bool {
    matches!(code, Code::FailedPrecondition | Code::NotFound | Code::InvalidArgument | Code::Unimplemented)
}
