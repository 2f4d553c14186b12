//! An attempt to do what a VolumeSnapshotContent needs, and what all steps share.

use csi_calls::CsiController;
use jiff::Timestamp;
use topolvm_api::SnapshotContent;

use crate::content_changes::creation_ends;
use crate::content_events::ContentEvents;
use crate::content_step::{Step, next_step};
use crate::error::AttemptError;
use crate::objects::Objects;
use crate::snapshot_request::SnapshotNames;

/// Dependencies of an attempt.
#[derive(Clone)]
pub(crate) struct Attempt {
    pub(crate) objects: Objects,
    pub(crate) csi: CsiController,
    pub(crate) names: SnapshotNames,
    pub(crate) events: ContentEvents,
    /// The wall clock.
    pub(crate) now: fn() -> Timestamp,
}

/// End of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// There is nothing to do for now.
    Done,
    /// The driver has a snapshot that is not ready yet.
    NotReady,
}

/// End of a step.
pub(crate) enum Progress {
    /// The content as it is now, for the next step; `None` if it does not exist any more.
    Next(Option<Box<SnapshotContent>>),
    /// The attempt ends.
    End(End),
}

impl Progress {
    /// Goes on with this content, if it exists.
    pub(crate) fn next(content: Option<SnapshotContent>) -> Self {
        Self::Next(content.map(Box::new))
    }
}

impl Attempt {
    /// Does what the content with this name needs, step by step. The content is read from the API server, and each
    /// later step begins with the object that the write before has returned.
    pub(crate) async fn run(&self, name: &str) -> Result<End, AttemptError> {
        let mut next = self.objects.read_content(name).await?;
        while let Some(content) = next {
            let progress = match next_step(&content, self.objects.driver) {
                Step::Wait => break,
                Step::Create { volume } => self.create(content, volume).await?,
                Step::Check { snapshot } => self.check(content, snapshot).await?,
                Step::FinishCreation => {
                    Progress::next(self.objects.write_content_in_any_version(content, creation_ends).await?)
                }
                Step::Delete { snapshot } => self.delete(content, snapshot).await?,
                Step::Release => self.release(&content).await?,
            };
            next = match progress {
                Progress::Next(content) => content.map(|content| *content),
                Progress::End(end) => return Ok(end),
            };
        }
        Ok(End::Done)
    }
}
