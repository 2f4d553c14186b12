//! A StorageClass with a mount option that the kernel does not support.

use anyhow::{Context as _, Result};
use serde_json::json;
use topolvm_api::ApiFlavor::TopoLvm;

use super::setup::Setup;
use crate::manifests::{VolumeMode, pod, storage_class};

pub(super) const ALERTS: [&str; 1] = ["TopolvmMountFailing"];

const NAME: &str = "unmountable";

pub(super) fn refuse_mount(setup: &Setup<'_>) -> Result<()> {
    let mut class = storage_class(TopoLvm, NAME, None, false);
    let members = class.as_object_mut().context("a StorageClass is no object")?;
    members.insert("mountOptions".to_owned(), json!(["no-such-option"]));
    setup.apply(&class)?;
    setup.apply_claim(NAME, NAME)?;
    setup.apply(&pod(NAME, NAME, VolumeMode::Filesystem))?;
    setup.wait_for_alerts(&ALERTS)?;
    setup.delete(&["pod/unmountable", "pvc/unmountable", "storageclass/unmountable"])
}
