//! Checks that kube-scheduler's shipped address and the shipped options of topolvm-scheduler match on every host. A
//! host is a network namespace and a file /etc/hosts; no API server can be reached.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Output};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use testbed::assets;
use testbed::netns::NetNs;
use testbed::topolvm::TopolvmSpec;

use crate::Body;
use crate::fixture::Fixture;

pub(crate) const ALL: &[(&str, Body)] = &[
    ("extender_addresses_match_on_ipv4_ipv6_and_dual_stack_hosts", check_addresses),
    ("older_kube_schedulers_read_the_configurations_that_ship", |_| decode_configurations()),
];

/// Files for a kube-scheduler before 1.30, and the version that each is read as.
const FILES: [(&str, &str); 7] = [
    ("scheduler-policy.yaml", "v1"),
    ("scheduler-config-v1beta1.yaml", "kubescheduler.config.k8s.io/v1beta1"),
    ("scheduler-config-v1beta2.yaml", "kubescheduler.config.k8s.io/v1beta2"),
    ("scheduler-config-v1beta3.yaml", "kubescheduler.config.k8s.io/v1beta3"),
    ("scheduler-config.yaml", "kubescheduler.config.k8s.io/v1"),
    ("scheduler-config-legacy.yaml", "kubescheduler.config.k8s.io/v1"),
    ("scheduler-config-service.yaml", "kubescheduler.config.k8s.io/v1"),
];

const REPOSITORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
const LOOPBACK: [&str; 2] = ["127.0.0.1", "::1"];
const LIMIT: Duration = Duration::from_secs(30);

fn check_addresses(fixture: &Fixture) -> Result<()> {
    let kubeconfig = fixture.cluster.inner_kubeconfig();
    let directory = tempfile::tempdir().context("create a directory for network namespaces")?;
    let asked = shipped_address()?;
    let names = ["127.0.0.1 localhost\n", "::1 localhost\n", "127.0.0.1 localhost\n::1 localhost\n", ""];
    for lacking in [None, Some("::1/128"), Some("127.0.0.1/8")] {
        for (index, names) in names.iter().enumerate() {
            let file = directory.path().join(format!("netns-{index}"));
            let host = Host { netns: NetNs::create(&file)?, hosts: directory.path().join("hosts") };
            let met = host.boot(names, lacking).and_then(|()| host.check(asked, lacking, &kubeconfig));
            host.netns.remove()?;
            met.with_context(|| format!("without {lacking:?}, /etc/hosts: {names:?}"))?;
        }
    }
    Ok(())
}

/// Decodes the files with the types of the kube-schedulers that understood them, which refuse unknown fields. Of a
/// Policy they ignore those of an extender, so that the values are compared.
fn decode_configurations() -> Result<()> {
    let program = assets::scheduler_config()?;
    let path = |file: &str| Path::new(REPOSITORY).join("scheduler-config").join(file);
    for (file, version) in FILES {
        let output = decode(&program, &path(file))?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let read: Value = serde_json::from_slice(&output.stdout).with_context(|| format!("what {file} is read as"))?;
        ensure!(read["apiVersion"] == version, "{file}: {read}");
        let group = if file.contains("legacy") { "topolvm.cybozu.com" } else { "topolvm.io" };
        let host = if file.contains("service") { "topolvm-scheduler.topolvm-system.svc" } else { "127.0.0.1" };
        let timeout = if version == "v1" { json!(30_000_000_000_u64) } else { json!("30s") };
        let expected = json!([{
            "urlPrefix": format!("http://{host}:9251"), "filterVerb": "predicate", "prioritizeVerb": "prioritize",
            "preemptVerb": "preempt", "weight": 1, "httpTimeout": timeout,
            "managedResources": [{"name": format!("{group}/capacity"), "ignoredByScheduler": true}],
        }]);
        ensure!(read["extenders"] == expected, "{file}: {read}");
    }
    let directory = tempfile::tempdir()?;
    let wrong = directory.path().join("wrong.yaml");
    let text = fs::read_to_string(path("scheduler-config-v1beta1.yaml"))?;
    fs::write(&wrong, text.replace("ignoredByScheduler", "ignored"))?;
    let output = decode(&program, &wrong)?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(!output.status.success() && said.contains("unknown field"), "a wrong file is accepted: {said}");
    Ok(())
}

#[expect(clippy::disallowed_methods, reason = "a program of this machine")]
fn decode(program: &Path, file: &Path) -> Result<Output> {
    Command::new(program).arg(file).output().context("run scheduler-config")
}

/// Returns the address of the extender in kube-scheduler's shipped configuration.
fn shipped_address() -> Result<SocketAddr> {
    let file = Path::new(REPOSITORY).join("scheduler-config/scheduler-config.yaml");
    let text = fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
    let address = text.lines().find_map(|line| line.trim().strip_prefix("- urlPrefix: http://"));
    address.context("no address")?.parse().context("kube-scheduler has no address")
}

struct Host {
    netns: NetNs,
    hosts: std::path::PathBuf,
}

impl Host {
    fn boot(&self, names: &str, lacking: Option<&str>) -> Result<()> {
        fs::write(&self.hosts, names)?;
        self.ip(&["link", "set", "lo", "up"])?;
        lacking.map_or(Ok(()), |address| self.ip(&["address", "delete", address, "dev", "lo"]))
    }

    fn ip(&self, arguments: &[&str]) -> Result<()> {
        let status = self.netns.command("ip").args(arguments).status().context("run ip")?;
        ensure!(status.success(), "ip {arguments:?}: {status}");
        Ok(())
    }

    /// Checks that the extender of the DaemonSet answers on each loopback address that the host has, so on
    /// kube-scheduler's.
    fn check(&self, asked: SocketAddr, lacking: Option<&str>, kubeconfig: &Path) -> Result<()> {
        let program = TopolvmSpec::nodes(0)?.programs.join("topolvm-scheduler");
        let options =
            Path::new(REPOSITORY).join("deploy/manifests/components/scheduler-daemonset/scheduler-options.yaml");
        let mut command = self.netns.command("unshare");
        command.args([
            "--mount",
            "sh",
            "-c",
            "mount --bind \"$1\" /etc/hosts && exec \"$2\" --log-level=error,kube_client=off --config \"$3\"",
            "sh",
        ]);
        command.env("KUBECONFIG", kubeconfig);
        let mut running = Running::start(command.args([self.hosts.as_path(), &program, &options]))?;
        for ip in LOOPBACK {
            let has_it = lacking.is_none_or(|lacking| lacking.split('/').next() != Some(ip));
            let address = SocketAddr::new(ip.parse()?, asked.port());
            if has_it {
                let answer = running.wait_for(|| self.status(address))?;
                ensure!(answer.ends_with("ok"), "{address} answers {answer:?}");
            } else {
                ensure!(self.status(address).is_err(), "{address} answers although the host does not have it");
            }
        }
        ensure!(LOOPBACK.contains(&asked.ip().to_string().as_str()), "{asked} is no address of the host alone");
        Ok(())
    }

    fn status(&self, address: SocketAddr) -> Result<String> {
        let mut connection = self.netns.connect(address, LIMIT)??;
        connection.write_all(b"GET /status HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")?;
        let mut answer = String::new();
        connection.read_to_string(&mut answer)?;
        Ok(answer)
    }
}

/// A guard that kills the program at the end of the test.
struct Running(Child);

impl Running {
    fn start(command: &mut Command) -> Result<Self> {
        Ok(Self(command.spawn().context("start topolvm-scheduler")?))
    }

    /// Retries a request until it is answered, as long as the program runs.
    fn wait_for<T>(&mut self, mut ask: impl FnMut() -> Result<T>) -> Result<T> {
        let end = Instant::now() + LIMIT;
        loop {
            let error = match ask() {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            ensure!(self.0.try_wait()?.is_none(), "topolvm-scheduler has ended: {error:#}");
            ensure!(Instant::now() < end, "no answer within {LIMIT:?}: {error:#}");
            std::thread::yield_now();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}
