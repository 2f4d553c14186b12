//! The configuration file: loads it, checks all of it, and turns it into [`DeviceClasses`].

mod disk_groups;
mod group_pool;
pub(crate) mod keys;
mod thin_pool;
mod yaml;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::fs;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use lvm::{InvalidName, Layout, LvName, OptionsFor, Striping, VgName, Wipe, check_options};
use topolvm_runtime::unix::Peers;

use crate::device_class::{DeviceClass, DeviceClasses};
use crate::disk_group::DiskGroups;
use keys::Key;
use yaml::{Diagnostics, Fields, Node, read_decimal, read_flag, read_number_to, read_string};

/// Default of `socket-name`.
const DEFAULT_SOCKET: &str = "/run/topolvm/lvmd.sock";
/// Default of `spare-gb` for thick classes. The default for thin classes is 0: TopoLVM publishes all that a pool can
/// provision, and a small pool would have no capacity left.
const DEFAULT_SPARE_GIB: u64 = 10;
/// Largest `spare-gb` whose bytes fit into 64 bits.
const MAX_GIB: u64 = u64::MAX >> 30;
/// Class names become label values and suffixes of annotations, which Kubernetes limits to 63 characters.
const MAX_CLASS_NAME: usize = 63;
/// Largest user or group ID. The number above it means "none" in the kernel.
const MAX_ID: u32 = u32::MAX - 1;

/// A valid configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The path of the socket. An embedded lvmd has none.
    pub socket: PathBuf,
    /// Users and groups that may use the socket besides root.
    pub peers: Peers,
    /// `lvm-command-prefix`, if given.
    pub lvm_command_prefix: Option<Vec<String>>,
    /// The device classes, with those of disk groups.
    pub classes: DeviceClasses,
    /// The disk groups.
    pub disk_groups: DiskGroups,
    /// Mistakes in the file that change nothing.
    pub warnings: Vec<String>,
}

/// All errors of a configuration file, each with file and line.
#[derive(Debug, thiserror::Error)]
#[error("{}", .0.join("\n"))]
pub struct InvalidConfig(pub Vec<String>);

/// Loads and checks a configuration file.
pub fn load(path: &Path) -> Result<Config, InvalidConfig> {
    Config::parse(&path.display().to_string(), &read_text(path)?)
}

/// Loads only the path of the socket. Errors elsewhere in the file do not matter: an lvmd that was started with an
/// earlier file goes on.
pub fn load_socket(path: &Path) -> Result<PathBuf, InvalidConfig> {
    let text = read_text(path)?;
    let diagnostics = Diagnostics::new("");
    let fields = Node::parse(&text).ok().and_then(|document| Fields::read(document, &diagnostics).ok());
    Ok(fields.map_or_else(|| DEFAULT_SOCKET.to_owned(), |mut fields| take_socket(&mut fields)).into())
}

/// Takes the path of the socket; an empty one is the default.
fn take_socket(file: &mut Fields<'_>) -> String {
    let socket = file.take(keys::SOCKET_NAME, read_string).filter(|socket| !socket.is_empty());
    socket.unwrap_or_else(|| DEFAULT_SOCKET.to_owned())
}

fn read_text(path: &Path) -> Result<String, InvalidConfig> {
    fs::read_to_string(path).map_err(|error| {
        let file = path.display();
        InvalidConfig(vec![format!(
            "cannot read the configuration file {file}: {error}; create it, or specify another file with --config"
        )])
    })
}

impl Config {
    /// Parses and checks the text of a configuration file; `file` is its name in messages.
    pub fn parse(file: &str, text: &str) -> Result<Self, InvalidConfig> {
        let diagnostics = Diagnostics::new(file);
        let config = match Node::parse(text) {
            Ok(document) => document
                .read("the configuration", &diagnostics, |node| Fields::read(node, &diagnostics))
                .map(parse_file),
            Err(error) => {
                let line = error.location().map_or(1, |location| location.line());
                diagnostics.error(line, describe_syntax_error(text, line, &error.without_snippet()));
                None
            }
        };
        let (config, warnings) = diagnostics.finish(config).map_err(InvalidConfig)?;
        Ok(Self { warnings, ..config })
    }
}

/// Describes why a text is not valid YAML. Tabs are a common mistake, and the parser's own message does not name them.
fn describe_syntax_error(text: &str, line: u64, error: &impl Display) -> String {
    let is_indented_with_tab =
        |line: &str| line.chars().take_while(|next| next.is_whitespace()).any(|next| next == '\t');
    let index = usize::try_from(line.saturating_sub(1)).unwrap_or(usize::MAX);
    if text.lines().nth(index).is_some_and(is_indented_with_tab) {
        "the line is indented with a tab, which YAML does not allow; use spaces".to_owned()
    } else {
        format!("not valid YAML: {error}")
    }
}

fn parse_file(mut fields: Fields<'_>) -> Config {
    let socket = take_socket(&mut fields);
    let mut ids = |key| -> BTreeSet<u32> {
        fields.take_list(key, read_number_to(MAX_ID)).unwrap_or_default().into_iter().collect()
    };
    let peers = Peers { uids: ids(keys::ALLOWED_UIDS), gids: ids(keys::ALLOWED_GIDS) };
    let lvm_command_prefix = fields.take_list(keys::LVM_COMMAND_PREFIX, read_string);
    let options = fields.take_mappings(keys::OPTION_CLASSES).into_iter().map(parse_option_class).collect();
    let before = fields.diagnostics.error_count();
    let classes = fields.take_mappings(keys::DEVICE_CLASSES);
    let disk_groups = fields.take_mappings(keys::DISK_GROUPS);
    if classes.is_empty() && disk_groups.is_empty() && fields.diagnostics.error_count() == before {
        fields.error("no device class is configured; add at least one to device-classes");
    }
    let mut classes = parse_device_classes(classes, &fields);
    let disk_groups = disk_groups::parse(disk_groups, &mut fields, &mut classes);
    fields.warn_of_unknown_keys();
    let classes = DeviceClasses::new(classes, options);
    Config { socket: socket.into(), peers, lvm_command_prefix, classes, disk_groups, warnings: Vec::new() }
}

/// Parses an option class. Of two with the same name the last counts.
fn parse_option_class(mut fields: Fields<'_>) -> (String, Vec<String>) {
    let name = fields.take(keys::OPTION_CLASS_NAME, read_string).unwrap_or_default();
    if name.is_empty() {
        fields.error("an lvcreate-option-class has no name, so no request can select it; set its name");
    }
    fields.place = format!("lvcreate-option-class {name:?}: ");
    let options = take_options(&mut fields, keys::OPTIONS, |options| check_options(options, None, OptionsFor::Any));
    fields.warn_of_unknown_keys();
    (name, options.list)
}

fn parse_device_classes(entries: Vec<Fields<'_>>, file: &Fields<'_>) -> Vec<DeviceClass> {
    let diagnostics = file.diagnostics;
    let mut classes: Vec<DeviceClass> = Vec::new();
    let (mut names, mut owners) = (BTreeSet::new(), BTreeMap::new());
    for mut fields in entries {
        let before = diagnostics.error_count();
        let class = parse_device_class(&mut fields, &mut names);
        if let Some(class) = &class {
            fields.check(claim_target(class, &mut owners));
        }
        if diagnostics.error_count() == before {
            classes.extend(class);
        }
    }
    let defaults: Vec<_> = classes.iter().filter(|class| class.default).map(|class| class.name.as_str()).collect();
    if defaults.len() > 1 {
        let defaults = defaults.join(", ");
        diagnostics
            .error(1, format!("more than one default device class: {defaults}; set `default: true` on one class only"));
    }
    classes
}

/// Records that a class has its volumes in its volume group or thin pool. Fails if another class already uses it: both
/// would publish the same free space.
fn claim_target(class: &DeviceClass, owners: &mut BTreeMap<(VgName, Option<LvName>), String>) -> Result<(), String> {
    let group = &class.volume_group;
    let pool = class.thin_pool.as_ref().map(|pool| pool.name.clone());
    let what = match &pool {
        Some(pool) => format!("thin pool {group}/{pool}"),
        None => format!("volume group {group}"),
    };
    match owners.insert((group.clone(), pool), class.name.clone()) {
        Some(other) => Err(format!("{what} already belongs to device class {other:?}")),
        None => Ok(()),
    }
}

/// Parses a class. `names` are those of the classes before it.
fn parse_device_class(fields: &mut Fields<'_>, names: &mut BTreeSet<String>) -> Option<DeviceClass> {
    let name = fields.take(keys::CLASS_NAME, read_string).unwrap_or_default();
    let volume_group = fields.take(keys::VOLUME_GROUP, read_string).unwrap_or_default();
    fields.place = format!("device class {name:?}: ");
    fields.check(check_class_name(&name, names));
    let volume_group = fields.check(parse_volume_group(&volume_group));
    let optional = fields.take(keys::OPTIONAL, read_flag).unwrap_or_default();
    let default = fields.take(keys::DEFAULT, read_flag).unwrap_or_default();
    let spare = fields.take(keys::SPARE_GB, read_number_to(MAX_GIB));
    let striping = take_striping(fields);
    let is_thin = take_is_thin(fields);
    // Thin volumes have no stripes.
    let (striping_of_volumes, purpose) =
        if is_thin { (None, OptionsFor::Thin) } else { (striping.as_ref(), OptionsFor::Thick) };
    let options =
        take_options(fields, keys::LVCREATE_OPTIONS, |options| check_options(options, striping_of_volumes, purpose));
    let thin_pool = fields.take(keys::THIN_POOL, Ok);
    let wipe = take_wipe(fields);
    refuse_overhead_factor(fields);
    fields.warn_of_unknown_keys();
    // Meaningful for thin classes only; thick classes may carry it along.
    let thin_pool = if is_thin { Some(thin_pool::parse(thin_pool, fields)?) } else { None };
    if is_thin && striping.is_some() {
        fields.warn("stripe has no effect on thin volumes; stripe their pool instead");
    }
    let striping = striping.filter(|_| !is_thin);
    let layout = Layout::parse(&options.list, striping.as_ref());
    for warning in options.warnings.iter().filter(|_| !is_thin) {
        fields.warn(format!("its published capacity may exceed what LVM can allocate: {warning}"));
    }
    let spare = spare.unwrap_or(if is_thin { 0 } else { DEFAULT_SPARE_GIB }) << 30;
    let volume_group = volume_group?;
    Some(DeviceClass {
        name,
        volume_group,
        optional,
        thin_pool,
        default,
        spare,
        striping,
        lvcreate_options: options.list,
        has_unproven_options: !options.warnings.is_empty(),
        layout,
        wipe,
    })
}

/// Options for `lvcreate`.
#[derive(Debug, Default)]
struct Options {
    list: Vec<String>,
    /// Reasons why the capacity may be another one than that of their layout.
    warnings: Vec<String>,
}

/// Takes a list of options for `lvcreate`. Those that LVM is certain to refuse are an error.
fn take_options<E: Display>(
    fields: &mut Fields<'_>,
    key: Key,
    check: impl FnOnce(&[String]) -> Result<Vec<String>, E>,
) -> Options {
    let Some((line, list)) = fields.take_list_with_line(key, read_string) else { return Options::default() };
    match check(&list) {
        Ok(warnings) => Options { list, warnings },
        Err(refused) => {
            let place = &fields.place;
            fields.diagnostics.error(line, format!("{place}{} would be refused by LVM: {refused}", key.name));
            Options::default()
        }
    }
}

fn parse_volume_group(name: &str) -> Result<VgName, String> {
    if name.is_empty() {
        return Err("volume-group is missing; set it to the volume group of its volumes".to_owned());
    }
    name.parse().map_err(|error: InvalidName| error.to_string())
}

fn take_striping(fields: &mut Fields<'_>) -> Option<Striping> {
    let stripes = fields.take(keys::STRIPE, read_number_to(u32::MAX));
    let stripe_size = fields.take(keys::STRIPE_SIZE, read_string).filter(|size| !size.is_empty());
    if let Some(size) = stripe_size.as_ref().filter(|size| !is_stripe_size(size)) {
        fields.error(format!("stripe-size {size:?} is not a number with one of the units k m g t p e b s"));
    }
    Some(Striping { stripes: stripes.and_then(NonZeroU32::new)?, stripe_size })
}

/// Takes the type of a class, and returns whether it is thin.
fn take_is_thin(fields: &mut Fields<'_>) -> bool {
    let kind = fields.take(keys::TYPE, read_string).unwrap_or_default();
    if !matches!(kind.as_str(), "" | "thick" | "thin") {
        fields.error(format!("unknown type {kind:?}; use thick or thin"));
    }
    kind == "thin"
}

/// Takes the way in which volumes of a class are wiped; `None` for not at all, or after an error.
fn take_wipe(fields: &mut Fields<'_>) -> Option<Wipe> {
    let node = fields.take(keys::WIPE, Ok)?;
    let line = node.line;
    let text = node.read(keys::WIPE.name, fields.diagnostics, read_string)?;
    let wipe = Wipe::parse(&text);
    if wipe.is_none() && text != "none" {
        let place = &fields.place;
        fields.diagnostics.error(line, format!("{place}unknown wipe {text:?}; use none, discard or zero"));
    }
    wipe
}

/// Refuses `overhead-factor`, by which a fork of TopoLVM divides the free space of a volume group: without it lvmd
/// would publish more than the file means.
fn refuse_overhead_factor(fields: &mut Fields<'_>) {
    let Some(node) = fields.take(keys::OVERHEAD_FACTOR, Ok) else { return };
    let line = node.line;
    let factor = node.read(keys::OVERHEAD_FACTOR.name, fields.diagnostics, read_decimal);
    if factor.is_some_and(|factor| factor != "1") {
        let place = &fields.place;
        let message = "overhead-factor is a key of another program and not supported by lvmd; remove it, and reserve \
                       that part of the volume group with spare-gb";
        fields.diagnostics.error(line, format!("{place}{message}"));
    }
}

/// Checks a class name by the rule for Kubernetes label values, in which class names are used, and that it is not among
/// `names`, to which it is added.
fn check_class_name(name: &str, names: &mut BTreeSet<String>) -> Result<(), &'static str> {
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let ends_well = |end: Option<char>| end.is_some_and(|end| end.is_ascii_alphanumeric());
    if name.is_empty() {
        Err("it has no name; set one")
    } else if name.len() > MAX_CLASS_NAME {
        Err("its name is longer than 63 characters")
    } else if !(name.bytes().all(inner) && ends_well(name.chars().next()) && ends_well(name.chars().last())) {
        Err("a name consists of letters, digits, - _ and ., and begins and ends with a letter or digit")
    } else if !names.insert(name.to_owned()) {
        Err("another class has the same name; use unique names")
    } else {
        Ok(())
    }
}

/// Returns whether `lvcreate --stripesize` takes this text.
fn is_stripe_size(size: &str) -> bool {
    let digits = size.trim_end_matches(|end: char| end.is_ascii_alphabetic());
    let unit = size.get(digits.len()..).unwrap_or_default().to_ascii_lowercase();
    !digits.is_empty()
        && digits.bytes().all(|byte| byte.is_ascii_digit())
        && (unit.is_empty() || (unit.len() == 1 && "kmgtpebs".contains(&unit)))
}

#[cfg(test)]
mod tests;
