//! Answers `GET /devicegroup` and `GET /volume` with what lvmd knows now, which costs it no process. Nothing is kept.

mod lists;

use std::collections::{BTreeMap, HashSet};

use futures::TryStreamExt as _;
use http::StatusCode;
use lvmd_client::{DeviceClasses, LvmdClient, LvmdError};
use tokio::sync::watch;
use topolvm_kube::LogicalVolumes;
use topolvm_proto::lvmd::WatchStorageResponse;
use topolvm_runtime::inventory_server::{InventoryList, InventorySource, Response, json, refusal};

use lists::{DeviceGroup, Volume};

/// The lists of this node.
#[derive(Clone, Debug)]
pub struct Inventory {
    /// The lvmd that knows the volume groups and the LVs.
    pub lvmd: LvmdClient,
    /// The device classes, as lvmd reported them last.
    pub device_classes: watch::Receiver<DeviceClasses>,
    /// The objects of this node, whose LVs are listed.
    pub volumes: LogicalVolumes,
}

/// Error of making a list.
#[derive(Debug, thiserror::Error)]
enum InventoryError {
    #[error("this lvmd does not report volume groups; run the lvmd of the same release as topolvm-node")]
    Unimplemented,
    #[error("{0}; {1}")]
    Lvmd(LvmdError, &'static str),
    #[error("lvmd ended during the request; try again")]
    Ended,
    #[error("topolvm-node has not received the LogicalVolumes or the device classes of this node yet; try again")]
    NotListed,
}

impl InventorySource for Inventory {
    async fn answer(&self, list: InventoryList) -> Response {
        let made = match list {
            InventoryList::DeviceGroups => self.device_groups().await.map(|groups| serde_json::to_vec(&groups)),
            InventoryList::Volumes => self.own_volumes().await.map(|volumes| serde_json::to_vec(&volumes)),
        };
        match made {
            Ok(Ok(body)) => json(body),
            Ok(Err(error)) => refusal(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
            Err(error @ InventoryError::Unimplemented) => refusal(StatusCode::NOT_IMPLEMENTED, &error.to_string()),
            Err(error) => refusal(StatusCode::SERVICE_UNAVAILABLE, &error.to_string()),
        }
    }
}

impl Inventory {
    fn error(&self, error: LvmdError) -> InventoryError {
        if error.is_unimplemented() {
            InventoryError::Unimplemented
        } else {
            InventoryError::Lvmd(error, self.lvmd.remedy())
        }
    }

    async fn device_groups(&self) -> Result<Vec<DeviceGroup>, InventoryError> {
        let asked = self.lvmd.watch_storage().await;
        // The first message comes at once and is complete
        let first = asked.map_err(|error| self.error(error))?.try_next().await;
        let storage: WatchStorageResponse = first.map_err(|error| self.error(error))?.ok_or(InventoryError::Ended)?;
        Ok(lists::device_groups(storage))
    }

    /// Lists the LVs of the LogicalVolumes of this node. All classes are listed, because one may have had its volumes
    /// where another has them now; lvmd is not asked for single volumes, for which it might have to ask LVM.
    async fn own_volumes(&self) -> Result<Vec<Volume>, InventoryError> {
        let classes = self.device_classes.borrow().clone();
        if !self.volumes.is_listed() || !classes.is_connected {
            return Err(InventoryError::NotListed);
        }
        let objects = self.volumes.state();
        let own: HashSet<_> = objects.iter().filter_map(|volume| volume.volume_id()).collect();
        let mut found = BTreeMap::new();
        // What LVM does not find cannot be listed
        for class in classes.classes.iter().filter(|class| class.group_bytes > 0) {
            let listed = self.lvmd.list_as_reported(&class.name).await.map_err(|error| self.error(error))?;
            let ours = listed.into_iter().filter(|lv| own.contains(lv.name.as_str()));
            found.extend(ours.map(|lv| (lv.name.clone(), lv)));
        }
        Ok(found.into_values().map(Volume::from).collect())
    }
}
