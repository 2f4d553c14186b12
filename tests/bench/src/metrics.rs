//! Reads the metrics of the programs.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

/// Timeout for the connection to a server that is starting, and for its response.
pub(super) const TIMEOUT: Duration = Duration::from_secs(10);

/// Reads the page that a program serves at `/metrics`.
pub(super) fn read(address: SocketAddr) -> Result<String> {
    let mut connection = connect(address).context("connect to the metrics server")?;
    connection.set_read_timeout(Some(TIMEOUT)).context("set a timeout")?;
    let request = format!("GET /metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    connection.write_all(request.as_bytes()).context("ask for the metrics")?;
    let mut page = String::new();
    connection.read_to_string(&mut page).context("read the metrics")?;
    Ok(page)
}

/// Connects to a server, with retries while it refuses connections because it has just been started.
pub(super) fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let start = Instant::now();
    loop {
        match TcpStream::connect_timeout(&address, TIMEOUT) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused && start.elapsed() < TIMEOUT => {
                sleep(Duration::from_millis(20));
            }
            outcome => return outcome,
        }
    }
}

/// Returns the number of LVM processes that lvmd has started, from its metrics page.
pub(super) fn lvm_processes(page: &str) -> Result<f64> {
    sum(page, "topolvm_lvm_processes_total{")
}

/// Returns the sum of all values whose lines have a prefix; 0 without such a line.
pub(super) fn sum(page: &str, beginning: &str) -> Result<f64> {
    let lines = page.lines().filter(|line| line.starts_with(beginning));
    let values = lines.map(|line| {
        let (_, value) = line.rsplit_once(' ').with_context(|| format!("no value in the metric {line}"))?;
        value.parse::<f64>().with_context(|| format!("no number in the metric {line}"))
    });
    values.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_of_all_commands_and_outcomes_are_added() {
        let page = "# TYPE topolvm_lvm_processes counter\n\
                    topolvm_lvm_processes_total{command=\"lvcreate\"} 3\n\
                    topolvm_lvm_processes_total{command=\"fullreport\"} 1\n\
                    topolvm_lvm_command_seconds_count{command=\"lvcreate\"} 3\n";
        assert!((lvm_processes(page).unwrap() - 4.0).abs() < f64::EPSILON);
        assert!(lvm_processes("").unwrap().abs() < f64::EPSILON);
    }
}
