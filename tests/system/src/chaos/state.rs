//! What there is: in the API server, in LVM, and according to lvmd.

use anyhow::{Context as _, Result, bail};
use prost::Message as _;
use serde_json::Value;
use testbed::cluster::Cluster;
use testbed::exec::Request;
use testbed::node::Node;
use testbed::topolvm::{LVMD_SOCKET, THIN_CLASS, THIN_POOL};
use topolvm_proto::lvmd::{GetLvListRequest, GetLvListResponse};

/// Everything at about the same time.
#[derive(Clone, Debug, Default)]
pub(super) struct State {
    pub(super) claims: Vec<Value>,
    pub(super) volumes: Vec<Value>,
    pub(super) snapshots: Vec<Value>,
    pub(super) contents: Vec<Value>,
    /// LogicalVolumes.
    pub(super) objects: Vec<Value>,
    pub(super) nodes: Vec<NodeState>,
}

/// What a node has.
#[derive(Clone, Debug, Default)]
pub(super) struct NodeState {
    pub(super) name: String,
    /// All volumes of LVM, without the thin pool.
    pub(super) lvm: Vec<Lv>,
    /// Name and size in bytes of what lvmd lists.
    pub(super) listed: Vec<(String, u64)>,
    /// Free bytes of the volume group of the default class.
    pub(super) free: u64,
    /// What the Node says about them.
    pub(super) published: Option<u64>,
}

/// A volume of LVM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Lv {
    pub(super) name: String,
    pub(super) bytes: u64,
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
        let published = |name: &str| {
            let node = api_nodes.iter().find(|node| node.pointer("/metadata/name") == Some(&name.into()))?;
            node.pointer("/metadata/annotations/capacity.topolvm.io~1ssd")?.as_str()?.parse().ok()
        };
        Ok(Self {
            claims: list("/api/v1/namespaces/default/persistentvolumeclaims")?,
            volumes: list("/api/v1/persistentvolumes")?,
            snapshots: list("/apis/snapshot.storage.k8s.io/v1/namespaces/default/volumesnapshots")?,
            contents: list("/apis/snapshot.storage.k8s.io/v1/volumesnapshotcontents")?,
            objects: list("/apis/topolvm.io/v1/logicalvolumes")?,
            nodes: nodes
                .iter()
                .map(|node| Ok(NodeState { published: published(node.name()), ..NodeState::read(node)? }))
                .collect::<Result<_>>()?,
        })
    }

    /// Whether the test has nothing left.
    pub(super) fn is_empty(&self) -> bool {
        let objects = [&self.claims, &self.volumes, &self.snapshots, &self.contents, &self.objects];
        objects.iter().all(|list| list.is_empty()) && self.nodes.iter().all(|node| node.lvm.is_empty())
    }
}

impl NodeState {
    fn read(node: &Node) -> Result<Self> {
        let command = "lvs -a --noheadings --units b --nosuffix --separator '|' -o lv_name,lv_size,lv_active,lv_tags";
        let lvm =
            node.script(command)?.lines().filter_map(|line| Lv::parse(line).transpose()).collect::<Result<_>>()?;
        let mut listed = lvmd_list(node, "")?;
        listed.extend(lvmd_list(node, THIN_CLASS)?);
        let free = node.script("vgs --noheadings --units b --nosuffix -o vg_free myvg1")?;
        Ok(Self { name: node.name().to_owned(), lvm, listed, free: free.trim().parse()?, published: None })
    }
}

impl Lv {
    fn parse(line: &str) -> Result<Option<Self>> {
        let fields: Vec<&str> = line.trim().split('|').collect();
        let [name, bytes, active, tags] = fields.as_slice() else { bail!("lvs printed {line:?}") };
        // The pool and its hidden parts; anything else that is hidden is something left over
        let hidden = ["[lvol0_pmspare]".to_owned(), format!("[{THIN_POOL}_tdata]"), format!("[{THIN_POOL}_tmeta]")];
        if *name == THIN_POOL || hidden.iter().any(|hidden| hidden == name) {
            return Ok(None);
        }
        let bytes = bytes.parse().with_context(|| format!("lvs printed {line:?}"))?;
        Ok(Some(Self { name: (*name).to_owned(), bytes, tags: (*tags).to_owned(), is_active: *active == "active" }))
    }
}

/// Asks lvmd over its socket in the node. curl is there, and gRPC without streams is a POST with five bytes before the message.
fn lvmd_list(node: &Node, device_class: &str) -> Result<Vec<(String, u64)>> {
    let message = GetLvListRequest { device_class: device_class.to_owned() }.encode_to_vec();
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

    #[test]
    fn the_pool_is_no_volume_and_what_is_hidden_otherwise_is() {
        assert_eq!(Lv::parse("  pool0|6442450944|active|").unwrap(), None);
        assert_eq!(Lv::parse("  [pool0_tmeta]|8388608|active|").unwrap(), None);
        let left = Lv { name: "[x_rimage_0]".to_owned(), bytes: 4, tags: "a,b".to_owned(), is_active: true };
        assert_eq!(Lv::parse("  [x_rimage_0]|4|active|a,b").unwrap(), Some(left));
        assert!(Lv::parse("  WARNING: something").is_err());
    }
}
