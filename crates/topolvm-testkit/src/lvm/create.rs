//! `lvcreate`, with LVM's rules and messages.

use super::change::{Result, parse_bytes, split_path};
use super::state::{CommandError, EXTENT, FakeVolume, Group, State};

/// Options that `lvcreate` accepts from administrators and that change nothing in the fake, with the number of
/// arguments that follow.
const IGNORED: &[(&str, usize)] = &[
    ("--alloc", 1),
    ("--chunksize", 1),
    ("--config", 1),
    ("--contiguous", 1),
    ("--discards", 1),
    ("--nosync", 0),
    ("--readahead", 1),
    ("--regionsize", 1),
    ("--zero", 1),
];

/// The parsed arguments of `lvcreate`.
#[derive(Default)]
struct Creation {
    name: String,
    bytes: u64,
    tags: Vec<String>,
    stripes: u64,
    mirrors: u64,
    /// The volume group, or the path of the origin of a snapshot.
    target: String,
    pool: Option<String>,
    is_snapshot: bool,
    read_only: bool,
    is_pool: bool,
    /// Extents of the metadata of a thin pool.
    metadata: u64,
}

impl State {
    pub(super) fn lvcreate(&mut self, args: &[&str]) -> Result {
        let wanted = Creation::parse(args)?;
        if wanted.is_snapshot {
            return self.create_snapshot(wanted);
        }
        let group = self.changeable(&wanted.target)?;
        if group.volumes.contains_key(&wanted.name) {
            return Err(CommandError::already_exists(&wanted.target, &wanted.name));
        }
        if group.max_volumes > 0 && group.volumes.len() >= group.max_volumes {
            let message = "Maximum number of logical volumes reached in volume group";
            return Err(CommandError::failed(format!("{message} {}.", wanted.target)));
        }
        let volume = match &wanted.pool {
            Some(pool) => self.new_thin_volume(&wanted, pool)?,
            None => new_volume(group, &wanted)?,
        };
        self.add_volume(&wanted.target, &wanted.name, volume);
        Ok(format!("Logical volume \"{}\" created.", wanted.name))
    }

    fn new_thin_volume(&mut self, wanted: &Creation, pool: &str) -> Result<FakeVolume> {
        let vg = &wanted.target;
        if !self.group(vg).volumes.get(pool).is_some_and(|volume| volume.attr.starts_with('t')) {
            return Err(CommandError::failed(format!("Thin pool {vg}/{pool} not found.")));
        }
        self.check_pool_threshold(vg, pool)?;
        Ok(FakeVolume { tags: wanted.tags.clone(), ..FakeVolume::thin(wanted.bytes, pool) })
    }

    /// Checks that a thin pool takes more volumes: LVM's `thin_pool_below_threshold`.
    fn check_pool_threshold(&mut self, vg: &str, pool: &str) -> Result<()> {
        let threshold = f64::from(self.thin_pool_threshold.unwrap_or(100));
        let volume = self.group(vg).volumes.get(pool).expect("no such thin pool in the fake LVM");
        let is_healthy = &volume.attr[8..9] == "-";
        let is_above = volume.data_percent > threshold || volume.metadata_percent > threshold;
        // A quarter of metadata of 4 MiB.
        if is_healthy && !is_above && volume.metadata_percent < 75.0 {
            return Ok(());
        }
        let message = "Cannot create new thin volume, free space in thin pool";
        Err(CommandError::failed(format!("{message} {vg}/{pool} reached threshold.")))
    }

    /// Creates a thin snapshot; there are no others.
    fn create_snapshot(&mut self, wanted: Creation) -> Result {
        let Creation { name, target: source, tags, read_only, .. } = wanted;
        let (vg, origin) = split_path(&source)?;
        let group = self.changeable(vg)?;
        if group.volumes.contains_key(&name) {
            return Err(CommandError::already_exists(vg, &name));
        }
        let Some(volume) = group.volumes.get(origin) else {
            return Err(CommandError::failed(format!("Failed to find logical volume \"{source}\"")));
        };
        let Some(pool) = volume.pool.clone() else {
            return Err(CommandError::failed("Please specify either size or extents with snapshots."));
        };
        let bytes = volume.bytes();
        self.check_pool_threshold(vg, &pool)?;
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
}

/// Returns a linear, striped or mirrored volume if a group has enough free space.
fn new_volume(group: &Group, wanted: &Creation) -> Result<FakeVolume> {
    let (vg, stripes, pvs) = (&wanted.target, wanted.stripes, u64::from(group.pvs));
    if stripes > pvs {
        let message = format!("Number of stripes ({stripes}) must not exceed number of physical volumes ({pvs})");
        return Err(CommandError::failed(message));
    }
    let mut volume = FakeVolume { tags: wanted.tags.clone(), stripes, ..FakeVolume::thick(wanted.bytes) };
    volume.extents = volume.extents.next_multiple_of(stripes);
    volume.allocated = volume.extents;
    if wanted.is_pool {
        volume =
            FakeVolume { tags: volume.tags, metadata_extents: wanted.metadata, ..FakeVolume::thin_pool(wanted.bytes) };
        volume.allocated = volume.extents + 2 * wanted.metadata;
    }
    let free = group.free_extents();
    if volume.extents > free {
        let required = volume.extents;
        let message =
            format!("Volume group \"{vg}\" has insufficient free space ({free} extents): {required} required.");
        return Err(CommandError::failed(message));
    }
    if wanted.mirrors > 0 {
        // Each image has an extent of metadata.
        volume.allocated = (volume.extents + 1) * (wanted.mirrors + 1);
        "rwi-a-r---".clone_into(&mut volume.attr);
    }
    if volume.allocated > free {
        return Err(CommandError::no_space(volume.allocated, free));
    }
    Ok(volume)
}

impl Creation {
    fn parse(args: &[&str]) -> Result<Self> {
        let mut creation = Self { stripes: 1, ..Self::default() };
        let mut words = args.iter().flat_map(|word| match word.split_once('=') {
            Some((option, value)) if option.starts_with("--") => vec![option, value],
            _ => vec![*word],
        });
        while let Some(word) = words.next() {
            if let Some((_, values)) = IGNORED.iter().find(|(option, _)| *option == word) {
                words.by_ref().take(*values).for_each(drop);
                continue;
            }
            match word {
                "-y" => {}
                "-s" => creation.is_snapshot = true,
                option if option.starts_with('-') => {
                    let missing = || CommandError::usage(format!("option requires an argument: {option}"));
                    creation.set_option(option, words.next().ok_or_else(missing)?)?;
                }
                target => target.clone_into(&mut creation.target),
            }
        }
        if creation.bytes == 0 && !creation.is_snapshot {
            return Err(CommandError { code: 3, stderr: "  --size may not be zero.\n".to_owned() });
        }
        Ok(creation)
    }

    fn set_option(&mut self, option: &str, value: &str) -> Result<()> {
        let number =
            || value.parse().map_err(|_| CommandError::usage(format!("Invalid argument for {option}: {value}")));
        match option {
            "-n" => value.clone_into(&mut self.name),
            "-L" | "-V" => self.bytes = parse_bytes(value)?,
            "-T" => {
                let (vg, pool) = split_path(value)?;
                vg.clone_into(&mut self.target);
                self.pool = Some(pool.to_owned());
            }
            "--addtag" if !self.tags.iter().any(|tag| tag == value) => self.tags.push(value.to_owned()),
            "-i" | "--stripes" => self.stripes = number()?,
            "-m" | "--mirrors" => self.mirrors = number()?,
            "--type" if value == "thin-pool" => self.is_pool = true,
            "--poolmetadatasize" => self.metadata = parse_bytes(value)?.div_ceil(EXTENT),
            "--type" if value == "raid1" => self.mirrors = self.mirrors.max(1),
            "-p" => self.read_only = value == "r",
            "--addtag" | "--type" | "-W" | "-k" | "-I" | "--stripesize" => {}
            _ => return Err(CommandError::usage(format!("unrecognized option '{option}'"))),
        }
        Ok(())
    }
}
