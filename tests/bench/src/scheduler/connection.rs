//! A connection to topolvm-scheduler on which requests are timed.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};

use crate::metrics;

/// Bytes that are read at once.
const BUFFER: usize = 256 << 10;
/// Pause between questions whether the program is ready.
const RETRY: Duration = Duration::from_millis(20);

/// Times of a request and its answer, in seconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Exchange {
    /// From the first byte of the request to the last of the answer.
    pub(super) total: f64,
    /// From the last byte of the request to the first of the answer.
    pub(super) wait: f64,
}

/// A connection that is kept, as kube-scheduler keeps its own.
pub(super) struct Connection {
    address: SocketAddr,
    stream: BufReader<TcpStream>,
}

impl Connection {
    pub(super) fn open(address: SocketAddr) -> Result<Self> {
        let stream = metrics::connect(address).context("connect to topolvm-scheduler")?;
        stream.set_read_timeout(Some(metrics::TIMEOUT)).context("set a timeout")?;
        stream.set_nodelay(true).context("send small requests at once")?;
        Ok(Self { address, stream: BufReader::with_capacity(BUFFER, stream) })
    }

    /// Waits until `/readyz` reports that the Nodes are listed.
    pub(super) fn wait_until_ready(&mut self) -> Result<()> {
        let start = Instant::now();
        while self.request("GET", "/readyz", "")?.0 != 200 {
            ensure!(start.elapsed() < metrics::TIMEOUT, "topolvm-scheduler is not ready");
            thread::sleep(RETRY);
        }
        Ok(())
    }

    /// Sends a POST request, which has to be answered with 200.
    pub(super) fn post(&mut self, path: &str, body: &str) -> Result<Exchange> {
        let (status, exchange) = self.request("POST", path, body)?;
        ensure!(status == 200, "{path}: {status}");
        Ok(exchange)
    }

    fn request(&mut self, method: &str, path: &str, body: &str) -> Result<(u16, Exchange)> {
        let (address, length) = (self.address, body.len());
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n\
             Content-Length: {length}\r\n\r\n"
        );
        let start = Instant::now();
        let stream = self.stream.get_mut();
        stream.write_all(head.as_bytes()).context("send the head of a request")?;
        stream.write_all(body.as_bytes()).context("send the body of a request")?;
        let sent = Instant::now();
        ensure!(!self.stream.fill_buf().context("read an answer")?.is_empty(), "the connection was closed");
        let wait = sent.elapsed().as_secs_f64();
        let (status, length) = self.read_head()?;
        let read = std::io::copy(&mut self.stream.by_ref().take(length), &mut std::io::sink());
        ensure!(read.context("read an answer")? == length, "the answer was cut off");
        Ok((status, Exchange { total: start.elapsed().as_secs_f64(), wait }))
    }

    /// Reads the head of an answer; returns its status and the length of its body.
    fn read_head(&mut self) -> Result<(u16, u64)> {
        let (mut status, mut length) = (None, None);
        loop {
            let mut line = String::new();
            self.stream.read_line(&mut line).context("read the head of an answer")?;
            let line = line.trim_end().to_ascii_lowercase();
            if let Some(rest) = line.strip_prefix("http/1.1 ") {
                status = rest.get(..3).and_then(|status| status.parse().ok());
            } else if let Some(rest) = line.strip_prefix("content-length:") {
                length = rest.trim().parse().ok();
            } else if line.is_empty() {
                return Ok((status.context("no status")?, length.context("no length")?));
            }
        }
    }
}

/// Sends bytes to a thread that sends them back when it has them all, and does nothing else with them.
pub(super) fn echo(bytes: &[u8]) -> Result<Exchange> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("listen on a free port")?;
    let address = listener.local_addr().context("ask for the free port")?;
    thread::scope(|scope| {
        let peer = scope.spawn(move || -> Result<()> {
            let (mut stream, _) = listener.accept()?;
            let mut received = Vec::with_capacity(bytes.len());
            stream.read_to_end(&mut received)?;
            Ok(stream.write_all(&received)?)
        });
        let mut stream = BufReader::with_capacity(BUFFER, metrics::connect(address)?);
        let start = Instant::now();
        stream.get_mut().write_all(bytes)?;
        stream.get_mut().shutdown(Shutdown::Write)?;
        let sent = Instant::now();
        stream.fill_buf()?;
        let wait = sent.elapsed().as_secs_f64();
        std::io::copy(&mut stream, &mut std::io::sink())?;
        let total = start.elapsed().as_secs_f64();
        peer.join().map_err(|_| anyhow!("a thread panicked"))??;
        Ok(Exchange { total, wait })
    })
}
