//! The command lines of the programs of a control plane.

use std::process::Command;

use super::{AUDIT, AUDIT_POLICY, ControlPlane, ETCD, SCHEDULER_CONFIG};
use crate::assets;
use crate::network::{API_SERVER, SERVICES};

/// Issuer of the tokens of service accounts, and their audience.
const ISSUER: &str = "https://kubernetes.default.svc";

impl ControlPlane {
    fn program(&self, name: &str) -> Command {
        self.netns.command(self.directory.join("bin").join(name))
    }

    pub(super) fn etcd(&self) -> Command {
        let mut command = self.program("etcd");
        command.arg("--data-dir").arg(self.directory.join("etcd"));
        // The default limit of 2 GiB is less than the objects of the largest benchmark
        command.args(["--unsafe-no-fsync", "--log-level", "warn", "--quota-backend-bytes", "8589934592"]);
        command.args(["--listen-client-urls", ETCD, "--advertise-client-urls", ETCD]);
        command.args(["--listen-peer-urls", "http://127.0.0.1:2380"]);
        command
    }

    pub(super) fn api_server(&self) -> Command {
        let mut command = self.program("kube-apiserver");
        let address = API_SERVER.ip().to_string();
        command.args(["--etcd-servers", ETCD]);
        // A Service without NAT needs port = targetPort, so the server itself is on 443.
        command.args(["--bind-address", &address, "--advertise-address", &address]);
        command.args(["--secure-port", &API_SERVER.port().to_string(), "--service-cluster-ip-range", SERVICES]);
        self.add_files(
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
        // For volume health in the status of pods and of CSINodes, which kubelet reports
        let mut gates = "--feature-gates=CSIVolumeHealth=true".to_owned();
        if assets::is_oldest_kubernetes() {
            // For tokens of agents that run outside of pods; on by default since 1.31
            gates.push_str(",ServiceAccountTokenNodeBinding=true");
        }
        command.arg(gates);
        let policy = self.directory.join(AUDIT_POLICY);
        if policy.exists() {
            command.arg("--audit-policy-file").arg(policy);
            command.arg("--audit-log-path").arg(self.processes.log(AUDIT));
        }
        command
    }

    pub(super) fn controller_manager(&self) -> Command {
        let mut command = self.program("kube-controller-manager");
        self.add_serving_options(&mut command, "controller-manager.kubeconfig");
        command.arg("--kubeconfig").arg(self.directory.join("controller-manager.kubeconfig"));
        self.add_files(
            &mut command,
            &[
                ("--service-account-private-key-file", "sa.key"),
                ("--root-ca-file", "ca.crt"),
                ("--cluster-signing-cert-file", "ca.crt"),
                ("--cluster-signing-key-file", "ca.key"),
            ],
        );
        command.args(["--use-service-account-credentials", "--leader-elect=false"]);
        // It creates a service account per controller at start, which takes 4 s more with the usual limit of 20
        // requests a second.
        command.args(["--kube-api-qps", "500", "--kube-api-burst", "1000"]);
        // Newer ones do not have the second any more
        let older = if assets::is_oldest_kubernetes() { ",-cloud-node-lifecycle-controller" } else { "" };
        command.args(["--controllers", &format!("*,-node-ipam-controller{older}")]);
        command
    }

    /// Returns the command line of kube-scheduler, also for a caller that restarts it after it has exited.
    pub(crate) fn scheduler(&self) -> Command {
        let mut command = self.program("kube-scheduler");
        self.add_serving_options(&mut command, "scheduler.kubeconfig");
        command.arg("--config").arg(self.directory.join(SCHEDULER_CONFIG));
        command
    }

    /// Adds the address and certificate with which a program serves its health, and the kubeconfig with which it
    /// authenticates the callers. Without a certificate both programs would generate an RSA key at each start.
    fn add_serving_options(&self, command: &mut Command, kubeconfig: &str) {
        let kubeconfig = self.directory.join(kubeconfig);
        command.args(["--bind-address", "127.0.0.1"]);
        self.add_files(command, &[("--tls-cert-file", "server.crt"), ("--tls-private-key-file", "server.key")]);
        command.arg("--authentication-kubeconfig").arg(&kubeconfig);
        command.arg("--authorization-kubeconfig").arg(&kubeconfig);
    }

    fn add_files(&self, command: &mut Command, options: &[(&str, &str)]) {
        for (option, file) in options {
            command.arg(option).arg(self.pki.file(file));
        }
    }
}
