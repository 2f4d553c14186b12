//! `disk`: the disks of nodes. Lists them, and writes on the NodeStorage of a node what is wished of one: that it is
//! emptied, leaves its volume group, becomes a part of one, or is forgotten. topolvm-node and lvmd do it.

mod args;
mod progress;
mod rows;
mod selection;
mod wish;

use kube::Api;
use topolvm_api::{DiskWish, NodeStorage};

use crate::connection::Cluster;
use crate::error::{DiskError, Error};
use crate::output;
use crate::request::{RequestError, resource};
use progress::Goal;
use rows::DiskRow;

pub(crate) use args::DiskCommand;

/// Runs a subcommand.
pub(crate) async fn run(cluster: &Cluster, command: DiskCommand) -> Result<(), Error> {
    match command {
        DiskCommand::List { node, output } => rows::list(cluster, node.as_deref(), output.format).await,
        DiskCommand::Evacuate { target, rate, stop, no_wait } => {
            let (storage, disk) = find_member(cluster, &target.node, &target.disk).await?;
            let wish = if stop { DiskWish::Stop } else { DiskWish::Evacuate { bytes_per_second: rate } };
            change(cluster, &storage, &disk, wish, no_wait).await
        }
        DiskCommand::Remove { target, rate, yes, no_wait } => {
            let (storage, disk) = find_member(cluster, &target.node, &target.disk).await?;
            confirm(&disk, yes, &describe_removal(&disk))?;
            change(cluster, &storage, &disk, DiskWish::Remove { bytes_per_second: rate }, no_wait).await
        }
        DiskCommand::Replace { target, yes, no_wait } => {
            let (storage, disk) = find_member(cluster, &target.node, &target.disk).await?;
            if disk.state != "missing" {
                return Err(DiskError::NotMissing { node: disk.node.clone(), disk: disk.label() }.into());
            }
            confirm(&disk, yes, &describe_replacement(&disk))?;
            change(cluster, &storage, &disk, DiskWish::Replace, no_wait).await
        }
        DiskCommand::Add { target, no_wait } => add(cluster, &target.node, &target.disk, no_wait).await,
    }
}

/// Writes a wish about a disk of a volume group, and waits until it is fulfilled.
async fn change(
    cluster: &Cluster,
    storage: &NodeStorage,
    disk: &DiskRow,
    wish: DiskWish,
    no_wait: bool,
) -> Result<(), Error> {
    wish::write(cluster, storage, &disk.uuid, wish).await?;
    output::print(&format!("node {}: {}: topolvm-node is asked to {}\n", disk.node, disk.label(), wish.word()))?;
    if no_wait {
        return Ok(());
    }
    progress::wait(cluster, &disk.node, &Goal::Of { uuid: disk.uuid.clone(), wish }).await
}

async fn add(cluster: &Cluster, node: &str, disk: &str, no_wait: bool) -> Result<(), Error> {
    let storage = get(cluster, node).await?;
    let rows = rows::rows_of(cluster.flavor, &storage);
    let found = selection::find_blank(node, &rows, disk)?;
    let name = found.name_to_add().to_owned();
    wish::write_addition(cluster, node, &name).await?;
    output::print(&format!("node {node}: {}: topolvm-node is asked to add it\n", found.label()))?;
    if no_wait {
        return Ok(());
    }
    progress::wait(cluster, node, &Goal::Add { name }).await
}

async fn find_member(cluster: &Cluster, node: &str, disk: &str) -> Result<(NodeStorage, DiskRow), Error> {
    let storage = get(cluster, node).await?;
    let rows = rows::rows_of(cluster.flavor, &storage);
    let found = selection::find_member(node, &rows, disk)?.clone();
    Ok((storage, found))
}

/// Reads the object of a node.
async fn get(cluster: &Cluster, node: &str) -> Result<NodeStorage, Error> {
    let api: Api<NodeStorage> = Api::all_with(cluster.client.clone(), &cluster.flavor);
    let found = api.get_opt(node).await;
    let found = found.map_err(|error| RequestError::new("get", resource::<NodeStorage>(&cluster.flavor), error))?;
    Ok(found.ok_or_else(|| DiskError::NoStorage(node.to_owned()))?)
}

/// Refuses what nobody has agreed to, and says what it would do.
fn confirm(disk: &DiskRow, yes: bool, what: &str) -> Result<(), DiskError> {
    if yes { Ok(()) } else { Err(DiskError::Unconfirmed { node: disk.node.clone(), what: what.to_owned() }) }
}

fn describe_removal(disk: &DiskRow) -> String {
    format!(
        "{} leaves volume group {}: its volumes are moved to the other disks of the group while they are in use, which \
         may take hours, and then it is taken out. It waits while these have too little free space. No data is lost, \
         and a disk that cannot be emptied stays",
        disk.label(),
        disk.volume_group
    )
}

fn describe_replacement(disk: &DiskRow) -> String {
    format!(
        "what {} had of mirrored volumes is made again on the other disks of volume group {}, and the group forgets \
         it: it cannot come back. It is refused while a volume without a mirror was on it",
        disk.label(),
        disk.volume_group
    )
}

#[cfg(test)]
mod tests;
