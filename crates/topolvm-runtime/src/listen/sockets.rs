//! The listening sockets of an address: one for each address of a host name.

use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::task::Poll;

use rustix::net::sockopt::set_ipv6_v6only;
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use super::ListenAddress;

/// Connections that the kernel keeps until they are accepted.
const BACKLOG: u32 = 1024;

/// The addresses of `localhost` on every machine (RFC 6761, section 6.3), whatever its resolver knows.
const LOCALHOST: [IpAddr; 2] = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];

/// An address that cannot be listened on.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The name has no address.
    #[error("cannot listen on {address}: its host name cannot be resolved; check the name, or use an IP address")]
    Resolve {
        /// As it was written.
        address: ListenAddress,
        /// The error of the resolver.
        source: io::Error,
    },
    /// The kernel refuses.
    #[error("cannot listen on {address}; set the flag or setting for it to a free address of this host")]
    Bind {
        /// As it was written.
        address: ListenAddress,
        /// The error of the kernel.
        source: io::Error,
    },
}

/// Sockets that listen, and from which connections come as from one.
#[derive(Debug)]
pub struct Listeners {
    sockets: Vec<TcpListener>,
    /// The one that is polled first, so that a flood on one does not keep the others waiting.
    first: usize,
}

impl ListenAddress {
    /// Listens on every address of the host; one that this machine does not have is left out, unless none remains. With
    /// port 0 the kernel chooses a port, the same one for all.
    pub async fn listen(&self) -> Result<Listeners, ListenError> {
        self.listen_with(|host, port| async move { Ok(tokio::net::lookup_host((host, port)).await?.collect()) }).await
    }

    /// With another resolver of names.
    async fn listen_with<R>(&self, resolve: impl FnOnce(String, u16) -> R) -> Result<Listeners, ListenError>
    where
        R: Future<Output = io::Result<Vec<SocketAddr>>>,
    {
        let Some(host) = &self.host else {
            // Of a kernel without IPv6 every interface has an IPv4 address
            let every = [IpAddr::V6(Ipv6Addr::UNSPECIFIED), IpAddr::V4(Ipv4Addr::UNSPECIFIED)];
            return self.bind(every.map(|ip| SocketAddr::new(ip, self.port)), 1);
        };
        let is_localhost = host.eq_ignore_ascii_case("localhost");
        let mut addresses: Vec<SocketAddr> = match (host.parse(), is_localhost) {
            (Ok(ip), _) => vec![SocketAddr::new(ip, self.port)],
            (Err(_), true) => LOCALHOST.map(|ip| SocketAddr::new(ip, self.port)).into(),
            (Err(_), false) => Vec::new(),
        };
        if addresses.is_empty() || is_localhost {
            match resolve(host.clone(), self.port).await {
                Ok(resolved) => addresses.extend(resolved),
                Err(error) if is_localhost => tracing::debug!(%error, "localhost cannot be resolved"),
                Err(source) => return Err(ListenError::Resolve { address: self.clone(), source }),
            }
        }
        self.bind(addresses, usize::MAX)
    }

    /// Listens on `most` of these addresses, from the first on.
    fn bind(&self, addresses: impl IntoIterator<Item = SocketAddr>, most: usize) -> Result<Listeners, ListenError> {
        let error = |source| ListenError::Bind { address: self.clone(), source };
        let mut sockets: Vec<TcpListener> = Vec::new();
        let mut bound: Vec<SocketAddr> = Vec::new();
        let mut lacking = io::Error::from(io::ErrorKind::AddrNotAvailable);
        for mut address in addresses {
            if let (0, Some(first)) = (self.port, bound.first()) {
                address.set_port(first.port());
            }
            // A resolver may name an address twice
            if sockets.len() >= most || bound.contains(&address) {
                continue;
            }
            let listening = listen_on(address).and_then(|socket| Ok((socket.local_addr()?, socket)));
            match listening {
                Ok((address, socket)) => {
                    bound.push(address);
                    sockets.push(socket);
                }
                Err(source) if is_lacking(&source) => {
                    tracing::debug!(%address, error = %source, "this host does not have the address");
                    lacking = source;
                }
                Err(source) => return Err(error(source)),
            }
        }
        if sockets.is_empty() { Err(error(lacking)) } else { Ok(Listeners { sockets, first: 0 }) }
    }
}

/// Returns whether an address cannot be listened on because the host does not have it, or not that kind of addresses.
fn is_lacking(error: &io::Error) -> bool {
    let lacking = [rustix::io::Errno::ADDRNOTAVAIL, rustix::io::Errno::AFNOSUPPORT];
    lacking.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

fn listen_on(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    if address.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED) {
        // As in Go: every interface includes IPv4, whatever the sysctl net.ipv6.bindv6only
        set_ipv6_v6only(&socket, false)?;
    }
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

impl Listeners {
    /// Returns the addresses, with the port that the kernel chose.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.sockets.iter().filter_map(|socket| socket.local_addr().ok()).collect()
    }

    /// Accepts the next connection; returns its peer's address too. When it is dropped before it is done, nothing is
    /// lost.
    pub async fn accept(&mut self) -> io::Result<(TcpStream, SocketAddr)> {
        let (sockets, first) = (&self.sockets, &mut self.first);
        poll_fn(|context| {
            for _ in sockets {
                *first = (*first + 1) % sockets.len();
                if let Some(Poll::Ready(accepted)) = sockets.get(*first).map(|socket| socket.poll_accept(context)) {
                    return Poll::Ready(accepted);
                }
            }
            Poll::Pending
        })
        .await
    }
}

impl From<TcpListener> for Listeners {
    fn from(socket: TcpListener) -> Self {
        Self { sockets: vec![socket], first: 0 }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use rstest::rstest;

    use super::*;

    /// An address for documents (RFC 5737), which no host has.
    const NOBODYS: &str = "192.0.2.1";

    fn address(text: &str) -> ListenAddress {
        text.parse().unwrap()
    }

    /// Listens with a resolver that gives these answers to every name.
    async fn listen(text: &str, answers: &[&str]) -> Result<Listeners, ListenError> {
        let answers: Vec<IpAddr> = answers.iter().map(|answer| answer.parse().unwrap()).collect();
        let resolve = |_, port| async move {
            if answers.is_empty() {
                return Err(io::Error::other("no such name"));
            }
            Ok(answers.into_iter().map(|ip| SocketAddr::new(ip, port)).collect())
        };
        address(text).listen_with(resolve).await
    }

    /// The IP addresses, of which there is none twice, on one port.
    fn ips(listeners: &Listeners) -> BTreeSet<String> {
        let addresses = listeners.addresses();
        assert_eq!(addresses.iter().map(SocketAddr::port).collect::<BTreeSet<_>>().len(), 1, "{addresses:?}");
        let ips: BTreeSet<_> = addresses.iter().map(|address| address.ip().to_string()).collect();
        assert_eq!(ips.len(), addresses.len());
        ips
    }

    /// Connects to each of these on the port, and sees that the connection is accepted.
    async fn reach(listeners: &mut Listeners, clients: &[&str]) {
        let port = listeners.addresses()[0].port();
        for client in clients {
            let ip: IpAddr = client.parse().unwrap();
            let (connected, accepted) = tokio::join!(TcpStream::connect((ip, port)), listeners.accept());
            assert_eq!(connected.unwrap().local_addr().unwrap().port(), accepted.unwrap().1.port(), "{client}");
        }
    }

    #[rstest]
    #[case::ipv6_first(&["::1", "127.0.0.1"])]
    #[case::ipv6_only(&["::1"])]
    #[case::ipv4_only(&["127.0.0.1"])]
    #[case::twice(&["::1", "127.0.0.1", "::1", "127.0.0.1"])]
    #[case::no_answer(&[])]
    #[tokio::test]
    async fn localhost_means_both_loopback_addresses_for_any_resolver(#[case] answers: &[&str]) {
        for name in ["localhost:0", "LocalHost:0"] {
            let mut listeners = listen(name, answers).await.unwrap();
            assert_eq!(ips(&listeners), ["127.0.0.1", "::1"].map(str::to_owned).into());
            reach(&mut listeners, &["127.0.0.1", "::1", "127.0.0.1"]).await;
        }
    }

    #[tokio::test]
    async fn host_name_listens_on_each_address_that_the_host_has() {
        let mut listeners = listen("node.example:0", &[NOBODYS, "::1", "127.0.0.2", "2001:db8::1"]).await.unwrap();
        assert_eq!(ips(&listeners), ["127.0.0.2", "::1"].map(str::to_owned).into());
        reach(&mut listeners, &["127.0.0.2", "::1"]).await;
    }

    #[tokio::test]
    async fn host_name_without_local_address_is_an_error_naming_it() {
        let error = listen("node.example:0", &[NOBODYS]).await.unwrap_err();
        assert!(matches!(error, ListenError::Bind { .. }), "{error}");
        assert!(error.to_string().contains("node.example:0"), "{error}");
        let error = listen("node.example:0", &[]).await.unwrap_err();
        assert!(matches!(error, ListenError::Resolve { .. }), "{error}");
    }

    #[tokio::test]
    async fn address_in_use_is_an_error_and_not_skipped() {
        let taken = TcpListener::bind("[::1]:0").await.unwrap();
        let port = taken.local_addr().unwrap().port();
        let error = listen(&format!("localhost:{port}"), &["::1", "127.0.0.1"]).await.unwrap_err();
        assert!(matches!(error, ListenError::Bind { .. }), "{error}");
    }

    #[rstest]
    #[case(":0")]
    #[case("[::]:0")]
    #[tokio::test]
    async fn every_interface_is_ipv4_and_ipv6(#[case] every: &str) {
        reach(&mut address(every).listen().await.unwrap(), &["127.0.0.1", "::1"]).await;
    }

    #[tokio::test]
    async fn an_ip_address_is_not_asked_about() {
        let listeners = listen("127.0.0.1:0", &["127.0.0.2"]).await.unwrap();
        assert_eq!(ips(&listeners), ["127.0.0.1".to_owned()].into());
    }

    /// The kernel's errors where IPv6 is turned off are those for an address that no interface has, or of a kind that
    /// it does not know.
    #[test]
    fn a_kernel_without_ipv6_lacks_its_addresses() {
        for errno in [rustix::io::Errno::ADDRNOTAVAIL, rustix::io::Errno::AFNOSUPPORT] {
            assert!(is_lacking(&errno.into()), "{errno}");
        }
        assert!(!is_lacking(&rustix::io::Errno::ADDRINUSE.into()));
    }
}
