//! Follows lvmd's stream of free space, and reconnects when it breaks.

use futures::TryStreamExt as _;
use lvmd_client::{DeviceClass, DeviceClasses, LvmdClient};
use tokio::sync::{mpsc, watch};
use topolvm_api::{LayoutCapacity, NodeCapacity};
use topolvm_proto::lvmd::{OptionClassItem, WatchResponse};
use topolvm_runtime::Backoff;

use super::metrics::Gauges;

/// Receivers of the free space that lvmd reports.
pub(super) struct Receivers {
    pub(super) gauges: Gauges,
    pub(super) device_classes: watch::Sender<DeviceClasses>,
    pub(super) capacity: watch::Sender<Option<NodeCapacity>>,
    /// Gets a message when lvmd has come back.
    pub(super) returned: mpsc::Sender<()>,
}

impl Receivers {
    /// Publishes what lvmd reports.
    fn publish(&self, reading: &WatchResponse) {
        if !self.gauges.is_connected() {
            tracing::info!("lvmd answers");
            self.gauges.set_connected(true);
            // A full channel holds the same message already
            let _ = self.returned.try_send(());
        }
        self.gauges.show(reading);
        self.device_classes.send_replace(DeviceClasses::from(reading));
        self.capacity.send_replace(Some(node_capacity(reading)));
    }

    /// Publishes that lvmd is away. The last values stay.
    fn disconnect(&self) {
        self.gauges.set_connected(false);
        self.device_classes.send_modify(|device_classes| device_classes.is_connected = false);
    }
}

/// Follows lvmd's stream indefinitely.
pub(super) async fn follow(lvmd: LvmdClient, receivers: Receivers, mut backoff: Backoff) {
    let mut is_logged = false;
    loop {
        let publish = |reading: WatchResponse| {
            backoff.reset();
            is_logged = false;
            receivers.publish(&reading);
        };
        let reason = follow_stream(&lvmd, publish).await;
        receivers.disconnect();
        if is_logged {
            tracing::debug!(reason, "lvmd does not answer yet");
        } else {
            tracing::warn!(
                reason,
                remedy = lvmd.remedy(),
                "lost the connection to lvmd; the published capacity of the node is not updated until lvmd answers"
            );
            is_logged = true;
        }
        tokio::time::sleep(backoff.fail()).await;
    }
}

/// Hands all that lvmd reports to `publish`. Returns why the stream has ended.
async fn follow_stream(lvmd: &LvmdClient, mut publish: impl FnMut(WatchResponse)) -> String {
    let mut stream = match lvmd.watch().await {
        Ok(stream) => stream,
        Err(error) => return error.to_string(),
    };
    loop {
        match stream.try_next().await {
            Ok(Some(reading)) => publish(reading),
            Ok(None) => return "the stream ended".to_owned(),
            Err(error) => return error.detail(),
        }
    }
}

/// Returns the free bytes of each device class, of a thin class its unprovisioned virtual capacity, and those of option
/// classes with other layouts. TopoLVM's lvmd does not report the latter.
fn node_capacity(reading: &WatchResponse) -> NodeCapacity {
    let mut capacity = NodeCapacity::default();
    capacity.set("", reading.free_bytes);
    for item in &reading.items {
        let class = DeviceClass::from(item);
        capacity.set(&class.name, class.free_bytes);
        let default = Some("").filter(|_| class.name == reading.default_class);
        for name in [class.name.as_str()].into_iter().chain(default) {
            set_layouts(&mut capacity, name, &item.option_classes);
        }
    }
    capacity
}

fn set_layouts(capacity: &mut NodeCapacity, device_class: &str, option_classes: &[OptionClassItem]) {
    for &OptionClassItem { ref lvcreate_option_class, free_bytes: free, stripes, images } in option_classes {
        capacity.set_layout(device_class, lvcreate_option_class, LayoutCapacity { free, stripes, images });
    }
}

#[cfg(test)]
mod tests {
    use topolvm_proto::lvmd::{ThinPoolItem, WatchItem};

    use super::*;

    #[test]
    fn thin_classes_offer_what_may_still_be_reserved() {
        let reading = WatchResponse {
            free_bytes: 5,
            items: vec![
                WatchItem { device_class: "thick".to_owned(), free_bytes: 5, size_bytes: 10, ..WatchItem::default() },
                WatchItem {
                    device_class: "thin".to_owned(),
                    free_bytes: 5,
                    size_bytes: 10,
                    thin_pool: Some(ThinPoolItem { overprovision_bytes: 70, ..ThinPoolItem::default() }),
                    ..WatchItem::default()
                },
            ],
            ..WatchResponse::default()
        };
        let mut expected = NodeCapacity::default();
        expected.set("", 5);
        expected.set("thick", 5);
        expected.set("thin", 70);
        assert_eq!(node_capacity(&reading), expected);
    }
}
