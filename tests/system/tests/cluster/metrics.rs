//! What monitoring sees.

use anyhow::{Context as _, Result, ensure};
use system_tests::manifests::VolumeMode;
use testbed::topolvm::{RAID_CLASSES, THIN_CLASS, THIN_VG};

use crate::Body;
use crate::fixture::{Fixture, VG};

pub(crate) fn trials() -> Vec<(String, Body)> {
    vec![("kubelet_the_agent_and_lvmd_measure_volumes_and_volume_groups".to_owned(), measured)]
}

fn measured(fixture: &Fixture) -> Result<()> {
    fixture.apply_claim("measured", "waiting", "64Mi")?;
    fixture.start("measured", VolumeMode::Filesystem)?;

    let [raid, mirrored] = RAID_CLASSES;
    let agent = fixture.node.script("curl -sf http://127.0.0.1:8080/metrics")?;
    let available: Vec<_> =
        agent.lines().filter(|line| line.starts_with("topolvm_volumegroup_available_bytes{")).collect();
    ensure!(available.len() == 4, "one series for each device class: {available:#?}");
    for (class, group) in [("ssd", VG), (THIN_CLASS, THIN_VG), (raid, raid), (mirrored, mirrored)] {
        let groups =
            fixture.node.script(&format!("vgs --noheadings --nosuffix --units b -o vg_size,vg_free {group}"))?;
        let (size, free) = groups.trim().split_once(' ').context("vgs prints two numbers")?;
        for (name, bytes) in [("topolvm_volumegroup_size_bytes", size), ("topolvm_volumegroup_available_bytes", free)] {
            let shown = series(&agent, name, class)?;
            // What is free in a group of mirrored volumes is half of what LVM calls free
            if name.contains("size") || class == "ssd" || class == THIN_CLASS {
                ensure!(shown == bytes.trim(), "{name} of {class} is {shown} and LVM says {bytes}");
            }
        }
    }
    ensure!(series(&agent, "topolvm_thinpool_size_bytes", THIN_CLASS)?.parse::<f64>()? > 0.0, "no size of the pool");
    let lvmd = fixture.node.script("curl -sf http://127.0.0.1:8082/metrics")?;
    ensure!(lvmd.contains("lvmd_"), "lvmd's metrics: {lvmd}");

    // kubelet asks the agent every ten seconds here
    let path = format!("/api/v1/nodes/{}/proxy/metrics", fixture.node.name());
    fixture.cluster.ready("apiserver", || {
        let kubelet = fixture.kubectl(&["get", "--raw", &path])?;
        for name in ["capacity_bytes", "available_bytes", "used_bytes", "inodes", "inodes_free", "inodes_used"] {
            let wanted =
                format!("kubelet_volume_stats_{name}{{namespace=\"default\",persistentvolumeclaim=\"measured\"}}");
            ensure!(kubelet.contains(&wanted), "kubelet has no {wanted}");
        }
        Ok(())
    })?;
    fixture.end("measured")?;
    fixture.check_volumes(0)
}

/// The value of a series of this node and device class.
fn series<'a>(metrics: &'a str, name: &str, class: &str) -> Result<&'a str> {
    let of_class = format!("device_class=\"{class}\"");
    let line = metrics
        .lines()
        .find(|line| line.starts_with(&format!("{name}{{")) && line.contains(&of_class) && line.contains("node=\""));
    let line = line.with_context(|| format!("no {name} of {class}"))?;
    Ok(line.rsplit_once(' ').map_or(line, |(_, value)| value))
}
