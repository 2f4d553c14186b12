//! Follows lvmd's stream of free space, and reconnects when it breaks.

use futures::TryStreamExt as _;
use tokio::sync::{mpsc, watch};
use topolvm_api::NodeCapacity;
use topolvm_proto::lvmd::WatchResponse;
use topolvm_runtime::Backoff;

use super::device_classes::DeviceClasses;
use super::metrics::Gauges;
use crate::lvmd_client::LvmdClient;

/// Follows the stream for ever. The last values stay while lvmd is away.
pub(super) async fn follow(
    lvmd: LvmdClient,
    gauges: Gauges,
    device_classes: watch::Sender<DeviceClasses>,
    capacity: watch::Sender<Option<NodeCapacity>>,
    returned: mpsc::Sender<()>,
    mut backoff: Backoff,
) {
    let mut is_logged = false;
    loop {
        let reason = match lvmd.watch().await {
            Ok(mut stream) => loop {
                match stream.try_next().await {
                    Ok(Some(reading)) => {
                        if !gauges.is_connected() {
                            tracing::info!("lvmd answers");
                            gauges.set_connected(true);
                            // A full channel holds the same message already
                            let _ = returned.try_send(());
                        }
                        backoff.reset();
                        is_logged = false;
                        gauges.show(&reading);
                        device_classes.send_replace(DeviceClasses::from(&reading));
                        capacity.send_replace(Some(node_capacity(&reading)));
                    }
                    Ok(None) => break "the stream ended".to_owned(),
                    Err(error) => break error.detail(),
                }
            },
            Err(error) => error.to_string(),
        };
        gauges.set_connected(false);
        device_classes.send_modify(|device_classes| device_classes.is_connected = false);
        if is_logged {
            tracing::debug!(reason, "lvmd does not answer yet");
        } else {
            tracing::warn!(
                reason,
                remedy = lvmd.remedy(),
                "lost the free space of lvmd; the node's capacity stays as it was until lvmd answers"
            );
            is_logged = true;
        }
        tokio::time::sleep(backoff.fail()).await;
    }
}

/// Returns the free bytes of each device class: of a thin class those that may still be promised.
fn node_capacity(reading: &WatchResponse) -> NodeCapacity {
    let mut capacity = NodeCapacity::default();
    capacity.set("", reading.free_bytes);
    for item in &reading.items {
        let free = item.thin_pool.as_ref().map_or(item.free_bytes, |pool| pool.overprovision_bytes);
        capacity.set(&item.device_class, free);
    }
    capacity
}

#[cfg(test)]
mod tests {
    use topolvm_proto::lvmd::{ThinPoolItem, WatchItem};

    use super::*;

    #[test]
    fn thin_classes_offer_what_may_still_be_promised() {
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
