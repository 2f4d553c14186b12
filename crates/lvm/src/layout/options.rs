//! The layout that words of an `lvcreate` command line ask for.

use std::collections::BTreeMap;

use super::{Policy, SegmentType, Shape};
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
/// Those that make something else than a plain new volume, or change what all others mean.
const FOREIGN: &str = "\
    H|cache cachedevice cachemetadataformat cachemode cachepolicy cachepool cachesettings cachesize cachevol \
    c|chunksize compression config corelog deduplication devices devicesfile discards driverloaded errorwhenfull \
    l|extents h|help longhelp mirrorlog pooldatavdo poolmetadatasize poolmetadataspare s|snapshot t|test T|thin \
    thinpool vdo vdopool vdosettings version V|virtualsize";
/// Those that may stand there more than once.
const REPEATABLE: [&str; 4] = ["addtag", "debug", "quiet", "verbose"];
/// Those that [`LvmCommand::create`](crate::LvmCommand::create) gives itself.
const ALREADY_THERE: [&str; 4] = ["name", "size", "wipesignatures", "yes"];

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

/// Returns the layout, or why there is none that can be computed.
pub(super) fn parse(words: &[String], striping: Option<&Striping>) -> Result<Shape, String> {
    let stripes = striping.map(|striping| striping.stripes.to_string());
    let mut given: Given<'_> = ALREADY_THERE.iter().map(|name| (*name, "")).collect();
    given.extend(stripes.iter().map(|stripes| ("stripes", stripes.as_str())));
    given.extend(striping.and_then(|striping| striping.stripe_size.as_deref()).map(|size| ("stripesize", size)));
    let mut words = words.iter().map(String::as_str);
    // As getopt_long(3) takes them apart.
    while let Some(word) = words.next() {
        if let Some(long) = word.strip_prefix("--") {
            let (name, value) = long.split_once('=').map_or((long, None), |(name, value)| (name, Some(value)));
            let option = long_option(name).ok_or_else(|| format!("{word} is not understood"))?;
            let value = match value {
                Some(_) if option.list == WITHOUT_VALUE => return Err(format!("{word}: this option takes no value")),
                None if option.list == WITH_VALUE => words.next().ok_or_else(|| format!("{word} lacks its value"))?,
                value => value.unwrap_or_default(),
            };
            add(&mut given, option, word, value)?;
            continue;
        }
        let cluster = word.strip_prefix('-').filter(|cluster| !cluster.is_empty());
        let cluster =
            cluster.ok_or_else(|| format!("{word} is no option: it may limit volumes to some physical volumes"))?;
        for (at, letter) in cluster.char_indices() {
            let option = options().find(|option| option.short.starts_with(letter));
            let option = option.ok_or_else(|| format!("-{letter} in {word} is not understood"))?;
            if option.list != WITH_VALUE {
                add(&mut given, option, word, "")?;
                continue;
            }
            let rest = cluster.get(at + letter.len_utf8()..).filter(|rest| !rest.is_empty());
            let value = rest.or_else(|| words.next()).ok_or_else(|| format!("{word} lacks its value"))?;
            add(&mut given, option, word, value)?;
            break;
        }
    }
    shape(&given)
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

fn add<'a>(given: &mut Given<'a>, option: LvcreateOption, word: &str, value: &'a str) -> Result<(), String> {
    let name = option.long;
    if option.list == FOREIGN {
        return Err(format!("{word} has no place in the options of a class, or its effect is not known"));
    }
    match given.insert(name, value) {
        Some(_) if !REPEATABLE.contains(&name) => {
            Err(format!("{word}: LVM refuses --{name} a second time, and it is there already"))
        }
        _ => Ok(()),
    }
}

fn value<'a>(given: &Given<'a>, name: &str) -> Option<&'a str> {
    given.get(name).copied()
}

/// Returns the shape that the options mean together, or why LVM refuses them together.
fn shape(given: &Given<'_>) -> Result<Shape, String> {
    let (stripes, mirrors) = (parse_number(given, "stripes")?, parse_number(given, "mirrors")?);
    let name = match value(given, "type") {
        Some(name) => name,
        None if mirrors.unwrap_or(0) == 0 => "striped",
        None if stripes.unwrap_or(1) > 1 => "raid10",
        None => "raid1",
    };
    let segment_type = SegmentType::find(name);
    let segment_type =
        segment_type.ok_or_else(|| format!("--type {name}: the capacity of this type is not computed"))?;
    let stripes = check_stripes(name, segment_type, stripes)?;
    let copies = check_copies(segment_type, mirrors)?;
    check_raid_options(given, segment_type)?;
    let integrity = parse_integrity(given, segment_type)?;
    Ok(Shape {
        segment_type,
        stripes,
        copies,
        policy: parse_policy(given)?,
        metadata: segment_type.metadata,
        integrity,
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
        few if few < least => Err(format!("--stripes {few}: this type needs {least} or more")),
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

/// Returns whether each image gets checksums.
fn parse_integrity(given: &Given<'_>, segment_type: &SegmentType) -> Result<bool, String> {
    let integrity = value(given, "raidintegrity");
    if integrity.is_some() && value(given, "type").is_none() {
        return Err("--raidintegrity is only possible with --type".to_owned());
    }
    let integrity = integrity == Some("y");
    if integrity && matches!(segment_type.name, "linear" | "raid0" | "raid0_meta") {
        return Err("--raidintegrity y is not possible with this type".to_owned());
    }
    Ok(integrity)
}

fn parse_policy(given: &Given<'_>) -> Result<Policy, String> {
    match (value(given, "alloc"), value(given, "contiguous") == Some("y")) {
        (None | Some("inherit" | "contiguous"), true) | (Some("contiguous"), false) => Ok(Policy::Contiguous),
        (Some(other), true) => Err(format!("--contiguous y and --alloc {other} contradict each other")),
        (None | Some("inherit" | "normal"), false) => Ok(Policy::Normal),
        (Some("cling" | "cling_by_tags"), false) => Ok(Policy::Cling),
        (Some("anywhere"), false) => Ok(Policy::Anywhere),
        (Some(other), false) => Err(format!("--alloc {other} is not understood")),
    }
}
