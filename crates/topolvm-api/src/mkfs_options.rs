//! Options for mkfs in a StorageClass. Only those are taken that concern nothing but the new filesystem: mkfs runs as
//! root on the node, and other options name files and devices, or make mkfs do something else.

mod allowed;

use allowed::{Table, Value};

use crate::DEFAULT_FILESYSTEM;

/// Longest value of an option, in characters.
const LONGEST_VALUE: usize = 255;

/// Options for the program that makes a filesystem.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MkfsOptions(Vec<String>);

/// An option that cannot be given.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "mkfs option {option:?} is not allowed for {filesystem}: {reason}; correct the mkfs-options of the StorageClass or \
     of the PersistentVolume"
)]
pub struct MkfsOptionError {
    option: String,
    filesystem: String,
    reason: Reason,
}

/// Reason for which an option cannot be given.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum Reason {
    #[error("allowed options are {0}")]
    NotAllowed(String),
    #[error("it requires a value")]
    NoValue,
    #[error("it takes no value")]
    NoValueWanted,
    #[error("its value must be {0}")]
    Value(String),
}

impl MkfsOptions {
    /// Reads options that are separated by spaces, such as `-i size=512 -K`, for a filesystem type as CSI spells it;
    /// the empty one is ext4. There is no shell and no quoting. Of filesystems that are not known no option is allowed.
    pub fn parse(filesystem: &str, text: &str) -> Result<Self, MkfsOptionError> {
        let filesystem = if filesystem.is_empty() { DEFAULT_FILESYSTEM } else { filesystem };
        let known = allowed::options(filesystem);
        let fails = |option: &str, reason| {
            let option = option.chars().take(LONGEST_VALUE).collect();
            Err(MkfsOptionError { option, filesystem: filesystem.to_owned(), reason })
        };
        let mut args = Vec::new();
        let mut words = text.split_whitespace();
        while let Some(word) = words.next() {
            let (name, attached) = split(word);
            let Some(kind) = allowed::find_value(known, name) else {
                return fails(word, Reason::NotAllowed(names(known)));
            };
            args.push(name.to_owned());
            if matches!(kind, Value::Nothing) {
                if attached.is_some() {
                    return fails(word, Reason::NoValueWanted);
                }
                continue;
            }
            // A value that begins with a dash is an option whose predecessor has none
            let Some(value) = attached.or_else(|| words.next()).filter(|value| !value.starts_with('-')) else {
                return fails(word, Reason::NoValue);
            };
            if let Err(reason) = check(kind, value) {
                return fails(&format!("{name} {value}"), reason);
            }
            args.push(value.to_owned());
        }
        Ok(Self(args))
    }

    /// Returns the arguments of mkfs; an option with a value is followed by it.
    pub fn as_slice(&self) -> &[String] {
        &self.0
    }
}

/// Splits an option into name and value, as getopt_long(3) understands `-m0`, `-m` and `--csum=xxhash`.
fn split(word: &str) -> (&str, Option<&str>) {
    if word.starts_with("--") {
        return word.split_once('=').map_or((word, None), |(name, value)| (name, Some(value)));
    }
    // Two characters, which may have more bytes
    let end = word.char_indices().nth(2).map_or(word.len(), |(index, _)| index);
    let (name, value) = word.split_at(end);
    (name, (!value.is_empty()).then_some(value))
}

/// Returns all names of a table, separated by spaces.
fn names(table: Table) -> String {
    if table.is_empty() {
        return "none".to_owned();
    }
    table.iter().map(|(names, _)| *names).collect::<Vec<_>>().join(" ")
}

/// Checks the value of an option or a setting.
fn check(kind: &Value, value: &str) -> Result<(), Reason> {
    let list = |words: &str| words.replace(' ', ", ");
    let expects =
        |is_valid: bool, expected: &str| if is_valid { Ok(()) } else { Err(Reason::Value(expected.to_owned())) };
    if value.len() > LONGEST_VALUE {
        return expects(false, "shorter");
    }
    match *kind {
        Value::Nothing => Err(Reason::NoValueWanted),
        Value::Size => expects(is_size(value), "a number, optionally followed by a unit such as k"),
        Value::Percent => expects(is_percent(value), "a number"),
        Value::Label => expects(is_label(value), "letters, digits and the characters . _ : + -"),
        Value::Uuid => expects(is_uuid(value), "a UUID"),
        Value::UuidOrRandom => expects(matches!(value, "random" | "time") || is_uuid(value), "random, time or a UUID"),
        Value::OneOf(words) => expects(has_keyword(words, value), &format!("one of {}", list(words))),
        Value::Names => expects(value.split(',').all(is_name), "names separated by commas"),
        Value::Features(words) => {
            let is_feature = |name: &str| has_keyword(words, name.strip_prefix('^').unwrap_or(name));
            expects(value.split(',').all(is_feature), &format!("one or more of the features {}", list(words)))
        }
        Value::Settings(table) => value.split(',').try_for_each(|setting| check_setting(table, setting)),
        Value::Switch => expects(matches!(value, "0" | "1"), "0 or 1"),
    }
}

/// Checks a setting, which is a name, or a name and a value with `=` between them.
fn check_setting(table: Table, setting: &str) -> Result<(), Reason> {
    let (name, value) = setting.split_once('=').map_or((setting, None), |(name, value)| (name, Some(value)));
    match (allowed::find_value(table, name), value) {
        (None, _) => Err(Reason::Value(format!("one or more of the settings {}", names(table).replace(' ', ", ")))),
        (Some(Value::Nothing | Value::Switch), None) => Ok(()),
        (Some(kind), Some(value)) => check(kind, value),
        (Some(_), None) => Err(Reason::Value(format!("{name}=VALUE"))),
    }
}

fn has_keyword(words: &str, word: &str) -> bool {
    words.split(' ').any(|known| known == word)
}

fn is_size(value: &str) -> bool {
    let unit = value.trim_start_matches(|c: char| c.is_ascii_digit());
    let digits = value.len() - unit.len();
    (1..=20).contains(&digits) && unit.len() <= 3 && unit.bytes().all(|byte| byte.is_ascii_alphabetic())
}

fn is_percent(value: &str) -> bool {
    let is_number = |digits: &str| (1..=20).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit());
    value.split_once('.').map_or_else(|| is_number(value), |(whole, part)| is_number(whole) && is_number(part))
}

/// No slash: the value would resemble a path.
fn is_label(value: &str) -> bool {
    value.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._:+-".contains(&byte))
}

fn is_uuid(value: &str) -> bool {
    let groups: Vec<_> = value.split('-').collect();
    groups.iter().map(|group| group.len()).eq([8, 4, 4, 4, 12])
        && groups.iter().all(|group| group.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

fn is_name(value: &str) -> bool {
    !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._:-".contains(&byte))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("ext4", "  -m 1\t-E nodiscard,lazy_itable_init=1 ", &["-m", "1", "-E", "nodiscard,lazy_itable_init=1"])]
    #[case("", "-m0.5 -L data-1", &["-m", "0.5", "-L", "data-1"])]
    #[case(
        "ext4",
        "-O ^has_journal,quota -T largefile -i 65536 -N 1000 -b 4096 -I 256",
        &["-O", "^has_journal,quota", "-T", "largefile", "-i", "65536", "-N", "1000", "-b", "4096", "-I", "256"],
    )]
    #[case("ext4", "-J size=8 -q -U random", &["-J", "size=8", "-q", "-U", "random"])]
    #[case(
        "xfs",
        "-m reflink=0,crc=1 -i size=512 -n ftype=1 -l size=64m -s size=4096 -d agcount=4,su=64k,sw=2 -K",
        &[
            "-m", "reflink=0,crc=1", "-i", "size=512", "-n", "ftype=1", "-l", "size=64m", "-s", "size=4096",
            "-d", "agcount=4,su=64k,sw=2", "-K",
        ],
    )]
    #[case(
        "btrfs",
        "-m dup --data=single -n 16k -O ^no-holes,quota -R free-space-tree -K --csum xxhash -M",
        &[
            "-m", "dup", "--data", "single", "-n", "16k", "-O", "^no-holes,quota", "-R", "free-space-tree", "-K",
            "--csum", "xxhash", "-M",
        ],
    )]
    #[case("btrfs", " ", &[])]
    #[case("zfs", "", &[])]
    fn options_about_the_filesystem_alone_become_arguments(
        #[case] filesystem: &str,
        #[case] text: &str,
        #[case] expected: &[&str],
    ) {
        assert_eq!(MkfsOptions::parse(filesystem, text).unwrap().as_slice(), expected);
    }

    #[rstest]
    #[case::device("ext4", "/dev/sda", "allowed options are -")]
    #[case::device_by_another_name("xfs", "victim", "allowed options are -")]
    #[case::end_of_options("ext4", "--", "allowed options are -")]
    #[case::dash("ext4", "-", "allowed options are -")]
    #[case::directory("ext4", "-d etc", "allowed options are -")]
    #[case::undo_file("ext4", "-z undo", "allowed options are -")]
    #[case::bad_blocks_file("ext4", "-l blocks", "allowed options are -")]
    #[case::forced("ext4", "-F", "allowed options are -")]
    #[case::forced_attached("ext4", "-qF", "it takes no value")]
    #[case::dry_run("ext4", "-n", "allowed options are -")]
    #[case::another_type("ext4", "-t ext3", "allowed options are -")]
    #[case::journal_elsewhere("ext4", "-J device=LABEL=x", "of the settings ")]
    #[case::journal_only("ext4", "-O journal_dev", "of the features ")]
    #[case::elsewhere_on_the_device("ext4", "-E offset=4096", "of the settings ")]
    #[case::nodes_that_panic("ext4", "-e panic", "must be one of ")]
    #[case::swallows_the_device("ext4", "-L", "it requires a value")]
    #[case::swallows_the_next_option("ext4", "-L -m 0", "it requires a value")]
    #[case::swallows_the_device("xfs", "-K -L", "it requires a value")]
    #[case::file("xfs", "-d file,name=x,size=1g", "of the settings ")]
    #[case::log_elsewhere("xfs", "-l logdev=x", "of the settings ")]
    #[case::log_elsewhere_later("xfs", "-l size=64m,logdev=x", "of the settings ")]
    #[case::real_time_device("xfs", "-r rtdev=x", "allowed options are -")]
    #[case::configuration_file("xfs", "-c options=x", "allowed options are -")]
    #[case::prototype("xfs", "-p proto", "allowed options are -")]
    #[case::dry_run("xfs", "-N", "allowed options are -")]
    #[case::forced("xfs", "-f", "allowed options are -")]
    #[case::directory("btrfs", "--rootdir etc", "allowed options are -")]
    #[case::directory("btrfs", "--rootdir=etc", "allowed options are -")]
    #[case::directory_abbreviated("btrfs", "--root etc", "allowed options are -")]
    #[case::directory_attached("btrfs", "-retc", "allowed options are -")]
    #[case::swallows_the_device("btrfs", "--label", "it requires a value")]
    #[case::several_devices("btrfs", "-d raid0", "must be one of ")]
    #[case::makes_nothing("btrfs", "-O list-all", "of the features ")]
    #[case::one_identity_for_all("btrfs", "-U 0b5a2f4e-8d54-4f5c-9a0e-7d8f6f3c2b1a", "allowed options are -")]
    #[case::help("btrfs", "--help", "allowed options are -")]
    #[case::path_as_label("btrfs", "-L a/b", "must be letters")]
    #[case::not_ascii("ext4", "-L größe", "must be letters")]
    #[case::not_ascii("ext4", "-ü 1", "allowed options are -")]
    #[case::no_number("ext4", "-i many", "must be a number")]
    #[case::negative("ext4", "-b -1024", "it requires a value")]
    #[case::empty_setting("xfs", "-i size=512,", "of the settings ")]
    #[case::without_its_value("xfs", "-i size", "must be size=VALUE")]
    #[case::flag_with_value("xfs", "-K1", "it takes no value")]
    #[case::unknown_filesystem("zfs", "-m 1", "allowed options are none")]
    fn whatever_reaches_further_is_refused(#[case] filesystem: &str, #[case] text: &str, #[case] reason: &str) {
        let error = MkfsOptions::parse(filesystem, text).unwrap_err();
        assert!(error.reason.to_string().contains(reason), "{error}");
    }

    #[test]
    fn the_message_names_the_option_and_what_is_allowed() {
        let error = MkfsOptions::parse("btrfs", "-K -r etc").unwrap_err().to_string();
        let expected = "mkfs option \"-r\" is not allowed for btrfs: allowed options are -d|--data -m|--metadata \
                        -M|--mixed --csum|--checksum -n|--nodesize -s|--sectorsize -O|--features -R|--runtime-features \
                        -L|--label -K|--nodiscard -q|--quiet -v|--verbose; correct the mkfs-options of the \
                        StorageClass or of the PersistentVolume";
        assert_eq!(error, expected);
        let error = MkfsOptions::parse("ext4", "-J device=x").unwrap_err().to_string();
        assert!(error.contains("\"-J device=x\"") && error.contains("of the settings size, "), "{error}");
        let error = MkfsOptions::parse("", "-L").unwrap_err().to_string();
        assert!(error.contains("\"-L\" is not allowed for ext4: it requires a value"), "{error}");
    }
}
