//! The web page in a headless Chromium: an empty, a healthy, a full and a broken cluster in light and dark, at the
//! width of a desktop and of a phone. The API server is a fake, with the objects of one cluster.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use libtest_mimic::Trial;
use serde_json::{Value, json};
use system_tests::browser::{
    ARROW_DOWN, ARROW_LEFT, ARROW_RIGHT, ARROW_UP, Browser, END, ENTER, ESCAPE, HOME, TAB, VIEWPORTS, Viewport,
};
use system_tests::web_page::{LV, WebPage};
use testbed::suite;
use topolvm_testkit::fixtures::storage_class;

const NAMESPACES: [&str; 4] = ["bank", "media", "search", "shop"];
const CLAIMS: [&str; 5] = ["data-postgres", "cache-redis", "broker-kafka", "index-search", "media-store"];
/// Parts of the page that are checked: the suffix of the screenshot's name, and the script that scrolls there.
const PARTS: [(&str, &str); 2] =
    [("", "scrollTo(0, 0)"), ("-volumes", "document.getElementById('volumes').scrollIntoView()")];
/// Widths between those of the screenshots: on both sides of the breakpoint where the columns of the list become lines,
/// and of the one where margins shrink.
const BETWEEN: [u32; 4] = [1100, 1099, 641, 640];
/// Rows are on the screen, unless the list begins below it, and each of them is filled; or there is no volume.
const ROWS_ARE_THERE: &str = "document.getElementById('table').hidden || ((rows) => (rows.length > 0 \
     || document.getElementById('rows').getBoundingClientRect().top >= innerHeight) \
     && rows.every((row) => !row.classList.contains('waiting')))([...document.querySelectorAll('#rows .row')])";

pub(crate) fn tests() -> Vec<Trial> {
    let name = "web_page_is_accessible_in_each_state_and_at_each_width";
    vec![suite::test(name, check_all)]
}

fn check_all() -> Result<()> {
    let directory = tempfile::tempdir_in("/var/tmp").context("create a directory")?;
    let page = WebPage::start(directory.path(), "1s")?;
    let browser = Browser::start(directory.path())?;
    let pictures = pictures()?;
    browser.set_viewport(VIEWPORTS[0])?;
    browser.open(&page.url)?;
    let check = |state: &str| check_state(&browser, &pictures, state).context(state.to_owned());

    browser.wait_for("document.body.innerText.includes('no node has storage for this driver')")?;
    browser.wait_for("document.querySelector('#nodes h3').innerText === 'No node offers storage yet'")?;
    check("empty")?;

    page.api.apply_json(storage_class("topolvm-provisioner").device_class("ssd").build());
    fill(&page, 12, 5, |number| 40 + number * 7);
    browser.wait_for("document.body.innerText.includes('No problem found')")?;
    browser.wait_for("document.querySelectorAll('#nodes .node').length === 12")?;
    browser.wait_for("document.getElementById('matched').innerText === '60 volumes'")?;
    browser.wait_for("document.querySelectorAll('#rows .used .gauge').length > 5")?;
    check("healthy")?;
    // The one of docs/web-page.md
    browser.set_viewport(Viewport { name: "overview", width: 1280, height: 1330, is_dark: false })?;
    browser.wait_for("document.querySelectorAll('#rows .io:not(:empty)').length > 8")?;
    browser.screenshot(&pictures.join("overview.png"))?;
    browser.set_viewport(VIEWPORTS[0])?;
    find_with_the_keyboard(&browser).context("keyboard")?;
    keep_focus_while_it_changes(&page, &browser).context("changes")?;
    check_disks(&page, &browser).context("disks")?;
    check("disks")?;
    browser.run("document.getElementById('clear').click()")?;
    browser.wait_for("document.getElementById('storage').hidden")?;
    walk_the_map(&browser, 12).context("map of cards")?;

    fill(&page, 300, 4, |number| if number % 5 == 0 { 9 } else { 1 });
    browser.wait_for("document.querySelectorAll('#nodes.dense .node').length === 300")?;
    check("full")?;
    walk_the_map(&browser, 300).context("map of squares")?;

    break_some(&page);
    browser.wait_for("document.querySelectorAll('#problems .finding').length >= 3")?;
    // Problems are shown above them, and rows exist only while they are visible
    browser.run("document.getElementById('volumes').scrollIntoView()")?;
    browser.wait_for("document.querySelectorAll('#rows .why').length >= 3")?;
    check("broken")
}

/// Returns the directory of the screenshots, which are kept for review.
fn pictures() -> Result<PathBuf> {
    let directory = std::env::current_exe()?.ancestors().nth(3).context("no target directory")?.join("web-page");
    fs::create_dir_all(&directory).with_context(|| format!("create {}", directory.display()))?;
    Ok(directory)
}

/// Takes a screenshot of top and volumes in each viewport, and checks console and accessibility.
fn check_state(browser: &Browser, pictures: &Path, state: &str) -> Result<()> {
    for viewport in VIEWPORTS {
        browser.set_viewport(viewport)?;
        for (part, go) in PARTS {
            let name = format!("{state}{part}-{}", viewport.name);
            browser.run(&format!(
                "{go}; return new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
            ))?;
            browser.wait_for(ROWS_ARE_THERE)?;
            browser.screenshot(&pictures.join(format!("{name}.png")))?;
            check_layout(browser, viewport.width).context(name.clone())?;
            browser.check_accessibility().context(name)?;
        }
    }
    for width in BETWEEN {
        browser.set_viewport(Viewport { name: "between", width, ..VIEWPORTS[0] })?;
        // The list is laid out again in the next frame
        browser.run("return new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")?;
        browser.wait_for(ROWS_ARE_THERE)?;
        check_layout(browser, width).with_context(|| format!("{state}, {width} wide"))?;
    }
    browser.set_viewport(VIEWPORTS[0])?;
    let messages = browser.console()?;
    ensure!(messages.is_empty(), "the console has {messages:#?}");
    Ok(())
}

/// Checks that nothing is wider than the screen, and that no row of the list covers another one.
fn check_layout(browser: &Browser, width: u32) -> Result<()> {
    let widest = browser.run("return document.documentElement.scrollWidth")?;
    ensure!(widest.as_u64().is_some_and(|widest| widest <= u64::from(width)), "{widest} wide");
    let covered = browser.run(
        "const rows = [...document.querySelectorAll('#rows .row')].map((row) => [row.getBoundingClientRect(), row]); \
         rows.sort(([a], [b]) => a.top - b.top); \
         return rows.filter(([box], at) => at > 0 && box.top < rows[at - 1][0].bottom - 1) \
         .map(([, row]) => row.innerText)",
    )?;
    ensure!(covered == json!([]), "rows cover each other: {covered}");
    Ok(())
}

/// Adds nodes up to this number, each with so many volumes and the free GiB that `free` gives.
fn fill(page: &WebPage, nodes: u64, volumes: u64, free: impl Fn(u64) -> u64) {
    for number in 1..=nodes {
        let node = format!("node-{number:03}");
        let ssd = free(number);
        page.add_node(&node, &[("", ssd), ("ssd", ssd), ("hdd", ssd * 3 + 1)]);
        for volume in 0..volumes {
            let at = usize::try_from(number * volumes + volume).unwrap_or_default();
            let claim = format!("{}/{}-{at}", NAMESPACES[at % NAMESPACES.len()], CLAIMS[at % CLAIMS.len()]);
            let class = if volume % 3 == 2 { "hdd" } else { "ssd" };
            page.add_volume(&format!("pvc-{number:03}-{volume}"), &node, class, 5 + number % 13 * 4, &claim);
        }
    }
}

/// Chooses a node of which a disk is missing.
fn check_disks(page: &WebPage, browser: &Browser) -> Result<()> {
    page.api.apply_json(json!({
        "apiVersion": "topolvm.io/v1", "kind": "NodeStorage", "metadata": {"name": "node-003"},
        "status": {
            "volumeGroups": [{"name": "myvg1", "size": "200Gi", "free": "61Gi", "physicalVolumes": [
                {"path": "/dev/sdb", "uuid": "a", "size": "100Gi", "free": "61Gi", "allocatable": true},
                {"path": "/dev/sdc", "uuid": "b", "size": "100Gi", "free": "0", "missing": true, "allocatable": false},
            ]}],
            "thinPools": [
                {"volumeGroup": "myvg1", "name": "pool", "size": "40Gi", "dataPercent": 93, "metadataPercent": 12},
            ],
            "problems": ["1 physical volumes of volume group myvg1 are missing, so LVM creates no volumes in it"],
        },
    }));
    browser.run("document.querySelector('#nodes [data-node=node-003]').click()")?;
    browser.wait_for("document.querySelector('#storage .missing')?.innerText === '/dev/sdc: missing'")?;
    browser.wait_for(
        "document.getElementById('storage').innerText.includes('93 % of data, 12 % of metadata of 40 GiB')",
    )?;
    browser.wait_for(
        "document.querySelector('#storage .finding').innerText.includes('1 physical volumes of volume group')",
    )
}

/// Finds a volume, opens and closes its details, and moves to the next, without a mouse.
fn find_with_the_keyboard(browser: &Browser) -> Result<()> {
    let focused = "document.activeElement";
    browser.run("scrollTo(0, 0); document.activeElement.blur()")?;
    browser.press(TAB)?;
    browser.wait_for(&format!("{focused}.innerText === 'Skip to the volumes'"))?;
    browser.press("/")?;
    browser.wait_for(&format!("{focused}.name === 'q'"))?;
    for letter in "postgres".chars() {
        browser.press(&letter.to_string())?;
    }
    browser.wait_for("document.getElementById('matched').innerText === '12 of 60 volumes'")?;
    browser.wait_for("document.getElementById('announcer').innerText === '12 of 60 volumes'")?;
    // Past the other filters and the heads of the columns
    for _ in 0..20 {
        browser.press(TAB)?;
        if browser.run("return document.activeElement.closest('#rows') !== null")? == true {
            break;
        }
    }
    browser.press(ARROW_DOWN)?;
    browser.wait_for(&format!("{focused}.closest('.row').getAttribute('aria-rowindex') === '3'"))?;
    browser.press(ENTER)?;
    browser.wait_for(
        "document.getElementById('details').open && document.querySelector('#details dd').innerText === 'Ready'",
    )?;
    browser.check_accessibility()?;
    browser.press(ESCAPE)?;
    browser.wait_for(&format!("!document.getElementById('details').open && {focused}.closest('.row') !== null"))?;
    browser.run("document.getElementById('clear').click()")?;
    browser.wait_for("document.getElementById('matched').innerText === '60 volumes'")
}

/// Goes from node to node with the arrow keys, and shows the volumes of one, without a mouse.
fn walk_the_map(browser: &Browser, nodes: usize) -> Result<()> {
    browser.run("document.querySelector('#nodes .node[tabindex=\"0\"]').focus()")?;
    let first_row = "return ((nodes) => nodes.filter((node) => node.offsetTop === nodes[0].offsetTop).length)\
                     ([...document.querySelectorAll('#nodes .node')])";
    let across = browser.run(first_row)?.as_u64().and_then(|across| usize::try_from(across).ok()).context("no row")?;
    ensure!(1 < across && across < nodes, "{nodes} nodes are in rows of {across}");
    let last = nodes - 1;
    for (key, at) in [
        (HOME, 0),
        (ARROW_LEFT, 0),
        (ARROW_RIGHT, 1),
        (ARROW_DOWN, 1 + across),
        (ARROW_LEFT, across),
        (ARROW_UP, 0),
        (END, last),
        (ARROW_RIGHT, last),
        (ARROW_UP, last - across),
    ] {
        browser.press(key)?;
        browser.wait_for(&format!(
            "document.activeElement === document.querySelectorAll('#nodes .node')[{at}] \
             && document.querySelectorAll('#nodes .node[tabindex=\"0\"]').length === 1"
        ))?;
    }
    let node = "document.querySelector('#filters input[name=node]').value";
    browser.press(ENTER)?;
    browser.wait_for(&format!(
        "{node} === document.activeElement.dataset.node && document.activeElement.ariaPressed === 'true' \
         && document.getElementById('matched').innerText.includes(' of ')"
    ))?;
    browser.press(ENTER)?;
    browser.wait_for(&format!(
        "{node} === '' && document.activeElement.ariaPressed === 'false' \
         && !document.getElementById('matched').innerText.includes(' of ')"
    ))
}

/// Changes a visible volume: focus and scroll position stay.
fn keep_focus_while_it_changes(page: &WebPage, browser: &Browser) -> Result<()> {
    browser.run("document.querySelectorAll('#rows .row')[8].querySelector('button').focus()")?;
    let place = "return [document.activeElement.title, Math.round(scrollY)]";
    let before = browser.run(place)?;
    let name = browser.run("return document.querySelectorAll('#rows .row')[8].volume.name")?;
    let name = name.as_str().context("no name")?;
    page.api.edit(LV, "", name, |volume| {
        volume["spec"]["size"] = json!("777Gi");
        volume["status"]["currentSize"] = json!("777Gi");
    });
    browser.wait_for("document.activeElement.closest('.row').innerText.includes('777 GiB')")?;
    let after = browser.run(place)?;
    ensure!(before == after, "{before}, and then {after}");
    Ok(())
}

/// Removes a Node, loses a volume, fails to create one, and adds a StorageClass that works on no node.
fn break_some(page: &WebPage) {
    page.api.edit("nodes", "", "node-300", |node| node["metadata"]["finalizers"] = Value::Null);
    page.api.delete("nodes", "", "node-300");
    page.api.edit(LV, "", "pvc-007-0", |volume| {
        let lost = json!({
            "type": "Ready", "status": "False", "reason": "VolumeLost", "message": "gone",
            "lastTransitionTime": "2026-01-02T00:00:00Z",
        });
        volume["status"]["conditions"] = json!([lost]);
    });
    page.api.edit(LV, "", "pvc-009-1", |volume| {
        volume["status"] =
            json!({"code": 8, "message": "no enough space left on VG: free=1073741824, requested=5368709120"});
    });
    page.api.apply_json(storage_class("fast").build());
    page.api.edit("nodes", "", "node-001", |node| {
        node["metadata"]["annotations"]["capacity.topolvm.io/00default"] = json!("0");
    });
}
