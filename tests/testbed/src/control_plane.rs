//! The control plane of a cluster: etcd, kube-apiserver, kube-controller-manager and kube-scheduler, as processes in a
//! network namespace, in the order in which they need each other, and a client of its API server.

mod commands;

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::de::DeserializeOwned;

use crate::https::Https;
use crate::kubeconfig::{self, Credential};
use crate::log;
use crate::netns::NetNs;
use crate::network::{API_SERVER, GATEWAY};
use crate::pki::{Identity, Pki};
use crate::processes::Processes;

/// Name of the process of the API server.
pub(crate) const API_SERVER_PROCESS: &str = "apiserver";
/// Name of the process of kube-scheduler.
pub(crate) const SCHEDULER_PROCESS: &str = "scheduler";
/// Address of etcd in the network namespace.
pub(crate) const ETCD: &str = "http://127.0.0.1:2379";
/// Name of the audit log, among those of the programs.
pub(crate) const AUDIT: &str = "audit";
/// File with the audit policy, in the directory of a cluster that has one.
pub(crate) const AUDIT_POLICY: &str = "audit-policy.yaml";
/// File with the KubeSchedulerConfiguration, in the directory of a cluster.
const SCHEDULER_CONFIG: &str = "scheduler.yaml";
/// Directory of the certificates, in the directory of a cluster.
const PKI: &str = "pki";
const CONTROLLER_MANAGER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 10257);
const SCHEDULER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 10259);

/// A control plane: its directory, network namespace, certificates and processes. Its programs are in the directory
/// `bin`.
#[derive(Debug)]
pub(crate) struct ControlPlane {
    pub(crate) directory: PathBuf,
    pub(crate) netns: NetNs,
    pub(crate) pki: Pki,
    /// The administrator.
    pub(crate) admin: Identity,
    pub(crate) https: Https,
    pub(crate) processes: Processes,
}

impl ControlPlane {
    /// Creates the certificates of a new control plane. Its network namespace does not exist yet.
    pub(crate) fn create(directory: &Path) -> Result<Self> {
        let pki = Pki::create(&directory.join(PKI))?;
        let admin = pki.client("admin", Some("system:masters"))?;
        admin.write(&directory.join(PKI), "admin")?;
        Self::assemble(directory, pki, admin)
    }

    /// Opens the control plane that was created in `directory` earlier.
    pub(crate) fn open(directory: &Path) -> Result<Self> {
        let pki = Pki::open(&directory.join(PKI))?;
        let admin = Identity::read(&directory.join(PKI), "admin")?;
        Self::assemble(directory, pki, admin)
    }

    fn assemble(directory: &Path, pki: Pki, admin: Identity) -> Result<Self> {
        let netns = NetNs::at(&directory.join("netns"));
        let https = Https::new(netns.clone(), pki.authority(), &admin)?;
        Ok(Self { directory: directory.to_owned(), netns, pki, admin, https, processes: Processes::new(directory) })
    }

    /// Returns the path of the administrator's kubeconfig that works inside the network namespace and in the nodes.
    pub(crate) fn admin_kubeconfig(&self) -> PathBuf {
        self.directory.join("admin.kubeconfig")
    }

    /// Writes a kubeconfig that works inside the network namespace and in the nodes.
    pub(crate) fn write_kubeconfig(&self, path: &Path, credential: &Credential<'_>) -> Result<()> {
        kubeconfig::write(path, &format!("https://{API_SERVER}"), self.pki.authority(), credential)
    }

    /// Sends a GET to the API server as administrator; `path` begins with `/api`.
    pub(crate) fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        let body = self.https.get(API_SERVER, path)?;
        serde_json::from_slice(&body).with_context(|| format!("read the answer to {path}"))
    }

    /// Writes the kubeconfigs of the administrator and of the controllers, and the KubeSchedulerConfiguration with the
    /// lines of a test (`extenders:`, `profiles:`).
    pub(crate) fn write_configuration(&self, scheduler_lines: Option<&str>) -> Result<()> {
        self.write_kubeconfig(&self.admin_kubeconfig(), &Credential::Certificate(&self.admin))?;
        for (file, user) in
            [("controller-manager", "system:kube-controller-manager"), ("scheduler", "system:kube-scheduler")]
        {
            let identity = self.pki.client(user, None)?;
            let path = self.directory.join(format!("{file}.kubeconfig"));
            self.write_kubeconfig(&path, &Credential::Certificate(&identity))?;
        }
        let config = format!(
            "apiVersion: kubescheduler.config.k8s.io/v1\n\
             kind: KubeSchedulerConfiguration\n\
             clientConnection: {{kubeconfig: {}, qps: 500, burst: 1000}}\n\
             leaderElection: {{leaderElect: false}}\n\
             {}\n",
            self.directory.join("scheduler.kubeconfig").display(),
            scheduler_lines.unwrap_or_default()
        );
        let path = self.directory.join(SCHEDULER_CONFIG);
        fs::write(&path, config).with_context(|| format!("write {}", path.display()))
    }

    /// Writes the certificates that only the control plane has.
    pub(crate) fn write_certificates(&self) -> Result<()> {
        let names = ["localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"];
        let addresses = [IpAddr::V4(Ipv4Addr::LOCALHOST), API_SERVER.ip(), IpAddr::V4(GATEWAY)];
        self.pki.server("kube-apiserver", None, &names, &addresses)?.write(&self.directory.join("pki"), "server")?;
        self.pki
            .client("apiserver-kubelet", Some("system:masters"))?
            .write(&self.directory.join("pki"), "apiserver-kubelet")
    }

    /// Starts etcd and the API server, without waiting for them.
    pub(crate) fn start_storage(&self) -> Result<()> {
        self.processes.start("etcd", &self.etcd())?;
        self.start_api_server()
    }

    /// Starts the API server, without waiting for it.
    pub(crate) fn start_api_server(&self) -> Result<()> {
        self.processes.start(API_SERVER_PROCESS, &self.api_server())
    }

    /// Waits until the API server is ready.
    pub(crate) fn wait_for_api(&self) -> Result<()> {
        self.processes.wait_until_ready(API_SERVER_PROCESS, || {
            // Its own message would only be that it cannot reach etcd.
            if !self.processes.process("etcd")?.is_some_and(|process| process.is_alive()) {
                bail!("etcd died: {}", log::tail(&self.processes.log("etcd"), 15));
            }
            self.https.get(API_SERVER, "/readyz")
        })?;
        Ok(())
    }

    /// Starts kube-controller-manager and kube-scheduler, without waiting for them.
    pub(crate) fn start_controllers(&self) -> Result<()> {
        self.processes.start("controller-manager", &self.controller_manager())?;
        self.processes.start(SCHEDULER_PROCESS, &self.scheduler())
    }

    /// Waits until kube-controller-manager and kube-scheduler work, and pods can be created.
    pub(crate) fn wait_for_controllers(&self) -> Result<()> {
        self.processes.wait_until_ready(SCHEDULER_PROCESS, || self.https.get(SCHEDULER, "/healthz"))?;
        self.processes.wait_until_ready("controller-manager", || self.https.get(CONTROLLER_MANAGER, "/healthz"))?;
        // No pod can be created before these exist.
        for path in ["serviceaccounts/default", "configmaps/kube-root-ca.crt"] {
            let path = format!("/api/v1/namespaces/default/{path}");
            self.processes.wait_until_ready("controller-manager", || self.https.get(API_SERVER, &path))?;
        }
        Ok(())
    }
}
