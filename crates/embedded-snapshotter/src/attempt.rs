//! An attempt to do what a content needs, and what all steps share.

use jiff::Timestamp;

use crate::content::{Content, Csi};
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
    pub(crate) csi: Csi,
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
    /// The driver has snapshots that are not ready yet.
    NotReady,
}

/// End of a step.
pub(crate) enum Progress<C> {
    /// The content as it is now, for the next step; `None` if it does not exist any more.
    Next(Option<Box<C>>),
    /// The attempt ends.
    End(End),
}

impl<C> Progress<C> {
    /// Goes on with this content, if it exists.
    pub(crate) fn next(content: Option<C>) -> Self {
        Self::Next(content.map(Box::new))
    }
}

impl Attempt {
    /// Does what the content with this name needs, step by step. The content is read from the API server, and each
    /// later step begins with the object that the write before has returned.
    pub(crate) async fn run<C: Content>(&self, name: &str) -> Result<End, AttemptError> {
        let mut next: Option<C> = self.objects.read_content(name).await?;
        while let Some(content) = next {
            let progress = match next_step(&content, self.objects.driver) {
                Step::Wait => break,
                Step::Create(volumes) => self.create(content, volumes).await?,
                Step::Check(handle) => self.check(content, handle).await?,
                Step::FinishCreation => {
                    Progress::next(self.objects.write_content_in_any_version(content, creation_ends).await?)
                }
                Step::Delete(handle) => self.delete(content, handle).await?,
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
