//! Container images of programs of this machine, without a registry or a container engine.

mod archive;
mod files;

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

pub use self::archive::{Compression, write_archive};
pub use self::files::Files;
use crate::assets;

/// Image of the pods of tests: all of busybox. Its default command is a shell.
pub const BUSYBOX: &str = "testbed.local/busybox:1";
/// Image of the container that holds a pod's namespaces, the sandbox image of containerd.
pub const PAUSE: &str = "testbed.local/pause:1";

const PATH: &str = "PATH=/bin:/usr/bin:/sbin:/usr/sbin";

/// An image for Linux.
#[derive(Debug, Clone)]
pub struct Image {
    name: String,
    /// Architecture as in the OCI image specification: `amd64`, `arm64`.
    architecture: &'static str,
    /// Defaults of containers: the property `config` of the OCI image configuration.
    config: Value,
    /// Archives (tar) of files, the lowest first.
    layers: Vec<Vec<u8>>,
}

impl Image {
    /// Creates an image of these layers.
    pub fn new(name: &str, architecture: &'static str, config: Value, layers: Vec<Vec<u8>>) -> Self {
        Self { name: name.to_owned(), architecture, config, layers }
    }

    /// Puts one more layer on top.
    pub fn add_layer(&mut self, layer: Vec<u8>) {
        self.layers.push(layer);
    }

    /// Creates an image of busybox with links for all of its applets, and of programs of this machine under other
    /// paths. They must be static: there is no C library in the image.
    pub fn with_programs(name: &str, command: &[&str], programs: &[(&Path, &str)]) -> Result<Self> {
        let busybox = assets::busybox()?;
        let mut files = Files::root();
        files.add(&busybox, "bin/busybox")?;
        for applet in applets(&busybox)? {
            files.link(&format!("bin/{applet}"), "busybox");
        }
        for (program, path) in programs {
            files.add(program, path.trim_start_matches('/'))?;
        }
        Ok(Self::new(name, "amd64", json!({ "Env": [PATH], "Cmd": command }), vec![files.layer()?]))
    }

    /// Creates the two images that every node has. They share a layer, so the second one costs nothing.
    pub fn standard() -> Result<Vec<Self>> {
        let busybox = Self::with_programs(BUSYBOX, &["/bin/sh"], &[])?;
        let pause = Self {
            name: PAUSE.to_owned(),
            // The longest that it accepts on every platform: 63 years.
            config: json!({ "Env": [PATH], "Cmd": ["/bin/busybox", "sleep", "2000000000"] }),
            ..busybox.clone()
        };
        Ok(vec![busybox, pause])
    }
}

/// Lists the commands of a busybox.
fn applets(busybox: &Path) -> Result<Vec<String>> {
    let output = Command::new(busybox).arg("--list").output().with_context(|| format!("run {}", busybox.display()))?;
    if !output.status.success() {
        bail!("{} --list: {}", busybox.display(), String::from_utf8_lossy(&output.stderr).trim());
    }
    let text = String::from_utf8(output.stdout).context("the list of busybox's applets is not text")?;
    Ok(text.lines().filter(|name| *name != "busybox").map(str::to_owned).collect())
}
