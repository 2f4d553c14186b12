//! A process of lvmd under measurement, and its gRPC client.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;

use anyhow::{Context as _, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tonic::transport::{Channel, Endpoint};
use topolvm_proto::lvmd::lv_service_client::LvServiceClient;
use topolvm_proto::lvmd::vg_service_client::VgServiceClient;
use topolvm_proto::lvmd::{
    CreateLvRequest, CreateLvSnapshotRequest, GetLvListRequest, LogicalVolume, RemoveLvRequest, ResizeLvRequest,
};

use crate::memory::{AT_REST, ResidentMemory};
use crate::metrics;

/// Volume group of the default class, which is thick.
pub(super) const VG: &str = "myvg1";
/// Volume group with a thin pool.
pub(super) const THIN_VG: &str = "myvg2";
/// Name of the thin device class.
pub(super) const THIN: &str = "thin";
const DIRECTORY: &str = "/run/bench";
const METRICS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 8082);
/// The systemd unit with the environment that a deployment gives lvmd.
const UNIT: &str = include_str!("../../../../systemd/lvmd.service");
/// A script that adds a byte to a file for each LVM process, and executes `lvm`.
const COUNTING_LVM: &str = "#!/bin/sh\nprintf . >>/run/bench/count\nexec /sbin/lvm \"$@\"\n";

/// The LVM command in lvmd's configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LvmCommand {
    /// The program `lvm`, as on a host.
    Lvm,
    /// The script that counts processes.
    CountingScript,
}

/// A running lvmd. Dropping it kills it.
#[derive(Debug)]
pub(super) struct Lvmd {
    child: Child,
}

impl Lvmd {
    /// Starts the lvmd in this program's directory, and returns when it listens.
    #[expect(clippy::disallowed_methods, reason = "the program is what is measured")]
    pub(super) fn start(calls: LvmCommand) -> Result<Self> {
        fs::create_dir_all(DIRECTORY).context("make a directory for lvmd")?;
        let counting = write_executable(COUNTING_LVM)?;
        let lvm = match calls {
            LvmCommand::Lvm => "/sbin/lvm",
            LvmCommand::CountingScript => &counting,
        };
        let config = format!(
            "socket-name: {DIRECTORY}/lvmd.sock\n\
             lvm-command-prefix: [{lvm}]\n\
             device-classes:\n\
             - {{name: thick, volume-group: {VG}, default: true, spare-gb: 0}}\n\
             - {{name: {THIN}, volume-group: {THIN_VG}, type: thin, spare-gb: 0, \
                thin-pool: {{name: pool0, overprovision-ratio: 20}}}}\n"
        );
        let file = format!("{DIRECTORY}/lvmd.yaml");
        fs::write(&file, config).context("write lvmd's configuration")?;
        let program = std::env::current_exe().context("find this program's file")?.with_file_name("lvmd");
        let mut child = Command::new(&program)
            .args(["--config", &file, "--metrics-bind-address", &METRICS.to_string(), "--log-format=text"])
            .envs(environment())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("start {}", program.display()))?;
        let stderr = child.stderr.take().context("lvmd has no standard error")?;
        let lvmd = Self { child };
        let mut lines = BufReader::new(stderr).lines();
        let mut seen = String::new();
        let listens = lines.by_ref().map_while(Result::ok).any(|line| {
            seen.push_str(&line);
            line.contains("listening")
        });
        ensure!(listens, "lvmd ended: {seen}");
        // Keep reading, or lvmd would block on a full pipe
        std::thread::spawn(move || lines.for_each(drop));
        Ok(lvmd)
    }

    /// Returns the resident memory of an idle lvmd.
    pub(super) fn read_resident_memory(&self) -> Result<ResidentMemory> {
        sleep(AT_REST);
        ResidentMemory::read(self.child.id())
    }

    /// Stops lvmd with SIGTERM. It must exit with status 0.
    pub(super) fn stop(mut self) -> Result<()> {
        kill_process(Pid::from_child(&self.child), Signal::TERM).context("end lvmd")?;
        let status = self.child.wait().context("wait for lvmd")?;
        ensure!(status.success(), "lvmd ended with {status}");
        Ok(())
    }
}

impl Drop for Lvmd {
    fn drop(&mut self) {
        // It may have ended already
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Returns the LVM processes since the guest was booted as counted by the script, and those of the running lvmd by its
/// metric.
pub(super) fn count_lvm_processes() -> Result<(f64, f64)> {
    let bytes = fs::read(format!("{DIRECTORY}/count")).unwrap_or_default().len();
    let reported = metrics::lvm_processes(&metrics::read(METRICS)?)?;
    Ok((f64::from(u32::try_from(bytes)?), reported))
}

/// A client of the running lvmd.
#[derive(Clone, Debug)]
pub(super) struct Client(Channel);

impl Client {
    pub(super) async fn connect() -> Result<Self> {
        let endpoint = Endpoint::try_from(format!("unix:{DIRECTORY}/lvmd.sock"))?;
        Ok(Self(endpoint.connect().await.context("connect to lvmd")?))
    }

    /// Creates a volume; an empty `class` is the default one.
    pub(super) async fn create(&self, class: &str, name: &str, bytes: i64) -> Result<()> {
        let request = CreateLvRequest {
            name: name.to_owned(),
            device_class: class.to_owned(),
            size_bytes: bytes,
            // The tags that topolvm-node sets
            tags: vec![format!("topolvm.io/logicalvolume=pvc-{name}"), "topolvm.io/device-class=thick".to_owned()],
            ..CreateLvRequest::default()
        };
        LvServiceClient::new(self.0.clone()).create_lv(request).await?;
        Ok(())
    }

    /// Takes a snapshot of a thin volume; size 0 is that of the source.
    pub(super) async fn snapshot(&self, source: &str, name: &str, bytes: i64) -> Result<()> {
        let request = CreateLvSnapshotRequest {
            name: name.to_owned(),
            device_class: THIN.to_owned(),
            source_volume: source.to_owned(),
            access_type: "rw".to_owned(),
            size_bytes: bytes,
            tags: Vec::new(),
        };
        LvServiceClient::new(self.0.clone()).create_lv_snapshot(request).await?;
        Ok(())
    }

    pub(super) async fn resize(&self, class: &str, name: &str, bytes: i64) -> Result<()> {
        let request = ResizeLvRequest { name: name.to_owned(), device_class: class.to_owned(), size_bytes: bytes };
        LvServiceClient::new(self.0.clone()).resize_lv(request).await?;
        Ok(())
    }

    pub(super) async fn remove(&self, class: &str, name: &str) -> Result<()> {
        let request = RemoveLvRequest { name: name.to_owned(), device_class: class.to_owned() };
        LvServiceClient::new(self.0.clone()).remove_lv(request).await?;
        Ok(())
    }

    pub(super) async fn list(&self) -> Result<Vec<LogicalVolume>> {
        let list = VgServiceClient::new(self.0.clone()).get_lv_list(GetLvListRequest::default()).await?;
        Ok(list.into_inner().volumes)
    }
}

fn write_executable(script: &str) -> Result<String> {
    use std::os::unix::fs::PermissionsExt as _;
    let path = format!("{DIRECTORY}/lvm");
    fs::write(&path, script)
        .and_then(|()| fs::set_permissions(&path, fs::Permissions::from_mode(0o755)))
        .with_context(|| format!("write {path}"))?;
    Ok(path)
}

/// Returns the environment of the systemd unit.
fn environment() -> impl Iterator<Item = (&'static str, &'static str)> {
    let lines = UNIT.lines().filter_map(|line| line.strip_prefix("Environment="));
    lines.flat_map(str::split_whitespace).filter_map(|word| word.split_once('='))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lvmd_is_measured_with_the_environment_of_its_unit() {
        assert!(environment().any(|(name, value)| (name, value) == ("MALLOC_ARENA_MAX", "1")));
    }
}
