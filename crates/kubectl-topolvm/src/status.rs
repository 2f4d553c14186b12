//! `status`: free and reserved space of each device class on each node, thin pools, and what is wrong with disks.

mod notes;
mod storage;
mod watch;

use std::collections::BTreeMap;
use std::io::IsTerminal as _;

use cli_runtime::connection::Cluster;
use cli_runtime::objects::is_ready;
use cli_runtime::output::{self, Format, OutputError, Row};
use cli_runtime::request::{self, RequestResult};
use cli_runtime::size::{human, percent};
use cli_runtime::table::table;
use k8s_openapi::api::core::v1::Node;
use kube::{Api, ResourceExt as _};
use serde::Serialize;
use topolvm_api::{ApiFlavor, LogicalVolume, NodeCapacity, NodeStorage, parse_bytes};

use crate::error::Error;

/// Width of a bar in characters.
const BAR: u64 = 10;

/// A device class of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ClassRow {
    node: String,
    /// True if the Node object exists and is ready.
    node_ready: bool,
    /// Empty for the default class if its name is missing on the Node.
    device_class: String,
    /// True if volumes without a device class are in this one.
    is_default: bool,
    /// Free and reserved bytes together.
    size_bytes: Option<u64>,
    /// Free space as the agent of the node published it; none if it publishes none.
    free_bytes: Option<u64>,
    /// Sum of the sizes of volumes and snapshots.
    reserved_bytes: u64,
    /// Number of volumes and snapshots.
    volumes: usize,
}

impl Row for ClassRow {
    fn name(&self) -> Option<String> {
        Some(format!("node/{}", self.node))
    }
}

/// Prints the rows, and with `watch` again whenever they have changed.
pub(crate) async fn run(cluster: &Cluster, format: Format, watch: bool) -> Result<(), Error> {
    if watch {
        return watch::run(cluster, format).await;
    }
    let Cluster { client, flavor } = cluster;
    let volumes = Api::<LogicalVolume>::all_with(client.clone(), flavor);
    let (nodes, volumes, storage) =
        futures::join!(request::list_all::<Node>(client), request::list(&volumes, flavor, ""), storage::list(cluster));
    Ok(output::print(&shown(*flavor, format, &nodes?, &volumes?, &storage)?)?)
}

fn shown(
    flavor: ApiFlavor,
    format: Format,
    nodes: &[Node],
    volumes: &[LogicalVolume],
    storage: &RequestResult<Vec<NodeStorage>>,
) -> Result<String, OutputError> {
    let bars = std::io::stdout().is_terminal();
    let rows = rows(flavor, nodes, volumes);
    output::render(format, &rows, |wide| {
        let notes = notes::describe(flavor, nodes, &rows, storage.as_deref().unwrap_or_default());
        in_table(&rows, wide, bars) + &notes + &storage::describe(storage, wide)
    })
}

/// Returns a row for each device class that a node publishes or that has volumes, in the order of node and class.
///
/// Nodes publish the free space of the default class a second time without its name. Its row is the class that has
/// exactly the same free space, if that is one class only. A node without a device class publishes a default class
/// without free space, which is none.
pub(crate) fn rows(flavor: ApiFlavor, nodes: &[Node], volumes: &[LogicalVolume]) -> Vec<ClassRow> {
    let mut rows: BTreeMap<(String, String), ClassRow> = BTreeMap::new();
    let mut defaults: BTreeMap<String, String> = BTreeMap::new();
    for node in nodes {
        let name = node.name_any();
        let capacity = NodeCapacity::from_annotations(flavor, node.annotations());
        for class in capacity.listed_classes() {
            let mut row = ClassRow::new(&name, class.name);
            row.node_ready = is_ready(node);
            row.free_bytes = Some(class.free);
            row.is_default = class.is_default;
            rows.insert((name.clone(), class.name.to_owned()), row);
            if class.is_default && !class.name.is_empty() {
                defaults.insert(name.clone(), class.name.to_owned());
            }
        }
    }
    for volume in volumes {
        let node = &volume.spec.node_name;
        let named = Some(&volume.spec.device_class).filter(|class| !class.is_empty());
        let class = named.or_else(|| defaults.get(node)).cloned().unwrap_or_default();
        let row = rows.entry((node.clone(), class.clone())).or_insert_with(|| {
            let found = nodes.iter().find(|found| found.metadata.name.as_ref() == Some(node));
            ClassRow { node_ready: found.is_some_and(is_ready), ..ClassRow::new(node, &class) }
        });
        row.volumes += 1;
        row.reserved_bytes = row.reserved_bytes.saturating_add(reserved(volume));
    }
    for row in rows.values_mut() {
        row.size_bytes = row.free_bytes.map(|free| free.saturating_add(row.reserved_bytes));
    }
    rows.into_values().filter(|row| !row.is_no_class()).collect()
}

impl ClassRow {
    fn new(node: &str, class: &str) -> Self {
        let (node, device_class) = (node.to_owned(), class.to_owned());
        Self { node, device_class, is_default: class.is_empty(), ..Self::default() }
    }

    fn is_no_class(&self) -> bool {
        self.device_class.is_empty() && self.free_bytes == Some(0) && self.volumes == 0
    }
}

fn reserved(volume: &LogicalVolume) -> u64 {
    volume.current_bytes().or_else(|| parse_bytes(&volume.spec.size).ok()).unwrap_or_default()
}

fn in_table(rows: &[ClassRow], wide: bool, bars: bool) -> String {
    table(
        rows,
        wide,
        &[
            ("NODE", false, &|row| row.node.clone()),
            ("CLASS", false, &format_class),
            ("SIZE", false, &|row| row.size_bytes.map(human).unwrap_or_default()),
            ("FREE", false, &|row| row.free_bytes.map(human).unwrap_or_default()),
            ("RESERVED", false, &|row| human(row.reserved_bytes)),
            ("USED", false, &|row| fill(row, bars)),
            ("VOLUMES", false, &|row| row.volumes.to_string()),
            ("NODE READY", true, &|row| row.node_ready.to_string()),
            ("FREE BYTES", true, &|row| row.free_bytes.map(|bytes| bytes.to_string()).unwrap_or_default()),
            ("RESERVED BYTES", true, &|row| row.reserved_bytes.to_string()),
        ],
    )
}

fn format_class(row: &ClassRow) -> String {
    match (row.device_class.as_str(), row.is_default) {
        ("", _) => "(default)".to_owned(),
        (class, true) => format!("{class} (default)"),
        (class, false) => class.to_owned(),
    }
}

/// Formats the reserved share as `42%`, with a bar for terminals.
fn fill(row: &ClassRow, bar: bool) -> String {
    let Some(percent) = row.size_bytes.and_then(|size| percent(row.reserved_bytes, size)) else {
        return String::new();
    };
    if !bar {
        return format!("{percent}%");
    }
    let full = percent * BAR / 100;
    let blocks: String = (0..BAR).map(|block| if block < full { '█' } else { '░' }).collect();
    format!("{blocks} {percent:>3}%")
}

#[cfg(test)]
mod tests;
