//! Thin pools: creates and extends them, and asks who else does.

use std::slice;

use super::{Changed, Lvm};
use crate::report;
use crate::{Error, Host, LogicalVolume, LvName, LvmCommand, NewPool, PoolSizes, Tag, VgName};

impl<R: Host> Lvm<R> {
    /// Creates a thin pool with a making tag, and removes that tag in a second process. A plain volume with the tag is
    /// the remains of an interrupted creation.
    pub async fn create_pool(&self, pool: &NewPool<'_>, making: &Tag) -> Changed {
        let &NewPool { vg, name, .. } = pool;
        let is_pool = |found: Option<&LogicalVolume>| found.is_some_and(|found| found.attr.is_thin_pool());
        let commands = vec![LvmCommand::create_pool(pool)];
        let begun = self.change(vg, name, commands, |found, result| is_pool(found) && result.is_created()).await;
        if begun.done.is_err() {
            return begun;
        }
        self.change_tags(vg, name, &[], slice::from_ref(making)).await
    }

    /// Extends a thin pool to at least these sizes, the metadata first: a pool without space for metadata accepts no
    /// data either.
    pub async fn extend_pool(&self, vg: &VgName, name: &LvName, sizes: PoolSizes) -> Changed {
        let metadata = sizes.metadata.map(|bytes| LvmCommand::extend_metadata(vg, name, bytes));
        let data = sizes.data.map(|bytes| LvmCommand::extend(vg, name, bytes));
        let is_done = |pool: &LogicalVolume| {
            sizes.data.is_none_or(|bytes| pool.size >= bytes)
                && sizes.metadata.is_none_or(|bytes| pool.metadata_size >= Some(bytes))
        };
        let commands = metadata.into_iter().chain(data).collect();
        self.change(vg, name, commands, |pool, _| pool.is_some_and(is_done)).await
    }

    /// Returns whether dmeventd monitors a volume.
    pub async fn is_monitored(&self, vg: &VgName, name: &LvName) -> Result<bool, Error> {
        self.parse(&LvmCommand::monitoring(vg, name), report::is_monitored).await
    }
}
