//! The metrics of lvmd, as one that works shows them.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use lvmd::{Settings, embed};
use prometheus_client::registry::Registry;
use topolvm_proto::lvmd::GetFreeBytesRequest;
use topolvm_proto::lvmd::vg_service_client::VgServiceClient;
use topolvm_runtime::grpc::{RpcMetrics, observed};
use topolvm_runtime::{CancellationToken, Tasks};
use topolvm_testkit::lvm::{FakeLvm, FakeVolume};

use super::{code, table};

const GIB: u64 = 1 << 30;
const CONFIG: &str = "
device-classes:
- {name: thick, volume-group: vg, wipe: zero}
- {name: thin, volume-group: vg, type: thin, thin-pool: {name: pool, overprovision-ratio: 1}}
";

pub(super) fn of_lvmd() -> anyhow::Result<String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let page = runtime.block_on(page())?;
    let mut rows = Vec::new();
    for line in page.lines() {
        if let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')) {
            rows.push([labelled(&page, name), help.trim_end_matches('.').to_owned()]);
        }
    }
    Ok(table(["Metric", "Meaning"], rows))
}

/// The name of a metric as samples have it, with the names of its labels.
fn labelled(page: &str, name: &str) -> String {
    let mut samples = page.lines().filter(|line| !line.starts_with('#') && line.starts_with(name));
    // What is about trouble is not there without it
    let sample = samples.next().unwrap_or_default();
    let kind = page.lines().find_map(|line| line.strip_prefix(&format!("# TYPE {name} ")));
    let name = if kind == Some("counter") { format!("{name}_total") } else { name.to_owned() };
    let labels = sample.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map_or("", |(labels, _)| labels);
    let labels = labels.split(',').filter_map(|label| Some(label.split_once('=')?.0));
    let labels: Vec<&str> = labels.filter(|label| *label != "le").collect();
    code(&if labels.is_empty() { name } else { format!("{name}{{{}}}", labels.join(",")) })
}

/// The page of an lvmd that was asked something.
async fn page() -> anyhow::Result<String> {
    let lvm = FakeLvm::new().with_group("vg", 100 * GIB);
    lvm.add_volume("vg", "pool", FakeVolume::thin_pool(GIB));
    let config = lvmd_config::Config::parse("lvmd.yaml", CONFIG)?;
    let settings = Settings { file: "/nonexistent/lvmd.yaml".into(), config, runner: lvm };
    let mut registry = Registry::default();
    let shutdown = CancellationToken::new();
    let tasks = Tasks::new(shutdown.clone());
    let services = embed(settings, Path::new("docs"), &mut registry, &tasks, shutdown.clone())?;
    let mut client = VgServiceClient::new(observed(services, &RpcMetrics::register(&mut registry)));
    // It starts beside us
    let asked = async {
        while client.get_free_bytes(GetFreeBytesRequest { device_class: "thin".to_owned() }).await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), asked).await.context("lvmd does not start")?;
    let mut page = String::new();
    prometheus_client::encoding::text::encode(&mut page, &registry)?;
    shutdown.cancel();
    tasks.wait().await?;
    ensure!(page.contains("# HELP"), "lvmd has no metrics");
    Ok(page)
}
