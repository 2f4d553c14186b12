//! Metrics of kubelet, the agent and lvmd about volumes and volume groups.

use anyhow::{Context as _, Result, ensure};
use system_tests::manifests::VolumeMode;
use testbed::size::GIB;
use testbed::topolvm::{NODE, RAID_CLASSES, THIN_CLASS, THIN_VG};

use crate::Body;
use crate::fixture::{Fixture, VG};

pub(crate) fn tests() -> Vec<(String, Body)> {
    let all: [(&str, Body); 3] = [
        ("kubelet_the_agent_and_lvmd_measure_volumes_and_volume_groups", check_metrics),
        ("volume_metrics_have_claim_and_pod_labels_until_deletion", check_volume_series),
        ("spare_is_excluded_from_metrics_and_published_capacity", check_spare),
    ];
    all.map(|(name, body)| (name.to_owned(), body)).into()
}

fn check_metrics(fixture: &Fixture) -> Result<()> {
    fixture.apply_claim("measured", "waiting", "64Mi")?;
    fixture.start_pod("measured", VolumeMode::Filesystem)?;

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
            let shown = find_series(&agent, name, class)?;
            // The free space for mirrored volumes is half of LVM's free space
            if name.contains("size") || class == "ssd" || class == THIN_CLASS {
                ensure!(shown == bytes.trim(), "{name} of {class} is {shown} and LVM says {bytes}");
            }
        }
    }
    ensure!(
        find_series(&agent, "topolvm_thinpool_size_bytes", THIN_CLASS)?.parse::<f64>()? > 0.0,
        "no size of the pool"
    );
    let lvmd = fixture.node.script("curl -sf http://127.0.0.1:8082/metrics")?;
    ensure!(lvmd.contains("lvmd_"), "lvmd's metrics: {lvmd}");

    // kubelet queries the agent every ten seconds here
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
    wait_for_volume_series(fixture, "written_bytes_total", "measured", "ssd", 1)?;
    fixture.delete_pod_and_claim("measured")?;
    fixture.check_volumes(0)
}

fn check_volume_series(fixture: &Fixture) -> Result<()> {
    const WRITTEN: u64 = 8 << 20;
    fixture.apply_claim("busy", "thin", "64Mi")?;
    fixture.start_pod("busy", VolumeMode::Filesystem)?;
    let volume = fixture.volume_name("busy")?;
    let claim = fixture.value("logicalvolume.topolvm.io", &volume, ".metadata.annotations.topolvm\\.io/claim")?;
    ensure!(claim == "default/busy", "the LogicalVolume says that it was made for {claim:?}");
    let wait = |metric: &str, at_least: u64| wait_for_volume_series(fixture, metric, "busy", THIN_CLASS, at_least);
    let before = wait("written_bytes_total", 1)?;
    let used = wait("thin_used_bytes", 1)?;
    fixture.exec_in_pod("busy", "dd if=/dev/urandom of=/data/file bs=1M count=8 conv=fsync")?;
    wait("written_bytes_total", before + WRITTEN)?;
    wait("thin_used_bytes", used + WRITTEN / 2)?;
    wait("writes_completed_total", 1)?;
    let size = wait("size_bytes", 64 << 20)?;
    let filesystem = wait("filesystem_size_bytes", 1)?;
    let available = wait("filesystem_available_bytes", 1)?;
    ensure!(
        available + WRITTEN <= filesystem && filesystem <= size,
        "{available} bytes are available of {filesystem} on {size}"
    );

    // kubelet names the pod once
    fixture.node.kill_kept(NODE)?;
    wait("written_bytes_total", before + WRITTEN)?;
    fixture.delete_pod_and_claim("busy")?;
    fixture.cluster.ready("apiserver", || {
        let page = fixture.node.script("curl -sf http://127.0.0.1:8080/metrics")?;
        ensure!(!page.contains("persistentvolumeclaim=\"busy\""), "series of a volume that is gone: {page}");
        Ok(())
    })?;
    let records = fixture.node.script("ls /var/lib/kubelet/plugins/topolvm.io/node/published-pods")?;
    ensure!(records.is_empty(), "records of pods that are gone: {records}");
    fixture.check_volumes(0)
}

/// Waits until a series of the volume of a claim, which the pod of this name has, is at least so large. Its value.
fn wait_for_volume_series(fixture: &Fixture, metric: &str, name: &str, class: &str, at_least: u64) -> Result<u64> {
    let labels =
        format!("namespace=\"default\",persistentvolumeclaim=\"{name}\",device_class=\"{class}\",pod=\"{name}\"");
    let series = format!("topolvm_volume_{metric}{{{labels}}} ");
    fixture.cluster.ready("apiserver", || {
        let page = fixture.node.script("curl -sf http://127.0.0.1:8080/metrics")?;
        let value = page.lines().find_map(|line| line.strip_prefix(&series));
        let value: u64 = value.with_context(|| format!("no {series}"))?.parse()?;
        ensure!(value >= at_least, "{series} is {value} and not yet {at_least}");
        Ok(value)
    })
}

fn check_spare(fixture: &Fixture) -> Result<()> {
    let done = compare_with_spare(fixture);
    set_spare(fixture, 0)?;
    done?;
    fixture.delete_claim("spared")?;
    fixture.check_volumes(0)
}

fn compare_with_spare(fixture: &Fixture) -> Result<()> {
    set_spare(fixture, 3)?;
    let all = wait_for_available_bytes(fixture, 3)?;
    fixture.apply_claim("spared", "immediate", "1Gi")?;
    fixture.wait_bound("spared")?;
    let rest = wait_for_available_bytes(fixture, 3)?;
    ensure!(rest > 0 && rest + GIB == all, "{rest} bytes are available where there were {all}");
    fixture.request_size("spared", &(rest + GIB).to_string())?;
    fixture.cluster.ready("apiserver", || {
        let rest = wait_for_available_bytes(fixture, 3)?;
        ensure!(rest == 0, "{rest} bytes are still available");
        Ok(())
    })?;
    // Less is free than is to be kept, which is not less than nothing
    for (spare, expected) in [(2, GIB), (4, 0)] {
        set_spare(fixture, spare)?;
        let rest = wait_for_available_bytes(fixture, spare)?;
        ensure!(rest == expected, "{rest} bytes are available with {spare} GiB to spare");
    }
    Ok(())
}

/// Configures lvmd with a spare of so many GiB of the default class.
fn set_spare(fixture: &Fixture, gib: u64) -> Result<()> {
    let change = format!("s/default: true, spare-gb: [0-9]*/default: true, spare-gb: {gib}/");
    fixture.node.script(&format!("sed -i '{change}' /etc/topolvm/lvmd.yaml"))?;
    fixture.restart_lvmd()
}

/// Waits until the agent publishes the free space minus a spare of this number of GiB, in its metrics and for the
/// scheduler. Returns the published bytes.
fn wait_for_available_bytes(fixture: &Fixture, spare_gib: u64) -> Result<u64> {
    let class = "ssd";
    fixture.cluster.ready("apiserver", || {
        let groups = fixture.node.script(&format!("vgs --noheadings --nosuffix --units b -o vg_size,vg_free {VG}"))?;
        let (size, free) = groups.trim().split_once(' ').context("vgs prints two numbers")?;
        let available = free.trim().parse::<u64>()?.saturating_sub(spare_gib * GIB);
        let agent = fixture.node.script("curl -sf http://127.0.0.1:8080/metrics")?;
        let shown = find_series(&agent, "topolvm_volumegroup_available_bytes", class)?;
        ensure!(shown == available.to_string(), "{shown} bytes are available of {free}, with {spare_gib} GiB to spare");
        // The spare belongs to the group
        let whole = find_series(&agent, "topolvm_volumegroup_size_bytes", class)?;
        ensure!(whole == size, "the group has {size} bytes, and {whole} are shown");
        let node = fixture.get_object("node", fixture.node.name())?;
        for class in ["00default", class] {
            let said = &node["metadata"]["annotations"][format!("capacity.topolvm.io/{class}")];
            ensure!(said.as_str() == Some(shown), "the Node says that {said} bytes of {class} are available");
        }
        Ok(available)
    })
}

/// Finds the value of a series of this node and device class.
fn find_series<'a>(metrics: &'a str, name: &str, class: &str) -> Result<&'a str> {
    let of_class = format!("device_class=\"{class}\"");
    let line = metrics
        .lines()
        .find(|line| line.starts_with(&format!("{name}{{")) && line.contains(&of_class) && line.contains("node=\""));
    let line = line.with_context(|| format!("no {name} of {class}"))?;
    Ok(line.rsplit_once(' ').map_or(line, |(_, value)| value))
}
