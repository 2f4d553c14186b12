//! Waits for the end of a disk operation, and prints its progress.

use cli_runtime::connection::Cluster;
use cli_runtime::output;
use cli_runtime::request::is_refused_watch;
use futures::{StreamExt as _, TryStreamExt as _};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use topolvm_api::{DiskOperation, Phase};

use super::request::api;
use crate::error::{DiskError, Error};

/// The end that is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Goal {
    /// The operation has done what it requests.
    Finished,
    /// The operation, which was deleted, has been canceled.
    Canceled,
}

/// The state of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    Going(String),
    Done(String),
    Failed(String),
}

/// Prints each step until the operation has ended. Ctrl-C ends the wait and nothing else.
pub(super) async fn wait(cluster: &Cluster, operation: &DiskOperation, goal: Goal) -> Result<(), Error> {
    let (name, node) = (operation.name(), &operation.spec.node_name);
    let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let mut changes = watcher(api(cluster), config).default_backoff().boxed();
    let interrupt = tokio::signal::ctrl_c();
    tokio::pin!(interrupt);
    let mut seen = operation.clone();
    let (mut printed, mut is_listed) = (None, false);
    loop {
        let change = tokio::select! {
            change = changes.try_next() => change,
            _ = &mut interrupt => return Err(DiskError::Interrupted { name: name.to_owned() }.into()),
        };
        match change {
            Ok(Some(Event::Init)) => {
                is_listed = false;
                continue;
            }
            // One that was made later, under the same name, is another operation
            Ok(Some(Event::Apply(changed) | Event::InitApply(changed)))
                if changed.metadata.uid == operation.metadata.uid =>
            {
                is_listed = true;
                seen = changed;
            }
            Ok(Some(Event::InitDone)) if is_listed => continue,
            Ok(Some(Event::Delete(last))) if last.metadata.uid == operation.metadata.uid => {
                return ended(node, goal, progress_of(&last));
            }
            Ok(Some(_)) => return ended(node, goal, progress_of(&seen)),
            Ok(None) => return Ok(()),
            Err(error) if is_refused_watch(&error) => return Err(Error::Watch(Box::new(error))),
            // The API server is away for a moment
            Err(_) => continue,
        }
        let text = match progress_of(&seen) {
            Progress::Going(text) => text,
            // The object is deleted when the operation has been canceled
            Progress::Done(_) | Progress::Failed(_) if goal == Goal::Canceled && seen.is_deleting() => continue,
            end @ (Progress::Done(_) | Progress::Failed(_)) => return ended(node, goal, end),
        };
        if printed.as_ref() != Some(&text) {
            output::print(&format!("node {node}: {text}\n"))?;
            printed = Some(text);
        }
    }
}

/// Returns the result of an operation that has ended, or whose object is gone.
fn ended(node: &str, goal: Goal, progress: Progress) -> Result<(), Error> {
    let node = node.to_owned();
    match (goal, progress) {
        (_, Progress::Done(text)) => Ok(output::print(&format!("node {node}: {text}\n"))?),
        (Goal::Canceled, _) => Ok(output::print(&format!("node {node}: the operation is canceled\n"))?),
        (Goal::Finished, Progress::Failed(message)) => Err(DiskError::Failed { node, message }.into()),
        (Goal::Finished, Progress::Going(_)) => Err(DiskError::Canceled(node).into()),
    }
}

/// Returns the progress of an operation, as the object reports it.
pub(super) fn progress_of(operation: &DiskOperation) -> Progress {
    let Some(status) = &operation.status else {
        return Progress::Going(
            "waiting for topolvm-node, which must run there in the version of this plugin".to_owned(),
        );
    };
    let message = status.operation.message.clone();
    match status.operation.phase {
        Phase::Pending if message.is_empty() => Progress::Going("waiting for lvmd".to_owned()),
        Phase::Pending => Progress::Going(format!("waiting: {message}")),
        Phase::Running => match status.operation.blocked() {
            Some(why) => Progress::Going(format!("blocked: {why}")),
            None => Progress::Going(message),
        },
        Phase::Succeeded => Progress::Done(message),
        Phase::Failed => Progress::Failed(message),
        // The object is about to go
        Phase::Canceled => Progress::Going(message),
    }
}

#[cfg(test)]
mod tests;
