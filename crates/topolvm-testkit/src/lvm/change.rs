//! The commands that change something, with LVM's rules and words.

use super::state::{EXTENT, FakeVolume, Group, Refused, State};

type Result<T = String> = std::result::Result<T, Refused>;

/// Options that `lvcreate` takes from administrators and that change nothing in the fake, with the number of words that
/// follow.
const HARMLESS: &[(&str, usize)] = &[
    ("--alloc", 1),
    ("--config", 1),
    ("--contiguous", 1),
    ("--nosync", 0),
    ("--readahead", 1),
    ("--regionsize", 1),
    ("--zero", 1),
];

#[derive(Default)]
struct Creation {
    name: String,
    bytes: u64,
    tags: Vec<String>,
    stripes: u64,
    mirrors: u64,
    vg: String,
    pool: Option<String>,
    is_snapshot: bool,
    read_only: bool,
}

impl State {
    pub(super) fn lvcreate(&mut self, args: &[&str]) -> Result {
        let wanted = Creation::parse(args)?;
        if wanted.is_snapshot {
            return self.snapshot(wanted);
        }
        let group = self.changeable(&wanted.vg)?;
        if group.volumes.contains_key(&wanted.name) {
            let Creation { name, vg, .. } = &wanted;
            return Err(Refused::failed(format!("Logical Volume \"{name}\" already exists in volume group \"{vg}\"")));
        }
        if let Some(pool) = wanted.pool {
            if !group.volumes.get(&pool).is_some_and(|volume| volume.attr.starts_with('t')) {
                return Err(Refused::failed(format!("Thin pool {}/{pool} not found.", wanted.vg)));
            }
            self.check_pool_takes_more(&wanted.vg, &pool)?;
            let volume = FakeVolume { tags: wanted.tags, ..FakeVolume::thin(wanted.bytes, &pool) };
            self.add_volume(&wanted.vg, &wanted.name, volume);
            return Ok(format!("Logical volume \"{}\" created.", wanted.name));
        }
        let pvs = u64::from(group.pvs);
        if wanted.stripes > pvs {
            let message =
                format!("Number of stripes ({}) must not exceed number of physical volumes ({pvs})", wanted.stripes);
            return Err(Refused::failed(message));
        }
        let mut volume = FakeVolume { tags: wanted.tags, stripes: wanted.stripes, ..FakeVolume::thick(wanted.bytes) };
        volume.extents = volume.extents.next_multiple_of(wanted.stripes);
        volume.allocated = volume.extents;
        let free = group.free_extents();
        if volume.extents > free {
            let (vg, required) = (&wanted.vg, volume.extents);
            let message =
                format!("Volume group \"{vg}\" has insufficient free space ({free} extents): {required} required.");
            return Err(Refused::failed(message));
        }
        if wanted.mirrors > 0 {
            // Each image has an extent of metadata.
            volume.allocated = (volume.extents + 1) * (wanted.mirrors + 1);
            "rwi-a-r---".clone_into(&mut volume.attr);
        }
        if volume.allocated > free {
            let needed = volume.allocated;
            return Err(Refused::failed(format!(
                "Insufficient free space: {needed} extents needed, but only {free} available"
            )));
        }
        self.add_volume(&wanted.vg, &wanted.name, volume);
        Ok(format!("Logical volume \"{}\" created.", wanted.name))
    }

    /// LVM's `thin_pool_below_threshold`.
    fn check_pool_takes_more(&mut self, vg: &str, pool: &str) -> std::result::Result<(), Refused> {
        let threshold = f64::from(self.thin_pool_threshold.unwrap_or(100));
        let volume = self.group(vg).volumes.get(pool).expect("no such thin pool in the fake LVM");
        let is_well = &volume.attr[8..9] == "-";
        let is_low = volume.data_percent > threshold || volume.metadata_percent > threshold;
        // A quarter of metadata of 4 MiB.
        if is_well && !is_low && volume.metadata_percent < 75.0 {
            return Ok(());
        }
        let message = "Cannot create new thin volume, free space in thin pool";
        Err(Refused::failed(format!("{message} {vg}/{pool} reached threshold.")))
    }

    /// Only thin ones.
    fn snapshot(&mut self, wanted: Creation) -> Result {
        let Creation { name, vg: source, tags, read_only, .. } = wanted;
        let (vg, origin) = split(&source)?;
        let group = self.changeable(vg)?;
        if group.volumes.contains_key(&name) {
            return Err(Refused::failed(format!("Logical Volume \"{name}\" already exists in volume group \"{vg}\"")));
        }
        let Some(volume) = group.volumes.get(origin) else {
            return Err(Refused::failed(format!("Failed to find logical volume \"{source}\"")));
        };
        let Some(pool) = &volume.pool else {
            return Err(Refused::failed("Please specify either size or extents with snapshots."));
        };
        let pool = pool.clone();
        let bytes = volume.bytes();
        self.check_pool_takes_more(vg, &pool)?;
        let attr = if read_only { "Vri-a-tz--" } else { "Vwi-a-tz--" };
        let snapshot = FakeVolume {
            tags,
            origin: Some(origin.to_owned()),
            attr: attr.to_owned(),
            ..FakeVolume::thin(bytes, &pool)
        };
        self.add_volume(vg, &name, snapshot);
        Ok(format!("Logical volume \"{name}\" created."))
    }

    pub(super) fn lvextend(&mut self, args: &[&str]) -> Result {
        let ["-y", "-L", bytes, target] = args else {
            return Err(Refused::usage("Invalid arguments"));
        };
        let extents = parse_bytes(bytes)?.div_ceil(EXTENT);
        let (vg, name) = split(target)?;
        let group = self.changeable(vg)?;
        let free = group.free_extents();
        let Some(volume) = group.volumes.get_mut(name) else {
            return Err(Refused::failed(format!("Logical volume {name} not found in volume group {vg}.")));
        };
        let extents = extents.next_multiple_of(volume.stripes);
        let old = volume.extents;
        if extents == old {
            return Err(Refused::failed(format!("New size ({old} extents) matches existing size ({old} extents).")));
        }
        if extents < old {
            return Err(Refused::failed(format!(
                "New size given ({extents} extents) not larger than existing size ({old} extents)"
            )));
        }
        let images =
            if volume.attr.starts_with('r') { volume.allocated / (old + 1) } else { u64::from(volume.allocated > 0) };
        let needed = (extents - old) * images;
        if needed > free {
            return Err(Refused::failed(format!(
                "Insufficient free space: {needed} extents needed, but only {free} available"
            )));
        }
        volume.allocated += needed;
        volume.extents = extents;
        Ok(format!("Logical volume {target} successfully resized."))
    }

    pub(super) fn lvremove(&mut self, args: &[&str]) -> Result {
        let (vg, name) = match args {
            ["-f", target] => split(target)?,
            ["-f", "-S", selection, vg] => match self.asked(vg)?.selected(selection)? {
                Some(name) => (*vg, &*name.to_owned()),
                // That nothing is selected is no failure.
                None => return Ok(String::new()),
            },
            _ => return Err(Refused::usage("Invalid arguments")),
        };
        let target = format!("{vg}/{name}");
        let group = self.asked(vg)?;
        group.seqno += 1;
        let Some(volume) = group.volumes.get(name) else {
            return Err(Refused::failed(format!("Failed to find logical volume \"{target}\"")));
        };
        if volume.open || volume.held {
            return Err(Refused::failed(format!("Logical volume {target} in use.")));
        }
        if volume.wiped < volume.bytes() {
            group.removed_unwiped.push(name.to_owned());
        }
        for dependent in group.dependents(name) {
            group.volumes.remove(&dependent);
        }
        group.volumes.remove(name);
        // Thin snapshots forget where they came from.
        for volume in group.volumes.values_mut().filter(|volume| volume.origin.as_deref() == Some(name)) {
            volume.origin = None;
        }
        Ok(format!("Logical volume \"{name}\" successfully removed."))
    }

    pub(super) fn lvchange(&mut self, args: &[&str]) -> Result {
        let (options, vg, name) = match args {
            [options @ .., "-S", selection, vg] => match self.asked(vg)?.selected(selection)? {
                Some(name) => (options, *vg, name.to_owned()),
                None => return Ok(String::new()),
            },
            [options @ .., target] => {
                let (vg, name) = split(target)?;
                (options, vg, name.to_owned())
            }
            [] => return Err(Refused::usage("Invalid arguments")),
        };
        let target = format!("{vg}/{name}");
        let group = self.changeable(vg)?;
        let Some(volume) = group.volumes.get_mut(&name) else {
            return Err(Refused::failed(format!("Failed to find logical volume \"{target}\"")));
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
                _ => return Err(Refused::usage(format!("unrecognized option {option:?}"))),
            }
        }
        Ok(format!("Logical volume {target} changed."))
    }

    pub(super) fn lvrename(&mut self, args: &[&str]) -> Result {
        let [vg, name, new] = args else {
            return Err(Refused::usage("Old and new logical volume names required"));
        };
        let group = self.changeable(vg)?;
        if group.volumes.contains_key(*new) {
            return Err(Refused::failed(format!("Logical Volume \"{new}\" already exists in volume group \"{vg}\"")));
        }
        let Some(volume) = group.volumes.remove(*name) else {
            return Err(Refused::failed(format!(
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

    fn asked(&mut self, vg: &str) -> Result<&mut Group> {
        self.groups.get_mut(vg).ok_or_else(|| Refused::no_group(vg))
    }

    fn changeable(&mut self, vg: &str) -> Result<&mut Group> {
        let group = self.asked(vg)?;
        if group.missing_pvs > 0 {
            let hint = "See vgreduce --removemissing and vgextend --restoremissing.";
            return Err(Refused::failed(format!("Cannot change VG {vg} while PVs are missing.\n  {hint}")));
        }
        group.seqno += 1;
        Ok(group)
    }
}

impl Creation {
    fn parse(args: &[&str]) -> Result<Self> {
        let mut creation = Self { stripes: 1, ..Self::default() };
        let mut words = args.iter().flat_map(|word| match word.split_once('=') {
            Some((option, value)) if option.starts_with("--") => vec![option, value],
            _ => vec![*word],
        });
        while let Some(word) = words.next() {
            if !word.starts_with('-') {
                word.clone_into(&mut creation.vg);
                continue;
            }
            if word == "-y" {
                continue;
            }
            if word == "-s" {
                creation.is_snapshot = true;
                continue;
            }
            if let Some((_, values)) = HARMLESS.iter().find(|(option, _)| *option == word) {
                words.by_ref().take(*values).for_each(drop);
                continue;
            }
            let value = words.next().ok_or_else(|| Refused::usage(format!("option requires an argument: {word}")))?;
            let number = || value.parse().map_err(|_| Refused::usage(format!("Invalid argument for {word}: {value}")));
            match word {
                "-n" => value.clone_into(&mut creation.name),
                "-L" | "-V" => creation.bytes = parse_bytes(value)?,
                "-T" => {
                    let (vg, pool) = split(value)?;
                    vg.clone_into(&mut creation.vg);
                    creation.pool = Some(pool.to_owned());
                }
                "--addtag" if !creation.tags.iter().any(|tag| tag == value) => creation.tags.push(value.to_owned()),
                "-i" | "--stripes" => creation.stripes = number()?,
                "-m" | "--mirrors" => creation.mirrors = number()?,
                "--type" if value == "raid1" => creation.mirrors = creation.mirrors.max(1),
                "-p" => creation.read_only = value == "r",
                "--addtag" | "--type" | "-W" | "-k" | "-I" | "--stripesize" => {}
                _ => return Err(Refused::usage(format!("unrecognized option '{word}'"))),
            }
        }
        if creation.bytes == 0 && !creation.is_snapshot {
            return Err(Refused { code: 3, stderr: "  --size may not be zero.\n".to_owned() });
        }
        Ok(creation)
    }
}

fn parse_bytes(text: &str) -> Result<u64> {
    let invalid = || Refused::usage(format!("Invalid argument for --size: {text}"));
    let bytes: u64 = text.strip_suffix('b').and_then(|bytes| bytes.parse().ok()).ok_or_else(invalid)?;
    if bytes.is_multiple_of(512) { Ok(bytes) } else { Err(invalid()) }
}

fn split(target: &str) -> Result<(&str, &str)> {
    target.split_once('/').ok_or_else(|| Refused::usage(format!("\"{target}\": Invalid path for Logical Volume.")))
}
