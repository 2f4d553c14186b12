//! A StorageClass with a mount option that the kernel does not support.

use anyhow::{Context as _, Result};
use serde_json::json;
use topolvm_api::ApiFlavor::TopoLvm;

use super::bed::Bed;
use crate::manifests::{VolumeMode, pod, storage_class};

pub(super) const ALERTS: [&str; 1] = ["TopolvmMountFailing"];

const NAME: &str = "unmountable";

pub(super) fn refuse_mount(bed: &Bed<'_>) -> Result<()> {
    let mut class = storage_class(TopoLvm, NAME, None, false);
    let members = class.as_object_mut().context("a StorageClass is no object")?;
    members.insert("mountOptions".to_owned(), json!(["no-such-option"]));
    bed.apply(&class)?;
    bed.apply_claim(NAME, NAME)?;
    bed.apply(&pod(NAME, NAME, VolumeMode::Filesystem))?;
    bed.wait_for_alerts(&ALERTS)?;
    bed.delete(&["pod/unmountable", "pvc/unmountable", "storageclass/unmountable"])
}
