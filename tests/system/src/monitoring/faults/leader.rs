//! Nodes without a default device class, and then a Lease whose holder is gone: no controller checks them any more.

use anyhow::{Result, ensure};
use serde_json::json;

use super::setup::{Setup, lvmd_yaml};
use crate::workloads::set_lvmd_config;

pub(super) const ALERTS: [&str; 2] = [NO_DEFAULT, NO_LEADER];
const NO_DEFAULT: &str = "TopolvmNoDefaultDeviceClass";
const NO_LEADER: &str = "TopolvmNoLeader";

const DELETE_LEASE: [&str; 3] = ["delete", "lease", "topolvm"];

pub(super) fn lose_lease(setup: &Setup<'_>) -> Result<()> {
    set_default_class(setup, false)?;
    // The next leader checks at once
    setup.kubectl_there(&DELETE_LEASE)?;
    setup.wait_for_alerts(&[NO_DEFAULT])?;
    let patch = json!({"spec": {"holderIdentity": "gone", "leaseDurationSeconds": 3600}}).to_string();
    setup.kubectl_there(&["patch", "lease", "topolvm", "--type=merge", "-p", &patch])?;
    setup.wait_for_alerts(&[NO_LEADER])?;
    // The findings of the previous leader expire
    setup.wait_for_end(&[NO_DEFAULT])?;
    set_default_class(setup, true)?;
    setup.kubectl_there(&DELETE_LEASE)?;
    setup.wait_for_end(&ALERTS)
}

/// Gives lvmd a configuration with or without a default device class, and waits until the Node reports it.
fn set_default_class(setup: &Setup<'_>, is_there: bool) -> Result<()> {
    set_lvmd_config(setup.cluster, &lvmd_yaml(is_there).to_string().into())?;
    setup.prometheus.ready(|| {
        let free = r"jsonpath={.metadata.annotations.capacity\.topolvm\.io/00default}";
        let free = setup.kubectl(&["get", "node", setup.node.name(), "-o", free])?;
        ensure!((free != "0") == is_there, "the default class of the node has {free:?} bytes");
        Ok(())
    })
}
