//! Measures topolvm-controller in large clusters: with many claims at once, compared with the sidecars and with what
//! the API server can do, and at its start.

mod api_limit;
mod api_lists;
mod claims;
mod etcd;
mod examples;
mod provisioners;
mod start;
mod writes;

use std::num::NonZeroUsize;
use std::path::Path;

use anyhow::Result;
use serde_json::{Value, json};
use system_tests::manifests::{VolumeMode, claim};

use crate::figure::{Figure, Selector};

/// Prefixes of the names of its figures.
pub(crate) const FAMILIES: [&str; 2] = ["scale.claims_1000x100", "scale.start"];

/// One device class.
const LVMD_CONFIG: &str = "device-classes:\n- {name: ssd, volume-group: ssd, default: true, spare-gb: 0}\n";
/// StorageClass of the manifests, of the default device class.
const CLASS: &str = "topolvm-provisioner";

/// Measures the selected figures, with numbers of objects that are divided.
pub(crate) fn run(directory: &Path, wanted: &Selector<'_>, divisor: NonZeroUsize) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    if wanted("scale.claims_1000x100") {
        figures.extend(claims::run(&directory.join("claims"), divisor)?);
    }
    if wanted("scale.start") {
        figures.extend(start::run(&directory.join("start"), divisor)?);
    }
    Ok(figures)
}

/// Returns a claim for whose pod kube-scheduler has selected a node.
fn scheduled_claim(name: &str, node: &str) -> Value {
    let mut claim = claim(name, CLASS, "1Gi", VolumeMode::Filesystem);
    if let Some(metadata) = claim.pointer_mut("/metadata").and_then(Value::as_object_mut) {
        metadata.insert("annotations".to_owned(), json!({"volume.kubernetes.io/selected-node": node}));
    }
    claim
}
