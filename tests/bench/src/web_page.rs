//! Measures the web page of topolvm-controller in a headless Chromium, over a fake API server with the objects of a
//! large cluster.

use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, ensure};
use serde_json::json;
use topolvm_api::LogicalVolume;

use crate::figure::{Figure, median};
use crate::memory::{AT_REST, ResidentMemory, peak_mebibytes};
use system_tests::browser::{Browser, VIEWPORTS};
use system_tests::web_page::{LV, WebPage};

/// Prefix of the names of its figures.
pub(crate) const FAMILY: &str = "ui.";

const NODES: u64 = 1000;
const VOLUMES_PER_NODE: u64 = 50;
/// Loads and updates of which the median counts.
const ROUNDS: u64 = 9;
/// Time in which the controller receives all objects, one after the other.
const CACHED: Duration = Duration::from_mins(10);
/// Pause between two updates: the page receives changes within 0.3 s as one.
const PAUSE: Duration = Duration::from_secs(1);
/// Time after which a closed browser leaves no memory in use: threads that computed answers end after ten seconds
/// without work, and their memory is released within the following ten seconds.
const LEFT: Duration = Duration::from_secs(24);
/// Places between the first and the last volume that are scrolled to.
const SCROLLS: u64 = 25;
/// All rows on the screen are filled.
const FILLED: &str = "document.querySelectorAll('#rows .row').length > 0 \
                      && document.querySelectorAll('#rows .row.waiting').length === 0";
/// Keeps in `longestTask` for how long the page was busy without a break: by how much a timer is late.
const WATCH_TASKS: &str = "window.longestTask = 0; let last = performance.now(); const poll = () => { \
                           const now = performance.now(); window.longestTask = Math.max(longestTask, now - last - 5); \
                           last = now; setTimeout(poll, 5); }; poll()";
/// The page is complete: map of nodes, number of volumes, and first rows.
const COMPLETE: &str = "document.querySelectorAll('#nodes.dense .node').length === 1000 \
                        && document.getElementById('matched').innerText === '50,000 volumes' \
                        && document.querySelectorAll('#rows .row:not(.waiting)').length > 0";

/// Fills a cluster of 1,000 nodes and 50,000 volumes, and opens its page.
pub(crate) fn run(directory: &Path) -> Result<Vec<Figure>> {
    // The cost of its checks is not that of the page
    let page = WebPage::start(directory, "0s")?;
    let shown = fill(&page)?;
    wait_until_cached(&page)?;
    let alone = rest(&page)?;
    let browser = Browser::start(directory)?;
    browser.set_viewport(VIEWPORTS[0])?;
    let (mut loads, mut updates, mut largest) = (Vec::new(), Vec::new(), 0.0_f64);
    let read_memory = || Ok::<_, anyhow::Error>(ResidentMemory::read(page.controller())?.mebibytes());
    for _ in 0..ROUNDS {
        loads.push(load(&browser, &page)?);
        largest = largest.max(read_memory()?);
    }
    for round in 1..=ROUNDS {
        sleep(PAUSE);
        updates.push(update(&browser, &page, &shown, round)?);
        largest = largest.max(read_memory()?);
    }
    let longest_task = scroll_and_search(&browser, &page)?;
    largest = largest.max(read_memory()?);
    let peak = peak_mebibytes(page.controller())?;
    drop(browser);
    sleep(LEFT.saturating_sub(AT_REST));
    let afterwards = rest(&page)?;
    Ok(vec![
        Figure { name: "ui.load_ms", value: median(loads).context("no load")?, unit: "ms", goal: 1000.0 },
        Figure { name: "ui.update_ms", value: median(updates).context("no update")?, unit: "ms", goal: 500.0 },
        Figure { name: "ui.longest_task_ms", value: longest_task, unit: "ms", goal: 50.0 },
        Figure { name: "ui.rss_mib", value: (largest - alone).max(0.0), unit: "MiB", goal: 30.0 },
        Figure { name: "ui.peak_rss_mib", value: peak, unit: "MiB", goal: 192.0 },
        Figure { name: "ui.rss_after_mib", value: (afterwards - alone).max(0.0), unit: "MiB", goal: 1.0 },
    ])
}

/// Adds the objects. Returns the volume in the first row.
fn fill(page: &WebPage) -> Result<LogicalVolume> {
    let mut first = None;
    for number in 0..NODES {
        let node = format!("node-{number:04}");
        page.add_node(&node, &[("", 100), ("ssd", 100), ("hdd", 900)]);
        for volume in 0..VOLUMES_PER_NODE {
            let claim = format!("team-{:02}/data-{number:04}-{volume:02}", number % 40);
            let added = page.add_volume(&format!("pvc-{number:04}-{volume:02}"), &node, "ssd", 5, &claim);
            first.get_or_insert(added);
        }
    }
    first.context("no volume")
}

/// Waits until the controller has all objects in its caches. It polls the controller without a browser, because that
/// would hide the memory that the first browser leaves.
fn wait_until_cached(page: &WebPage) -> Result<()> {
    let deadline = Instant::now() + CACHED;
    let all = NODES * VOLUMES_PER_NODE;
    while page.ask("api/volumes?limit=1")?.get("total").is_none_or(|total| *total != all) {
        ensure!(Instant::now() < deadline, "the controller does not have all objects after {CACHED:?}");
        sleep(PAUSE);
    }
    Ok(())
}

/// Returns the MiB of the controller's resident memory after a pause.
fn rest(page: &WebPage) -> Result<f64> {
    sleep(AT_REST);
    Ok(ResidentMemory::read(page.controller())?.mebibytes())
}

/// Loads the page. Returns the milliseconds from the beginning of the navigation until it is complete.
fn load(browser: &Browser, page: &WebPage) -> Result<f64> {
    browser.open("about:blank")?;
    browser.open(&page.url)?;
    browser.wait_for(COMPLETE)?;
    browser.run("return performance.now()")?.as_f64().context("no time")
}

/// Grows a volume that is on the screen. Returns the milliseconds until the page shows its new size.
fn update(browser: &Browser, page: &WebPage, volume: &LogicalVolume, round: u64) -> Result<f64> {
    let name = volume.metadata.name.as_deref().context("a volume without a name")?;
    let size = 1000 + round;
    browser.run(&format!(
        "window.shownAt = 0; const poll = () => {{ \
         if (document.getElementById('rows').innerText.includes('{size} GiB')) \
         window.shownAt = performance.timeOrigin + performance.now(); else setTimeout(poll, 5); }}; poll()"
    ))?;
    let before = SystemTime::now().duration_since(UNIX_EPOCH).context("the clock is before 1970")?;
    page.api.edit(LV, "", name, |volume| {
        for path in ["/spec/size", "/status/currentSize"] {
            if let Some(value) = volume.pointer_mut(path) {
                *value = json!(format!("{size}Gi"));
            }
        }
    });
    browser.wait_for("window.shownAt > 0")?;
    let shown = browser.run("return window.shownAt")?.as_f64().context("no time")?;
    let milliseconds = shown - before.as_secs_f64() * 1000.0;
    ensure!(milliseconds > 0.0, "it was shown {milliseconds} ms after the change");
    Ok(milliseconds)
}

/// Scrolls from the first volume to the last, and searches for those of a node. Returns the milliseconds for which the
/// page was busy without a break at most.
fn scroll_and_search(browser: &Browser, page: &WebPage) -> Result<f64> {
    load(browser, page)?;
    browser.run(WATCH_TASKS)?;
    for place in 1..=SCROLLS {
        browser.run(&format!("scrollTo(0, document.documentElement.scrollHeight * {place} / {SCROLLS})"))?;
        browser.wait_for(FILLED)?;
    }
    browser.press("/")?;
    for letter in "data-0420".chars() {
        browser.press(&letter.to_string())?;
    }
    browser.wait_for("document.getElementById('matched').innerText === '50 of 50,000 volumes'")?;
    browser.wait_for(FILLED)?;
    browser.run("return longestTask")?.as_f64().context("no time")
}
