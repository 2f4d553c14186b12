//! `orphans`: LVs whose LogicalVolumes do not exist. Lists the LVs that the agents report on their Nodes, and restores
//! or deletes one.

mod adoption;
mod args;
mod deletion;
mod owner;
mod restoration;

use cli_runtime::connection::Cluster;
use cli_runtime::output::{self, Format, Row};
use cli_runtime::request::{self, RequestResult};
use cli_runtime::size::human;
use cli_runtime::table::table;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt as _;
use serde::Serialize;
use topolvm_api::{ApiFlavor, NodeOrphans, OrphanedVolume};

use crate::error::{Error, OrphanError};
use crate::references::References;

pub(crate) use adoption::{await_lv, failed};
pub(crate) use args::OrphanCommand;

/// An LV without its LogicalVolume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct OrphanRow {
    /// Node of the LV.
    pub(crate) node: String,
    /// The LV, as the agent of the node describes it.
    #[serde(flatten)]
    pub(crate) volume: OrphanedVolume,
}

impl Row for OrphanRow {
    fn name(&self) -> Option<String> {
        Some(format!("{} {}", self.node, self.volume.lv))
    }
}

/// Runs a subcommand. `namespace` is that of claims.
pub(crate) async fn run(cluster: &Cluster, command: OrphanCommand, namespace: &str) -> Result<(), Error> {
    match command {
        OrphanCommand::List { output } => list(cluster, output.format).await,
        OrphanCommand::Restore { flags } => restoration::run(cluster, &flags, namespace).await,
        OrphanCommand::Delete { node, lv, yes: _ } => deletion::run(cluster, &node, &lv).await,
    }
}

async fn list(cluster: &Cluster, format: Format) -> Result<(), Error> {
    let nodes = request::list_all::<Node>(&cluster.client).await?;
    let (rows, more) = rows(cluster.flavor, &nodes)?;
    output::print(&output::render(format, &rows, |wide| in_table(&rows, wide))?)?;
    if more > 0 && matches!(format, Format::Table | Format::Wide) {
        output::print(&format!("{more} more are not listed; lvs -o +tags on the nodes shows them\n"))?;
    }
    Ok(())
}

/// Returns a row for each LV, and the number of those that the Nodes leave out.
pub(crate) fn rows(flavor: ApiFlavor, nodes: &[Node]) -> Result<(Vec<OrphanRow>, usize), OrphanError> {
    let (mut rows, mut more) = (Vec::new(), 0);
    for node in nodes {
        let orphans = parse(flavor, node)?;
        more += orphans.more;
        rows.extend(orphans.volumes.into_iter().map(|volume| OrphanRow { node: node.name_any(), volume }));
    }
    Ok((rows, more))
}

fn parse(flavor: ApiFlavor, node: &Node) -> Result<NodeOrphans, OrphanError> {
    let annotation = node.annotations().get(flavor.orphans()).map(String::as_str);
    NodeOrphans::parse(annotation).map_err(|source| OrphanError::Annotation { node: node.name_any(), source })
}

/// Finds an LV of a node by name; `None` if the node does not report it.
async fn find(cluster: &Cluster, node: &str, lv: &str) -> Result<Option<OrphanedVolume>, OrphanError> {
    let found: RequestResult<Option<Node>> = request::get(&kube::Api::all(cluster.client.clone()), node).await;
    let Some(found) = found? else { return Err(OrphanError::NoNode(node.to_owned())) };
    Ok(parse(cluster.flavor, &found)?.volumes.into_iter().find(|volume| volume.lv == lv))
}

/// Checks that nothing refers to the volume of an LV. What does needs its LogicalVolume again, and nothing else.
async fn check_unreferenced(cluster: &Cluster, lv: &str) -> Result<(), OrphanError> {
    let references = References::list(cluster).await?;
    match references.find(cluster.flavor, lv) {
        Some(reference) => Err(OrphanError::Referenced { lv: lv.to_owned(), reference: reference.describe() }),
        None => Ok(()),
    }
}

fn in_table(rows: &[OrphanRow], wide: bool) -> String {
    let since = |row: &OrphanRow| {
        let time = row.volume.quarantined_at.and_then(|at| Timestamp::from_second(at).ok());
        time.map(|time| time.to_string()).unwrap_or_default()
    };
    table(
        rows,
        wide,
        &[
            ("NODE", false, &|row: &OrphanRow| row.node.clone()),
            ("LV", false, &|row| row.volume.lv.clone()),
            ("LOGICALVOLUME", false, &|row| row.volume.logical_volume.clone()),
            ("CLASS", false, &|row| row.volume.device_class.clone()),
            ("SIZE", false, &|row| human(row.volume.bytes)),
            ("QUARANTINED", true, &since),
            ("STATE", false, &|row| row.volume.note.clone()),
        ],
    )
}

#[cfg(test)]
mod tests;
