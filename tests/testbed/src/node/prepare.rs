//! Preparation of a node before its guest boots: disks, certificates, settings, network.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail};

use super::{AGENT_PORT, Node};
use crate::assets;
use crate::exec::Request;
use crate::kubeconfig::Credential;
use crate::network::GATEWAY;
use crate::reexec::{self, program_path};
use crate::size::GIB;

impl Node {
    pub(super) fn prepare(&self) -> Result<()> {
        let (name, directory) = (self.name(), &self.directory);
        self.spec.write(directory)?;
        let disks = self.disks();
        let sizes =
            [4 * GIB, 8 * GIB].into_iter().chain(self.spec.vg_disks.iter().chain(&self.spec.spare_disks).copied());
        for (disk, size) in disks.iter().zip(sizes) {
            let file = File::create_new(disk).with_context(|| format!("create {}", disk.display()))?;
            file.set_len(size).with_context(|| format!("make {} {size} bytes long", disk.display()))?;
        }
        // Two separate file systems: the volumes of /var/lib/kubelet must be able to propagate, and containerd's
        // overlays cannot lie on the overlay that the guest's root is.
        let formats: Vec<_> = disks.iter().take(2).map(|disk| (disk, make_file_system(disk))).collect();

        let pki = &self.control_plane.pki;
        let user = format!("system:node:{name}");
        let identity = pki.client(&user, Some("system:nodes"))?;
        self.control_plane
            .write_kubeconfig(&directory.join("kubelet.kubeconfig"), &Credential::Certificate(&identity))?;
        pki.server(&user, Some("system:nodes"), &[name], &[IpAddr::V4(self.spec.address)])?
            .write(directory, "serving")?;
        fs::copy(pki.file("ca.crt"), directory.join("ca.crt")).context("copy the authority's certificate")?;
        fs::write(directory.join("config"), self.config()?).context("write the node's settings")?;
        self.network.connect(&self.control_plane.netns)?;

        for (disk, child) in formats {
            let output = child.and_then(Child::wait_with_output).context("run mkfs.ext4 (package e2fsprogs)")?;
            if !output.status.success() {
                bail!("mkfs.ext4 {}: {}", disk.display(), String::from_utf8_lossy(&output.stderr).trim());
            }
        }
        Ok(())
    }

    /// Returns the files of the disks `/dev/ubda`, `/dev/ubdb`, ... in this order.
    pub(super) fn disks(&self) -> Vec<PathBuf> {
        let vg = (0..self.spec.vg_disks.len()).map(|n| format!("lvm{n}.img"));
        let spare = (0..self.spec.spare_disks.len()).map(|n| format!("spare{n}.img"));
        let names = ["kubelet.img", "containerd.img"].map(str::to_owned).into_iter().chain(vg).chain(spare);
        names.map(|name| self.directory.join(name)).collect()
    }

    /// Returns the settings that `node-init` reads, as assignments of a shell.
    fn config(&self) -> Result<String> {
        let containerd = assets::containerd()?;
        let root = &self.control_plane.directory;
        let pods = self.network.pods();
        let address = self.spec.address.to_string();
        let gateway = GATEWAY.to_string();
        let agent = program_path()?;
        let labels: Vec<String> = self.spec.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let vg_disks: Vec<String> =
            (2..2 + self.spec.vg_disks.len()).filter_map(|index| Some(device(u8::try_from(index).ok()?))).collect();
        let path = |path: &Path| path.to_string_lossy().into_owned();
        let assignments = [
            ("NAME", self.spec.name.clone()),
            ("ADDRESS", address),
            ("GATEWAY", gateway),
            ("PODS", pods),
            ("NODE_DIR", path(&self.directory)),
            ("CONTAINERD_BIN", path(&containerd.bin)),
            ("CNI_BIN", path(&containerd.cni)),
            ("KUBERNETES_BIN", path(&root.join("bin").canonicalize().context("resolve the programs' directory")?)),
            ("AGENT", path(&agent)),
            ("AGENT_WORD", reexec::AGENT.to_owned()),
            ("AGENT_PORT", AGENT_PORT.to_string()),
            ("IMAGES", path(&root.join("images.tar"))),
            ("LABELS", labels.join(",")),
            ("KUBELET_CONFIG", self.spec.kubelet_config.clone()),
            ("VG_DISKS", vg_disks.join(" ")),
        ];
        let mut text = String::new();
        for (name, value) in assignments {
            writeln!(text, "{name}={}", quote(&value))?;
        }
        Ok(text)
    }
}

/// Starts mkfs.ext4 for a disk. Lazy: the guest writes the tables when they are needed, and the file stays small.
fn make_file_system(disk: &Path) -> std::io::Result<Child> {
    Command::new("mkfs.ext4")
        .args(["-Fq", "-E", "lazy_itable_init=1,lazy_journal_init=1", "-m0"])
        .arg(disk)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
}

fn device(index: u8) -> String {
    format!("/dev/ubd{}", char::from(b'a' + index))
}

/// Returns a shell script that starts the program of a request at the next boot.
pub(super) fn start_script(request: &Request) -> String {
    let exports = request.env.iter().map(|(name, value)| format!("export {name}={}", quote(value)));
    let command = request.argv.iter().map(|word| quote(word)).collect::<Vec<_>>().join(" ");
    exports.chain([command, String::new()]).collect::<Vec<_>>().join("\n")
}

/// Quotes a text as one argument for a shell.
fn quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quoted_word_is_one_word_for_a_shell() {
        for text in ["plain", "two words", "it's $HOME; `date`", ""] {
            let script = format!("printf %s {}", quote(text));
            let output = Command::new("bash").args(["-c", &script]).output().unwrap();
            assert_eq!(String::from_utf8(output.stdout).unwrap(), text);
        }
    }
}
