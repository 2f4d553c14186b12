//! `lvmd convert-config`: converts the `config.json` of Carina into disk groups, with a comment for each setting
//! without a counterpart.
//!
//! Its older form is a list of patterns whose disks are split into flash and rotational ones, its newer one a list of
//! groups.

mod pattern;

use std::fmt::Write as _;

use lvmd_config::{Config, WantedLabel};
use serde::Deserialize;

use crate::convert_config::pattern::anchored;

/// The volume groups of the older form, for disks that turn or do not.
const LEGACY_GROUPS: [(&str, bool); 2] = [("carina-vg-ssd", false), ("carina-vg-hdd", true)];
/// Carina takes no smaller disks, in GiB.
const MIN_SIZE: u64 = 10;
/// Shortest time between two of Carina's disk scans, in seconds.
const MIN_INTERVAL: u64 = 300;

/// A file that is no configuration of Carina.
#[derive(Debug, thiserror::Error)]
#[error("not a config.json of Carina: {0}")]
pub(crate) struct ConvertError(#[from] serde_json::Error);

/// The file, in both forms.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Carina {
    disk_selector: Vec<Entry>,
    disk_scan_interval: Option<Number>,
    disk_group_policy: Option<String>,
    scheduler_strategy: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Entry {
    Pattern(String),
    Group(Group),
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Group {
    name: String,
    #[serde(default)]
    re: Vec<String>,
    #[serde(default)]
    policy: String,
    #[serde(default)]
    node_label: String,
}

/// A number that may be written as a text.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Number {
    Number(u64),
    Text(String),
}

/// Converts the text of a `config.json`. Comments in the result list what it lacks.
pub(crate) fn convert(text: &str) -> Result<String, ConvertError> {
    let carina: Carina = serde_json::from_str(text)?;
    let (mut groups, mut remarks) = (String::new(), Vec::new());
    let patterns: Vec<_> = carina.disk_selector.iter().filter_map(Entry::as_pattern).collect();
    if !patterns.is_empty() {
        for (name, rotational) in LEGACY_GROUPS {
            write_group(&mut groups, name, &patterns, Some(rotational), "");
        }
    }
    for group in carina.disk_selector.iter().filter_map(Entry::as_group) {
        convert_group(group, &mut groups, &mut remarks);
    }
    remarks.extend(remarks_of_file(&carina));
    let interval = rescan_interval(carina.disk_scan_interval.as_ref(), &mut remarks);
    Ok(compose(&groups, interval, &remarks))
}

impl Entry {
    fn as_pattern(&self) -> Option<&str> {
        if let Self::Pattern(pattern) = self { Some(pattern) } else { None }
    }

    fn as_group(&self) -> Option<&Group> {
        if let Self::Group(group) = self { Some(group) } else { None }
    }
}

fn convert_group(group: &Group, text: &mut String, remarks: &mut Vec<String>) {
    let (name, patterns) = (group.name.to_lowercase(), group.re.iter().map(String::as_str).collect::<Vec<_>>());
    let skipped = match group.policy.to_lowercase().as_str() {
        "lvm" if patterns.is_empty() => "it has no pattern, so it selects no disk",
        "lvm" => {
            write_group(text, &name, &patterns, None, &group.node_label);
            return;
        }
        "raw" => "lvmd has no policy RAW: every device class also provides block volumes (volumeMode: Block)",
        "host" => "lvmd has no policy HOST: use a driver for host directories",
        _ => "its policy is not LVM, RAW or HOST",
    };
    remarks.push(format!("Group {name} is not converted: {skipped}."));
}

fn write_group(text: &mut String, name: &str, patterns: &[&str], rotational: Option<bool>, node_label: &str) {
    // Writing to a String cannot fail
    let _ = writeln!(text, "  - name: {}", quoted(name));
    if node_label.parse::<WantedLabel>().is_ok() {
        let _ = writeln!(text, "    node-labels: [{}]", quoted(node_label));
    } else if !node_label.is_empty() {
        let _ =
            writeln!(text, "    # Only for nodes with the label {}, which is not a valid label", one_line(node_label));
    }
    let _ = writeln!(text, "    # Set auto to add disks; `lvmd disks` lists which disks these are");
    let _ = writeln!(text, "    mode: report");
    let paths: Vec<_> = patterns.iter().map(|pattern| quoted(&anchored(pattern))).collect();
    let _ = writeln!(text, "    paths: [{}]", paths.join(", "));
    if let Some(rotational) = rotational {
        let _ = writeln!(text, "    rotational: {rotational}");
    }
    let _ = writeln!(text, "    min-size-gb: {MIN_SIZE}");
    let _ = writeln!(text, "    # lvmd extends a volume group that Carina created only if it has this tag:");
    let _ = writeln!(text, "    #   vgchange --addtag topolvm.io/disk-group={0} {0}", one_line(name));
}

/// Returns remarks about settings that belong elsewhere.
fn remarks_of_file(carina: &Carina) -> Vec<String> {
    let mut remarks = Vec::new();
    if let Some(strategy) = &carina.scheduler_strategy {
        // Both spellings are in use, and whatever is not binpack means the same
        let is_binpack = strategy.eq_ignore_ascii_case("binpack");
        let meaning = if is_binpack { "binpack" } else { "spreadout" };
        remarks.push(format!("schedulerStrategy ({meaning}) is not a setting of lvmd: see docs/scheduling.md."));
    }
    if carina.disk_group_policy.is_some() {
        remarks.push("diskGroupPolicy has no equivalent: use rotational to separate groups.".to_owned());
    }
    remarks.push(
        "A Carina pattern matches any part of the path; the patterns here match whole names that contain it. Narrow \
         them, preferably with by-id, models or serials."
            .to_owned(),
    );
    remarks
}

/// Returns the seconds between two of Carina's disk scans.
fn rescan_interval(number: Option<&Number>, remarks: &mut Vec<String>) -> u64 {
    let seconds = match number {
        None => Some(MIN_INTERVAL),
        Some(Number::Number(seconds)) => Some(*seconds),
        Some(Number::Text(text)) => text.trim().parse().ok(),
    };
    match seconds {
        Some(0) => 0,
        Some(seconds) => seconds.max(MIN_INTERVAL),
        None => {
            remarks.push("diskScanInterval is not a number; the default is used.".to_owned());
            MIN_INTERVAL
        }
    }
}

/// Puts the file together and checks it.
fn compose(groups: &str, interval: u64, remarks: &[String]) -> String {
    let body = if groups.is_empty() {
        "# No group was converted. Add at least one device class, see docs/lvmd.md.\ndisk-groups: []\n".to_owned()
    } else {
        format!("disk-groups:\n{groups}rescan-interval: {interval}\n")
    };
    let mut text = "# Converted from a config.json of Carina by `lvmd convert-config`.\n".to_owned();
    for remark in remarks {
        let _ = writeln!(text, "# - {}", one_line(remark));
    }
    if let Err(mistakes) = Config::parse("mistake", &body) {
        text.push_str("# It is not valid yet:\n");
        for mistake in mistakes.0 {
            let _ = writeln!(text, "# - {}", one_line(&mistake));
        }
    }
    text + &body
}

/// Returns the text between double quotes, where YAML reads it as JSON does.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Returns the text without line breaks, which would end a comment.
fn one_line(text: &str) -> String {
    text.split(|character: char| character.is_control()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests;
