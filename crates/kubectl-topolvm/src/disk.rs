//! `disk`: the disks of nodes. Lists them, and creates DiskOperations: to add, evacuate, remove or replace a disk.
//! topolvm-node and lvmd carry them out.

mod args;
mod progress;
mod request;
mod rows;
mod selection;

use cli_runtime::connection::Cluster;
use cli_runtime::output;
use cli_runtime::request::{RequestError, resource};
use kube::Api;
use topolvm_api::{DiskOperation, DiskOperationSpec, DiskOperationType, NodeStorage};

use crate::error::{DiskError, Error};
use progress::Goal;
use rows::DiskRow;

pub(crate) use args::DiskCommand;

/// Runs a subcommand.
pub(crate) async fn run(cluster: &Cluster, command: DiskCommand) -> Result<(), Error> {
    match command {
        DiskCommand::List { node, output } => rows::list(cluster, node.as_deref(), output.format).await,
        DiskCommand::Evacuate { target, rate, stop, no_wait } => {
            let disk = find_member(cluster, &target.node, &target.disk).await?;
            if stop {
                return end_evacuation(cluster, &disk, no_wait).await;
            }
            let spec = request::spec(&disk.node, DiskOperationType::Evacuate, &disk.uuid, rate);
            create(cluster, &disk, spec, no_wait).await
        }
        DiskCommand::Remove { target, rate, yes, no_wait } => {
            let disk = find_member(cluster, &target.node, &target.disk).await?;
            confirm(&disk, yes, &describe_removal(&disk))?;
            let spec = request::spec(&disk.node, DiskOperationType::Remove, &disk.uuid, rate);
            create(cluster, &disk, spec, no_wait).await
        }
        DiskCommand::Replace { target, yes, no_wait } => {
            let disk = find_member(cluster, &target.node, &target.disk).await?;
            if disk.state != "missing" {
                return Err(DiskError::NotMissing { node: disk.node.clone(), disk: disk.label() }.into());
            }
            confirm(&disk, yes, &describe_replacement(&disk))?;
            let spec = request::spec(&disk.node, DiskOperationType::Replace, &disk.uuid, None);
            create(cluster, &disk, spec, no_wait).await
        }
        DiskCommand::Add { target, no_wait } => {
            let rows = rows::rows_of(&get(cluster, &target.node).await?, &[]);
            let disk = selection::find_addable(&target.node, &rows, &target.disk)?;
            let spec = request::spec(&disk.node, DiskOperationType::Add, disk.identity(), None);
            create(cluster, disk, spec, no_wait).await
        }
    }
}

/// Creates an operation, and waits for its end.
async fn create(cluster: &Cluster, disk: &DiskRow, spec: DiskOperationSpec, no_wait: bool) -> Result<(), Error> {
    let operation = request::create(cluster, spec).await?;
    let (type_, name) = (operation.spec.type_.as_str(), operation.name());
    output::print(&format!("node {}: {}: created DiskOperation {name} ({type_})\n", disk.node, disk.label()))?;
    wait(cluster, &operation, Goal::Finished, no_wait).await
}

/// Cancels the operation that evacuates a disk. Without one an evacuation that LVM has on record is ended.
async fn end_evacuation(cluster: &Cluster, disk: &DiskRow, no_wait: bool) -> Result<(), Error> {
    if let Some(operation) = request::find_evacuation(cluster, &disk.node, &disk.uuid).await? {
        request::delete(cluster, &operation).await?;
        let name = operation.name();
        output::print(&format!("node {}: {}: deleted DiskOperation {name}\n", disk.node, disk.label()))?;
        return wait(cluster, &operation, Goal::Canceled, no_wait).await;
    }
    if !disk.is_evacuated() {
        return Ok(output::print(&format!("node {}: {} is not evacuated\n", disk.node, disk.label()))?);
    }
    create(cluster, disk, request::spec(&disk.node, DiskOperationType::Add, &disk.uuid, None), no_wait).await
}

async fn wait(cluster: &Cluster, operation: &DiskOperation, goal: Goal, no_wait: bool) -> Result<(), Error> {
    if no_wait { Ok(()) } else { progress::wait(cluster, operation, goal).await }
}

async fn find_member(cluster: &Cluster, node: &str, disk: &str) -> Result<DiskRow, Error> {
    let rows = rows::rows_of(&get(cluster, node).await?, &[]);
    Ok(selection::find_member(node, &rows, disk)?.clone())
}

/// Reads the object of a node.
async fn get(cluster: &Cluster, node: &str) -> Result<NodeStorage, Error> {
    let api: Api<NodeStorage> = Api::all_with(cluster.client.clone(), &cluster.flavor);
    let found = api.get_opt(node).await;
    let found = found.map_err(|error| RequestError::new("get", resource::<NodeStorage>(&cluster.flavor), error))?;
    Ok(found.ok_or_else(|| DiskError::NoStorage(node.to_owned()))?)
}

/// Refuses an operation that is not confirmed, and describes its effect.
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
        "the mirrors that have lost {} are rebuilt on the other disks of volume group {}, and the group forgets it: it \
         cannot come back. It is refused while a volume without a mirror was on it",
        disk.label(),
        disk.volume_group
    )
}

#[cfg(test)]
mod tests;
