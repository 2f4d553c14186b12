//! The next step for the thin pool of a class, planned from a report on its group alone.

use std::fmt;

use lvm::{FullName, LogicalVolume, LvmCommand, NewPool, PoolSizes, Problem, Tag, VolumeGroup};

use super::pool_growth::{DueGrowth, Limit, PoolGrowth};
use super::pool_share::{NewSizes, PoolShare};
use super::pool_space::GrowthSpace;
use super::{DeviceClass, DeviceClasses, ThinPool};
use crate::disk_group::Mode;
use crate::tags;

/// The next step for a pool, or the reason why there is none although there should be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolPlan {
    /// The next step.
    pub step: Option<PoolStep>,
    /// The reason why something is not done, in a sentence with its remedy.
    pub obstacle: Option<String>,
}

/// One step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PoolStep {
    /// Makes the pool.
    Create(NewSizes),
    /// Removes what is left of a pool whose creation broke off: the volume with this identity and tag, which is no pool
    /// yet and so has no volumes.
    Discard {
        /// LVM's identity of it.
        uuid: String,
        /// Its tag.
        making: String,
    },
    /// Takes this tag away from a pool that was made when lvmd died.
    Finish {
        /// The tag.
        making: Tag,
    },
    /// Makes it larger.
    Extend {
        /// The sizes that it grows to.
        sizes: PoolSizes,
        /// True if it fills up, and its group has not grown.
        fills_up: bool,
    },
}

/// Describes the step.
impl fmt::Display for PoolStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Create(NewSizes { data, metadata }) => {
                write!(f, "create it with {data} bytes and {metadata} bytes of metadata")
            }
            Self::Discard { .. } => f.write_str("remove the leftovers of its interrupted creation"),
            Self::Finish { .. } => f.write_str("remove its making tag"),
            Self::Extend { sizes: PoolSizes { data, metadata }, .. } => {
                let sizes = [
                    data.map(|bytes| format!("{bytes} bytes")),
                    metadata.map(|bytes| format!("{bytes} bytes of metadata")),
                ];
                write!(f, "extend it to {}", sizes.into_iter().flatten().collect::<Vec<_>>().join(" and "))
            }
        }
    }
}

impl PoolPlan {
    fn step(step: PoolStep) -> Self {
        Self { step: Some(step), obstacle: None }
    }

    fn obstacle(why: String) -> Self {
        Self { step: None, obstacle: Some(why) }
    }
}

impl ThinPool {
    /// Returns whether lvmd makes or extends it.
    pub fn is_maintained(&self) -> bool {
        self.share.is_some() || self.growth.is_some()
    }

    /// Returns the next change of this pool. While physical volumes are missing LVM changes nothing, and the health of
    /// the group reports that.
    pub fn plan(&self, classes: &DeviceClasses, group: &VolumeGroup) -> PoolPlan {
        if group.missing_pvs > 0 {
            return PoolPlan::default();
        }
        let space = GrowthSpace::of(group, classes);
        let plan = match (&self.share, group.volume(self.name.as_str())) {
            (Some(share), None) => self.plan_creation(share, group, &space),
            (Some(share), Some(found)) => self.plan_share(share, found, group, &space),
            (None, _) => PoolPlan::default(),
        };
        match &self.growth {
            Some(growth) if plan == PoolPlan::default() => self.plan_growth(growth, group, &space),
            _ => plan,
        }
    }

    /// Plans the growth of a pool that fills up.
    fn plan_growth(&self, growth: &PoolGrowth, group: &VolumeGroup, space: &GrowthSpace) -> PoolPlan {
        let may_change = |pool: &&LogicalVolume| self.share.as_ref().is_none_or(|share| share.owns(pool));
        let pool = self.find(group).filter(|pool| is_healthy(pool)).filter(may_change);
        let Some(DueGrowth { sizes, limit }) = pool.map(|pool| growth.due(pool, space)) else {
            return PoolPlan::default();
        };
        let name = FullName::new(&group.name, &self.name);
        let is_due = sizes != PoolSizes::default();
        if is_due && self.share.as_ref().is_some_and(|share| share.mode == Mode::Report) {
            return PoolPlan::obstacle(format!(
                "thin pool {name} is filling up and would be extended (mode is report); extend it with `lvextend -L \
                 +SIZE {name}`"
            ));
        }
        PoolPlan {
            step: is_due.then_some(PoolStep::Extend { sizes, fills_up: true }),
            obstacle: limit.map(|limit| describe_limit(limit, &name, growth.at_percent, group)),
        }
    }

    fn plan_creation(&self, share: &PoolShare, group: &VolumeGroup, space: &GrowthSpace) -> PoolPlan {
        let (name, vg, tag) = (FullName::new(&group.name, &self.name), &group.name, &share.tag);
        if !group.has_tag(tag) {
            return PoolPlan::obstacle(format!(
                "thin pool {name} is not created: volume group {vg} does not belong to the disk group; to assign it, \
                 run `vgchange --addtag {tag} {vg}`"
            ));
        }
        let Some(sizes) = share.sizes(group, space) else {
            return PoolPlan::obstacle(format!(
                "thin pool {name} is not created: not enough free space in volume group {vg}; add a disk, or remove \
                 logical volumes"
            ));
        };
        match share.mode {
            Mode::Auto => PoolPlan::step(PoolStep::Create(sizes)),
            Mode::Report => {
                let command = LvmCommand::create_pool(&self.creation(share, group, sizes, std::slice::from_ref(tag)));
                PoolPlan::obstacle(format!("thin pool {name} would be created with `{command}` (mode is report)"))
            }
        }
    }

    /// Returns the pool that lvmd makes.
    pub fn creation<'a>(
        &'a self,
        share: &PoolShare,
        group: &'a VolumeGroup,
        sizes: NewSizes,
        tags: &'a [Tag],
    ) -> NewPool<'a> {
        let NewSizes { data, metadata } = sizes;
        NewPool { vg: &group.name, name: &self.name, bytes: data, metadata, chunk: share.chunk, tags }
    }

    /// Plans for a volume that has the name of the pool. One without the tag of the disk group is not touched.
    fn plan_share(
        &self,
        share: &PoolShare,
        found: &LogicalVolume,
        group: &VolumeGroup,
        space: &GrowthSpace,
    ) -> PoolPlan {
        let name = FullName::new(&group.name, &self.name);
        let making = tags::making_tag(found).filter(|_| share.owns(found));
        match (found.attr.is_thin_pool(), making) {
            (false, None) => PoolPlan::obstacle(format!(
                "thin pool {name} is not created: another logical volume has its name; rename that volume, or change \
                 the name of the pool in the configuration"
            )),
            (_, Some(_)) if share.mode == Mode::Report => PoolPlan::default(),
            (false, Some(making)) => {
                PoolPlan::step(PoolStep::Discard { uuid: found.uuid.to_string(), making: making.to_owned() })
            }
            (true, Some(making)) => match making.parse() {
                Ok(making) => PoolPlan::step(PoolStep::Finish { making }),
                Err(_) => PoolPlan::default(),
            },
            (true, None) if share.owns(found) && is_healthy(found) => self.plan_extension(share, found, group, space),
            (true, None) => PoolPlan::default(),
        }
    }

    fn plan_extension(
        &self,
        share: &PoolShare,
        pool: &LogicalVolume,
        group: &VolumeGroup,
        space: &GrowthSpace,
    ) -> PoolPlan {
        let sizes = share.growth(pool, group, space);
        if sizes == PoolSizes::default() {
            return PoolPlan::default();
        }
        match share.mode {
            Mode::Auto => PoolPlan::step(PoolStep::Extend { sizes, fills_up: false }),
            Mode::Report => {
                let name = FullName::new(&group.name, &self.name);
                let commands = extension_commands(self, group, sizes);
                PoolPlan::obstacle(format!("thin pool {name} would be extended with {commands} (mode is report)"))
            }
        }
    }
}

/// Returns whether extending a pool is enough. A pool that has failed must be repaired first, and the health of the
/// group reports that.
fn is_healthy(pool: &LogicalVolume) -> bool {
    matches!(pool.attr.problem(), None | Some(Problem::ThinPoolOutOfDataSpace))
}

/// Describes why a pool that fills up does not grow, with the remedy.
fn describe_limit(limit: Limit, name: &FullName, at: u32, group: &VolumeGroup) -> String {
    let vg = &group.name;
    match limit {
        Limit::Maximum => format!(
            "thin pool {name} is at least {at} % full and has reached maximum-size-gb; raise maximum-size-gb, or \
             delete data in the pool"
        ),
        Limit::Space => format!(
            "thin pool {name} has reached grow-at-percent, and volume group {vg} has no free space beyond spare-gb; \
             add a disk, or delete data in the pool"
        ),
        Limit::Metadata => format!(
            "the metadata of thin pool {name} is nearly full and has its maximum size; delete snapshots, or move \
             volumes to another pool"
        ),
    }
}

/// Returns the commands that extend a pool, for people.
fn extension_commands(pool: &ThinPool, group: &VolumeGroup, sizes: PoolSizes) -> String {
    let (vg, name) = (&group.name, &pool.name);
    let metadata = sizes.metadata.map(|bytes| LvmCommand::extend_metadata(vg, name, bytes));
    let data = sizes.data.map(|bytes| LvmCommand::extend(vg, name, bytes));
    let commands: Vec<_> = metadata.into_iter().chain(data).map(|command| format!("`{command}`")).collect();
    commands.join(" and ")
}

impl DeviceClass {
    /// Returns whether to offer the class while its group exists: the pool that lvmd creates must exist.
    pub fn is_created(&self, group: &VolumeGroup) -> bool {
        self.thin_pool.as_ref().is_none_or(|pool| pool.share.is_none() || pool.find(group).is_some())
    }
}
