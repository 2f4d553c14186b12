//! Repeats operations at a fixed time: those that the driver has called infeasible.

use futures::StreamExt as _;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::time::DelayQueue;

use crate::pending_claims::{Task, TaskSender};

/// Sends each task to `tasks` at its time, for as long as tasks come.
pub(crate) async fn send_when_due(mut delayed: mpsc::UnboundedReceiver<(Task, Instant)>, tasks: TaskSender) {
    let mut queue = DelayQueue::new();
    loop {
        tokio::select! {
            added = delayed.recv() => match added {
                Some((task, time)) => drop(queue.insert_at(task, time)),
                None => return,
            },
            Some(due) = queue.next(), if !queue.is_empty() => {
                // The receiver is dropped only when the term ends
                drop(tasks.send(due.into_inner()));
            }
        }
    }
}
