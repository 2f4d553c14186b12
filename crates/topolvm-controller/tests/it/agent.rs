//! A node agent in miniature: it makes, grows and removes volumes as long as there is room.

use std::sync::{Arc, Mutex};

use jiff::Timestamp;
use serde_json::{Value, json};
use topolvm_api::{LogicalVolume, format_bytes, parse_bytes, taken_together_condition};
use topolvm_testkit::ApiServer;

use crate::harness::{LVS, MIB};

/// LVM rounds sizes up to this.
const EXTENT: u64 = 4 * MIB;

/// A change of an object.
type Edit = Box<dyn FnOnce(&mut Value)>;

/// The agent of all nodes. Clones are the same agent.
#[derive(Clone, Debug)]
pub(crate) struct Agent {
    free: Arc<Mutex<u64>>,
    /// False for an agent that takes the snapshots of a group one by one.
    knows_groups: bool,
}

impl Agent {
    pub(crate) fn with_free(bytes: u64) -> Self {
        Self { free: Arc::new(Mutex::new(bytes)), knows_groups: true }
    }

    pub(crate) fn without_groups(bytes: u64) -> Self {
        Self { knows_groups: false, ..Self::with_free(bytes) }
    }

    /// Runs forever.
    pub(crate) async fn run(self, api: ApiServer) {
        let mut changes = api.subscribe(LVS);
        loop {
            for volume in api.list_json(LVS) {
                let name = volume["metadata"]["name"].as_str().unwrap().to_owned();
                if let Some(edit) = self.work(&volume) {
                    api.edit(LVS, "", &name, edit);
                }
            }
            changes.next().await;
        }
    }

    /// Returns the change of a volume that is due, if there is one.
    fn work(&self, volume: &Value) -> Option<Edit> {
        let status = &volume["status"];
        if !volume["metadata"]["deletionTimestamp"].is_null() {
            return Some(Box::new(|volume| volume["metadata"]["finalizers"] = json!([])));
        }
        let bytes = |quantity: &Value| parse_bytes(&serde_json::from_value(quantity.clone()).unwrap()).unwrap();
        let wanted = bytes(&volume["spec"]["size"]).next_multiple_of(EXTENT);
        let current = if status["currentSize"].is_null() { 0 } else { bytes(&status["currentSize"]) };
        let is_made = !status["volumeID"].is_null();
        if wanted <= current || (!is_made && !status["code"].is_null()) {
            return None;
        }
        let more = wanted - current;
        let mut free = self.free.lock().unwrap();
        let new = if more <= *free {
            *free -= more;
            let mut made = json!({"volumeID": volume["metadata"]["uid"], "currentSize": format_bytes(wanted)});
            if self.knows_groups && volume["metadata"]["annotations"]["topolvm.io/snapshot-group"].is_string() {
                let object: LogicalVolume = serde_json::from_value(volume.clone()).unwrap();
                made["conditions"] = json!([taken_together_condition(&object, Timestamp::UNIX_EPOCH)]);
            }
            made
        } else {
            let mut failed = json!({"code": 8, "message": format!("no room: free={free}, wanted={more}")});
            if is_made {
                failed["volumeID"] = status["volumeID"].clone();
                failed["currentSize"] = status["currentSize"].clone();
            }
            failed
        };
        if new == *status {
            // The API server takes no notice of a write that changes nothing
            return None;
        }
        Some(Box::new(move |volume| volume["status"] = new))
    }
}
