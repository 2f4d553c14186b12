//! Programs that are not ours and that the test bed needs: fetched or built once, kept in the [`Cache`].

mod debian;
mod golang;
mod interpreter;
mod progress;

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use sha2::{Digest as _, Sha256};

use crate::cache::Cache;
use crate::machine::find_program;

/// The oldest Debian suite whose User-Mode Linux works on every processor: earlier kernels panic at start on one with
/// AMX.
const SUITE: &str = "forky";

/// The Debian whose C library the product's programs need, or a newer one.
const BUILD_SUITE: &str = "bookworm";

const KUBERNETES_TOOLS: golang::Module = golang::Module {
    name: "kubernetes-tools",
    what: "Kubernetes 1.36.3 and the stock sidecars",
    duration: "about 5 minutes",
    go_mod: include_str!("../kubernetes-tools/go.mod"),
    go_sum: include_str!("../kubernetes-tools/go.sum"),
    main: None,
    // Kubernetes' own build sets these; without them the programs call themselves v0.0.0-master and refuse each other.
    ldflags: "-s -w -X k8s.io/component-base/version.gitVersion=v1.36.3 -X k8s.io/component-base/version.gitMajor=1 \
              -X k8s.io/component-base/version.gitMinor=36",
};

const CSI_SANITY: golang::Module = golang::Module {
    name: "csi-sanity",
    what: "the CSI conformance suite",
    duration: "about a minute",
    go_mod: include_str!("../csi-sanity/go.mod"),
    go_sum: include_str!("../csi-sanity/go.sum"),
    main: None,
    ldflags: "-s -w",
};

const HELM_3: golang::Module = golang::Module {
    name: "helm3",
    what: "helm 3.22",
    duration: "about 3 minutes",
    go_mod: include_str!("../helm3/go.mod"),
    go_sum: include_str!("../helm3/go.sum"),
    main: None,
    // Helm's own build sets these; without them it takes the cluster of `helm template` for Kubernetes 1.20
    ldflags: "-s -w -X helm.sh/helm/v3/pkg/chartutil.k8sVersionMajor=1 \
              -X helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor=36 -X helm.sh/helm/v3/pkg/lint/rules.k8sVersionMajor=1 \
              -X helm.sh/helm/v3/pkg/lint/rules.k8sVersionMinor=36",
};

const HELM_4: golang::Module = golang::Module {
    name: "helm4",
    what: "helm 4.3",
    duration: "about 3 minutes",
    go_mod: include_str!("../helm4/go.mod"),
    go_sum: include_str!("../helm4/go.sum"),
    main: None,
    ldflags: "-s -w",
};

const CERT_MANAGER: golang::Module = golang::Module {
    name: "cert-manager",
    what: "cert-manager 1.21",
    duration: "about 3 minutes",
    go_mod: include_str!("../cert-manager/go.mod"),
    go_sum: include_str!("../cert-manager/go.sum"),
    main: Some(include_str!("../cert-manager/main.go")),
    ldflags: "-s -w",
};

const ACTIONLINT: golang::Module = golang::Module {
    name: "actionlint",
    what: "the linter of workflows",
    duration: "less than a minute",
    go_mod: include_str!("../actionlint/go.mod"),
    go_sum: include_str!("../actionlint/go.sum"),
    main: None,
    ldflags: "-s -w",
};

/// The names under which [`KubernetesTools::bin`] has its programs.
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

/// A guest's kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kernel {
    /// The kernel, a program of the machine.
    pub program: PathBuf,
    /// The directory of the C library it needs. No other program may see it.
    pub libc: PathBuf,
    /// The directory with the modules: `RELEASE/kernel/...`
    pub modules: PathBuf,
}

/// The container runtime of a node guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Containerd {
    /// `containerd`, `containerd-shim-runc-v2`, `ctr`
    pub bin: PathBuf,
    /// CNI plugins: `bridge`, `host-local`, `loopback`
    pub cni: PathBuf,
}

/// What a cluster's control plane and nodes run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KubernetesTools {
    /// etcd, kube-apiserver, kube-controller-manager, kube-scheduler, kubelet, kubectl, csi-provisioner, csi-resizer,
    /// csi-snapshotter, snapshot-controller
    pub bin: PathBuf,
    /// Manifests of the `VolumeSnapshot` CRDs.
    pub crds: PathBuf,
}

/// The guests' kernel; also sees to it that the programs that tests run in a guest (LVM, mkfs) are installed on the
/// machine, whose files the guest sees.
pub fn kernel() -> Result<Kernel> {
    let cache = Cache::open()?;
    debian::install_missing(
        &cache,
        &[
            ("lvs", "lvm2"),
            ("thin_check", "thin-provisioning-tools"),
            ("insmod", "kmod"),
            ("mkfs.ext4", "e2fsprogs"),
            ("mkfs.xfs", "xfsprogs"),
            ("mkfs.btrfs", "btrfs-progs"),
            ("ip", "iproute2"),
        ],
    )?;
    let packages = ["user-mode-linux", "libc6"];
    let entry = cache.entry("kernel", &key(&[SUITE, &packages.join(" ")]), |directory| {
        debian::unpack(directory, SUITE, &packages)?;
        let (program, patched) = (directory.join("usr/bin/linux.uml"), directory.join("linux"));
        // The entry is renamed when it is complete; the link's name comes from where it will be then.
        interpreter::replace(&program, &patched, &link(&cache, &packages)?)
    })?;
    let libc = entry.join("usr/lib/x86_64-linux-gnu");
    interpreter::link(&link(&cache, &packages)?, &libc.join("ld-linux-x86-64.so.2"))?;
    Ok(Kernel { program: entry.join("linux"), libc, modules: entry.join("usr/lib/uml/modules") })
}

/// The one file outside the cache: a short name for the kernel's ELF interpreter, because the path in an ELF header can
/// only be replaced by one that is not longer. Each cache has its own.
fn link(cache: &Cache, packages: &[&str]) -> Result<PathBuf> {
    let root = cache.root().to_str().context("the path of the cache is not text")?;
    let key = key(&[root, SUITE, &packages.join(" ")]);
    Ok(PathBuf::from(format!("/var/tmp/uml-ld-{}.so", key.get(..8).unwrap_or(&key))))
}

/// A directory with the contents of packages of the suite that the product is built on, each `package=version` or
/// `package`, for an architecture in Debian's words, and in the file `packages` which they are.
pub fn unpacked(architecture: &str, packages: &[&str]) -> Result<PathBuf> {
    Cache::open()?.entry("debian-packages", &key(&[BUILD_SUITE, architecture, &packages.join(" ")]), |directory| {
        debian::unpack_for(architecture, directory, BUILD_SUITE, packages)
    })
}

/// A directory with systemd and udevd of the machine's Debian, to be laid over the machine's files: those who run tests
/// in a container have neither, and a machine is not to get an init system for a test.
pub(crate) fn systemd() -> Result<PathBuf> {
    let suite = debian::suite_of_machine()?;
    // Programs and libraries of one version, whatever of them is on the machine
    let packages = ["systemd", "udev", "libsystemd-shared", "libsystemd0", "libudev1"];
    let more = [
        "libapparmor1",
        "libargon2-1",
        "libcryptsetup12",
        "libfdisk1",
        "libip4tc2",
        "libjson-c5",
        "libkmod2",
        "libseccomp2",
    ];
    let packages = [&packages[..], &more[..]].concat();
    Cache::open()?.entry("systemd", &key(&[&suite, &packages.join(" ")]), |directory| {
        debian::unpack(directory, &suite, &packages)?;
        debian::merge_usr(directory)
    })
}

/// containerd and the CNI plugins; also sees to it that runc and a static busybox are installed on the machine.
pub fn containerd() -> Result<Containerd> {
    let cache = Cache::open()?;
    debian::install_missing(&cache, &[("runc", "runc"), ("busybox", "busybox-static")])?;
    let packages = ["containerd", "containernetworking-plugins"];
    let entry = cache.entry("containerd", &key(&[SUITE, &packages.join(" ")]), |directory| {
        debian::unpack(directory, SUITE, &packages)
    })?;
    Ok(Containerd { bin: entry.join("usr/bin"), cni: entry.join("usr/lib/cni") })
}

/// Kubernetes and the stock CSI sidecars: those in `$TESTBED_BIN` when that is set, else built with Go.
pub fn kubernetes_tools() -> Result<KubernetesTools> {
    if let Some(bin) = ready_made()? {
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
    let entry = KUBERNETES_TOOLS.build(&Cache::open()?, |build| {
        // Go names the program by the last part of its package.
        build.rename("server", "etcd")?;
        build.copy_files("github.com/kubernetes-csi/external-snapshotter/client/v8", "config/crd", "crds")
    })?;
    Ok(KubernetesTools { bin: entry.join("bin"), crds: entry.join("crds") })
}

/// The program csi-sanity: the one in `$TESTBED_BIN` when there is one, else built with Go.
pub fn csi_sanity() -> Result<PathBuf> {
    if let Some(program) = ready_made()?.map(|bin| bin.join("csi-sanity"))
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

/// The program helm: `helm3` or `helm4` in `$TESTBED_BIN` when there is one, else built with Go.
pub fn helm(version: Helm) -> Result<PathBuf> {
    let module = match version {
        Helm::Three => &HELM_3,
        Helm::Four => &HELM_4,
    };
    if let Some(program) = ready_made()?.map(|bin| bin.join(module.name))
        && program.is_file()
    {
        return Ok(program);
    }
    Ok(module.build(&Cache::open()?, |_| Ok(()))?.join("bin/helm"))
}

/// cert-manager.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertManager {
    /// Its controllers and its cainjector in one program, which wants `$KUBECONFIG`.
    pub program: PathBuf,
    /// Manifests of its definitions.
    pub crds: PathBuf,
}

/// cert-manager: `cert-manager` and the directory `cert-manager-crds` in `$TESTBED_BIN` when they are there, else built
/// with Go.
pub fn cert_manager() -> Result<CertManager> {
    if let Some(bin) = ready_made()?
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

/// The program actionlint, built with Go.
pub fn actionlint() -> Result<PathBuf> {
    Ok(ACTIONLINT.build(&Cache::open()?, |_| Ok(()))?.join("bin/actionlint"))
}

/// The program shellcheck, of Debian.
pub fn shellcheck() -> Result<PathBuf> {
    debian::install_missing(&Cache::open()?, &[("shellcheck", "shellcheck")])?;
    find_program("shellcheck").context("no shellcheck although the package is installed")
}

/// A static busybox for test images.
pub fn busybox() -> Result<PathBuf> {
    debian::install_missing(&Cache::open()?, &[("busybox", "busybox-static")])?;
    find_program("busybox").context("no busybox although the package busybox-static is installed")
}

fn ready_made() -> Result<Option<PathBuf>> {
    let Some(bin) = std::env::var_os("TESTBED_BIN").filter(|bin| !bin.is_empty()).map(PathBuf::from) else {
        return Ok(None);
    };
    let absolute = bin.canonicalize().with_context(|| format!("TESTBED_BIN={} is no directory", bin.display()))?;
    Ok(Some(absolute))
}

/// 16 hexadecimal digits that change when any of the parts does.
fn key(parts: &[&str]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part);
    }
    let mut key = format!("{:x}", hash.finalize());
    key.truncate(16);
    key
}
