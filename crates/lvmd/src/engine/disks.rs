//! Changes of the disks of a volume group, under its lock.

use std::sync::Arc;

use lvm::{Host, Lvm, VgName};
use topolvm_runtime::error_chain;

use super::group::Group;
use super::state::Engine;
use crate::error::Error;

impl<R: Host> Engine<R> {
    /// Runs a change of the disks of a volume group, which may not be there yet, and looks at the group afterwards.
    pub(crate) async fn change_disks<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
        &self,
        vg: &VgName,
        change: impl FnOnce(Lvm<R>) -> F,
    ) -> Result<T, Error> {
        let changing = change(self.inner.lvm.clone());
        let locked = |engine: Self, group: Arc<Group>| async move {
            let result = changing.await;
            if let Err(error) = engine.refresh(&group).await {
                let error = error_chain(&error);
                tracing::warn!(vg = %group.name, error, "cannot look at a volume group after a change of its disks");
            }
            Ok(result)
        };
        self.with_lock(self.group(vg)?, locked).await
    }
}
