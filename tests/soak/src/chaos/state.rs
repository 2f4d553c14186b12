//! State of all volumes: in the API server, in LVM, and according to lvmd.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, bail};
use prost::Message as _;
use serde_json::Value;
use testbed::cluster::Cluster;
use testbed::exec::Request;
use testbed::node::Node;
use testbed::topolvm::{LVMD_SOCKET, THIN_CLASS, THIN_OVERPROVISION, THIN_POOL, THIN_VG};
use topolvm_api::{ApiFlavor, DEFAULT_DEVICE_CLASS_KEY};
use topolvm_proto::lvmd::{GetLvListRequest, GetLvListResponse};

use super::fields::find_by_name;

/// Name of the default device class of the test cluster, its key in an annotation, and its volume group.
pub(super) const THICK_CLASS: &str = "ssd";
pub(super) const DEFAULT_CLASS: &str = DEFAULT_DEVICE_CLASS_KEY;
pub(super) const THICK_VG: &str = "myvg1";

/// Objects of the API server and LVs of the nodes, read at about the same time.
#[derive(Clone, Debug, Default)]
pub(super) struct State {
    pub(super) claims: Vec<Value>,
    pub(super) volumes: Vec<Value>,
    pub(super) snapshots: Vec<Value>,
    pub(super) contents: Vec<Value>,
    /// The LogicalVolumes.
    pub(super) objects: Vec<Value>,
    pub(super) nodes: Vec<NodeState>,
}

/// LVs and free bytes of a node.
#[derive(Clone, Debug, Default)]
pub(super) struct NodeState {
    pub(super) name: String,
    /// All LVs, without the thin pool.
    pub(super) lvm: Vec<Lv>,
    /// Name and size in bytes of the volumes that lvmd lists.
    pub(super) listed: Vec<(String, u64)>,
    /// Free bytes of each device class according to LVM.
    pub(super) free: BTreeMap<String, u64>,
    /// Free bytes of each device class according to the annotations of the Node.
    pub(super) published: BTreeMap<String, u64>,
}

/// A logical volume of LVM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Lv {
    pub(super) group: String,
    pub(super) name: String,
    pub(super) bytes: u64,
    /// Name of the thin pool; empty for a thick volume.
    pub(super) pool: String,
    /// Name of the LV of which it is a copy, as long as that exists.
    pub(super) origin: String,
    pub(super) tags: String,
    pub(super) is_active: bool,
}

impl State {
    pub(super) fn read(cluster: &Cluster, nodes: &[Node]) -> Result<Self> {
        let list = |path: &str| -> Result<Vec<Value>> {
            let mut list: Value = cluster.get(path)?;
            match list.get_mut("items").map(Value::take) {
                Some(Value::Array(items)) => Ok(items),
                _ => bail!("{path} is no list"),
            }
        };
        let api_nodes = list("/api/v1/nodes")?;
        Ok(Self {
            claims: list("/api/v1/namespaces/default/persistentvolumeclaims")?,
            volumes: list("/api/v1/persistentvolumes")?,
            snapshots: list("/apis/snapshot.storage.k8s.io/v1/namespaces/default/volumesnapshots")?,
            contents: list("/apis/snapshot.storage.k8s.io/v1/volumesnapshotcontents")?,
            objects: list("/apis/topolvm.io/v1/logicalvolumes")?,
            nodes: nodes
                .iter()
                .map(|node| {
                    Ok(NodeState {
                        published: find_by_name(&api_nodes, node.name()).map(capacities).unwrap_or_default(),
                        ..NodeState::read(node)?
                    })
                })
                .collect::<Result<_>>()?,
        })
    }

    /// Returns the LVs of this name, with the names of their nodes.
    pub(super) fn lvs(&self, name: &str) -> Vec<(&str, &Lv)> {
        let all = self.nodes.iter().flat_map(|node| node.lvm.iter().map(|lv| (node.name.as_str(), lv)));
        all.filter(|(_, lv)| lv.name == name).collect()
    }
}

/// Returns the free bytes of each device class according to the annotations of a Node.
pub(super) fn published(cluster: &Cluster, node: &str) -> Result<BTreeMap<String, u64>> {
    Ok(capacities(&cluster.get(&format!("/api/v1/nodes/{node}"))?))
}

fn capacities(node: &Value) -> BTreeMap<String, u64> {
    let annotations = node.pointer("/metadata/annotations").and_then(Value::as_object);
    let capacity = |(key, value): (&String, &Value)| {
        let class = key.strip_prefix(ApiFlavor::TopoLvm.capacity_prefix())?;
        Some((class.to_owned(), value.as_str()?.parse().ok()?))
    };
    annotations.into_iter().flatten().filter_map(capacity).collect()
}

impl NodeState {
    fn read(node: &Node) -> Result<Self> {
        let command = "lvs -a --noheadings --units b --nosuffix --separator '|' \
                       -o vg_name,lv_name,lv_size,lv_active,pool_lv,origin,lv_tags";
        let all: Vec<Lv> = node.script(command)?.lines().map(Lv::parse).collect::<Result<_>>()?;
        let mut listed = list_lvmd_volumes(node, "")?;
        listed.extend(list_lvmd_volumes(node, THIN_CLASS)?);
        let thick =
            node.script(&format!("vgs --noheadings --units b --nosuffix -o vg_free {THICK_VG}"))?.trim().parse()?;
        let free = [(DEFAULT_CLASS, thick), (THICK_CLASS, thick), (THIN_CLASS, unprovisioned_bytes(&all)?)];
        Ok(Self {
            name: node.name().to_owned(),
            lvm: all.into_iter().filter(Lv::is_volume).collect(),
            listed,
            free: free.into_iter().map(|(class, bytes)| (class.to_owned(), bytes)).collect(),
            published: BTreeMap::new(),
        })
    }
}

/// Returns the bytes that the thin pool may still provision with its overprovisioning ratio. Copies count in full.
fn unprovisioned_bytes(all: &[Lv]) -> Result<u64> {
    let pool = all.iter().find(|lv| lv.group == THIN_VG && lv.name == THIN_POOL).context("there is no thin pool")?;
    let provisioned: u64 = all.iter().filter(|lv| lv.is_volume() && lv.pool == THIN_POOL).map(|lv| lv.bytes).sum();
    Ok((pool.bytes * THIN_OVERPROVISION).saturating_sub(provisioned))
}

impl Lv {
    fn parse(line: &str) -> Result<Self> {
        let fields: Vec<&str> = line.trim().split('|').collect();
        let [group, name, bytes, active, pool, origin, tags] = fields.as_slice() else { bail!("lvs printed {line:?}") };
        let bytes = bytes.parse().with_context(|| format!("lvs printed {line:?}"))?;
        let [group, name, pool, origin, tags] = [group, name, pool, origin, tags].map(|field| (*field).to_owned());
        Ok(Self { group, name, bytes, pool, origin, tags, is_active: *active == "active" })
    }

    /// Returns true if it is neither the thin pool nor one of its hidden parts. Any other hidden LV is a leftover.
    fn is_volume(&self) -> bool {
        let hidden = ["[lvol0_pmspare]".to_owned(), format!("[{THIN_POOL}_tdata]"), format!("[{THIN_POOL}_tmeta]")];
        self.name != THIN_POOL && !hidden.contains(&self.name)
    }
}

/// Returns name and size in bytes of the volumes that lvmd in a node lists. It uses curl: gRPC without streams is a
/// POST with five bytes before the message.
fn list_lvmd_volumes(node: &Node, device_class: &str) -> Result<Vec<(String, u64)>> {
    let message = GetLvListRequest { device_class: device_class.to_owned(), name: String::new() }.encode_to_vec();
    let mut body = vec![0];
    body.extend(u32::try_from(message.len())?.to_be_bytes());
    body.extend(message);
    let mut argv = vec!["curl", "--silent", "--fail", "--http2-prior-knowledge", "--unix-socket", LVMD_SOCKET];
    argv.extend(["--header", "Content-Type: application/grpc", "--header", "TE: trailers", "--data-binary", "@-"]);
    argv.push("http://lvmd/proto.VGService/GetLVList");
    let output = node.exec_with(&Request::new(argv), &body, std::time::Duration::from_secs(20))?;
    let answer = output.stdout.get(5..).filter(|_| output.status == 0);
    let answer = answer.with_context(|| format!("lvmd does not list: {output:?}"))?;
    let volumes = GetLvListResponse::decode(answer).context("lvmd answers something else")?.volumes;
    volumes.into_iter().map(|volume| Ok((volume.name, u64::try_from(volume.size_bytes)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lv(line: &str) -> Lv {
        Lv::parse(line).unwrap()
    }

    #[test]
    fn the_pool_is_no_volume_and_what_is_hidden_otherwise_is() {
        assert!(!lv("  thinvg|pool0|6442450944|active|||").is_volume());
        assert!(!lv("  thinvg|[pool0_tmeta]|8388608|active|||").is_volume());
        assert!(lv("  myvg1|[x_rimage_0]|4|active|||a,b").is_volume());
        assert!(Lv::parse("  WARNING: something").is_err());
    }

    #[test]
    fn a_copy_has_a_pool_and_an_origin() {
        let [group, name, pool, origin, tags] = ["thinvg", "x", "pool0", "y", "a,b"].map(str::to_owned);
        let copy = Lv { group, name, bytes: 4, pool, origin, tags, is_active: true };
        assert_eq!(lv("  thinvg|x|4|active|pool0|y|a,b"), copy);
    }

    #[test]
    fn unprovisioned_bytes_of_a_pool_count_only_its_volumes() {
        let lines = [
            "thinvg|pool0|100|active|||",
            "thinvg|x|30|active|pool0||",
            "thinvg|y|30|active|pool0|x|",
            "myvg1|z|7|active|||",
        ];
        assert_eq!(unprovisioned_bytes(&lines.map(lv)).unwrap(), 1940);
        assert!(unprovisioned_bytes(&[]).is_err());
    }
}
