//! `lvextend`, `lvremove`, `lvchange` and `lvrename`, with LVM's rules and messages.

use super::state::{CommandError, EXTENT, Group, State};

pub(super) type Result<T = String> = std::result::Result<T, CommandError>;

impl State {
    pub(super) fn lvextend(&mut self, args: &[&str]) -> Result {
        let (bytes, target) = match args {
            ["-y", "-L", bytes, target] => (bytes, target),
            ["-y", "--poolmetadatasize", bytes, target] => return self.extend_metadata(bytes, target),
            _ => return Err(CommandError::usage("Invalid arguments")),
        };
        let extents = parse_bytes(bytes)?.div_ceil(EXTENT);
        let (vg, name) = split_path(target)?;
        let group = self.changeable(vg)?;
        let free = group.free_extents();
        let Some(volume) = group.volumes.get_mut(name) else {
            return Err(CommandError::failed(format!("Logical volume {name} not found in volume group {vg}.")));
        };
        let extents = extents.next_multiple_of(volume.stripes);
        let old = volume.extents;
        if extents == old {
            return Err(CommandError::failed(format!(
                "New size ({old} extents) matches existing size ({old} extents)."
            )));
        }
        if extents < old {
            return Err(CommandError::failed(format!(
                "New size given ({extents} extents) not larger than existing size ({old} extents)"
            )));
        }
        let images =
            if volume.attr.starts_with('r') { volume.allocated / (old + 1) } else { u64::from(volume.allocated > 0) };
        let needed = (extents - old) * images;
        if needed > free {
            return Err(CommandError::no_space(needed, free));
        }
        volume.allocated += needed;
        volume.extents = extents;
        volume.data_percent = scale(volume.data_percent, old, extents);
        Ok(format!("Logical volume {target} successfully resized."))
    }

    /// Extends the metadata of a thin pool and what is kept for their repair.
    fn extend_metadata(&mut self, bytes: &str, target: &str) -> Result {
        let extents = parse_bytes(bytes)?.div_ceil(EXTENT);
        let (vg, name) = split_path(target)?;
        let group = self.changeable(vg)?;
        let free = group.free_extents();
        let Some(pool) = group.volumes.get_mut(name) else {
            return Err(CommandError::failed(format!("Logical volume {name} not found in volume group {vg}.")));
        };
        let needed = 2 * extents.saturating_sub(pool.metadata_extents);
        if needed > free {
            return Err(CommandError::no_space(needed, free));
        }
        pool.metadata_percent = scale(pool.metadata_percent, pool.metadata_extents, extents);
        pool.metadata_extents = extents;
        pool.allocated += needed;
        Ok(format!("Logical volume {target}_tmeta successfully resized."))
    }

    pub(super) fn lvremove(&mut self, args: &[&str]) -> Result {
        let (vg, name) = match args {
            ["-f", target] => split_path(target)?,
            ["-f", "-S", selection, vg] => match self.find_group(vg)?.select(selection)? {
                Some(name) => (*vg, &*name.to_owned()),
                // That nothing is selected is no failure.
                None => return Ok(String::new()),
            },
            _ => return Err(CommandError::usage("Invalid arguments")),
        };
        let target = format!("{vg}/{name}");
        let group = self.find_group(vg)?;
        group.seqno += 1;
        let Some(volume) = group.volumes.get(name) else {
            return Err(CommandError::failed(format!("Failed to find logical volume \"{target}\"")));
        };
        if volume.open || volume.held {
            return Err(CommandError::failed(format!("Logical volume {target} in use.")));
        }
        if volume.wiped < volume.bytes() {
            group.removed_unwiped.push(name.to_owned());
        }
        group.remove(name);
        Ok(format!("Logical volume \"{name}\" successfully removed."))
    }

    pub(super) fn lvchange(&mut self, args: &[&str]) -> Result {
        let (options, targets) = split_options(args);
        if let ["-S", selection, vg] = targets {
            let selected = self.find_group(vg)?.select(selection)?.map(str::to_owned);
            return selected.map_or_else(|| Ok(String::new()), |name| self.change_volume(options, vg, &name));
        }
        if targets.is_empty() {
            return Err(CommandError::usage("Invalid arguments"));
        }
        // LVM changes those that it finds
        let mut printed = Vec::new();
        let mut failed = None;
        for target in targets {
            let (vg, name) = split_path(target)?;
            match self.change_volume(options, vg, name) {
                Ok(text) => printed.push(text),
                Err(error) => failed = Some(error),
            }
        }
        failed.map_or_else(|| Ok(printed.join("\n  ")), Err)
    }

    fn change_volume(&mut self, options: &[&str], vg: &str, name: &str) -> Result {
        let target = format!("{vg}/{name}");
        let group = self.changeable(vg)?;
        let Some(volume) = group.volumes.get_mut(name) else {
            return Err(CommandError::failed(format!("Failed to find logical volume \"{target}\"")));
        };
        if matches!(options, ["-a", "y", "-K"]) {
            volume.active = true;
            return Ok(String::new());
        }
        if matches!(options, ["--refresh"]) {
            volume.attr.replace_range(4..5, "a");
            return Ok(String::new());
        }
        for option in options.chunks(2) {
            match option {
                ["--addtag", tag] if volume.tags.iter().any(|existing| existing == tag) => {}
                ["--addtag", tag] => volume.tags.push((*tag).to_owned()),
                ["--deltag", tag] => volume.tags.retain(|existing| existing != tag),
                _ => return Err(CommandError::usage(format!("unrecognized option {option:?}"))),
            }
        }
        Ok(format!("Logical volume {target} changed."))
    }

    pub(super) fn lvrename(&mut self, args: &[&str]) -> Result {
        let [vg, name, new] = args else {
            return Err(CommandError::usage("Old and new logical volume names required"));
        };
        let group = self.changeable(vg)?;
        if group.volumes.contains_key(*new) {
            return Err(CommandError::already_exists(vg, new));
        }
        let Some(volume) = group.volumes.remove(*name) else {
            return Err(CommandError::failed(format!(
                "Existing logical volume \"{name}\" not found in volume group \"{vg}\""
            )));
        };
        for other in group.volumes.values_mut() {
            if other.origin.as_deref() == Some(*name) {
                other.origin = Some((*new).to_owned());
            }
        }
        group.volumes.insert((*new).to_owned(), volume);
        Ok(format!("Renamed \"{name}\" to \"{new}\" in volume group \"{vg}\""))
    }

    /// Returns a group, or LVM's error when there is none.
    pub(super) fn find_group(&mut self, vg: &str) -> Result<&mut Group> {
        self.groups.get_mut(vg).ok_or_else(|| CommandError::no_group(vg))
    }

    /// Returns a group whose metadata is about to be changed, or LVM's error when one of its disks is missing.
    pub(super) fn changeable(&mut self, vg: &str) -> Result<&mut Group> {
        let group = self.find_group(vg)?;
        if group.missing_pvs > 0 {
            let hint = "See vgreduce --removemissing and vgextend --restoremissing.";
            return Err(CommandError::failed(format!("Cannot change VG {vg} while PVs are missing.\n  {hint}")));
        }
        group.seqno += 1;
        Ok(group)
    }
}

/// Splits the arguments of `lvchange` into its options and what it is to change.
fn split_options<'a>(args: &'a [&'a str]) -> (&'a [&'a str], &'a [&'a str]) {
    let mut options = 0;
    while let Some(option) = args.get(options) {
        options += match *option {
            "--addtag" | "--deltag" | "-a" => 2,
            "--refresh" | "-K" => 1,
            _ => break,
        };
    }
    args.split_at(options.min(args.len()))
}

/// Returns the fill in percent of what had `before` extents and has `now`.
#[expect(clippy::as_conversions, clippy::cast_precision_loss, reason = "a percentage needs no more precision")]
fn scale(percent: f64, before: u64, now: u64) -> f64 {
    percent * before as f64 / now as f64
}

/// Parses a size as `4096b`, a multiple of 512 bytes.
pub(super) fn parse_bytes(text: &str) -> Result<u64> {
    let invalid = || CommandError::usage(format!("Invalid argument for --size: {text}"));
    let bytes: u64 = text.strip_suffix('b').and_then(|bytes| bytes.parse().ok()).ok_or_else(invalid)?;
    if bytes.is_multiple_of(512) { Ok(bytes) } else { Err(invalid()) }
}

/// Splits the path `VG/LV`.
pub(super) fn split_path(target: &str) -> Result<(&str, &str)> {
    target.split_once('/').ok_or_else(|| CommandError::usage(format!("\"{target}\": Invalid path for Logical Volume.")))
}
