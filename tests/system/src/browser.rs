//! A headless Chromium with which tests open web pages, driven by WebDriver.

mod web_driver;

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};
use testbed::assets;

use web_driver::WebDriver;

/// Keys of WebDriver, in the private area of Unicode.
pub const TAB: &str = "\u{e004}";
/// See [`TAB`].
pub const ENTER: &str = "\u{e007}";
/// See [`TAB`].
pub const ESCAPE: &str = "\u{e00c}";
/// See [`TAB`].
pub const END: &str = "\u{e010}";
/// See [`TAB`].
pub const HOME: &str = "\u{e011}";
/// See [`TAB`].
pub const ARROW_LEFT: &str = "\u{e012}";
/// See [`TAB`].
pub const ARROW_UP: &str = "\u{e013}";
/// See [`TAB`].
pub const ARROW_RIGHT: &str = "\u{e014}";
/// See [`TAB`].
pub const ARROW_DOWN: &str = "\u{e015}";

/// Size and colour scheme of the browser window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Viewport {
    /// For file names: `phone-dark`.
    pub name: &'static str,
    /// Width in CSS pixels.
    pub width: u32,
    /// Height in CSS pixels.
    pub height: u32,
    /// True for `prefers-color-scheme: dark`.
    pub is_dark: bool,
}

/// The viewports of a desktop and of a phone.
pub const VIEWPORTS: [Viewport; 4] = [
    Viewport { name: "desktop-light", width: 1280, height: 900, is_dark: false },
    Viewport { name: "desktop-dark", width: 1280, height: 900, is_dark: true },
    Viewport { name: "phone-light", width: 360, height: 740, is_dark: false },
    Viewport { name: "phone-dark", width: 360, height: 740, is_dark: true },
];

/// A browser with one window; it ends when this is dropped.
#[derive(Debug)]
pub struct Browser {
    driver: WebDriver,
}

impl Browser {
    /// Starts the browser, with a profile in `directory`.
    pub fn start(directory: &Path) -> Result<Self> {
        let chromium = assets::chromium()?;
        let arguments = [
            "--headless=new".to_owned(),
            // Tests run as root in containers
            "--no-sandbox".to_owned(),
            "--disable-dev-shm-usage".to_owned(),
            "--disable-gpu".to_owned(),
            "--hide-scrollbars".to_owned(),
            format!("--user-data-dir={}", directory.join("chromium").display()),
        ];
        let capabilities = json!({"alwaysMatch": {
            "browserName": "chrome", "goog:loggingPrefs": {"browser": "ALL"},
            "goog:chromeOptions": {"binary": chromium.browser, "args": arguments},
        }});
        Ok(Self { driver: WebDriver::start(&chromium.driver, &json!({"capabilities": capabilities}))? })
    }

    /// Opens an address, and waits until it is loaded.
    pub fn open(&self, url: &str) -> Result<()> {
        self.driver.post("/url", &json!({"url": url})).map(drop)
    }

    /// Runs a script, the body of a function, and returns its value or the result of its Promise.
    pub fn run(&self, script: &str) -> Result<Value> {
        self.driver.post("/execute/sync", &json!({"script": script, "args": []}))
    }

    /// Waits until an expression is true, for as long as WebDriver lets a script run.
    pub fn wait_for(&self, expression: &str) -> Result<()> {
        let script = format!(
            "return new Promise((done) => {{ const poll = () => {{ let is = false; \
             try {{ is = {expression}; }} catch {{}} is ? done(true) : setTimeout(poll, 20); }}; poll(); }})"
        );
        let waited = self.run(&script).map(drop);
        waited.with_context(|| format!("{expression} does not become true; the page says: {}", self.text()))
    }

    /// Sets size and colours.
    pub fn set_viewport(&self, viewport: Viewport) -> Result<()> {
        let Viewport { width, height, is_dark, .. } = viewport;
        let scheme = if is_dark { "dark" } else { "light" };
        let features = json!([{"name": "prefers-color-scheme", "value": scheme}]);
        self.command("Emulation.setEmulatedMedia", &json!({"features": features}))?;
        let is_phone = width < 600;
        let size = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": is_phone});
        self.command("Emulation.setDeviceMetricsOverride", &size)
    }

    /// Presses a key: a character or one of the constants.
    pub fn press(&self, key: &str) -> Result<()> {
        let actions = json!([{"type": "keyDown", "value": key}, {"type": "keyUp", "value": key}]);
        let keyboard = json!({"actions": [{"type": "key", "id": "keyboard", "actions": actions}]});
        self.driver.post("/actions", &keyboard).map(drop)
    }

    /// Writes a screenshot into a PNG file.
    pub fn screenshot(&self, file: &Path) -> Result<()> {
        let picture = self.driver.get("/screenshot")?;
        let bytes = decode_base64(picture.as_str().context("no picture")?)?;
        fs::write(file, bytes).with_context(|| format!("write {}", file.display()))
    }

    /// Returns the messages of the console since the last call.
    pub fn console(&self) -> Result<Vec<String>> {
        let entries = self.driver.post("/se/log", &json!({"type": "browser"}))?;
        let entries = entries.as_array().cloned().unwrap_or_default();
        Ok(entries.iter().map(|entry| format!("{}: {}", entry["level"], entry["message"])).collect())
    }

    /// Checks the accessibility of the page; fails with what is serious or worse.
    pub fn check_accessibility(&self) -> Result<()> {
        if self.run("return typeof axe")? != "object" {
            let script = fs::read_to_string(assets::axe()?).context("read axe-core")?;
            self.run(&script)?;
        }
        let found = self.run(
            "return axe.run().then((found) => found.violations \
             .filter((one) => one.impact === 'serious' || one.impact === 'critical') \
             .map((one) => `${one.id}: ${one.help}: ${one.nodes.slice(0, 3).map((node) => node.html).join(' ')}`))",
        )?;
        ensure!(found == json!([]), "axe-core finds: {found:#}");
        Ok(())
    }

    /// Sends a command of the DevTools protocol.
    fn command(&self, command: &str, parameters: &Value) -> Result<()> {
        self.driver.post("/goog/cdp/execute", &json!({"cmd": command, "params": parameters})).map(drop)
    }

    /// Returns the text of the page, for messages about failures.
    fn text(&self) -> String {
        let text = self.run("return document.body.innerText.slice(0, 2000)");
        text.map_or_else(|error| format!("{error:#}"), |text| text.to_string())
    }
}

/// Decodes base64 (RFC 4648, section 4).
fn decode_base64(text: &str) -> Result<Vec<u8>> {
    let (mut bits, mut count, mut bytes) = (0_u32, 0_u32, Vec::with_capacity(text.len() / 4 * 3));
    for letter in text.bytes().filter(|letter| !letter.is_ascii_whitespace() && *letter != b'=') {
        let value = match letter {
            b'A'..=b'Z' => letter - b'A',
            b'a'..=b'z' => letter - b'a' + 26,
            b'0'..=b'9' => letter - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => bail!("this is no base64"),
        };
        bits = bits << 6 | u32::from(value);
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.extend((bits >> count).to_be_bytes().last());
            bits &= (1 << count) - 1;
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_decoded_with_padding_and_without() {
        for (text, bytes) in
            [("", &b""[..]), ("Zg==", b"f"), ("Zm8=", b"fo"), ("Zm9v", b"foo"), ("+/8A", &[251, 255, 0])]
        {
            assert_eq!(decode_base64(text).unwrap(), bytes, "{text}");
        }
        assert!(decode_base64("a-b_").is_err());
    }
}
