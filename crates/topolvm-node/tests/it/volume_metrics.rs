//! The metrics of volumes on the page that the agent serves.

use linux_mount::DiskStatistics;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use topolvm_proto::csi::node_client::NodeClient;
use topolvm_proto::csi::volume_capability::{AccessType, MountVolume};
use topolvm_proto::csi::{NodePublishVolumeRequest, NodeUnpublishVolumeRequest};
use topolvm_testkit::ApiServer;
use topolvm_testkit::fixtures::{LogicalVolumeBuilder, logical_volume};
use topolvm_testkit::lvm::FakeVolume;

use crate::cluster::LV;
use crate::lvmd_process::{LvmdProcess, THIN_CLASS, VG};
use crate::node::capability;
use crate::whole_agent::{Agent, until_ready};

const GIB: u64 = 1 << 30;
const STATISTICS: DiskStatistics = DiskStatistics {
    reads: 1,
    read_bytes: 512,
    read_ms: 1001,
    writes: 2,
    written_bytes: 1024,
    write_ms: 2,
    in_flight: 3,
    io_ms: 4,
    weighted_ms: 5,
};

impl Agent {
    /// The page of metrics.
    async fn page(&self) -> String {
        let mut connection = loop {
            match TcpStream::connect(self.metrics).await {
                Ok(connection) => break connection,
                Err(_) => tokio::task::yield_now().await,
            }
        };
        connection.write_all(b"GET /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await.unwrap();
        let mut page = String::new();
        connection.read_to_string(&mut page).await.unwrap();
        page
    }

    /// The series of volumes on the page.
    async fn series(&self) -> Vec<String> {
        let page = self.page().await;
        page.lines().filter(|line| line.starts_with("topolvm_volume_")).map(str::to_owned).collect()
    }

    /// Waits until the page has a series that begins so.
    async fn until_shown(&self, beginning: &str) -> Vec<String> {
        loop {
            let series = self.series().await;
            if series.iter().any(|line| line.starts_with(beginning)) {
                return series;
            }
        }
    }

    fn request(&self, id: &str) -> NodePublishVolumeRequest {
        let context = [("csi.storage.k8s.io/pod.name", "web-0"), ("csi.storage.k8s.io/pod.uid", "pod-uid")];
        NodePublishVolumeRequest {
            volume_id: id.to_owned(),
            target_path: self.dir.path().join(id).display().to_string(),
            volume_capability: Some(capability(AccessType::Mount(MountVolume::default()))),
            volume_context: context.map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
            ..NodePublishVolumeRequest::default()
        }
    }

    pub(crate) async fn publish(&self, id: &str) {
        NodeClient::new(self.csi().await).node_publish_volume(self.request(id)).await.unwrap();
    }

    async fn unpublish(&self, id: &str) {
        let NodePublishVolumeRequest { volume_id, target_path, .. } = self.request(id);
        let request = NodeUnpublishVolumeRequest { volume_id, target_path };
        NodeClient::new(self.csi().await).node_unpublish_volume(request).await.unwrap();
    }
}

#[tokio::test]
async fn mounts_that_stay_stacked_at_the_start_are_a_metric() {
    let api = ApiServer::new();
    let agent = Agent::start(&api).await;
    assert!(agent.page().await.contains("topolvm_stacked_mounts{node=\"n1\"} 0\n"));
    agent.machine.stack_mounts(31);
    let agent = agent.restart(&api).await;
    assert!(agent.page().await.contains("topolvm_stacked_mounts{node=\"n1\"} 31\n"));
    agent.stop().await;
}

/// A volume of the claim `shop/data` whose id is its UID.
fn claimed(name: &str, id: &str) -> LogicalVolumeBuilder {
    logical_volume(name).uid(id).annotation("topolvm.io/claim", "shop/data")
}

fn values(series: &[String], labels: &str) -> Vec<(String, String)> {
    let labels = format!("{{{labels}}} ");
    let named = series.iter().filter_map(|line| line.split_once(&labels));
    named.map(|(name, value)| (name.trim_start_matches("topolvm_volume_").to_owned(), value.to_owned())).collect()
}

#[tokio::test]
async fn volume_series_follow_the_volume_and_survive_a_restart() {
    let api = ApiServer::new();
    let agent = Agent::start(&api).await;
    let _lvmd = agent.lvmd().await;
    api.apply_json(claimed("pvc-1", "u1").build());
    until_ready(&api, "pvc-1").await;
    agent.machine.set_statistics(agent.lvm.volume(VG, "u1").unwrap().minor, STATISTICS);
    agent.publish("u1").await;
    let of_pod = "namespace=\"shop\",persistentvolumeclaim=\"data\",device_class=\"ssd\",pod=\"web-0\"";
    let shown = agent.until_shown("topolvm_volume_io_now").await;
    let expected = [
        ("size_bytes", "1073741824"),
        ("filesystem_size_bytes", "1073741824"),
        ("filesystem_available_bytes", "536870912"),
        ("reads_completed_total", "1"),
        ("writes_completed_total", "2"),
        ("read_bytes_total", "512"),
        ("written_bytes_total", "1024"),
        ("read_time_seconds_total", "1.001"),
        ("write_time_seconds_total", "0.002"),
        ("io_now", "3"),
        ("io_time_seconds_total", "0.004"),
        ("io_time_weighted_seconds_total", "0.005"),
    ];
    assert_eq!(values(&shown, of_pod), expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
    let info = format!("topolvm_volume_info{{node=\"n1\",volume=\"pvc-1\",{of_pod}}} 1");
    assert!(shown.contains(&info), "{shown:#?}");

    let agent = agent.restart(&api).await;
    let again = agent.until_shown("topolvm_volume_io_now").await;
    assert_eq!(again, shown);

    agent.unpublish("u1").await;
    let shown = agent.series().await;
    let of_no_pod = of_pod.replace("web-0", "");
    assert_eq!(values(&shown, &of_no_pod).len(), expected.len() - 2, "no filesystem is mounted: {shown:#?}");

    api.delete(LV, "", "pvc-1");
    api.until(LV, "", "pvc-1", |object| object.is_none().then_some(())).await;
    while !agent.series().await.is_empty() {
        tokio::task::yield_now().await;
    }
    agent.stop().await;
}

#[tokio::test]
async fn thin_volume_series_are_unique_and_omit_snapshots() {
    let api = ApiServer::new();
    let agent = Agent::start(&api).await;
    agent.lvm.add_volume(VG, "pool", FakeVolume::thin_pool(4 * GIB));
    for (name, object, day) in [
        ("old", claimed("pvc-a", "old"), 1),
        ("new", claimed("pvc-b", "new"), 2),
        ("other", logical_volume("pvc-other").uid("other"), 1),
        ("snapshot", claimed("snapshot-1", "snapshot").from_source("pvc-b", "ro"), 3),
    ] {
        agent.lvm.add_volume(VG, name, FakeVolume { mapped_sectors: 8, ..FakeVolume::thin(GIB, "pool") });
        let mut object = json!(object.ready(name, "1Gi").build());
        object["metadata"]["creationTimestamp"] = json!(format!("2026-01-0{day}T00:00:00Z"));
        api.apply_json(object);
    }
    let _lvmd = LvmdProcess::start(&agent.lvm, THIN_CLASS).await.listen(&agent.dir.path().join("lvmd.sock")).await;
    let shown = agent.until_shown("topolvm_volume_thin_used_bytes").await;
    let used: Vec<_> = shown.iter().filter_map(|line| line.strip_prefix("topolvm_volume_thin_used_bytes")).collect();
    let rest = "device_class=\"thin\",pod=\"\"} 4096";
    let claim = "namespace=\"shop\",persistentvolumeclaim=\"data\"";
    assert_eq!(
        used,
        [
            format!("{{volume=\"pvc-other\",namespace=\"\",persistentvolumeclaim=\"\",{rest}"),
            format!("{{{claim},{rest}"),
            format!("{{volume=\"pvc-a\",{claim},{rest}"),
        ]
    );
    agent.stop().await;
}

#[tokio::test]
async fn a_filesystem_whose_disk_hangs_costs_only_its_own_series() {
    let api = ApiServer::new();
    let agent = Agent::start(&api).await;
    let _lvmd = agent.lvmd().await;
    for id in ["u1", "u2"] {
        api.apply_json(logical_volume(&format!("pvc-{id}")).uid(id).build());
        until_ready(&api, &format!("pvc-{id}")).await;
        agent.publish(id).await;
    }
    let size = |id: &str| format!("topolvm_volume_filesystem_size_bytes{{volume=\"pvc-{id}\"");
    agent.until_shown(&size("u1")).await;
    agent.machine.hang(&agent.dir.path().join("u1"));
    let shown = agent.series().await;
    let has = |beginning: &str| shown.iter().any(|line| line.starts_with(beginning));
    assert_eq!((has(&size("u1")), has(&size("u2"))), (false, true), "{shown:#?}");
    assert!(has("topolvm_volume_size_bytes{volume=\"pvc-u1\""), "{shown:#?}");
    agent.machine.answer();
    agent.until_shown(&size("u1")).await;
    agent.stop().await;
}
