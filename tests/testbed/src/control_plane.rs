//! The processes of a control plane: their command lines, in the order in which they need each other, and what "ready"
//! means for each.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::https::Https;
use crate::log;
use crate::netns::NetNs;
use crate::network::{API_SERVER, GATEWAY, SERVICES};
use crate::pki::Pki;
use crate::process::{Process, spawn, stop_file};

/// Name of its process.
pub(crate) const API_SERVER_PROCESS: &str = "apiserver";
pub(crate) const SCHEDULER_PROCESS: &str = "scheduler";
/// Name of the audit log, among those of the programs.
pub(crate) const AUDIT: &str = "audit";
/// The audit policy, in the directory of a cluster that has one.
pub(crate) const AUDIT_POLICY: &str = "audit-policy.yaml";
const ETCD: &str = "http://127.0.0.1:2379";
const CONTROLLER_MANAGER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 10257);
const SCHEDULER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 10259);
/// The issuer is also what tokens are for.
const ISSUER: &str = "https://kubernetes.default.svc";
/// The slowest machine that was seen needs a tenth of it.
const START_LIMIT: Duration = Duration::from_mins(1);
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Starts, watches and stops the programs of one cluster, each with `run/NAME.pid` and `log/NAME.log`.
#[derive(Debug, Clone)]
pub(crate) struct Processes {
    directory: PathBuf,
}

impl Processes {
    pub(crate) fn new(directory: &Path) -> Self {
        Self { directory: directory.to_owned() }
    }

    pub(crate) fn log(&self, name: &str) -> PathBuf {
        self.directory.join("log").join(format!("{name}.log"))
    }

    fn pid_file(&self, name: &str) -> PathBuf {
        self.directory.join("run").join(format!("{name}.pid"))
    }

    pub(crate) fn start(&self, name: &str, command: &Command) -> Result<()> {
        spawn(command, &self.log(name), &self.pid_file(name)).with_context(|| format!("start {name}"))?;
        Ok(())
    }

    pub(crate) fn stop(&self, name: &str, grace: Duration) -> Result<()> {
        stop_file(&self.pid_file(name), grace).with_context(|| format!("stop {name}"))
    }

    pub(crate) fn process(&self, name: &str) -> Result<Option<Process>> {
        Process::from_file(&self.pid_file(name))
    }

    /// All that were started and not stopped, sorted.
    pub(crate) fn names(&self) -> Result<Vec<String>> {
        let directory = self.directory.join("run");
        if !directory.exists() {
            return Ok(Vec::new());
        }
        let mut names = Vec::new();
        for entry in fs::read_dir(&directory).with_context(|| format!("list {}", directory.display()))? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            names.extend(name.strip_suffix(".pid").map(str::to_owned));
        }
        names.sort();
        Ok(names)
    }

    /// Asks `probe` until it succeeds; fails when the process ends or the time is over, with the end of its log.
    pub(crate) fn ready<T>(&self, name: &str, mut probe: impl FnMut() -> Result<T>) -> Result<T> {
        let end = Instant::now() + START_LIMIT;
        loop {
            let error = match probe() {
                Ok(answer) => return Ok(answer),
                Err(e) => e,
            };
            if !self.process(name)?.is_some_and(|process| process.is_alive()) {
                bail!("{name} died: {}", log::tail(&self.log(name), 15));
            }
            if Instant::now() >= end {
                let log = log::tail(&self.log(name), 15);
                return Err(error.context(format!("{name} was not ready after {START_LIMIT:?}: {log}")));
            }
            sleep(LOOK_AGAIN);
        }
    }
}

/// What the command lines need to know.
#[derive(Debug)]
pub(crate) struct ControlPlane<'a> {
    pub(crate) directory: &'a Path,
    pub(crate) netns: &'a NetNs,
    /// Where the programs are.
    pub(crate) tools: &'a Path,
    pub(crate) pki: &'a Pki,
    pub(crate) https: &'a Https,
    pub(crate) processes: &'a Processes,
}

impl ControlPlane<'_> {
    /// Writes the certificates that only the control plane has.
    pub(crate) fn certificates(&self) -> Result<()> {
        let names = ["localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"];
        let addresses = [IpAddr::V4(Ipv4Addr::LOCALHOST), API_SERVER.ip(), IpAddr::V4(GATEWAY)];
        self.pki.server("kube-apiserver", None, &names, &addresses)?.write(&self.directory.join("pki"), "server")?;
        self.pki
            .client("apiserver-kubelet", Some("system:masters"))?
            .write(&self.directory.join("pki"), "apiserver-kubelet")
    }

    pub(crate) fn start_storage(&self) -> Result<()> {
        self.processes.start("etcd", &self.etcd())?;
        self.start_api_server()
    }

    pub(crate) fn start_api_server(&self) -> Result<()> {
        self.processes.start(API_SERVER_PROCESS, &self.api_server())
    }

    pub(crate) fn wait_for_api(&self) -> Result<()> {
        self.processes.ready(API_SERVER_PROCESS, || {
            // Its own message would only be that it cannot reach etcd.
            if !self.processes.process("etcd")?.is_some_and(|process| process.is_alive()) {
                bail!("etcd died: {}", log::tail(&self.processes.log("etcd"), 15));
            }
            self.https.get(API_SERVER, "/readyz")
        })?;
        Ok(())
    }

    /// `scheduler_config` is the path of a complete KubeSchedulerConfiguration.
    pub(crate) fn start_controllers(&self, scheduler_config: &Path) -> Result<()> {
        self.processes.start("controller-manager", &self.controller_manager())?;
        self.processes.start(SCHEDULER_PROCESS, &self.scheduler(scheduler_config))
    }

    pub(crate) fn wait_for_controllers(&self) -> Result<()> {
        self.processes.ready(SCHEDULER_PROCESS, || self.https.get(SCHEDULER, "/healthz"))?;
        self.processes.ready("controller-manager", || self.https.get(CONTROLLER_MANAGER, "/healthz"))?;
        // No pod can be made before these exist.
        for path in ["serviceaccounts/default", "configmaps/kube-root-ca.crt"] {
            let path = format!("/api/v1/namespaces/default/{path}");
            self.processes.ready("controller-manager", || self.https.get(API_SERVER, &path))?;
        }
        Ok(())
    }

    fn program(&self, name: &str) -> Command {
        self.netns.command(self.tools.join(name))
    }

    fn etcd(&self) -> Command {
        let mut command = self.program("etcd");
        command.arg("--data-dir").arg(self.directory.join("etcd"));
        command.args(["--unsafe-no-fsync", "--log-level", "warn"]);
        command.args(["--listen-client-urls", ETCD, "--advertise-client-urls", ETCD]);
        command.args(["--listen-peer-urls", "http://127.0.0.1:2380"]);
        command
    }

    fn api_server(&self) -> Command {
        let mut command = self.program("kube-apiserver");
        let address = API_SERVER.ip().to_string();
        command.args(["--etcd-servers", ETCD]);
        // A Service without NAT needs port = targetPort, so the server itself is on 443.
        command.args(["--bind-address", &address, "--advertise-address", &address]);
        command.args(["--secure-port", &API_SERVER.port().to_string(), "--service-cluster-ip-range", SERVICES]);
        self.files(
            &mut command,
            &[
                ("--tls-cert-file", "server.crt"),
                ("--tls-private-key-file", "server.key"),
                ("--client-ca-file", "ca.crt"),
                ("--kubelet-certificate-authority", "ca.crt"),
                ("--kubelet-client-certificate", "apiserver-kubelet.crt"),
                ("--kubelet-client-key", "apiserver-kubelet.key"),
                ("--service-account-key-file", "sa.pub"),
                ("--service-account-signing-key-file", "sa.key"),
                ("--requestheader-client-ca-file", "front-proxy-ca.crt"),
                ("--proxy-client-cert-file", "front-proxy.crt"),
                ("--proxy-client-key-file", "front-proxy.key"),
            ],
        );
        command.args(["--kubelet-preferred-address-types", "InternalIP"]);
        command.args(["--service-account-issuer", ISSUER, "--api-audiences", ISSUER]);
        command.args(["--requestheader-allowed-names", "front-proxy"]);
        command.args(["--requestheader-username-headers", "X-Remote-User"]);
        command.args(["--requestheader-group-headers", "X-Remote-Group"]);
        command.args(["--requestheader-extra-headers-prefix", "X-Remote-Extra-"]);
        // A webhook's Service is called at its endpoints, which are pod or node addresses, not at its ClusterIP.
        command.arg("--enable-aggregator-routing=true");
        command.args(["--authorization-mode", "Node,RBAC", "--enable-admission-plugins", "NodeRestriction"]);
        command.arg("--allow-privileged=true");
        let policy = self.directory.join(AUDIT_POLICY);
        if policy.exists() {
            command.arg("--audit-policy-file").arg(policy);
            command.arg("--audit-log-path").arg(self.processes.log(AUDIT));
        }
        command
    }

    fn controller_manager(&self) -> Command {
        let mut command = self.program("kube-controller-manager");
        self.identity(&mut command, "controller-manager.kubeconfig");
        command.arg("--kubeconfig").arg(self.directory.join("controller-manager.kubeconfig"));
        self.files(
            &mut command,
            &[
                ("--service-account-private-key-file", "sa.key"),
                ("--root-ca-file", "ca.crt"),
                ("--cluster-signing-cert-file", "ca.crt"),
                ("--cluster-signing-key-file", "ca.key"),
            ],
        );
        command.args(["--use-service-account-credentials", "--leader-elect=false"]);
        // It makes a service account per controller at start, which takes 4 s more with the usual limit of 20 requests
        // a second.
        command.args(["--kube-api-qps", "500", "--kube-api-burst", "1000"]);
        command.args(["--controllers", "*,-node-ipam-controller,-cloud-node-lifecycle-controller"]);
        command
    }

    pub(crate) fn scheduler(&self, config: &Path) -> Command {
        let mut command = self.program("kube-scheduler");
        self.identity(&mut command, "scheduler.kubeconfig");
        command.arg("--config").arg(config);
        command
    }

    /// Where it serves its health, and who it is when it checks who asks. Without a certificate both programs would
    /// generate an RSA key at each start.
    fn identity(&self, command: &mut Command, kubeconfig: &str) {
        let kubeconfig = self.directory.join(kubeconfig);
        command.args(["--bind-address", "127.0.0.1"]);
        self.files(command, &[("--tls-cert-file", "server.crt"), ("--tls-private-key-file", "server.key")]);
        command.arg("--authentication-kubeconfig").arg(&kubeconfig);
        command.arg("--authorization-kubeconfig").arg(&kubeconfig);
    }

    fn files(&self, command: &mut Command, options: &[(&str, &str)]) {
        for (option, file) in options {
            command.arg(option).arg(self.pki.file(file));
        }
    }
}

/// A KubeSchedulerConfiguration: what every cluster needs, and the lines of a test (`extenders:`, `profiles:`).
pub(crate) fn scheduler_config(kubeconfig: &Path, extra: Option<&str>) -> String {
    format!(
        "apiVersion: kubescheduler.config.k8s.io/v1\n\
         kind: KubeSchedulerConfiguration\n\
         clientConnection: {{kubeconfig: {}, qps: 500, burst: 1000}}\n\
         leaderElection: {{leaderElect: false}}\n\
         {}\n",
        kubeconfig.display(),
        extra.unwrap_or_default()
    )
}
