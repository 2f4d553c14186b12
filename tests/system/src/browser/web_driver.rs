//! The WebDriver protocol, JSON over HTTP, as far as tests need it.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

/// A running driver with one session; both end when this is dropped.
#[derive(Debug)]
pub(super) struct WebDriver {
    process: Child,
    port: u16,
    session: String,
}

impl WebDriver {
    /// Starts the driver, and opens a session with these capabilities.
    pub(super) fn start(program: &Path, capabilities: &Value) -> Result<Self> {
        #[expect(clippy::disallowed_methods, reason = "starts chromedriver, and is no part of the product")]
        let mut command = Command::new(program);
        command.arg("--port=0").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = command.spawn().with_context(|| format!("start {}", program.display()))?;
        let output = process.stdout.take().context("the driver has no output")?;
        let mut driver = Self { process, port: 0, session: String::new() };
        driver.port = find_port(BufReader::new(output))?;
        let session = driver.send("POST", "/session", Some(capabilities)).context("start the browser")?;
        let id = session.get("sessionId").and_then(Value::as_str).context("no session")?;
        id.clone_into(&mut driver.session);
        Ok(driver)
    }

    pub(super) fn post(&self, path: &str, parameters: &Value) -> Result<Value> {
        self.send("POST", &self.of_session(path), Some(parameters))
    }

    pub(super) fn get(&self, path: &str) -> Result<Value> {
        self.send("GET", &self.of_session(path), None)
    }

    fn of_session(&self, path: &str) -> String {
        format!("/session/{}{path}", self.session)
    }

    /// Sends a request and returns the value of the answer.
    fn send(&self, method: &str, path: &str, parameters: Option<&Value>) -> Result<Value> {
        let body = parameters.map(Value::to_string).unwrap_or_default();
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).context("connect to the driver")?;
        let head = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length:");
        stream.write_all(format!("{head} {}\r\n\r\n{body}", body.len()).as_bytes()).context("ask the driver")?;
        let mut answer = BufReader::new(stream);
        let mut length = 0;
        loop {
            let mut line = String::new();
            answer.read_line(&mut line).context("read the driver's answer")?;
            let line = line.trim_end().to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            if let Some(value) = line.strip_prefix("content-length:") {
                length = value.trim().parse().context("length of an answer")?;
            }
        }
        let mut text = vec![0; length];
        answer.read_exact(&mut text).context("read the driver's answer")?;
        let mut answer: Value = serde_json::from_slice(&text).context("the driver's answer")?;
        let value = answer.get_mut("value").map(Value::take).context("an answer without a value")?;
        if let Some(error) = value.get("error").and_then(Value::as_str) {
            bail!("{path}: {error}: {}", value.get("message").unwrap_or(&Value::Null));
        }
        Ok(value)
    }
}

/// Reads the port that the driver has chosen. The rest of its output is read, and forgotten, until it ends.
fn find_port(mut output: impl std::io::BufRead + Send + 'static) -> Result<u16> {
    let mut line = String::new();
    while output.read_line(&mut line).context("read the driver's output")? > 0 {
        let port = line.trim_end().strip_suffix('.').and_then(|line| line.rsplit_once("on port "));
        if let Some(port) = port.and_then(|(_, port)| port.parse().ok()) {
            std::thread::spawn(move || std::io::copy(&mut output, &mut std::io::sink()));
            return Ok(port);
        }
        line.clear();
    }
    bail!("the driver does not say on which port it listens")
}

impl Drop for WebDriver {
    fn drop(&mut self) {
        // The browser ends with its session; should it not, the test has failed already
        if !self.session.is_empty() {
            drop(self.send("DELETE", &format!("/session/{}", self.session), Some(&json!({}))));
        }
        drop(self.process.kill());
        drop(self.process.wait());
    }
}
