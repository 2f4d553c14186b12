//! Go programs of the test bed: Kubernetes, the CSI sidecars, csi-sanity, helm, cert-manager, actionlint and decoders.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use super::golang::Module;
use super::key;
use crate::cache::Cache;

const KUBERNETES_TOOLS: Module = Module {
    name: "kubernetes-tools",
    what: "Kubernetes 1.37.2 and the stock sidecars",
    duration: "about 5 minutes",
    go_mod: include_str!("../../kubernetes-tools/go.mod"),
    go_sum: include_str!("../../kubernetes-tools/go.sum"),
    main: None,
    // Kubernetes' own build sets these; without them the programs call themselves v0.0.0-master and refuse each other.
    ldflags: "-s -w -X k8s.io/component-base/version.gitVersion=v1.37.2 -X k8s.io/component-base/version.gitMajor=1 \
              -X k8s.io/component-base/version.gitMinor=37",
    tags: "",
};

/// The oldest version that is supported, `topolvm_doctor::OLDEST`.
const OLDEST_KUBERNETES: Module = Module {
    name: "oldest-kubernetes",
    what: "Kubernetes 1.30.14",
    duration: "about 5 minutes",
    go_mod: include_str!("../../oldest-kubernetes/go.mod"),
    go_sum: include_str!("../../oldest-kubernetes/go.sum"),
    main: None,
    ldflags: "-s -w -X k8s.io/component-base/version.gitVersion=v1.30.14 -X k8s.io/component-base/version.gitMajor=1 \
              -X k8s.io/component-base/version.gitMinor=30",
    // Without the volume plugins and credentials of clouds
    tags: "providerless",
};

const CSI_SANITY: Module = Module {
    name: "csi-sanity",
    what: "the CSI conformance suite",
    duration: "about a minute",
    go_mod: include_str!("../../csi-sanity/go.mod"),
    go_sum: include_str!("../../csi-sanity/go.sum"),
    main: None,
    ldflags: "-s -w",
    tags: "",
};

const HELM_3: Module = Module {
    name: "helm3",
    what: "helm 3.22",
    duration: "about 3 minutes",
    go_mod: include_str!("../../helm3/go.mod"),
    go_sum: include_str!("../../helm3/go.sum"),
    main: None,
    // Helm's own build sets these; without them it takes the cluster of `helm template` for Kubernetes 1.20
    ldflags: "-s -w -X helm.sh/helm/v3/pkg/chartutil.k8sVersionMajor=1 \
              -X helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor=37 -X helm.sh/helm/v3/pkg/lint/rules.k8sVersionMajor=1 \
              -X helm.sh/helm/v3/pkg/lint/rules.k8sVersionMinor=37",
    tags: "",
};

const HELM_4: Module = Module {
    name: "helm4",
    what: "helm 4.3",
    duration: "about 3 minutes",
    go_mod: include_str!("../../helm4/go.mod"),
    go_sum: include_str!("../../helm4/go.sum"),
    main: None,
    ldflags: "-s -w",
    tags: "",
};

const CERT_MANAGER: Module = Module {
    name: "cert-manager",
    what: "cert-manager 1.21",
    duration: "about 3 minutes",
    go_mod: include_str!("../../cert-manager/go.mod"),
    go_sum: include_str!("../../cert-manager/go.sum"),
    main: Some(include_str!("../../cert-manager/main.go")),
    ldflags: "-s -w",
    tags: "",
};

const ACTIONLINT: Module = Module {
    name: "actionlint",
    what: "the linter of workflows",
    duration: "less than a minute",
    go_mod: include_str!("../../actionlint/go.mod"),
    go_sum: include_str!("../../actionlint/go.sum"),
    main: None,
    ldflags: "-s -w",
    tags: "",
};

const SCHEDULER_CONFIG: Module = Module {
    name: "scheduler-config",
    what: "decoders of older configurations of kube-scheduler",
    duration: "about a minute",
    go_mod: include_str!("../../scheduler-config/go.mod"),
    go_sum: include_str!("../../scheduler-config/go.sum"),
    main: Some(include_str!("../../scheduler-config/main.go")),
    ldflags: "-s -w",
    tags: "",
};

/// Names of the programs in [`KubernetesTools::bin`].
const PROGRAMS: [&str; 10] = [
    "csi-provisioner",
    "csi-resizer",
    "csi-snapshotter",
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubectl",
    "kubelet",
    "snapshot-controller",
];

/// The programs of a cluster's control plane and nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KubernetesTools {
    /// etcd, kube-apiserver, kube-controller-manager, kube-scheduler, kubelet, kubectl, csi-provisioner, csi-resizer,
    /// csi-snapshotter, snapshot-controller
    pub bin: PathBuf,
    /// Manifests of the `VolumeSnapshot` CRDs.
    pub crds: PathBuf,
}

/// Returns true if clusters are to have the oldest version of Kubernetes that is supported:
/// `TESTBED_KUBERNETES=oldest`.
pub fn is_oldest_kubernetes() -> bool {
    std::env::var_os("TESTBED_KUBERNETES").is_some_and(|wanted| wanted == "oldest")
}

/// Returns Kubernetes and the stock CSI sidecars: those in `$TESTBED_BIN` when that is set, else built with Go. etcd,
/// kubectl and the sidecars are of the newest version in any case.
pub fn kubernetes_tools() -> Result<KubernetesTools> {
    if let Some(bin) = prebuilt()? {
        let missing: Vec<&str> = PROGRAMS.into_iter().filter(|name| !bin.join(name).is_file()).collect();
        if !missing.is_empty() {
            bail!("TESTBED_BIN={} has no {}", bin.display(), missing.join(", "));
        }
        let crds = [bin.join("crds"), bin.join("../crds")].into_iter().find(|crds| crds.is_dir());
        let crds = crds.with_context(|| {
            format!("TESTBED_BIN={} has no directory crds (manifests of VolumeSnapshot)", bin.display())
        })?;
        return Ok(KubernetesTools { bin, crds });
    }
    let cache = Cache::open()?;
    let entry = KUBERNETES_TOOLS.build(&cache, |build| {
        // Go names the program by the last part of its package.
        build.rename("server", "etcd")?;
        build.copy_files("github.com/kubernetes-csi/external-snapshotter/client/v8", "config/crd", "crds")
    })?;
    let newest = KubernetesTools { bin: entry.join("bin"), crds: entry.join("crds") };
    if is_oldest_kubernetes() { with_oldest(newest, &cache) } else { Ok(newest) }
}

/// Returns the programs with those of the oldest Kubernetes in the place of the newest, all in one directory.
fn with_oldest(newest: KubernetesTools, cache: &Cache) -> Result<KubernetesTools> {
    let oldest = OLDEST_KUBERNETES.build(cache, |_| Ok(()))?.join("bin");
    let key = key(&[&oldest.to_string_lossy(), &newest.bin.to_string_lossy()]);
    let bin = cache.entry("oldest-kubernetes-tools", &key, |directory| {
        for program in PROGRAMS {
            let source = [&oldest, &newest.bin].map(|bin| bin.join(program)).into_iter().find(|file| file.is_file());
            let source = source.with_context(|| format!("no {program} was built"))?;
            fs::hard_link(source, directory.join(program)).with_context(|| format!("link {program}"))?;
        }
        Ok(())
    })?;
    Ok(KubernetesTools { bin, ..newest })
}

/// Returns the program csi-sanity: the one in `$TESTBED_BIN` when there is one, else built with Go.
pub fn csi_sanity() -> Result<PathBuf> {
    if let Some(program) = prebuilt()?.map(|bin| bin.join("csi-sanity"))
        && program.is_file()
    {
        return Ok(program);
    }
    Ok(CSI_SANITY.build(&Cache::open()?, |_| Ok(()))?.join("bin/csi-sanity"))
}

/// A version of helm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Helm {
    /// 3.22
    Three,
    /// 4.3
    Four,
}

/// Returns the program helm: `helm3` or `helm4` in `$TESTBED_BIN` when there is one, else built with Go.
pub fn helm(version: Helm) -> Result<PathBuf> {
    let module = match version {
        Helm::Three => &HELM_3,
        Helm::Four => &HELM_4,
    };
    if let Some(program) = prebuilt()?.map(|bin| bin.join(module.name))
        && program.is_file()
    {
        return Ok(program);
    }
    Ok(module.build(&Cache::open()?, |_| Ok(()))?.join("bin/helm"))
}

/// The programs and manifests of cert-manager.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertManager {
    /// Controllers and cainjector in one program, which needs `$KUBECONFIG`.
    pub program: PathBuf,
    /// Manifests of the CRDs.
    pub crds: PathBuf,
}

/// Returns cert-manager: `cert-manager` and the directory `cert-manager-crds` in `$TESTBED_BIN` when they exist, else
/// built with Go.
pub fn cert_manager() -> Result<CertManager> {
    if let Some(bin) = prebuilt()?
        && bin.join("cert-manager").is_file()
        && bin.join("cert-manager-crds").is_dir()
    {
        return Ok(CertManager { program: bin.join("cert-manager"), crds: bin.join("cert-manager-crds") });
    }
    let entry = CERT_MANAGER.build(&Cache::open()?, |build| {
        build.copy_files("github.com/cert-manager/cert-manager", "deploy/crds", "crds")
    })?;
    Ok(CertManager { program: entry.join("bin/cert-manager"), crds: entry.join("crds") })
}

/// Returns the program actionlint, built with Go.
pub fn actionlint() -> Result<PathBuf> {
    Ok(ACTIONLINT.build(&Cache::open()?, |_| Ok(()))?.join("bin/actionlint"))
}

/// Returns the program scheduler-config, built with Go. It decodes configurations of kube-scheduler as the versions did
/// that understood them, and prints them as JSON, each in a line.
pub fn scheduler_config() -> Result<PathBuf> {
    Ok(SCHEDULER_CONFIG.build(&Cache::open()?, |_| Ok(()))?.join("bin/scheduler-config"))
}

/// Returns the directory `$TESTBED_BIN` with programs that need not be built, if it is set.
fn prebuilt() -> Result<Option<PathBuf>> {
    let Some(bin) = std::env::var_os("TESTBED_BIN").filter(|bin| !bin.is_empty()).map(PathBuf::from) else {
        return Ok(None);
    };
    let absolute = bin.canonicalize().with_context(|| format!("TESTBED_BIN={} is no directory", bin.display()))?;
    Ok(Some(absolute))
}
