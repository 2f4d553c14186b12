//! Maintains thin pools: makes those of disk groups, and extends them.

use std::slice;
use std::sync::Arc;
use std::time::Duration;

use lvm::{FullName, Host, VolumeGroup};
use lvmd_config::{DeviceClass, DeviceClasses, PoolPlan, PoolStep, ThinPool};
use topolvm_runtime::error_chain;

use super::group::Group;
use super::state::LockedGroup;
use crate::error::Error;

/// Time after which LVM is asked again whether it extends a pool automatically.
const ASK_AGAIN: Duration = Duration::from_mins(10);
/// The threshold of lvm.conf at which LVM extends no pool automatically.
const NO_EXTENSION: u32 = 100;

/// The maintenance of the thin pools of a locked group, which needs an up-to-date cache.
pub(super) struct PoolMaintainer<'a, R> {
    group: &'a mut LockedGroup<R>,
    classes: Arc<DeviceClasses>,
}

impl<'a, R: Host> PoolMaintainer<'a, R> {
    pub(super) fn new(group: &'a mut LockedGroup<R>) -> Self {
        let classes = group.shared().classes();
        Self { group, classes }
    }

    /// Takes the next step for each thin pool that lvmd maintains.
    pub(super) async fn maintain(mut self) {
        let classes = Arc::clone(&self.classes);
        let maintained: Vec<_> = classes.iter().filter(|class| is_maintained(class, self.group)).collect();
        self.group.pool_maintenance.retain(|name| maintained.iter().any(|class| class.name == name));
        for class in maintained {
            if let (Some(pool), Some(known)) = (&class.thin_pool, self.group.cached()) {
                self.maintain_pool(class, pool, &known).await;
            }
        }
    }

    async fn maintain_pool(&mut self, class: &DeviceClass, pool: &ThinPool, known: &VolumeGroup) {
        let plan = self.without_what_lvm_does(class, pool, pool.plan(&self.classes, known)).await;
        if self.group.pool_maintenance.set_obstacle(&class.name, plan.obstacle.as_deref()) {
            if let Some(reason) = &plan.obstacle {
                tracing::warn!(class = class.name, reason, "a thin pool is not maintained");
            }
            self.group.shared().publish();
        }
        if plan.step.is_none() {
            if self.group.pool_maintenance.forget_failure(&class.name) {
                self.group.shared().publish();
            }
            return;
        }
        if !self.group.pool_maintenance.is_due(&class.name) {
            return;
        }
        let name = FullName::new(&known.name, &pool.name);
        match self.plan_again_and_act(pool).await {
            Ok(None) => {}
            Ok(Some(step)) => {
                self.group.pool_maintenance.note_success(&class.name, matches!(step, PoolStep::Extend { .. }));
                tracing::info!(class = class.name, pool = %name, %step, "maintained a thin pool");
            }
            Err(error) => {
                let error = error_chain(&error);
                tracing::error!(class = class.name, pool = %name, error, "cannot maintain a thin pool");
                let failure = format!("thin pool {name} is not maintained: {error}");
                self.group.pool_maintenance.note_failure(&class.name, failure);
            }
        }
        self.group.shared().publish();
    }

    /// Returns the plan without the growth of a pool that fills up if LVM extends it automatically: one of them must be
    /// in charge. LVM is asked where its threshold makes that possible.
    async fn without_what_lvm_does(&self, class: &DeviceClass, pool: &ThinPool, plan: PoolPlan) -> PoolPlan {
        let group = &*self.group;
        let exists = group.cached().is_some_and(|known| pool.find(&known).is_some());
        if pool.growth.is_none() || pool.threshold >= NO_EXTENSION || !exists {
            return plan;
        }
        let is_due = matches!(plan.step, Some(PoolStep::Extend { fills_up: true, .. }));
        let known = group.pool_maintenance.is_monitored(&class.name, ASK_AGAIN);
        let asked = match known.filter(|is_monitored| *is_monitored || !is_due) {
            Some(is_monitored) => Ok(is_monitored),
            None => group.lvm().is_monitored(&group.name, &pool.name).await,
        };
        let name = FullName::new(&group.name, &pool.name);
        let obstacle = match asked {
            Ok(is_monitored) => {
                if known.is_none() || known == Some(false) && is_monitored {
                    group.pool_maintenance.set_monitored(&class.name, is_monitored);
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
                format!("thin pool {name} does not grow: LVM does not say whether it extends it automatically: {error}")
            }
        };
        PoolPlan { step: plan.step.filter(|_| !is_due), obstacle: Some(obstacle) }
    }

    /// Plans with the group as it is on the disks, and takes the step.
    async fn plan_again_and_act(&mut self, pool: &ThinPool) -> Result<Option<PoolStep>, Error> {
        let known = self.group.current().await?;
        let Some(step) = pool.plan(&self.classes, &known).step else { return Ok(None) };
        self.take_step(&known, pool, &step).await?;
        Ok(Some(step))
    }

    async fn take_step(&mut self, known: &Arc<VolumeGroup>, pool: &ThinPool, step: &PoolStep) -> Result<(), Error> {
        let (lvm, vg, name) = (self.group.lvm(), &known.name, &pool.name);
        let changed = match step {
            PoolStep::Create(sizes) => {
                let Some(share) = &pool.share else { return Ok(()) };
                let making = self.group.shared().instance.new_making_tag()?;
                let tags = [share.tag.clone(), making.clone()];
                lvm.create_pool(&pool.creation(share, known, *sizes, &tags), &making).await
            }
            PoolStep::Discard { uuid, making } => lvm.remove_if(vg, name, uuid, Some(making.as_str())).await,
            PoolStep::Finish { making } => lvm.change_tags(vg, name, &[], slice::from_ref(making)).await,
            PoolStep::Extend { sizes, .. } => lvm.extend_pool(vg, name, *sizes).await,
        };
        Ok(self.group.store_outcome(changed)?)
    }
}

/// Returns whether lvmd maintains the thin pool of a class in this group.
fn is_maintained(class: &DeviceClass, group: &Group) -> bool {
    class.volume_group == group.name && class.thin_pool.as_ref().is_some_and(ThinPool::is_maintained)
}
