//! Lines below the table of `status` about what it does not show: nodes without a device class, and the part of volume
//! groups that is in no SIZE.

use std::collections::{BTreeMap, BTreeSet};

use cli_runtime::size::human;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::ResourceExt;
use topolvm_api::{ApiFlavor, NodeStorage, NodeStorageStatus, parse_bytes};

use super::ClassRow;

/// Bytes of a volume group that are too few to be named: rounding, and metadata of LVM.
const LITTLE: u64 = 1 << 30;

/// Returns the lines.
pub(super) fn describe(flavor: ApiFlavor, nodes: &[Node], rows: &[ClassRow], storage: &[NodeStorage]) -> String {
    let lines: String = idle_nodes(flavor, nodes, rows, storage).chain(unused_parts(rows, storage)).collect();
    if lines.is_empty() { lines } else { format!("\n{lines}") }
}

/// Returns a line for each node with an agent that has no row, unless its NodeStorage contains the reason.
fn idle_nodes<'a>(
    flavor: ApiFlavor,
    nodes: &'a [Node],
    rows: &'a [ClassRow],
    storage: &'a [NodeStorage],
) -> impl Iterator<Item = String> + 'a {
    let with_rows: BTreeSet<_> = rows.iter().map(|row| row.node.as_str()).collect();
    let silent = |storage: &&NodeStorage| storage.ready().is_none_or(|ready| ready.status != "Unknown");
    let of_storage = storage.iter().filter(silent).map(|storage| storage.name().to_owned());
    let explained: BTreeSet<_> = storage.iter().filter(|one| !silent(one)).map(|one| one.name().to_owned()).collect();
    let has_agent = move |node: &&Node| {
        node.finalizers().iter().any(|finalizer| finalizer == flavor.node_finalizer())
            || node.annotations().keys().any(|key| flavor.is_capacity_annotation(key))
    };
    let names: BTreeSet<_> = nodes.iter().filter(has_agent).map(ResourceExt::name_any).chain(of_storage).collect();
    let idle = names.into_iter().filter(move |name| !with_rows.contains(name.as_str()) && !explained.contains(name));
    idle.map(|name| {
        format!("{name}: no device class; lvmd does not run there, or none of its configured volume groups exists\n")
    })
}

/// Returns a line for each volume group that is larger than its device classes and thin pools: the spare, and LVs of
/// others.
fn unused_parts<'a>(rows: &'a [ClassRow], storage: &'a [NodeStorage]) -> impl Iterator<Item = String> + 'a {
    let sizes: BTreeMap<_, _> =
        rows.iter().map(|row| ((row.node.as_str(), row.device_class.as_str()), row.size_bytes)).collect();
    storage.iter().flat_map(move |storage| {
        let (sizes, node) = (&sizes, storage.name());
        let lines: Vec<_> = storage.status.iter().flat_map(|status| unused(status, node, sizes)).collect();
        lines
    })
}

fn unused(
    status: &NodeStorageStatus,
    node: &str,
    sizes: &BTreeMap<(&str, &str), Option<u64>>,
) -> impl Iterator<Item = String> {
    let bytes = |size: Option<&Quantity>| parse_bytes(size?).ok();
    let lines: Vec<_> = status
        .volume_groups
        .iter()
        .filter_map(|group| {
            let thick =
                status.device_classes.iter().filter(|one| one.volume_group == group.name && one.thin_pool.is_empty());
            let of_classes: Option<Vec<u64>> =
                thick.map(|class| sizes.get(&(node, class.name.as_str())).copied().flatten()).collect();
            let pools = status.thin_pools.iter().filter(|pool| pool.volume_group == group.name);
            let of_pools: Option<Vec<u64>> = pools.map(|pool| bytes(pool.size.as_ref())).collect();
            let shown = of_classes?.into_iter().chain(of_pools?).fold(0, u64::saturating_add);
            let rest = bytes(group.size.as_ref())?.saturating_sub(shown);
            (rest >= LITTLE).then(|| {
                let (name, rest) = (&group.name, human(rest));
                format!("{node}: SIZE does not include {rest} of volume group {name}: spare-gb, and foreign LVs\n")
            })
        })
        .collect();
    lines.into_iter()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, from_value, json};

    use super::*;

    const GI: u64 = 1 << 30;

    fn row(node: &str, class: &str, size: u64) -> ClassRow {
        ClassRow { size_bytes: Some(size), ..ClassRow::new(node, class) }
    }

    fn storage(status: &Value) -> NodeStorage {
        from_value(json!({"metadata": {"name": "n1"}, "status": status})).unwrap()
    }

    #[test]
    fn node_without_a_device_class_is_named_once() {
        let node = |name: &str, metadata: Value| -> Node {
            let mut node = json!({"metadata": metadata});
            node["metadata"]["name"] = json!(name);
            from_value(node).unwrap()
        };
        let nodes = [
            node("empty", json!({"annotations": {"capacity.topolvm.io/00default": "0"}})),
            node("crashed", json!({"finalizers": ["topolvm.io/node"]})),
            node("other", json!({})),
            node("full", json!({"finalizers": ["topolvm.io/node"]})),
        ];
        let text = describe(ApiFlavor::TopoLvm, &nodes, &[row("full", "ssd", GI)], &[]);
        let named: Vec<_> = text.lines().filter_map(|line| line.split_once(':')).map(|(node, _)| node).collect();
        assert_eq!(named, ["crashed", "empty"]);
        // It says itself why
        let unknown = json!([{
            "type": "Ready", "status": "Unknown", "reason": "LvmdUnavailable", "message": "no answer",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }]);
        let unknown = storage(&json!({"conditions": unknown}));
        assert_eq!(describe(ApiFlavor::TopoLvm, &[], &[], &[unknown]), "");
    }

    #[test]
    fn spare_of_a_volume_group_is_named() {
        let group = |size: &str| {
            storage(&json!({
                "volumeGroups": [{"name": "vg", "size": size}],
                "deviceClasses": [
                    {"name": "ssd", "volumeGroup": "vg"}, {"name": "thin", "volumeGroup": "vg", "thinPool": "pool"},
                ],
                "thinPools": [{"volumeGroup": "vg", "name": "pool", "size": "4Gi"}],
            }))
        };
        let rows = [row("n1", "ssd", 10 * GI), row("n1", "thin", 40 * GI)];
        let text = describe(ApiFlavor::TopoLvm, &[], &rows, &[group("24Gi")]);
        assert_eq!(text, "\nn1: SIZE does not include 10Gi of volume group vg: spare-gb, and foreign LVs\n");
        assert_eq!(describe(ApiFlavor::TopoLvm, &[], &rows, &[group("14Gi")]), "");
    }
}
