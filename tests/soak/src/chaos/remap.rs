//! Changed device classes: configurations of lvmd that an administrator may write while volumes exist.

use std::collections::BTreeMap;
use std::fmt;
use std::fmt::Write as _;

use anyhow::{Context as _, Result, ensure};
use testbed::topolvm::{THIN_CLASS, TopolvmSpec};

use super::state::{THICK_CLASS, THICK_VG};

/// Name of a volume group of one extent, in which no volume of the test fits: requests fail until the configuration is
/// restored.
pub(super) const SMALL_VG: &str = "smallvg";
/// Name of the device class that some configurations have for it.
const SMALL_CLASS: &str = "small";
/// Size of its disk in bytes.
const SMALL_DISK: u64 = 8 << 20;
/// Bytes that the small volume group never has free, and the usual one always has.
const SOME: u64 = 32 << 20;

/// Change of a configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Remap {
    /// Another class is the default.
    DefaultMoved,
    /// The default class has another volume group.
    OtherGroup,
    /// There is no default class.
    ThickRemoved,
    /// There is no thin class.
    ThinRemoved,
}

impl Remap {
    pub(super) const ALL: [Self; 4] = [Self::DefaultMoved, Self::OtherGroup, Self::ThickRemoved, Self::ThinRemoved];

    /// Returns the configuration with this change.
    pub(super) fn apply(self, config: &str) -> Result<String> {
        let small = format!("- {{name: {SMALL_CLASS}, volume-group: {SMALL_VG}, default: true, spare-gb: 0}}\n");
        let is_of = |line: &str, class: &str| line.starts_with(&format!("- {{name: {class},"));
        let lines = config.lines().map(|line| format!("{line}\n"));
        let changed: String = match self {
            Self::DefaultMoved => {
                let lines = lines.map(|line| line.replace("default: true, ", ""));
                lines.chain([small]).collect()
            }
            Self::OtherGroup => lines.map(|line| line.replace(THICK_VG, SMALL_VG)).collect(),
            Self::ThickRemoved => lines.filter(|line| !is_of(line, THICK_CLASS)).collect(),
            Self::ThinRemoved => lines.filter(|line| !is_of(line, THIN_CLASS)).collect(),
        };
        ensure!(changed != config, "{self} makes no difference in {config}");
        Ok(changed)
    }

    /// Returns true if the capacities that a Node publishes show that lvmd uses the changed configuration.
    pub(super) fn is_published(self, published: &BTreeMap<String, u64>) -> bool {
        match self {
            Self::DefaultMoved => published.contains_key(SMALL_CLASS),
            Self::OtherGroup => published.get(THICK_CLASS).is_some_and(|free| *free < SOME),
            Self::ThickRemoved => !published.contains_key(THICK_CLASS),
            Self::ThinRemoved => !published.contains_key(THIN_CLASS),
        }
    }
}

/// Returns true if the capacities that a Node publishes show that lvmd uses the unchanged configuration.
pub(super) fn is_unchanged(published: &BTreeMap<String, u64>) -> bool {
    published.get(THICK_CLASS).is_some_and(|free| *free >= SOME)
        && published.contains_key(THIN_CLASS)
        && !published.contains_key(SMALL_CLASS)
}

/// Adds the volume group [`SMALL_VG`] to all nodes, on the disk after that of the thin class.
pub(super) fn with_small_group(mut spec: TopolvmSpec) -> Result<TopolvmSpec> {
    for node in &mut spec.nodes {
        node.spare_disks.push(SMALL_DISK);
    }
    let disk = spec.nodes.first().context("no nodes")?.last_disk()?;
    // Writing to text cannot fail
    let _written = writeln!(spec.node_script, "vgs {SMALL_VG} >/dev/null 2>&1 || vgcreate -q {SMALL_VG} {disk}");
    Ok(spec)
}

impl fmt::Display for Remap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::DefaultMoved => "another class is the default",
            Self::OtherGroup => "the default class has another volume group",
            Self::ThickRemoved => "the default class is missing",
            Self::ThinRemoved => "the thin class is missing",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = "socket-name: /run/topolvm/lvmd.sock\ndevice-classes:\n\
        - {name: ssd, volume-group: myvg1, default: true, spare-gb: 0}\n\
        - {name: thin, volume-group: thinvg, spare-gb: 0, type: thin, \
           thin-pool: {name: pool0, overprovision-ratio: 20}}\n";

    fn published(all: &[(&str, u64)]) -> BTreeMap<String, u64> {
        all.iter().map(|(class, free)| ((*class).to_owned(), *free)).collect()
    }

    #[test]
    fn remapped_classes_parse_and_change_the_published_capacity() {
        let classes = |remap: Remap| {
            let config = remap.apply(CONFIG).unwrap();
            lvmd_config::Config::parse("lvmd.yaml", &config).unwrap_or_else(|error| panic!("{remap}: {error:?}"));
            config
        };
        assert!(classes(Remap::DefaultMoved).contains("- {name: ssd, volume-group: myvg1, spare-gb: 0}"));
        assert!(classes(Remap::OtherGroup).contains("- {name: ssd, volume-group: smallvg, default: true"));
        assert!(!classes(Remap::ThickRemoved).contains("ssd") && !classes(Remap::ThinRemoved).contains("pool0"));
        let now = [
            (Remap::DefaultMoved, published(&[("ssd", SOME), ("thin", 1), ("small", 4)])),
            (Remap::OtherGroup, published(&[("ssd", 4 << 20), ("thin", 1)])),
            (Remap::ThickRemoved, published(&[("thin", 1)])),
            (Remap::ThinRemoved, published(&[("ssd", SOME)])),
        ];
        for (remap, published) in &now {
            assert!(remap.is_published(published) && !is_unchanged(published), "{remap}");
        }
        let before = published(&[("ssd", SOME), ("thin", 1)]);
        assert!(is_unchanged(&before) && Remap::ALL.iter().all(|remap| !remap.is_published(&before)));
    }

    #[test]
    fn remap_rejects_a_configuration_without_the_class() {
        assert!(Remap::ThinRemoved.apply("device-classes:\n- {name: ssd, volume-group: myvg1}\n").is_err());
    }
}
