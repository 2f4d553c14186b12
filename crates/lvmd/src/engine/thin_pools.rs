//! The upkeep of thin pools: makes those of disk groups, and extends them.

use std::sync::Arc;
use std::time::Duration;

use lvm::{FullName, Host, VolumeGroup};
use topolvm_runtime::error_chain;

use super::group::Group;
use super::pool_upkeep::PoolStatus;
use super::state::Engine;
use crate::device_class::{DeviceClass, DeviceClasses, PoolPlan, PoolStep, ThinPool};
use crate::error::Error;

/// Time after which LVM is asked again whether it extends a pool by itself.
const ASK_AGAIN: Duration = Duration::from_mins(10);
/// The threshold of lvm.conf at which LVM extends no pool by itself.
const NO_EXTENSION: u32 = 100;

impl<R: Host> Engine<R> {
    /// Returns the upkeep of the thin pools that lvmd keeps up.
    pub(crate) fn pool_status(&self) -> Vec<PoolStatus> {
        self.groups().values().flat_map(|group| group.pool_upkeep.status()).collect()
    }

    /// Takes the next step for each thin pool of a group that lvmd keeps up. The caller holds the group's lock, and the
    /// cache of the group is up to date.
    pub(super) async fn keep_up_pools(&self, group: &Group) {
        let classes = self.classes();
        let kept_up: Vec<_> = classes.iter().filter(|class| is_kept_up(class, group)).collect();
        group.pool_upkeep.retain(|name| kept_up.iter().any(|class| class.name == name));
        for class in kept_up {
            if let (Some(pool), Some(known)) = (&class.thin_pool, group.cached()) {
                self.keep_up_pool(group, &classes, class, pool, &known).await;
            }
        }
    }

    async fn keep_up_pool(
        &self,
        group: &Group,
        classes: &DeviceClasses,
        class: &DeviceClass,
        pool: &ThinPool,
        known: &VolumeGroup,
    ) {
        let plan = self.without_what_lvm_does(group, class, pool, pool.plan(classes, known)).await;
        if group.pool_upkeep.set_obstacle(&class.name, plan.obstacle.as_deref()) {
            if let Some(reason) = &plan.obstacle {
                tracing::warn!(class = class.name, reason, "a thin pool is not kept up");
            }
            self.publish();
        }
        if plan.step.is_none() {
            if group.pool_upkeep.forget_failure(&class.name) {
                self.publish();
            }
            return;
        }
        if !group.pool_upkeep.is_due(&class.name) {
            return;
        }
        let name = FullName::new(&group.name, &pool.name);
        match self.plan_again_and_act(group, classes, pool).await {
            Ok(None) => {}
            Ok(Some(step)) => {
                group.pool_upkeep.note_success(&class.name, matches!(step, PoolStep::Extend { .. }));
                tracing::info!(class = class.name, pool = %name, %step, "kept up a thin pool");
            }
            Err(error) => {
                let error = error_chain(&error);
                tracing::error!(class = class.name, pool = %name, error, "cannot keep up a thin pool");
                group.pool_upkeep.note_failure(&class.name, format!("thin pool {name} is not kept up: {error}"));
            }
        }
        self.publish();
    }

    /// Returns the plan without the growth of a pool that fills up if LVM extends it by itself: one of them must be in
    /// charge. LVM is asked where its threshold makes that possible.
    async fn without_what_lvm_does(
        &self,
        group: &Group,
        class: &DeviceClass,
        pool: &ThinPool,
        plan: PoolPlan,
    ) -> PoolPlan {
        let is_there = group.cached().is_some_and(|known| pool.find(&known).is_some());
        if pool.growth.is_none() || pool.threshold >= NO_EXTENSION || !is_there {
            return plan;
        }
        let is_due = matches!(plan.step, Some(PoolStep::Extend { fills_up: true, .. }));
        let known = group.pool_upkeep.is_monitored(&class.name, ASK_AGAIN);
        let asked = match known.filter(|is_monitored| *is_monitored || !is_due) {
            Some(is_monitored) => Ok(is_monitored),
            None => self.inner.lvm.is_monitored(&group.name, &pool.name).await,
        };
        let name = FullName::new(&group.name, &pool.name);
        let obstacle = match asked {
            Ok(is_monitored) => {
                if known.is_none() || known == Some(false) && is_monitored {
                    group.pool_upkeep.set_monitored(&class.name, is_monitored);
                }
                if !is_monitored {
                    return plan;
                }
                let threshold = pool.threshold;
                format!(
                    "thin pool {name} is extended by LVM itself (thin_pool_autoextend_threshold is {threshold} in \
                     lvm.conf, and dmeventd watches the pool), so grow-at-percent has no effect; take it out, or set \
                     the threshold to 100"
                )
            }
            Err(error) => {
                let error = error_chain(&error);
                format!("thin pool {name} does not grow: LVM does not say whether it extends it by itself: {error}")
            }
        };
        PoolPlan { step: plan.step.filter(|_| !is_due), obstacle: Some(obstacle) }
    }

    /// Plans with the group as it is on the disks, and takes the step.
    async fn plan_again_and_act(
        &self,
        group: &Group,
        classes: &DeviceClasses,
        pool: &ThinPool,
    ) -> Result<Option<PoolStep>, Error> {
        let known = self.current(group).await?;
        let Some(step) = pool.plan(classes, &known).step else { return Ok(None) };
        self.take_step(group, &known, pool, &step).await?;
        Ok(Some(step))
    }

    async fn take_step(
        &self,
        group: &Group,
        known: &Arc<VolumeGroup>,
        pool: &ThinPool,
        step: &PoolStep,
    ) -> Result<(), Error> {
        let (lvm, vg, name) = (&self.inner.lvm, &group.name, &pool.name);
        let changed = match step {
            PoolStep::Create(sizes) => {
                let Some(share) = &pool.share else { return Ok(()) };
                let making = self.inner.instance.new_making_tag()?;
                let tags = [share.tag.clone(), making.clone()];
                lvm.create_pool(&pool.creation(share, known, *sizes, &tags), &making).await
            }
            PoolStep::Discard { uuid, making } => lvm.remove_if(vg, name, uuid, Some(making.as_str())).await,
            PoolStep::Finish { making } => lvm.change_tags(vg, name, &[], std::slice::from_ref(making)).await,
            PoolStep::Extend { sizes, .. } => lvm.extend_pool(vg, name, *sizes).await,
        };
        Ok(self.store_outcome(group, changed)?)
    }
}

/// Returns whether lvmd keeps up the thin pool of a class in this group.
fn is_kept_up(class: &DeviceClass, group: &Group) -> bool {
    class.volume_group == group.name && class.thin_pool.as_ref().is_some_and(ThinPool::is_kept_up)
}
