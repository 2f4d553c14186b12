//! Prometheus gauges of free space, with the names that existing dashboards use.

use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use topolvm_proto::lvmd::WatchResponse;

/// Labels of a gauge of a device class.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByClass {
    device_class: String,
}

type Bytes = Family<ByClass, Gauge<u64, AtomicU64>>;
type Percent = Family<ByClass, Gauge<f64, AtomicU64>>;

/// Gauges of a node.
#[derive(Clone, Debug, Default)]
pub(super) struct Gauges {
    connected: Gauge,
    available: Bytes,
    size: Bytes,
    pool_size: Bytes,
    pool_data: Percent,
    pool_metadata: Percent,
    pool_available: Bytes,
}

impl Gauges {
    /// Makes the gauges and registers them.
    pub(super) fn register(registry: &mut Registry, node: &str) -> Self {
        let gauges = Self::default();
        let registry = registry.sub_registry_with_label(("node".into(), node.to_owned().into()));
        registry.register(
            "topolvm_lvmd_connected",
            "1 while the node agent receives capacity updates from lvmd, 0 while the known capacity may be outdated",
            gauges.connected.clone(),
        );
        for (name, help, family) in [
            (
                "topolvm_volumegroup_available_bytes",
                "Free bytes in the volume group of the device class",
                &gauges.available,
            ),
            ("topolvm_volumegroup_size_bytes", "Size in bytes of the volume group of the device class", &gauges.size),
            ("topolvm_thinpool_size_bytes", "Size in bytes of the thin pool of the device class", &gauges.pool_size),
            (
                "topolvm_thinpool_overprovisioned_available",
                "Bytes that can still be provisioned from the thin pool of the device class",
                &gauges.pool_available,
            ),
        ] {
            registry.register(name, help, family.clone());
        }
        for (name, help, family) in [
            ("topolvm_thinpool_data_percent", "Used data space of the thin pool, in percent", &gauges.pool_data),
            (
                "topolvm_thinpool_metadata_percent",
                "Used metadata space of the thin pool, in percent",
                &gauges.pool_metadata,
            ),
        ] {
            registry.register(name, help, family.clone());
        }
        gauges
    }

    /// Returns whether lvmd answers.
    pub(super) fn is_connected(&self) -> bool {
        self.connected.get() == 1
    }

    /// Sets whether lvmd answers.
    pub(super) fn set_connected(&self, connected: bool) {
        self.connected.set(i64::from(connected));
    }

    /// Sets the gauges to what lvmd reports, and drops the series of classes and thin pools that are gone. A page that
    /// is made meanwhile, on another thread, may lack some.
    pub(super) fn show(&self, reading: &WatchResponse) {
        for family in [&self.available, &self.size, &self.pool_size, &self.pool_available] {
            family.clear();
        }
        for family in [&self.pool_data, &self.pool_metadata] {
            family.clear();
        }
        for item in &reading.items {
            let class = ByClass { device_class: item.device_class.clone() };
            // The space for new volumes never exceeds the free space. TopoLVM's lvmd reports the latter in the first
            // field, and nothing in the other.
            self.available.get_or_create(&class).set(item.volume_group_free_bytes.max(item.free_bytes));
            self.size.get_or_create(&class).set(item.size_bytes);
            if let Some(pool) = &item.thin_pool {
                self.pool_size.get_or_create(&class).set(pool.size_bytes);
                self.pool_data.get_or_create(&class).set(pool.data_percent);
                self.pool_metadata.get_or_create(&class).set(pool.metadata_percent);
                self.pool_available.get_or_create(&class).set(pool.overprovision_bytes);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use topolvm_proto::lvmd::{ThinPoolItem, WatchItem};

    use super::*;

    fn page(registry: &Registry) -> String {
        let mut page = String::new();
        prometheus_client::encoding::text::encode(&mut page, registry).unwrap();
        page.lines().filter(|line| !line.starts_with('#')).collect::<Vec<_>>().join(
            "
",
        )
    }

    #[test]
    fn available_bytes_metric_is_the_free_space_of_the_group() {
        let mut registry = Registry::default();
        let gauges = Gauges::register(&mut registry, "n1");
        let raid = WatchItem {
            device_class: "raid".to_owned(),
            free_bytes: 4,
            volume_group_free_bytes: 9,
            ..WatchItem::default()
        };
        let of_topolvm = WatchItem { device_class: "other".to_owned(), free_bytes: 5, ..WatchItem::default() };
        gauges.show(&WatchResponse { items: vec![raid, of_topolvm], ..WatchResponse::default() });
        let page = page(&registry);
        let available = |class: &str, bytes| {
            format!("topolvm_volumegroup_available_bytes{{node=\"n1\",device_class=\"{class}\"}} {bytes}")
        };
        assert!(page.contains(&available("raid", 9)) && page.contains(&available("other", 5)), "{page}");
    }

    #[test]
    fn series_have_the_names_of_the_field_and_go_with_their_class() {
        let mut registry = Registry::default();
        let gauges = Gauges::register(&mut registry, "n1");
        let thick = WatchItem { device_class: "hdd".to_owned(), free_bytes: 3, size_bytes: 9, ..WatchItem::default() };
        let thin = WatchItem {
            device_class: "thin".to_owned(),
            free_bytes: 3,
            size_bytes: 9,
            thin_pool: Some(ThinPoolItem {
                data_percent: 1.5,
                metadata_percent: 0.25,
                overprovision_bytes: 40,
                size_bytes: 6,
                ..ThinPoolItem::default()
            }),
            ..WatchItem::default()
        };
        gauges.show(&WatchResponse { free_bytes: 3, items: vec![thin], ..WatchResponse::default() });
        insta::assert_snapshot!(page(&registry), @r#"
        topolvm_lvmd_connected{node="n1"} 0
        topolvm_volumegroup_available_bytes{node="n1",device_class="thin"} 3
        topolvm_volumegroup_size_bytes{node="n1",device_class="thin"} 9
        topolvm_thinpool_size_bytes{node="n1",device_class="thin"} 6
        topolvm_thinpool_overprovisioned_available{node="n1",device_class="thin"} 40
        topolvm_thinpool_data_percent{node="n1",device_class="thin"} 1.5
        topolvm_thinpool_metadata_percent{node="n1",device_class="thin"} 0.25
        "#);
        gauges.show(&WatchResponse { free_bytes: 3, items: vec![thick], ..WatchResponse::default() });
        insta::assert_snapshot!(page(&registry), @r#"
        topolvm_lvmd_connected{node="n1"} 0
        topolvm_volumegroup_available_bytes{node="n1",device_class="hdd"} 3
        topolvm_volumegroup_size_bytes{node="n1",device_class="hdd"} 9
        "#);
    }
}
