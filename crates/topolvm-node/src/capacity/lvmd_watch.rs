//! Follows lvmd's stream of free space and takes it up again when it breaks.

use tokio::sync::{mpsc, watch};
use topolvm_api::NodeCapacity;
use topolvm_proto::lvmd::WatchResponse;

use super::Pools;
use super::metrics::Gauges;
use crate::lvmd::Lvmd;

/// Goes on for ever. What was known last stays known while lvmd is away.
pub(super) async fn follow(
    lvmd: Lvmd,
    gauges: Gauges,
    pools: watch::Sender<Pools>,
    capacity: watch::Sender<Option<NodeCapacity>>,
    returned: mpsc::Sender<()>,
) {
    let mut backoff = super::RETRY;
    let mut is_said = false;
    loop {
        let reason = match lvmd.watch().await {
            Ok(mut stream) => loop {
                match stream.message().await {
                    Ok(Some(reading)) => {
                        if !gauges.is_connected() {
                            tracing::info!("lvmd answers");
                            gauges.set_connected(true);
                            // A message that nobody has taken yet says the same
                            let _ = returned.try_send(());
                        }
                        backoff.reset();
                        is_said = false;
                        gauges.show(&reading);
                        pools.send_replace(Pools::from(&reading));
                        capacity.send_replace(Some(node_capacity(&reading)));
                    }
                    Ok(None) => break "the stream ended".to_owned(),
                    Err(status) => break status.message().to_owned(),
                }
            },
            Err(error) => error.to_string(),
        };
        gauges.set_connected(false);
        pools.send_modify(|pools| pools.is_connected = false);
        if is_said {
            tracing::debug!(reason, "lvmd does not answer yet");
        } else {
            tracing::warn!(
                reason,
                remedy = lvmd.remedy(),
                "lost the free space of lvmd; the node's capacity stays as it was until lvmd answers"
            );
            is_said = true;
        }
        tokio::time::sleep(backoff.fail()).await;
    }
}

/// Thin classes offer what may still be promised, others what is free.
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
