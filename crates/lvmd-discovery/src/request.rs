//! Adds a disk to its disk group at a client's request, with all checks of the mode `auto` except the settle time.

use block_device::Machine;
use lvm::Host;
use lvmd_config::{DiskGroups, DiskState};
use lvmd_engine::{DiskAddition, Engine, Error};
use topolvm_runtime::error_chain;

use super::scan::Scanner;

impl<M: Machine, R: Host> Scanner<M, R> {
    /// Adds the disk if it is a candidate of exactly one group. One that is in its group already is a success.
    pub(super) async fn add_requested(
        &self,
        engine: &Engine<R>,
        groups: &DiskGroups,
        request: &DiskAddition,
    ) -> Result<(), Error> {
        let refused = |why: String| Error::DiskNotAdded { disk: request.path.clone(), why };
        let report = self.report(groups).await.map_err(|error| refused(error_chain(&error)))?;
        let found = report.disks.iter().find(|finding| finding.disk.path == request.path);
        let finding = found.ok_or_else(|| refused("disk not found".to_owned()))?;
        let stable_name = finding.disk.stable_path().unwrap_or_default();
        if stable_name != request.stable_name {
            let name = if stable_name.is_empty() { "no stable name".to_owned() } else { stable_name };
            let why = format!("it is not the requested disk: it has {name}; list the disks again");
            return Err(refused(why));
        }
        match (&finding.state, &finding.group) {
            (DiskState::Member { .. }, _) => Ok(()),
            (DiskState::Candidate, Some(group)) => {
                self.add(engine, groups, group, &finding.disk).await.map_err(|reason| refused(reason.to_string()))?;
                tracing::info!(disk = request.path, stable_name, disk_group = %group, "added a disk on request");
                Ok(())
            }
            _ => Err(refused(finding.describe(report.mode_of(finding)))),
        }
    }
}
