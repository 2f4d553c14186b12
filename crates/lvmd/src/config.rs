//! The configuration file: loads it, checks all of it, and turns it into [`DeviceClasses`].

pub(crate) mod keys;
mod thin_pool;
mod wipe;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use lvm::{Layout, LvName, Striping, VgName};
use topolvm_runtime::unix::Peers;

use crate::device_class::{DeviceClass, DeviceClasses};
use crate::yaml::{Diagnostics, Fields, Node};

/// Default of `socket-name`.
const DEFAULT_SOCKET: &str = "/run/topolvm/lvmd.sock";
/// Default of `spare-gb` for thick classes. That of thin ones is 0: TopoLVM publishes all that a pool may promise, and
/// a small pool would have no capacity left.
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
    /// The device classes.
    pub classes: DeviceClasses,
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
pub(crate) fn load_socket(path: &Path) -> Result<PathBuf, InvalidConfig> {
    let text = read_text(path)?;
    let mut diagnostics = Diagnostics::new("");
    let fields = Node::parse(&text).ok().and_then(|document| document.fields("", &mut diagnostics));
    let socket = fields.and_then(|mut fields| fields.text(keys::SOCKET_NAME.name, &mut diagnostics));
    Ok(socket.unwrap_or_else(|| DEFAULT_SOCKET.to_owned()).into())
}

fn read_text(path: &Path) -> Result<String, InvalidConfig> {
    fs::read_to_string(path).map_err(|error| {
        let file = path.display();
        InvalidConfig(vec![format!(
            "cannot read the configuration file {file}: {error}; write one there or name another with --config"
        )])
    })
}

impl Config {
    /// Parses and checks the text of a configuration file; `file` is its name in messages.
    pub fn parse(file: &str, text: &str) -> Result<Self, InvalidConfig> {
        let mut diagnostics = Diagnostics::new(file);
        let document = match Node::parse(text) {
            Ok(document) => document,
            Err(error) => {
                let line = error.location().map_or(1, |location| location.line());
                diagnostics.error(line, format!("not valid YAML: {}", error.without_snippet()));
                return Err(InvalidConfig(diagnostics.errors));
            }
        };
        let config =
            document.fields("the configuration", &mut diagnostics).map(|fields| parse_file(fields, &mut diagnostics));
        match config {
            Some(config) if diagnostics.errors.is_empty() => Ok(Self { warnings: diagnostics.warnings, ..config }),
            _ => Err(InvalidConfig(diagnostics.errors)),
        }
    }
}

fn parse_file(mut fields: Fields, diagnostics: &mut Diagnostics) -> Config {
    let socket = fields.text(keys::SOCKET_NAME.name, diagnostics).unwrap_or_else(|| DEFAULT_SOCKET.to_owned());
    let uids = fields.numbers(keys::ALLOWED_UIDS.name, MAX_ID, diagnostics).into_iter().collect();
    let gids = fields.numbers(keys::ALLOWED_GIDS.name, MAX_ID, diagnostics).into_iter().collect();
    let lvm_command_prefix = fields.texts(keys::LVM_COMMAND_PREFIX.name, diagnostics);
    let options = parse_option_classes(&mut fields, diagnostics);
    let line = fields.line;
    let nodes = fields.list(keys::DEVICE_CLASSES.name, diagnostics).unwrap_or_default();
    if nodes.is_empty() {
        diagnostics.error(line, "there is no device class; list at least one under device-classes");
    }
    let classes = parse_device_classes(nodes, diagnostics);
    fields.finish(diagnostics);
    Config {
        socket: socket.into(),
        peers: Peers { uids, gids },
        lvm_command_prefix,
        classes: DeviceClasses::new(classes, options),
        warnings: Vec::new(),
    }
}

/// Parses the option classes. Of two with the same name the last counts.
fn parse_option_classes(fields: &mut Fields, diagnostics: &mut Diagnostics) -> BTreeMap<String, Vec<String>> {
    let nodes = fields.list(keys::OPTION_CLASSES.name, diagnostics).unwrap_or_default();
    let mut classes = BTreeMap::new();
    for node in nodes {
        let Some(mut fields) = node.fields("each entry of lvcreate-option-classes", diagnostics) else { continue };
        let name = fields.text(keys::OPTION_CLASS_NAME.name, diagnostics).unwrap_or_default();
        if name.is_empty() {
            diagnostics
                .error(fields.line, "an lvcreate-option-class has no name, so no request can choose it; give it one");
        }
        let options = fields.texts(keys::OPTIONS.name, diagnostics).unwrap_or_default();
        fields.finish(diagnostics);
        classes.insert(name, options);
    }
    classes
}

fn parse_device_classes(nodes: Vec<Node>, diagnostics: &mut Diagnostics) -> Vec<DeviceClass> {
    let mut classes: Vec<DeviceClass> = Vec::new();
    let mut names = BTreeSet::new();
    let mut targets = BTreeMap::new();
    for node in nodes {
        let Some(mut fields) = node.fields("each entry of device-classes", diagnostics) else { continue };
        let line = fields.line;
        let before = diagnostics.errors.len();
        let name = fields.text(keys::CLASS_NAME.name, diagnostics).unwrap_or_default();
        let group = fields.text(keys::VOLUME_GROUP.name, diagnostics).unwrap_or_default();
        let mut add_error = |message: String| diagnostics.error(line, format!("device class {name:?}: {message}"));
        if let Err(message) = check_class_name(&name) {
            add_error(message.to_owned());
        } else if !names.insert(name.clone()) {
            add_error("there is another class of this name; give each class its own".to_owned());
        }
        let volume_group = match group.parse::<VgName>() {
            Err(_) if group.is_empty() => {
                add_error("volume-group is missing; say where its volumes are to live".to_owned());
                None
            }
            Err(error) => {
                add_error(error.to_string());
                None
            }
            Ok(group) => Some(group),
        };
        let class = parse_device_class(fields, name, volume_group, diagnostics);
        if let Some(class) = &class {
            let (target, what) = target(class);
            // Two classes would promise the same free space twice.
            if let Some(other) = targets.insert(target, class.name.clone()) {
                let message =
                    format!("device class {:?}: {what} belongs to device class {other:?} already", class.name);
                diagnostics.error(line, message);
            }
        }
        if diagnostics.errors.len() == before {
            classes.extend(class);
        }
    }
    let defaults: Vec<_> = classes.iter().filter(|class| class.default).map(|class| class.name.as_str()).collect();
    if defaults.len() > 1 {
        let message =
            format!("more than one default device class: {}; keep `default: true` at one", defaults.join(", "));
        diagnostics.error(1, message);
    }
    classes
}

/// Returns the place of a class's volumes, and its name in messages.
fn target(class: &DeviceClass) -> ((VgName, Option<LvName>), String) {
    let group = &class.volume_group;
    let pool = class.thin_pool.as_ref().map(|pool| pool.name.clone());
    let what = match &pool {
        Some(pool) => format!("thin pool {group}/{pool}"),
        None => format!("volume group {group}"),
    };
    ((group.clone(), pool), what)
}

fn parse_device_class(
    mut fields: Fields,
    name: String,
    volume_group: Option<VgName>,
    diagnostics: &mut Diagnostics,
) -> Option<DeviceClass> {
    let line = fields.line;
    let default = fields.flag(keys::DEFAULT.name, diagnostics).unwrap_or_default();
    let spare = fields.number(keys::SPARE_GB.name, MAX_GIB, diagnostics);
    let stripes = fields.number(keys::STRIPE.name, u32::MAX.into(), diagnostics).unwrap_or_default();
    let stripe_size = fields.text(keys::STRIPE_SIZE.name, diagnostics).filter(|size| !size.is_empty());
    let lvcreate_options = fields.texts(keys::LVCREATE_OPTIONS.name, diagnostics).unwrap_or_default();
    let kind = fields.text(keys::TYPE.name, diagnostics).unwrap_or_default();
    let thin_pool = fields.take(keys::THIN_POOL.name);
    let wipe = fields.take(keys::WIPE.name);
    fields.finish(diagnostics);
    let wipe = wipe.and_then(|node| wipe::parse(node, &name, diagnostics));
    let mut add_error =
        |line: u64, message: String| diagnostics.error(line, format!("device class {name:?}: {message}"));
    if let Some(size) = &stripe_size
        && !is_stripe_size(size)
    {
        add_error(line, format!("stripe-size {size:?} is not a number with one of the units k m g t p e b s"));
    }
    let mut is_thin = false;
    match kind.as_str() {
        "" | "thick" => {}
        "thin" => is_thin = true,
        other => add_error(line, format!("type {other:?} is unknown; use thick or thin")),
    }
    // Meaningful for thin classes only; thick classes may carry it along.
    let thin_pool = match thin_pool.filter(|_| is_thin) {
        Some(node) => thin_pool::parse(node, &name, diagnostics),
        None if is_thin => {
            add_error(line, "a class of type thin needs a thin-pool with name and overprovision-ratio".to_owned());
            None
        }
        None => None,
    };
    if is_thin && thin_pool.is_none() {
        return None;
    }
    let spare = spare.unwrap_or(if is_thin { 0 } else { DEFAULT_SPARE_GIB }) << 30;
    if is_thin && stripes > 0 {
        let message = format!("device class {name:?}: stripe has no effect on thin volumes; stripe their pool instead");
        diagnostics.warning(line, message);
    }
    let stripes = if is_thin { 0 } else { stripes };
    let stripes = u32::try_from(stripes).ok().and_then(NonZeroU32::new);
    let striping = stripes.map(|stripes| Striping { stripes, stripe_size });
    let layout = Layout::parse(&lvcreate_options, striping.as_ref());
    if let (Layout::Unknown { reason }, false) = (&layout, is_thin) {
        let message = format!("device class {name:?}: its capacity counts as all that is free: {reason}");
        diagnostics.warning(line, message);
    }
    Some(DeviceClass {
        name,
        volume_group: volume_group?,
        thin_pool,
        default,
        spare,
        striping,
        lvcreate_options,
        layout,
        wipe,
    })
}

/// Checks a class name by the rule for Kubernetes label values, in which class names are used.
fn check_class_name(name: &str) -> Result<(), &'static str> {
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let ends_well = |end: Option<char>| end.is_some_and(|end| end.is_ascii_alphanumeric());
    if name.is_empty() {
        Err("it has no name; give it one")
    } else if name.len() > MAX_CLASS_NAME {
        Err("its name is longer than 63 characters")
    } else if name.bytes().all(inner) && ends_well(name.chars().next()) && ends_well(name.chars().last()) {
        Ok(())
    } else {
        Err("a name has letters, digits, - _ and . only, and begins and ends with a letter or digit")
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
