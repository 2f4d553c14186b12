//! What the words of an `lvcreate` command line say about the layout.

use std::collections::{BTreeMap, BTreeSet};

use super::{Kind, Policy, REGION_SIZE, Shape};
use crate::Striping;

/// An option of `lvcreate` as far as the layout is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Meaning {
    Type,
    Stripes,
    StripeSize,
    Mirrors,
    RegionSize,
    Alloc,
    Contiguous,
    /// Adds volumes of checksums to the images.
    Integrity,
    NoSync,
    /// Says nothing about the layout.
    Other,
    /// Makes something else than a plain new volume, or changes what everything else means.
    Foreign,
}

/// Whether a value follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Value {
    Yes,
    No,
}

struct Opt {
    long: &'static str,
    short: Option<char>,
    value: Value,
    meaning: Meaning,
}

const fn opt(long: &'static str, short: Option<char>, value: Value, meaning: Meaning) -> Opt {
    Opt { long, short, value, meaning }
}

/// lvcreate(8) of LVM 2.03, with the options that all commands have.
const OPTIONS: &[Opt] = &[
    opt("activate", Some('a'), Value::Yes, Meaning::Other),
    opt("addtag", None, Value::Yes, Meaning::Other),
    opt("alloc", None, Value::Yes, Meaning::Alloc),
    opt("autobackup", Some('A'), Value::Yes, Meaning::Other),
    opt("cache", Some('H'), Value::No, Meaning::Foreign),
    opt("cachedevice", None, Value::Yes, Meaning::Foreign),
    opt("cachemetadataformat", None, Value::Yes, Meaning::Foreign),
    opt("cachemode", None, Value::Yes, Meaning::Foreign),
    opt("cachepolicy", None, Value::Yes, Meaning::Foreign),
    opt("cachepool", None, Value::Yes, Meaning::Foreign),
    opt("cachesettings", None, Value::Yes, Meaning::Foreign),
    opt("cachesize", None, Value::Yes, Meaning::Foreign),
    opt("cachevol", None, Value::Yes, Meaning::Foreign),
    opt("chunksize", Some('c'), Value::Yes, Meaning::Foreign),
    opt("commandprofile", None, Value::Yes, Meaning::Other),
    opt("compression", None, Value::Yes, Meaning::Foreign),
    opt("config", None, Value::Yes, Meaning::Foreign),
    opt("contiguous", Some('C'), Value::Yes, Meaning::Contiguous),
    opt("corelog", None, Value::No, Meaning::Foreign),
    opt("debug", Some('d'), Value::No, Meaning::Other),
    opt("deduplication", None, Value::Yes, Meaning::Foreign),
    opt("devices", None, Value::Yes, Meaning::Foreign),
    opt("devicesfile", None, Value::Yes, Meaning::Foreign),
    opt("discards", None, Value::Yes, Meaning::Foreign),
    opt("driverloaded", None, Value::Yes, Meaning::Foreign),
    opt("errorwhenfull", None, Value::Yes, Meaning::Foreign),
    opt("extents", Some('l'), Value::Yes, Meaning::Foreign),
    opt("help", Some('h'), Value::No, Meaning::Foreign),
    opt("ignoreactivationskip", Some('K'), Value::No, Meaning::Other),
    opt("ignoremonitoring", None, Value::No, Meaning::Other),
    opt("integritysettings", None, Value::Yes, Meaning::Other),
    opt("journal", None, Value::Yes, Meaning::Other),
    opt("lockopt", None, Value::Yes, Meaning::Other),
    opt("longhelp", None, Value::No, Meaning::Foreign),
    opt("major", Some('j'), Value::Yes, Meaning::Other),
    opt("maxrecoveryrate", None, Value::Yes, Meaning::Other),
    opt("metadataprofile", None, Value::Yes, Meaning::Other),
    opt("minor", None, Value::Yes, Meaning::Other),
    opt("minrecoveryrate", None, Value::Yes, Meaning::Other),
    opt("mirrorlog", None, Value::Yes, Meaning::Foreign),
    opt("mirrors", Some('m'), Value::Yes, Meaning::Mirrors),
    opt("monitor", None, Value::Yes, Meaning::Other),
    opt("name", Some('n'), Value::Yes, Meaning::Other),
    opt("nohints", None, Value::No, Meaning::Other),
    opt("nolocking", None, Value::No, Meaning::Other),
    opt("nosync", None, Value::No, Meaning::NoSync),
    opt("noudevsync", None, Value::No, Meaning::Other),
    opt("permission", Some('p'), Value::Yes, Meaning::Other),
    opt("persistent", Some('M'), Value::Yes, Meaning::Other),
    opt("pooldatavdo", None, Value::Yes, Meaning::Foreign),
    opt("poolmetadatasize", None, Value::Yes, Meaning::Foreign),
    opt("poolmetadataspare", None, Value::Yes, Meaning::Foreign),
    opt("profile", None, Value::Yes, Meaning::Other),
    opt("quiet", Some('q'), Value::No, Meaning::Other),
    opt("raidintegrity", None, Value::Yes, Meaning::Integrity),
    opt("raidintegrityblocksize", None, Value::Yes, Meaning::Other),
    opt("raidintegritymode", None, Value::Yes, Meaning::Other),
    opt("readahead", Some('r'), Value::Yes, Meaning::Other),
    opt("regionsize", Some('R'), Value::Yes, Meaning::RegionSize),
    opt("reportformat", None, Value::Yes, Meaning::Other),
    opt("setactivationskip", Some('k'), Value::Yes, Meaning::Other),
    opt("setautoactivation", None, Value::Yes, Meaning::Other),
    opt("size", Some('L'), Value::Yes, Meaning::Other),
    opt("snapshot", Some('s'), Value::No, Meaning::Foreign),
    opt("stripes", Some('i'), Value::Yes, Meaning::Stripes),
    opt("stripesize", Some('I'), Value::Yes, Meaning::StripeSize),
    opt("test", Some('t'), Value::No, Meaning::Foreign),
    opt("thin", Some('T'), Value::No, Meaning::Foreign),
    opt("thinpool", None, Value::Yes, Meaning::Foreign),
    opt("type", None, Value::Yes, Meaning::Type),
    opt("vdo", None, Value::No, Meaning::Foreign),
    opt("vdopool", None, Value::Yes, Meaning::Foreign),
    opt("vdosettings", None, Value::Yes, Meaning::Foreign),
    opt("verbose", Some('v'), Value::No, Meaning::Other),
    opt("version", None, Value::No, Meaning::Foreign),
    opt("virtualsize", Some('V'), Value::Yes, Meaning::Foreign),
    opt("wipesignatures", Some('W'), Value::Yes, Meaning::Other),
    opt("yes", Some('y'), Value::No, Meaning::Other),
    opt("zero", Some('Z'), Value::Yes, Meaning::Other),
];

/// Options that may stand there more than once.
const REPEATABLE: &[&str] = &["addtag", "debug", "quiet", "verbose"];
/// What [`LvmCommand::create`](crate::LvmCommand::create) says itself.
const ALREADY_THERE: &[&str] = &["name", "size", "wipesignatures", "yes"];

/// The options that were read.
struct Given<'a> {
    /// The values of those that matter.
    values: BTreeMap<Meaning, &'a str>,
    /// All of them.
    names: BTreeSet<&'static str>,
}

/// The layout, or why there is none that can be computed.
pub(super) fn parse(words: &[String], striping: Option<&Striping>) -> Result<Shape, String> {
    let stripes = striping.map(|striping| striping.stripes.to_string());
    let mut given = Given { values: BTreeMap::new(), names: ALREADY_THERE.iter().copied().collect() };
    if let Some(stripes) = &stripes {
        given.names.insert("stripes");
        given.values.insert(Meaning::Stripes, stripes);
    }
    if let Some(size) = striping.and_then(|striping| striping.stripe_size.as_deref()) {
        given.names.insert("stripesize");
        given.values.insert(Meaning::StripeSize, size);
    }
    given.read(words)?;
    judge(&given.values)
}

impl<'a> Given<'a> {
    /// Takes the words apart as getopt_long(3) does.
    fn read(&mut self, words: &'a [String]) -> Result<(), String> {
        let mut words = words.iter().map(String::as_str);
        while let Some(word) = words.next() {
            if let Some(long) = word.strip_prefix("--") {
                let (name, value) = match long.split_once('=') {
                    Some((name, value)) => (name, Some(value)),
                    None => (long, None),
                };
                let option = long_option(name).ok_or_else(|| format!("{word} is not understood"))?;
                let value = match (option.value, value) {
                    (Value::Yes, Some(value)) => value,
                    (Value::Yes, None) => words.next().ok_or_else(|| format!("{word} lacks its value"))?,
                    (Value::No, None) => "",
                    (Value::No, Some(_)) => return Err(format!("{word}: this option takes no value")),
                };
                self.note(option, word, value)?;
            } else if let Some(cluster) = word.strip_prefix('-').filter(|cluster| !cluster.is_empty()) {
                let mut rest = cluster.chars();
                while let Some(letter) = rest.next() {
                    let option = OPTIONS.iter().find(|option| option.short == Some(letter));
                    let option = option.ok_or_else(|| format!("-{letter} in {word} is not understood"))?;
                    if option.value == Value::No {
                        self.note(option, word, "")?;
                        continue;
                    }
                    let value = match rest.as_str() {
                        "" => words.next().ok_or_else(|| format!("{word} lacks its value"))?,
                        value => value,
                    };
                    self.note(option, word, value)?;
                    break;
                }
            } else {
                return Err(format!("{word} is no option: it may limit volumes to some physical volumes"));
            }
        }
        Ok(())
    }

    fn note(&mut self, option: &Opt, word: &str, value: &'a str) -> Result<(), String> {
        if option.meaning == Meaning::Foreign {
            return Err(format!("{word} has no place in the options of a class, or its effect is not known"));
        }
        if !self.names.insert(option.long) && !REPEATABLE.contains(&option.long) {
            return Err(format!("{word}: LVM refuses --{} a second time, and it is there already", option.long));
        }
        if option.meaning != Meaning::Other {
            self.values.insert(option.meaning, value);
        }
        Ok(())
    }
}

/// The option of this name or of a beginning that no other has.
fn long_option(name: &str) -> Option<&'static Opt> {
    if let Some(option) = OPTIONS.iter().find(|option| option.long == name) {
        return Some(option);
    }
    // lvcreate(8): the recovery rates have a second name.
    let name = name.strip_prefix("raid").filter(|rest| rest.ends_with("recoveryrate")).unwrap_or(name);
    let mut candidates = OPTIONS.iter().filter(|option| !name.is_empty() && option.long.starts_with(name));
    candidates.next().filter(|_| candidates.next().is_none())
}

fn judge(given: &BTreeMap<Meaning, &str>) -> Result<Shape, String> {
    let value = |meaning| given.get(&meaning).copied();
    let stripes = number("stripes", value(Meaning::Stripes))?;
    let mirrors = number("mirrors", value(Meaning::Mirrors))?;
    if stripes == Some(0) {
        return Err("--stripes 0: at least 1".to_owned());
    }
    let kind = match value(Meaning::Type) {
        Some(name) => kind(name, stripes)?,
        None if mirrors.unwrap_or(0) == 0 => Kind::Plain,
        None if stripes.unwrap_or(1) > 1 => Kind::Raid10,
        None => Kind::Raid1,
    };
    let least = match kind {
        Kind::Plain | Kind::Raid1 => 1,
        Kind::Raid0 | Kind::Raid0Meta | Kind::Raid4 | Kind::Raid5 | Kind::Raid10 => 2,
        Kind::Raid6 => 3,
    };
    let stripes = stripes.unwrap_or(least);
    if stripes < least {
        return Err(format!("--stripes {stripes}: this type needs {least} or more"));
    }
    let copies = match (kind, mirrors) {
        (Kind::Raid1, Some(mirrors @ 1..)) => mirrors + 1,
        (Kind::Raid10, Some(1)) | (Kind::Raid1 | Kind::Raid10, None) => 2,
        (Kind::Plain, Some(0)) | (_, None) => 1,
        (_, Some(mirrors)) => {
            return Err(format!("--mirrors {mirrors} is not possible with this type"));
        }
    };
    if kind == Kind::Raid1 && stripes > 1 {
        return Err("stripes are not possible with raid1".to_owned());
    }
    let raid = kind != Kind::Plain;
    if value(Meaning::NoSync).is_some() && (!raid || kind == Kind::Raid6) {
        return Err("--nosync is not possible with this type".to_owned());
    }
    let mut region_size = match value(Meaning::RegionSize) {
        None => REGION_SIZE,
        Some(_) if !raid => return Err("--regionsize is only possible with RAID".to_owned()),
        Some(size) => bytes(size, 1 << 20).ok_or_else(|| format!("--regionsize {size}: not a size"))?,
    };
    if let Some(size) = value(Meaning::StripeSize) {
        let size = bytes(size, 1 << 10).ok_or_else(|| format!("--stripesize {size}: not a size"))?;
        region_size = region_size.max(size);
    }
    let policy = policy(given)?;
    let integrity = value(Meaning::Integrity) == Some("y");
    if value(Meaning::Integrity).is_some() && value(Meaning::Type).is_none() {
        return Err("--raidintegrity is only possible with --type".to_owned());
    }
    if integrity && matches!(kind, Kind::Plain | Kind::Raid0 | Kind::Raid0Meta) {
        return Err("--raidintegrity y is not possible with this type".to_owned());
    }
    Ok(Shape { kind, stripes, copies, policy, region_size, integrity, has_metadata: false })
}

fn kind(name: &str, stripes: Option<u16>) -> Result<Kind, String> {
    Ok(match name {
        "linear" if stripes.unwrap_or(1) > 1 => return Err("--type linear cannot be striped".to_owned()),
        "linear" | "striped" => Kind::Plain,
        "raid0" => Kind::Raid0,
        "raid0_meta" => Kind::Raid0Meta,
        "raid1" => Kind::Raid1,
        "raid4" => Kind::Raid4,
        "raid5" | "raid5_ls" | "raid5_la" | "raid5_rs" | "raid5_ra" | "raid5_n" => Kind::Raid5,
        "raid6" | "raid6_zr" | "raid6_nr" | "raid6_nc" | "raid6_ls_6" | "raid6_la_6" | "raid6_rs_6" | "raid6_ra_6"
        | "raid6_n_6" => Kind::Raid6,
        "raid10" | "raid10_near" => Kind::Raid10,
        other => return Err(format!("--type {other}: the capacity of this type is not computed")),
    })
}

fn policy(given: &BTreeMap<Meaning, &str>) -> Result<Policy, String> {
    let contiguous = given.get(&Meaning::Contiguous).is_some_and(|&value| value == "y");
    match given.get(&Meaning::Alloc).copied() {
        None | Some("inherit") if contiguous => Ok(Policy::Contiguous),
        None | Some("inherit") => Ok(Policy::Normal),
        Some("contiguous") => Ok(Policy::Contiguous),
        Some(other) if contiguous => Err(format!("--contiguous y and --alloc {other} contradict each other")),
        Some("cling" | "cling_by_tags") => Ok(Policy::Cling),
        Some("normal") => Ok(Policy::Normal),
        Some("anywhere") => Ok(Policy::Anywhere),
        Some(other) => Err(format!("--alloc {other} is not understood")),
    }
}

fn number(option: &str, value: Option<&str>) -> Result<Option<u16>, String> {
    // More images than LVM's most would only make the arithmetic large.
    let parse = |value: &str| value.parse().ok().filter(|&number| number <= 256);
    match value {
        None => Ok(None),
        Some(value) => parse(value).map(Some).ok_or_else(|| format!("--{option} {value}: not a number up to 256")),
    }
}

/// lvm(8) "SIZE": a number, perhaps with a unit in either case; whole numbers only.
fn bytes(text: &str, default_unit: u64) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match text.get(digits.len()..)?.to_ascii_lowercase().as_str() {
        "" => default_unit,
        "b" => 1,
        "s" => 512,
        "k" => 1 << 10,
        "m" => 1 << 20,
        "g" => 1 << 30,
        "t" => 1 << 40,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(unit).filter(|&bytes| bytes > 0)
}
