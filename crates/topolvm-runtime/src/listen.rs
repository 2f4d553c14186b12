//! Addresses to listen on, as flags and configuration files have them, and the sockets of such an address.

mod sockets;

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

pub use sockets::{ListenError, Listeners};

/// Returns whether the text of an address means "nowhere": it is empty or, as in programs made with controller-runtime,
/// 0.
pub fn is_off(address: &str) -> bool {
    matches!(address, "" | "0")
}

/// A text that is no address to listen on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a listen address; use :PORT, HOST:PORT or [IPV6]:PORT, such as :8080, localhost:8080 or [::1]:8080"
)]
pub struct ListenAddressError(String);

/// An address to listen on: `:8080` is every interface, `localhost:8080` every address of that name, `[::1]:8080` that
/// address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenAddress {
    /// Name or IP address without brackets; `None` is every interface.
    host: Option<String>,
    port: u16,
}

impl ListenAddress {
    /// This port on every interface.
    pub const fn every_interface(port: u16) -> Self {
        Self { host: None, port }
    }

    /// Returns whether only clients on this machine, or in this pod, can connect.
    pub fn is_loopback(&self) -> bool {
        let is_loopback =
            |host: &str| host.parse::<IpAddr>().map_or(host == "localhost", |address| address.is_loopback());
        self.host.as_deref().is_some_and(is_loopback)
    }
}

impl FromStr for ListenAddress {
    type Err = ListenAddressError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || ListenAddressError(text.to_owned());
        let (host, port) = text.rsplit_once(':').ok_or_else(error)?;
        let port = port.parse().map_err(|_| error())?;
        let host = match host {
            // More than one colon is undocumented, but earlier versions accepted it
            every if every.bytes().all(|byte| byte == b':') => None,
            host => Some(parse_host(host).ok_or_else(error)?.to_owned()),
        };
        Ok(Self { host, port })
    }
}

/// Parses a host; returns it without the brackets of an IPv6 address.
fn parse_host(text: &str) -> Option<&str> {
    let in_brackets = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
    let host = in_brackets.unwrap_or(text);
    let is_ipv6 = {
        let (address, zone) = host.split_once('%').unwrap_or((host, "0"));
        address.parse::<Ipv6Addr>().is_ok() && is_name(zone)
    };
    // A name of digits and dots only would be looked up as an IPv4 address in one of its old forms
    let is_ipv4 = host.parse::<Ipv4Addr>().is_ok() || host.bytes().any(|byte| !matches!(byte, b'0'..=b'9' | b'.'));
    let is_name = in_brackets.is_none() && is_name(host) && is_ipv4;
    (is_ipv6 || is_name).then_some(host)
}

/// Returns whether a text can be the name of a host or of an interface.
fn is_name(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_'))
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            None => write!(f, ":{}", self.port),
            Some(host) if host.contains(':') => write!(f, "[{host}]:{}", self.port),
            Some(host) => write!(f, "{host}:{}", self.port),
        }
    }
}

/// An address to listen on, or none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// Nowhere: [`is_off`].
    Off,
    /// On this address.
    On(ListenAddress),
}

impl FromStr for Listen {
    type Err = ListenAddressError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if is_off(text) { Ok(Self::Off) } else { text.parse().map(Self::On) }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(":8080", ":8080")]
    #[case("::8080", ":8080")]
    #[case(":0", ":0")]
    #[case("0.0.0.0:8080", "0.0.0.0:8080")]
    #[case("127.0.0.1:0", "127.0.0.1:0")]
    #[case("localhost:8081", "localhost:8081")]
    #[case("node-1.example_a.com:65535", "node-1.example_a.com:65535")]
    #[case("[::]:443", "[::]:443")]
    #[case("[::1]:443", "[::1]:443")]
    #[case("fd00::1:443", "[fd00::1]:443")]
    #[case("[fe80::1%eth0]:443", "[fe80::1%eth0]:443")]
    fn addresses_of_deployments_are_taken(#[case] text: &str, #[case] shown: &str) {
        let address: ListenAddress = text.parse().unwrap();
        assert_eq!(address.to_string(), shown);
        assert_eq!(shown.parse(), Ok(address));
    }

    #[rstest]
    #[case("127.0.0.1:8082", true)]
    #[case("localhost:8082", true)]
    #[case("[::1]:8082", true)]
    #[case(":8082", false)]
    #[case("0.0.0.0:8082", false)]
    #[case("[::]:8082", false)]
    #[case("localhost.example:8082", false)]
    fn loopback_is_what_only_this_machine_reaches(#[case] text: &str, #[case] expected: bool) {
        assert_eq!(text.parse::<ListenAddress>().unwrap().is_loopback(), expected);
    }

    #[rstest]
    #[case("")]
    #[case("0")]
    #[case("8080")]
    #[case("localhost")]
    #[case("localhost:")]
    #[case(":http")]
    #[case(":65536")]
    #[case(":-1")]
    #[case("http://localhost:8080")]
    #[case("local host:8080")]
    #[case("*:8080")]
    #[case("[]:8080")]
    #[case("[localhost]:8080")]
    #[case("[::1:8080")]
    #[case("127.0.0.256:8080")]
    #[case("[::1]:8080 ")]
    fn what_is_no_address_is_refused_with_examples(#[case] text: &str) {
        let error = text.parse::<ListenAddress>().unwrap_err().to_string();
        assert!(error.contains("such as :8080, localhost:8080 or [::1]:8080"), "{error}");
    }

    #[rstest]
    #[case("")]
    #[case("0")]
    fn empty_and_0_are_off_where_that_can_be(#[case] text: &str) {
        assert_eq!(text.parse(), Ok(Listen::Off));
        assert!(matches!(":0".parse(), Ok(Listen::On(_))));
        assert!("00".parse::<Listen>().is_err());
    }
}
