//! `lvmd check-config`: describes a configuration, without touching LVM.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use lvm::{Layout, Wipe};
use lvmd_config::{Config, Mode};

/// Describes a configuration for people, with its warnings.
pub(crate) fn describe(config: &Config) -> String {
    let mut text = String::new();
    for warning in &config.warnings {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "warning: {warning}");
    }
    for class in config.classes.iter() {
        let default = if class.default { ", default" } else { "" };
        let (name, vg, spare) = (&class.name, &class.volume_group, class.spare >> 30);
        let place = match &class.thin_pool {
            Some(pool) => format!("thin pool {vg}/{}, overprovision ratio {}", pool.name, pool.overprovision),
            None if class.layout == Layout::parse(&[], None) => format!("volume group {vg}"),
            None => format!("volume group {vg}, {}", class.layout),
        };
        let wipe = match (class.wipe, &class.thin_pool) {
            (None, _) => "",
            (Some(Wipe::Zero), Some(_)) => ", the pool must zero new blocks",
            (Some(Wipe::Discard), Some(_)) => ", removed volumes are discarded, as in every thin pool",
            (Some(Wipe::Zero), None) => ", removed volumes are zeroed",
            (Some(Wipe::Discard), None) => ", removed volumes are discarded",
        };
        let _ = writeln!(text, "device class {name}: {place}, spare {spare} GiB{wipe}{default}");
    }
    for group in &config.disk_groups.groups {
        let (name, limit) = (&group.name, group.max_disks.map(|most| format!(", at most {most} disks")));
        let mode = match group.mode {
            Mode::Report => "disks are reported but not added",
            Mode::Auto => "blank disks are added",
        };
        let nodes = &group.node_labels;
        let nodes = if nodes.is_everything() { String::new() } else { format!(", on nodes with the labels {nodes}") };
        let _ = writeln!(text, "disk group {name}: {mode}{}{nodes}", limit.unwrap_or_default());
    }
    if !config.peers.is_empty() {
        let list = |ids: &BTreeSet<u32>| ids.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
        let (uids, gids) = (list(&config.peers.uids), list(&config.peers.gids));
        let _ = writeln!(text, "the socket is open to root, users: {uids}, groups: {gids}");
    }
    text.push_str("the configuration is valid\n");
    text
}
