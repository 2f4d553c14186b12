//! Requests as kube-scheduler sends them.

use serde_json::{Value, json};

/// Number of images in the status of a Node of at least 30 KiB.
pub(super) const FULL_SIZE_IMAGES: usize = 260;

const FREE: &str = "107374182400";

/// Returns a request with a pod and so many Nodes, each with so many images.
pub(super) fn of_nodes(nodes: usize, images: usize) -> Value {
    let nodes: Vec<Value> = (0..nodes).map(|number| node(number, images)).collect();
    json!({"Pod": pod(), "Nodes": {"metadata": {}, "items": nodes}, "NodeNames": null})
}

/// Returns a request with a pod and the names of so many Nodes.
pub(super) fn of_names(nodes: usize) -> Value {
    let names: Vec<String> = (0..nodes).map(name).collect();
    json!({"Pod": pod(), "Nodes": null, "NodeNames": names})
}

fn pod() -> Value {
    json!({"metadata": {"name": "pod", "annotations": {"capacity.topolvm.io/ssd": "1073741824"}}})
}

fn name(number: usize) -> String {
    format!("node-{number}")
}

/// Returns the metadata of a Node.
pub(super) fn metadata(number: usize) -> Value {
    json!({
        "name": name(number), "uid": format!("00000000-0000-4000-8000-{number:012}"), "resourceVersion": "7",
        "labels": {"kubernetes.io/hostname": name(number), "kubernetes.io/os": "linux"},
        "annotations": {"capacity.topolvm.io/ssd": FREE, "node.alpha.kubernetes.io/ttl": "0"},
    })
}

fn node(number: usize, images: usize) -> Value {
    let image = |image| json!({"names": [format!("localhost/image-{image:02}@sha256:{image:064x}")], "sizeBytes": 1});
    let images: Vec<Value> = (0..images).map(image).collect();
    let address = json!([{"type": "InternalIP", "address": "192.0.2.1"}]);
    json!({"metadata": metadata(number), "spec": {}, "status": {"addresses": address, "images": images}})
}
