//! The options of an `lvcreate` command line that an administrator adds: those that LVM refuses, and the layout that
//! the others ask for.

use std::collections::BTreeMap;

use super::option_values::expected_instead_of;
use super::{SegmentType, Shape};
use crate::Striping;

/// The options of lvcreate(8) in LVM 2.03 that take a value, with their letters.
const WITH_VALUE: &str = "\
    a|activate addtag alloc A|autobackup commandprofile C|contiguous integritysettings journal lockopt j|major \
    maxrecoveryrate metadataprofile minor minrecoveryrate m|mirrors monitor n|name p|permission M|persistent profile \
    raidintegrity raidintegrityblocksize raidintegritymode r|readahead R|regionsize reportformat k|setactivationskip \
    setautoactivation L|size i|stripes I|stripesize type W|wipesignatures Z|zero";
/// Those without one.
const WITHOUT_VALUE: &str = "\
    d|debug K|ignoreactivationskip ignoremonitoring nohints nolocking nosync noudevsync q|quiet v|verbose y|yes";
/// Those whose effect on the capacity is not known.
const FOREIGN: &str = "\
    H|cache cachedevice cachemetadataformat cachemode cachepolicy cachepool cachesettings cachesize cachevol \
    c|chunksize compression config corelog deduplication devices devicesfile discards driverloaded errorwhenfull \
    l|extents h|help longhelp mirrorlog pooldatavdo poolmetadatasize poolmetadataspare s|snapshot t|test T|thin \
    thinpool vdo vdopool vdosettings version V|virtualsize";
/// The options that may be repeated.
const REPEATABLE: [&str; 5] = ["addtag", "config", "debug", "quiet", "verbose"];
/// Those with which `lvcreate` creates no volume.
const NO_VOLUME: [&str; 5] = ["help", "longhelp", "snapshot", "test", "version"];
/// Types of what is no volume that a client can use.
const NO_VOLUME_TYPES: [&str; 5] = ["cache-pool", "snapshot", "thin", "thin-pool", "vdo-pool"];
/// Types that LVM knows besides those whose capacity is computed.
const OTHER_TYPES: [&str; 6] = ["cache", "error", "mirror", "vdo", "writecache", "zero"];
/// The option of settings of lvm.conf.
const CONFIG: &str = "config";

/// The volumes for which options of `lvcreate` are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OptionsFor {
    /// Thick volumes.
    Thick,
    /// Thin volumes in a pool that exists.
    Thin,
    /// Both: options that only one of them refuses are no mistake.
    Any,
}

impl OptionsFor {
    /// Returns the options that [`LvmCommand::create`](crate::LvmCommand::create) gives itself.
    fn already_given(self) -> &'static [&'static str] {
        match self {
            Self::Thick => &["name", "size", "wipesignatures", "yes"],
            Self::Thin => &["name", "thin", "virtualsize", "wipesignatures", "yes"],
            Self::Any => &["name", "wipesignatures", "yes"],
        }
    }

    /// Returns whether `lvcreate` refuses the option, or creates a pool because of it.
    fn excludes(self, option: &str) -> bool {
        NO_VOLUME.contains(&option) || (self == Self::Thick && matches!(option, "extents" | "thin"))
    }
}

/// The reason why LVM is certain to refuse options of `lvcreate`, naming the option.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct RefusedOptions(String);

/// Options of `lvcreate` that LVM may take.
#[derive(Debug, Default)]
pub(super) struct Parsed {
    /// The layout, unless its capacity is not computed.
    pub(super) shape: Option<Shape>,
    /// Reasons why the capacity may be another one than that of the layout.
    pub(super) reasons: Vec<String>,
}

#[derive(Clone, Copy)]
struct LvcreateOption {
    /// One letter, or empty.
    short: &'static str,
    long: &'static str,
    /// The list that it is in.
    list: &'static str,
}

/// Values by the long names of the options.
type Given<'a> = BTreeMap<&'static str, &'a str>;

/// Parses options, and the stripes given in addition to them.
pub(super) fn parse(
    words: &[String],
    striping: Option<&Striping>,
    purpose: OptionsFor,
) -> Result<Parsed, RefusedOptions> {
    let stripes = striping.map(|striping| striping.stripes.to_string());
    let mut given: Given<'_> = purpose.already_given().iter().map(|name| (*name, "")).collect();
    given.extend(stripes.iter().map(|stripes| ("stripes", stripes.as_str())));
    given.extend(striping.and_then(|striping| striping.stripe_size.as_deref()).map(|size| ("stripesize", size)));
    let mut parser = Parser { purpose, given, reasons: Vec::new() };
    parser.read(words).map_err(RefusedOptions)?;
    let Parser { given, mut reasons, .. } = parser;
    if purpose == OptionsFor::Thin {
        return Ok(Parsed { shape: None, reasons });
    }
    match shape(&given) {
        Ok(shape) => Ok(Parsed { shape: Some(shape), reasons }),
        Err(Unusable::Refused(reason)) => Err(RefusedOptions(reason)),
        Err(Unusable::NotComputed(reason)) => {
            reasons.insert(0, reason);
            Ok(Parsed { shape: None, reasons })
        }
    }
}

/// The reason why there is no layout.
enum Unusable {
    /// LVM refuses the options.
    Refused(String),
    /// LVM takes them, and the capacity is not computed.
    NotComputed(String),
}

impl From<String> for Unusable {
    fn from(reason: String) -> Self {
        Self::Refused(reason)
    }
}

/// The part of the options that was read.
struct Parser<'a> {
    purpose: OptionsFor,
    given: Given<'a>,
    reasons: Vec<String>,
}

impl<'a> Parser<'a> {
    /// Parses the arguments as getopt_long(3) does.
    fn read(&mut self, words: &'a [String]) -> Result<(), String> {
        let mut words = words.iter().map(String::as_str);
        while let Some(word) = words.next() {
            if let Some(long) = word.strip_prefix("--") {
                let (name, value) = long.split_once('=').map_or((long, None), |(name, value)| (name, Some(value)));
                let option = long_option(name).ok_or_else(|| describe_unknown(word, name))?;
                let value = match value {
                    Some(_) if option.list == WITHOUT_VALUE => {
                        return Err(format!("{word}: this option takes no value"));
                    }
                    None if option.list == WITH_VALUE || option.long == CONFIG => {
                        words.next().ok_or_else(|| format!("{word} requires a value"))?
                    }
                    value => value.unwrap_or_default(),
                };
                self.add(option, word, value)?;
            } else if let Some(cluster) = word.strip_prefix('-').filter(|cluster| !cluster.is_empty()) {
                self.read_cluster(word, cluster, &mut words)?;
            } else {
                self.reasons.push(format!("{word} is not an option; physical volumes cannot be listed here"));
            }
        }
        Ok(())
    }

    fn read_cluster(
        &mut self,
        word: &str,
        cluster: &'a str,
        words: &mut impl Iterator<Item = &'a str>,
    ) -> Result<(), String> {
        for (at, letter) in cluster.char_indices() {
            let option = options().find(|option| option.short.starts_with(letter));
            let option = option.ok_or_else(|| format!("{word}: lvcreate has no option -{letter}"))?;
            if option.list != WITH_VALUE {
                self.add(option, word, "")?;
                continue;
            }
            let rest = cluster.get(at + letter.len_utf8()..).filter(|rest| !rest.is_empty());
            let value = rest.or_else(|| words.next()).ok_or_else(|| format!("{word} requires a value"))?;
            return self.add(option, word, value);
        }
        Ok(())
    }

    fn add(&mut self, option: LvcreateOption, word: &str, value: &'a str) -> Result<(), String> {
        let name = option.long;
        if self.purpose.excludes(name) {
            return Err(format!("{word}: with --{name} lvcreate does not create a volume of the requested size"));
        }
        if let Some(expected) = expected_instead_of(name, value) {
            return Err(format!("--{name} {value}: the value must be {expected}"));
        }
        if self.given.insert(name, value).is_some() && !REPEATABLE.contains(&name) {
            return Err(format!("{word}: lvmd or the class already sets --{name}, and LVM refuses a second one"));
        }
        if option.list == FOREIGN {
            self.reasons.push(format!("the effect of {word} on the capacity is unknown"));
        }
        Ok(())
    }
}

/// Describes an argument that begins like a long option and is none. The usual mistake is an option with its value in
/// one entry of the list.
fn describe_unknown(word: &str, name: &str) -> String {
    match name.split_once(char::is_whitespace) {
        Some((option, value)) if long_option(option).is_some() => {
            let value = value.trim();
            format!("{word:?} is passed to lvcreate as one argument; write \"--{option}={value}\"")
        }
        _ => format!("lvcreate has no option {word}"),
    }
}

fn options() -> impl Iterator<Item = LvcreateOption> {
    [WITH_VALUE, WITHOUT_VALUE, FOREIGN].into_iter().flat_map(|list| {
        list.split_whitespace().map(move |option| {
            let (short, long) = option.split_once('|').unwrap_or(("", option));
            LvcreateOption { short, long, list }
        })
    })
}

/// Returns the option of this name or of a beginning that no other has.
fn long_option(name: &str) -> Option<LvcreateOption> {
    // lvcreate(8): the recovery rates have a second name.
    let beginning = name.strip_prefix("raid").filter(|rest| rest.ends_with("recoveryrate")).unwrap_or(name);
    let mut candidates = options().filter(|option| !name.is_empty() && option.long.starts_with(beginning));
    let only = candidates.next().filter(|_| candidates.next().is_none());
    options().find(|option| option.long == name).or(only)
}

fn value<'a>(given: &Given<'a>, name: &str) -> Option<&'a str> {
    given.get(name).copied()
}

/// Returns the shape that the options mean together.
fn shape(given: &Given<'_>) -> Result<Shape, Unusable> {
    let (stripes, mirrors) = (parse_number(given, "stripes")?, parse_number(given, "mirrors")?);
    let name = match value(given, "type") {
        Some(name) => name,
        None if mirrors.unwrap_or(0) == 0 => "striped",
        None if stripes.unwrap_or(1) > 1 => "raid10",
        None => "raid1",
    };
    let segment_type = find_segment_type(name)?;
    let stripes = check_stripes(name, segment_type, stripes)?;
    let copies = check_copies(segment_type, mirrors)?;
    check_raid_options(given, segment_type)?;
    check_integrity(given, segment_type)?;
    check_policy(given)?;
    Ok(Shape { segment_type, stripes, copies, metadata: segment_type.metadata })
}

fn find_segment_type(name: &str) -> Result<&'static SegmentType, Unusable> {
    SegmentType::find(name).ok_or_else(|| {
        if NO_VOLUME_TYPES.contains(&name) {
            Unusable::Refused(format!(
                "--type {name}: with this type lvcreate does not create a volume of the requested size"
            ))
        } else if OTHER_TYPES.contains(&name) {
            Unusable::NotComputed(format!("--type {name}: capacity calculation is not supported for this type"))
        } else {
            Unusable::Refused(format!("--type {name}: unknown LVM type"))
        }
    })
}

/// Returns the number that an option gives. More images than LVM's most would only make the arithmetic large.
fn parse_number(given: &Given<'_>, name: &str) -> Result<Option<u64>, String> {
    let Some(text) = value(given, name) else { return Ok(None) };
    match text.parse::<u64>() {
        Ok(number @ ..=256) => Ok(Some(number)),
        _ => Err(format!("--{name} {text}: not a number up to 256")),
    }
}

fn check_stripes(name: &str, segment_type: &SegmentType, stripes: Option<u64>) -> Result<u64, String> {
    let least = segment_type.least_stripes;
    match stripes.unwrap_or(least) {
        few if few < least => Err(format!("--stripes {few}: this type needs at least {least}")),
        many @ 2.. if matches!(name, "linear" | "raid1") => {
            Err(format!("--stripes {many} is not possible with {name}"))
        }
        stripes => Ok(stripes),
    }
}

fn check_copies(segment_type: &SegmentType, mirrors: Option<u64>) -> Result<u64, String> {
    match (segment_type.name, mirrors) {
        ("raid1", Some(mirrors @ 1..)) => Ok(mirrors + 1),
        ("raid1" | "raid10", None) | ("raid10", Some(1)) => Ok(2),
        ("linear", Some(0)) | (_, None) => Ok(1),
        (_, Some(mirrors)) => Err(format!("--mirrors {mirrors} is not possible with this type")),
    }
}

fn check_raid_options(given: &Given<'_>, segment_type: &SegmentType) -> Result<(), String> {
    let is_raid = segment_type.name != "linear";
    if value(given, "nosync").is_some() && (!is_raid || segment_type.name == "raid6") {
        return Err("--nosync is not possible with this type".to_owned());
    }
    if value(given, "regionsize").is_some() && !is_raid {
        return Err("--regionsize is only possible with RAID".to_owned());
    }
    Ok(())
}

/// Checks that the images get no checksums, whose size is not computed.
fn check_integrity(given: &Given<'_>, segment_type: &SegmentType) -> Result<(), Unusable> {
    let integrity = value(given, "raidintegrity");
    if integrity.is_some() && value(given, "type").is_none() {
        return Err(Unusable::Refused("--raidintegrity is only possible with --type".to_owned()));
    }
    match (integrity, segment_type.name) {
        (Some("y"), "linear" | "raid0" | "raid0_meta") => {
            Err(Unusable::Refused("--raidintegrity y is not possible with this type".to_owned()))
        }
        (Some("y"), _) => Err(Unusable::NotComputed(
            "--raidintegrity y: capacity calculation is not supported with checksums".to_owned(),
        )),
        _ => Ok(()),
    }
}

/// Checks that the allocation policy is LVM's default: with others the capacity is not computed.
fn check_policy(given: &Given<'_>) -> Result<(), Unusable> {
    let not_computed =
        |policy| Err(Unusable::NotComputed(format!("{policy}: capacity calculation is not supported for this policy")));
    match (value(given, "alloc"), value(given, "contiguous") == Some("y")) {
        (None | Some("inherit" | "normal"), false) => Ok(()),
        (None | Some("inherit" | "contiguous"), true) => not_computed("--contiguous y".to_owned()),
        (Some(other), true) => {
            Err(Unusable::Refused(format!("--contiguous y and --alloc {other} contradict each other")))
        }
        (Some(policy @ ("contiguous" | "cling" | "cling_by_tags" | "anywhere")), false) => {
            not_computed(format!("--alloc {policy}"))
        }
        (Some(other), false) => Err(Unusable::Refused(format!("--alloc {other}: unknown allocation policy"))),
    }
}
