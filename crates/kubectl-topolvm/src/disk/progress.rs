//! Waits until a wish about a disk is fulfilled, and prints how far it is.

use futures::{StreamExt as _, TryStreamExt as _};
use kube::Api;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use topolvm_api::{ApiFlavor, DiskWish, DiskWishStatus, EvacuationStatus, NodeStorage, NodeStorageStatus, parse_bytes};

use crate::connection::Cluster;
use crate::error::{DiskError, Error};
use crate::output;
use crate::request::is_refused_watch;
use crate::size::human;

/// A wish that stands on the NodeStorage.
#[derive(Clone, Debug)]
pub(super) enum Goal {
    /// The disk of this name is to be added.
    Add { name: String },
    /// Something is wished of the disk of this UUID.
    Of { uuid: String, wish: DiskWish },
}

/// The state of a wish for whoever waits for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    Going(String),
    Done(String),
    /// lvmd refuses it, for this reason.
    Refused(String),
    /// It does not stand any more, and is not fulfilled.
    Dropped(String),
}

/// Prints each step until the wish is fulfilled or refused. Ctrl-C ends the wait and nothing else.
pub(super) async fn wait(cluster: &Cluster, node: &str, goal: &Goal) -> Result<(), Error> {
    let api: Api<NodeStorage> = Api::all_with(cluster.client.clone(), &cluster.flavor);
    let config = watcher::Config::default().fields(&format!("metadata.name={node}"));
    let mut changes = watcher(api, config).default_backoff().boxed();
    let interrupt = tokio::signal::ctrl_c();
    tokio::pin!(interrupt);
    let (mut printed, mut is_there) = (None, true);
    loop {
        let change = tokio::select! {
            change = changes.try_next() => change,
            _ = &mut interrupt => return Err(interrupted(node, goal).into()),
        };
        let storage = match change {
            Ok(Some(Event::Apply(storage) | Event::InitApply(storage))) => storage,
            Ok(Some(Event::InitDone)) if is_there => continue,
            Ok(Some(Event::Delete(_) | Event::InitDone)) => return Err(DiskError::Deleted(node.to_owned()).into()),
            Ok(Some(Event::Init)) => {
                is_there = false;
                continue;
            }
            Ok(None) => return Ok(()),
            Err(error) if is_refused_watch(&error) => return Err(Error::Watch(Box::new(error))),
            // The API server is away for a moment
            Err(_) => continue,
        };
        is_there = true;
        let progress = goal.progress(cluster.flavor, &storage);
        let text = match progress {
            Progress::Refused(message) => return Err(refused(node, goal, message).into()),
            Progress::Dropped(message) => return Err(DiskError::Dropped { node: node.to_owned(), message }.into()),
            Progress::Done(text) => return output::print(&format!("node {node}: {text}\n")),
            Progress::Going(text) => text,
        };
        if printed.as_ref() != Some(&text) {
            output::print(&format!("node {node}: {text}\n"))?;
            printed = Some(text);
        }
    }
}

fn interrupted(node: &str, goal: &Goal) -> DiskError {
    let node = node.to_owned();
    match goal {
        Goal::Add { .. } => DiskError::InterruptedAddition(node),
        Goal::Of { uuid, wish: DiskWish::Evacuate { .. } | DiskWish::Remove { .. } } => {
            DiskError::InterruptedEvacuation { node, uuid: uuid.clone() }
        }
        Goal::Of { uuid, .. } => DiskError::Interrupted { node, uuid: uuid.clone() },
    }
}

fn refused(node: &str, goal: &Goal, message: String) -> DiskError {
    let node = node.to_owned();
    match goal {
        Goal::Add { .. } => DiskError::AdditionRefused { node, message },
        Goal::Of { uuid, .. } => DiskError::Refused { node, uuid: uuid.clone(), message },
    }
}

impl Goal {
    /// Returns how far the wish is, as the object says.
    pub(super) fn progress(&self, flavor: ApiFlavor, storage: &NodeStorage) -> Progress {
        let empty = NodeStorageStatus::default();
        let status = storage.status.as_ref().unwrap_or(&empty);
        match self {
            Self::Add { name } => addition(flavor, storage, status, name),
            Self::Of { uuid, wish } => change(flavor, storage, status, uuid, *wish),
        }
    }
}

/// Returns how far an addition is. The agent takes the wish off when it has told its end, and not before.
fn addition(flavor: ApiFlavor, storage: &NodeStorage, status: &NodeStorageStatus, name: &str) -> Progress {
    let told = status.disk_wishes.iter().find(|told| told.disk == name && told.wish == "add");
    if storage.disks_to_add(flavor).contains(&name) {
        return Progress::Going(waiting(storage, told.filter(|told| told.state == "waiting")));
    }
    let is_member = status.disks.iter().any(|disk| disk.is_named(name) && disk.is_member());
    match told {
        _ if is_member => Progress::Done(format!("{name} is added")),
        Some(told) if told.is_accepted() => Progress::Done(format!("{name} is added")),
        Some(told) if told.is_refused() => Progress::Refused(told.message.clone()),
        Some(_) | None => Progress::Going("the wish is off the NodeStorage; waiting for its end to be told".to_owned()),
    }
}

fn change(
    flavor: ApiFlavor,
    storage: &NodeStorage,
    status: &NodeStorageStatus,
    uuid: &str,
    wish: DiskWish,
) -> Progress {
    let text = wish.to_string();
    let annotation = storage.disk_wishes(flavor).find(|(disk, _)| *disk == uuid).map(|(_, text)| text);
    if let Some(other) = annotation.filter(|annotation| *annotation != text) {
        return Progress::Dropped(format!("somebody wishes something else of the disk by now: {other}"));
    }
    let told = status.disk_wishes.iter().find(|told| told.disk == uuid && told.wish == text);
    // The agent removes a `replace` that it refuses when the status says so, and not before
    let told = told.filter(|told| match wish {
        DiskWish::Replace => annotation.is_none() == told.is_refused(),
        DiskWish::Evacuate { .. } | DiskWish::Remove { .. } | DiskWish::Stop => annotation.is_some(),
    });
    if let Some(told) = told.filter(|told| told.is_refused()) {
        return Progress::Refused(told.message.clone());
    }
    let Some((group, pv)) = status.physical_volume(uuid) else { return gone(storage, status, wish, annotation) };
    let evacuation = pv.evacuation.as_ref();
    let disk = if pv.path.is_empty() { &pv.uuid } else { &pv.path };
    match (wish, evacuation) {
        (DiskWish::Stop, None) if annotation.is_none() => {
            Progress::Done(format!("{disk} is not evacuated, and gets new volumes"))
        }
        (DiskWish::Evacuate { .. }, Some(evacuation)) if evacuation.is_empty() && !evacuation.remove => {
            Progress::Done(format!("{disk} is empty, and stays in volume group {} without new volumes", group.name))
        }
        (DiskWish::Evacuate { .. } | DiskWish::Remove { .. }, Some(evacuation)) => {
            Progress::Going(describe(disk, evacuation))
        }
        (DiskWish::Replace, _) if annotation.is_none() => Progress::Dropped(
            "the annotation is off the NodeStorage; the Event DiskWishRefused of the Node says why if it was refused"
                .to_owned(),
        ),
        (DiskWish::Evacuate { .. } | DiskWish::Remove { .. }, None) if annotation.is_none() => {
            Progress::Dropped("somebody has taken the wish off the NodeStorage".to_owned())
        }
        (DiskWish::Replace, _) if told.is_some_and(DiskWishStatus::is_accepted) => {
            Progress::Going(format!("what {disk} had is made again on other disks"))
        }
        (_, _) => Progress::Going(waiting(storage, told)),
    }
}

/// Returns how far a wish is of a disk that is in no volume group.
fn gone(storage: &NodeStorage, status: &NodeStorageStatus, wish: DiskWish, annotation: Option<&str>) -> Progress {
    match wish {
        _ if !status.knows_all_groups() => Progress::Going(waiting(storage, None)),
        DiskWish::Remove { .. } => Progress::Done("the disk has left its volume group; pull it out".to_owned()),
        DiskWish::Replace => Progress::Done("the volume group is whole, and has forgotten the disk".to_owned()),
        DiskWish::Evacuate { .. } | DiskWish::Stop if annotation.is_none() => {
            Progress::Dropped("the disk is in no volume group any more".to_owned())
        }
        DiskWish::Evacuate { .. } | DiskWish::Stop => Progress::Going(waiting(storage, None)),
    }
}

fn describe(disk: &str, evacuation: &EvacuationStatus) -> String {
    let remaining = evacuation.remaining.as_ref().and_then(|remaining| parse_bytes(remaining).ok()).map(human);
    let remaining = remaining.unwrap_or_else(|| "something".to_owned());
    match evacuation.state.as_str() {
        "blocked" => format!("{disk}: {remaining} left to move, and it is blocked: {}", evacuation.message),
        "empty" => format!("{disk} is empty"),
        _ => format!("{disk}: {remaining} left to move"),
    }
}

/// Returns what is waited for.
fn waiting(storage: &NodeStorage, told: Option<&DiskWishStatus>) -> String {
    let is_silent = storage.ready().is_some_and(|ready| ready.status == "Unknown");
    match told {
        Some(told) if told.is_accepted() => "lvmd has it".to_owned(),
        Some(told) if !told.message.is_empty() => format!("waiting: {}", told.message),
        Some(_) => "waiting for lvmd".to_owned(),
        None if is_silent => "waiting for lvmd, which does not answer topolvm-node".to_owned(),
        None => "waiting for topolvm-node, which has to run there in the version of this plugin".to_owned(),
    }
}

#[cfg(test)]
mod tests;
