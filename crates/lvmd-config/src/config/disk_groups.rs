//! Parses `disk-groups` and what belongs to them, and makes their device classes.

use std::collections::BTreeSet;
use std::time::Duration;

use block_device::TRANSPORTS;
use lvm::{Layout, VgName};

use super::yaml::{Fields, read_flag, read_number_to, read_string};
use super::{DEFAULT_SPARE_GIB, MAX_GIB, check_class_name, group_pool, keys};
use crate::device_class::{DeviceClass, ThinPool};
use crate::disk_group::{DiskGroup, DiskGroups, InvalidLabel, Mode, NodeSelector, Pattern, Selector, WantedLabel};

/// Default of `rescan-interval` in seconds.
const DEFAULT_RESCAN: u64 = 300;
/// Default of `settle-time` in seconds.
const DEFAULT_SETTLE: u64 = 60;
/// A day in seconds. Longer times are mistakes.
const MAX_SECONDS: u64 = 86_400;

/// The settings of a group that are those of its device class.
struct ClassSettings {
    name: Option<String>,
    spare: Option<u64>,
    /// The thin pool, unless a class is configured that has it.
    pool: Option<ThinPool>,
}

/// Parses the disk groups. A group that no class names gets its own class. All classes of disk groups are optional
/// because lvmd creates their volume groups.
pub(super) fn parse(entries: Vec<Fields<'_>>, file: &mut Fields<'_>, classes: &mut Vec<DeviceClass>) -> DiskGroups {
    let rescan = file.take(keys::RESCAN_INTERVAL, read_number_to(MAX_SECONDS)).unwrap_or(DEFAULT_RESCAN);
    let settle = file.take(keys::SETTLE_TIME, read_number_to(MAX_SECONDS)).unwrap_or(DEFAULT_SETTLE);
    let mut groups = DiskGroups {
        groups: Vec::new(),
        rescan_interval: Some(Duration::from_secs(rescan)).filter(|interval| !interval.is_zero()),
        settle_time: Duration::from_secs(settle),
    };
    let mut names: BTreeSet<_> = classes.iter().map(|class| class.name.clone()).collect();
    for mut fields in entries {
        let before = file.diagnostics.error_count();
        let Some(group) = parse_group(&mut fields, classes, &mut names) else { continue };
        if groups.get(&group.name).is_some() {
            fields.error("another disk group has the same name; use unique names");
        }
        groups.groups.push(group);
        if let (Some((one, other)), true) = (groups.find_overlap(), file.diagnostics.error_count() == before) {
            let (one, other) = (one.name.as_str(), other.name.as_str());
            fields.error(format!(
                "disk groups {one:?} and {other:?} select the same disks; set selectors that exclude each other, such \
                 as rotational, transports or different by-id patterns, or node-labels with different values of one key"
            ));
        }
    }
    groups
}

fn parse_group(
    fields: &mut Fields<'_>,
    classes: &mut Vec<DeviceClass>,
    names: &mut BTreeSet<String>,
) -> Option<DiskGroup> {
    let name = fields.take(keys::GROUP_NAME, read_string).unwrap_or_default();
    fields.place = format!("disk group {name:?}: ");
    if name.is_empty() {
        fields.error("it has no name; set it to the name of its volume group");
    }
    let class_name = fields.take(keys::GROUP_CLASS, read_string);
    let spare = fields.take(keys::GROUP_SPARE_GB, read_number_to(MAX_GIB));
    let mode = take_mode(fields);
    let selector = take_selector(fields);
    let node_labels = take_node_labels(fields);
    let max_disks = fields.take(keys::MAX_DISKS, read_number_to(u32::MAX));
    if max_disks == Some(0) {
        fields.error("max-disks is 0, so no disk can be added; remove it for no limit");
    }
    let pool = fields.take(keys::GROUP_POOL, Ok);
    fields.warn_of_unknown_keys();
    let name: VgName = fields.check(name.parse()).filter(|_| !name.is_empty())?;
    let before = fields.diagnostics.error_count();
    let pool = pool.and_then(|node| group_pool::parse(node, &name, mode, classes, fields));
    if fields.diagnostics.error_count() > before {
        return None;
    }
    make_class(&name, ClassSettings { name: class_name, spare, pool }, classes, names, fields);
    Some(DiskGroup { name, mode, selector, node_labels, max_disks })
}

/// Creates the device class of a group, or checks that an existing class matches the group. A thin class is created in
/// addition to configured classes.
fn make_class(
    vg: &VgName,
    settings: ClassSettings,
    classes: &mut Vec<DeviceClass>,
    names: &mut BTreeSet<String>,
    fields: &Fields<'_>,
) {
    let ClassSettings { name, spare, pool } = settings;
    let mut is_named = false;
    for class in classes.iter_mut().filter(|class| class.volume_group == *vg) {
        class.optional = true;
        is_named = true;
        if class.thin_pool.as_ref().is_some_and(|pool| pool.share.is_none()) {
            let class = &class.name;
            fields.warn(format!(
                "lvmd does not create the thin pool of device class {class:?}; set it as thin-pool of this disk group, \
                 or create it together with the volume group"
            ));
        }
    }
    if is_named && pool.is_none() {
        if name.is_some() || spare.is_some() {
            fields.error(
                "a device class already uses this volume group; remove device-class and spare-gb from the disk group",
            );
        }
        return;
    }
    let name = name.unwrap_or_else(|| vg.as_str().to_owned());
    if let Err(problem) = check_class_name(&name, names) {
        fields.error(format!("device-class {name:?}: {problem}"));
        return;
    }
    let default_spare = if pool.is_some() { 0 } else { DEFAULT_SPARE_GIB };
    classes.push(DeviceClass {
        name,
        volume_group: vg.clone(),
        optional: true,
        thin_pool: pool,
        default: false,
        spare: spare.unwrap_or(default_spare) << 30,
        striping: None,
        lvcreate_options: Vec::new(),
        has_unproven_options: false,
        layout: Layout::parse(&[], None),
        wipe: None,
    });
}

fn take_mode(fields: &mut Fields<'_>) -> Mode {
    match fields.take(keys::MODE, read_string).as_deref() {
        None | Some("report") => Mode::Report,
        Some("auto") => Mode::Auto,
        Some(other) => {
            fields.error(format!("unknown mode {other:?}; use report or auto"));
            Mode::Report
        }
    }
}

fn take_selector(fields: &mut Fields<'_>) -> Selector {
    let before = fields.diagnostics.error_count();
    let mut gib = |key| fields.take(key, read_number_to(MAX_GIB)).map(|gib: u64| gib << 30);
    let (min_size, max_size) = (gib(keys::MIN_SIZE_GB), gib(keys::MAX_SIZE_GB));
    let selector = Selector {
        paths: take_patterns(fields, keys::PATHS),
        ids: take_patterns(fields, keys::BY_ID),
        models: take_patterns(fields, keys::MODELS),
        serials: take_patterns(fields, keys::SERIALS),
        transports: take_transports(fields),
        rotational: fields.take(keys::ROTATIONAL, read_flag),
        min_size,
        max_size,
    };
    if selector.is_empty() && fields.diagnostics.error_count() == before {
        fields.error("it selects no disks; set paths, by-id, models, serials, transports, rotational or a size");
    }
    if min_size.zip(max_size).is_some_and(|(least, most)| least > most) {
        fields.error("min-size-gb is larger than max-size-gb, so no disk can match");
    }
    selector
}

/// Takes a list of patterns. An empty list is an error: it may be meant for no disk, and would be for all.
fn take_patterns(fields: &mut Fields<'_>, key: keys::Key) -> Vec<Pattern> {
    let Some(texts) = fields.take_list(key, read_string) else { return Vec::new() };
    if texts.is_empty() {
        fields.error(format!("{} is an empty list; remove it to select disks by other properties", key.name));
    }
    let mut patterns = Vec::new();
    for text in texts {
        let parsed =
            Pattern::parse(&text).map_err(|error| format!("{} {text:?} is not a valid pattern: {error}", key.name));
        patterns.extend(fields.check(parsed));
    }
    patterns
}

fn take_transports(fields: &mut Fields<'_>) -> Vec<&'static str> {
    let Some(names) = fields.take_list(keys::TRANSPORTS, read_string) else { return Vec::new() };
    if names.is_empty() {
        fields.error("transports is an empty list; remove it to select disks by other properties");
    }
    let known = |name: &String| {
        let known = TRANSPORTS.iter().find(|known| *known == name).copied();
        known.ok_or_else(|| format!("unknown transport {name:?}; use {}", TRANSPORTS.join(", ")))
    };
    names.iter().filter_map(|name| fields.check(known(name))).collect()
}

/// Takes the labels of nodes. An empty list is an error: it may be meant for no node, and would be for all.
fn take_node_labels(fields: &mut Fields<'_>) -> NodeSelector {
    let before = fields.diagnostics.error_count();
    let read = |node| {
        let label: Result<WantedLabel, InvalidLabel> = read_string(node)?.parse();
        label.map_err(|error| error.to_string())
    };
    let Some(labels) = fields.take_list(keys::NODE_LABELS, read) else { return NodeSelector::default() };
    if labels.is_empty() && fields.diagnostics.error_count() == before {
        fields.error("node-labels is an empty list; remove it to select all nodes");
    }
    labels.into_iter().collect()
}

#[cfg(test)]
mod tests;
