//! `kubectl topolvm ui` against the pod of topolvm-controller: its answers, and its page in a headless Chromium.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Stdio};

use anyhow::{Context as _, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use system_tests::browser::{Browser, VIEWPORTS};
use system_tests::commands::Commands;
use system_tests::plugin;
use system_tests::shared::TestCluster;

/// Enables the page, and finds the volume of a claim in the namespace default through a forwarded port.
pub(crate) fn check(shared: &TestCluster, claim: &str) -> Result<()> {
    let off = plugin::run(&shared.cluster, &shared.cluster.inner_kubeconfig(), &["ui", "--no-browser"])?;
    ensure!(!off.is_success && off.errors.contains("kubectl topolvm upgrade --ui"), "{off:?}");
    plugin::run_successfully(&shared.cluster, &["upgrade", "--ui"])?;

    // In the place of the shell, so that the signal reaches it
    let here = ("kubectl topolvm ui", "exec kubectl topolvm ui --no-browser");
    let open = Commands::of("web-page.md", "Turn it on and open it")?.with(here.0, here.1)?;
    let mut forwarding = open.command(&shared.cluster)?.stdout(Stdio::piped()).spawn().context("run sh")?;
    let checked = check_page(shared, &mut forwarding, claim);
    // As Ctrl-C does
    let pid = i32::try_from(forwarding.id()).ok().and_then(Pid::from_raw).context("no process id")?;
    kill_process(pid, Signal::INT).context("interrupt kubectl topolvm ui")?;
    let status = forwarding.wait()?;
    checked?;
    ensure!(status.success(), "kubectl topolvm ui ends with {status}");
    Ok(())
}

fn check_page(shared: &TestCluster, forwarding: &mut Child, claim: &str) -> Result<()> {
    let mut lines = BufReader::new(forwarding.stdout.take().context("no output")?).lines();
    let url = lines.next().context("kubectl topolvm ui prints no address")??;
    let get = |path: &str| -> Result<String> {
        let output = plugin::shell(&shared.cluster, &format!("curl -sSf {url}{path}"))?.output().context("run sh")?;
        ensure!(output.status.success(), "{path}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8(output.stdout)?)
    };
    ensure!(get("")?.contains("<title>"), "{url} has no page");
    // The pod is new, and fills its caches
    let volume = shared.cluster.ready("apiserver", || {
        let volumes: Value = serde_json::from_str(&get("api/volumes")?)?;
        let row = &volumes["rows"][0];
        ensure!(row["claim"] == claim && row["namespace"] == "default" && row["state"] == "Ready", "{volumes:#}");
        let node = row["node"].as_str().context("no node")?;
        let storage: Value = serde_json::from_str(&get(&format!("api/storage?node={node}"))?)?;
        let disks = storage["groups"][0]["disks"].as_array().map_or(0, Vec::len);
        ensure!(storage["unknown"].is_null() && disks > 0, "{storage:#}");
        Ok(row["name"].as_str().context("no name")?.to_owned())
    })?;
    // The agent reports a volume that a pod has mounted
    let usage = shared.cluster.ready("apiserver", || {
        let answer: Value = serde_json::from_str(&get(&format!("api/usage?volume={volume}"))?)?;
        let usage = &answer["volumes"][&volume];
        ensure!(usage["pod"].as_str().is_some_and(|pod| pod.starts_with(claim)), "{answer:#}");
        ensure!(usage["filesystemSize"].as_f64() > usage["filesystemAvailable"].as_f64(), "{answer:#}");
        Ok(usage.clone())
    })?;
    let pod = usage["pod"].as_str().context("no pod")?;
    shared.cluster.netns().enter(|| check_with_browser(&url, claim, pod))?
}

/// Opens the page at the forwarded port, and waits for the agent's report about the volume.
fn check_with_browser(url: &str, claim: &str, pod: &str) -> Result<()> {
    let directory = tempfile::tempdir_in("/var/tmp").context("create a directory")?;
    let browser = Browser::start(directory.path())?;
    browser.set_viewport(VIEWPORTS[0])?;
    browser.open(url)?;
    browser.wait_for("document.querySelectorAll('#nodes .node').length >= 1")?;
    browser.wait_for(&format!("document.querySelector('#rows .row').innerText.includes('{claim}')"))?;
    browser.wait_for("document.querySelector('#rows .row .used .gauge')")?;
    browser.wait_for(&format!("document.querySelector('#rows .row').innerText.includes('{pod}')"))?;
    browser.check_accessibility()?;
    let messages = browser.console()?;
    ensure!(messages.is_empty(), "the console has {messages:#?}");
    Ok(())
}
