//! The description of disks by which a group selects them.

use block_device::Disk;
use regex_lite::Regex;

/// A regular expression that must match the whole of a text.
#[derive(Clone, Debug)]
pub struct Pattern {
    text: String,
    regex: Regex,
}

/// A description of disks. A disk must match every field that is set; of a list, one entry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector {
    /// Patterns of `/dev/NAME` and of `/dev/disk/by-path/NAME`.
    pub paths: Vec<Pattern>,
    /// Patterns of names in `/dev/disk/by-id`.
    pub ids: Vec<Pattern>,
    /// Patterns of the model.
    pub models: Vec<Pattern>,
    /// Patterns of the serial number.
    pub serials: Vec<Pattern>,
    /// Ways in which the disk is attached.
    pub transports: Vec<&'static str>,
    /// True for disks that turn, false for those that do not.
    pub rotational: Option<bool>,
    /// Smallest size in bytes.
    pub min_size: Option<u64>,
    /// Largest size in bytes.
    pub max_size: Option<u64>,
}

impl Pattern {
    /// Parses a regular expression.
    pub fn parse(text: &str) -> Result<Self, String> {
        // Were it parsed with its anchors alone, `a)|(b` would be valid and not anchored
        Regex::new(text).map_err(|error| error.to_string())?;
        let regex = Regex::new(&format!("^(?:{text})$")).map_err(|error| error.to_string())?;
        Ok(Self { text: text.to_owned(), regex })
    }

    /// Returns whether the whole text matches.
    pub fn matches(&self, text: &str) -> bool {
        self.regex.is_match(text)
    }

    /// Returns the expression.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Pattern {}

impl Selector {
    /// Returns whether no field is set.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns whether the disk matches. A property that the disk does not report does not match.
    pub fn matches(&self, disk: &Disk) -> bool {
        let bus_paths: Vec<_> = disk.bus_paths.iter().map(|name| format!("/dev/disk/by-path/{name}")).collect();
        let paths = || bus_paths.iter().map(String::as_str).chain([disk.path.as_str()]);
        matches_any(&self.paths, paths())
            && matches_any(&self.ids, disk.ids.iter().map(String::as_str))
            && matches_any(&self.models, disk.model.as_deref())
            && matches_any(&self.serials, disk.serial.as_deref())
            && (self.transports.is_empty() || disk.transport.is_some_and(|found| self.transports.contains(&found)))
            && (self.rotational.is_none() || self.rotational == disk.rotational)
            && self.min_size.is_none_or(|least| disk.size >= least)
            && self.max_size.is_none_or(|most| disk.size <= most)
    }
}

fn matches_any<'a>(patterns: &[Pattern], texts: impl IntoIterator<Item = &'a str>) -> bool {
    patterns.is_empty() || texts.into_iter().any(|text| patterns.iter().any(|pattern| pattern.matches(text)))
}

#[cfg(test)]
mod tests {
    use block_device::Number;

    use super::*;

    fn disk() -> Disk {
        Disk {
            name: "sdb".to_owned(),
            path: "/dev/sdb".to_owned(),
            number: Number { major: 8, minor: 16 },
            sequence: 0,
            size: 100 << 30,
            read_only: false,
            rotational: Some(false),
            removable: false,
            model: Some("SAMSUNG MZ7".to_owned()),
            serial: None,
            wwid: None,
            transport: Some("sata"),
            ids: vec!["ata-SAMSUNG_MZ7_S1".to_owned(), "wwn-0x5002".to_owned()],
            bus_paths: vec!["pci-0000:00:1f.2-ata-2".to_owned()],
            uses: Vec::new(),
        }
    }

    fn patterns(texts: &[&str]) -> Vec<Pattern> {
        texts.iter().map(|text| Pattern::parse(text).unwrap()).collect()
    }

    #[test]
    fn a_pattern_matches_the_whole_of_a_text_or_not() {
        for (pattern, matches) in [
            ("/dev/sdb", true),
            ("/dev/sd[b-d]", true),
            ("/dev/sd", false),
            ("sdb", false),
            ("/dev/sda|/dev/sdb", true),
            ("/dev/disk/by-path/pci-.*-ata-2", true),
            ("/dev/s", false),
            ("/dev/sdb|x", true),
            ("/dev/sdbb", false),
        ] {
            let selector = Selector { paths: patterns(&[pattern]), ..Selector::default() };
            assert_eq!(selector.matches(&disk()), matches, "{pattern}");
        }
        Pattern::parse("a)|(b").unwrap_err();
        Pattern::parse("[").unwrap_err();
    }

    #[test]
    fn everything_that_is_said_must_be_so() {
        let selector = Selector {
            paths: patterns(&["/dev/sdz", "/dev/sd."]),
            ids: patterns(&["wwn-.*"]),
            models: patterns(&["SAMSUNG.*"]),
            transports: vec!["nvme", "sata"],
            rotational: Some(false),
            min_size: Some(100 << 30),
            max_size: Some(100 << 30),
            ..Selector::default()
        };
        assert!(selector.matches(&disk()));
        let wrong = [
            Disk { path: "/dev/vdb".to_owned(), ..disk() },
            Disk { ids: Vec::new(), ..disk() },
            Disk { model: None, ..disk() },
            Disk { transport: None, ..disk() },
            Disk { rotational: None, ..disk() },
            Disk { rotational: Some(true), ..disk() },
            Disk { size: (100 << 30) - 512, ..disk() },
            Disk { size: (100 << 30) + 512, ..disk() },
        ];
        for disk in wrong {
            assert!(!selector.matches(&disk), "{disk:?}");
        }
    }

    #[test]
    fn serial_selector_does_not_match_a_disk_without_a_serial() {
        let selector = Selector { serials: patterns(&[".*"]), ..Selector::default() };
        assert!(!selector.matches(&disk()));
    }
}
