//! The network of a cluster: addresses, devices and routes, without NAT and without kube-proxy.
//!
//! Nodes sit on a bridge, each with a route to its pods. The range of the Services is local in the cluster's namespace,
//! which is the default gateway of every node: a packet to a ClusterIP is delivered to the process that listens on that
//! address there.

use std::fs;
use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::Stdio;

use anyhow::{Context, Result, bail};

use crate::netns::NetNs;

/// Address of the namespace on the bridge of the nodes: their gateway, and the client address of a Service that a pod
/// sees.
pub const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
/// Address of the API server: that of the `kubernetes` Service itself, so that pods reach it without NAT.
pub const API_SERVER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 96, 0, 1)), 443);
/// Range of the ClusterIPs.
pub const SERVICES: &str = "10.96.0.0/16";

const BRIDGE: &str = "br0";

/// Sets up bridge, loopback and the route of the Services in a new namespace.
pub(crate) fn prepare(netns: &NetNs) -> Result<()> {
    ip(
        netns,
        &format!(
            "link set lo up\n\
             link add {BRIDGE} type bridge forward_delay 0\n\
             addr add {GATEWAY}/24 dev {BRIDGE}\n\
             link set {BRIDGE} up\n\
             route add local {SERVICES} dev lo\n"
        ),
    )?;
    netns.enter(|| -> Result<()> {
        set_value("ip_forward", "1")?;
        for device in ["all", BRIDGE] {
            // Packets of one pod to another come in and leave by the same bridge; that is no reason to drop or to
            // redirect them.
            set_value(&format!("conf/{device}/rp_filter"), "0")?;
            set_value(&format!("conf/{device}/send_redirects"), "0")?;
        }
        Ok(())
    })?
}

/// The network of one node. All names follow from the last number of its address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NodeNetwork {
    pub(crate) address: Ipv4Addr,
}

impl NodeNetwork {
    pub(crate) fn new(address: Ipv4Addr) -> Result<Self> {
        let first = Ipv4Addr::from(u32::from(GATEWAY) + 1);
        let last = Ipv4Addr::from(u32::from(GATEWAY) + 253);
        if !(first..=last).contains(&address) {
            bail!("{address} is no address for a node: take one from {first} to {last}");
        }
        Ok(Self { address })
    }

    /// Returns the last number of the address.
    pub(crate) fn last(self) -> u8 {
        let [_, _, _, last] = self.address.octets();
        last
    }

    /// Returns the name of the tap device; the kernel allows 15 characters.
    pub(crate) fn tap(self) -> String {
        format!("tap{}", self.last())
    }

    /// Returns the addresses of its pods.
    pub(crate) fn pods(self) -> String {
        format!("10.244.{}.0/24", self.last())
    }

    /// Adds the tap device and the route to the pods.
    pub(crate) fn connect(self, netns: &NetNs) -> Result<()> {
        let (tap, pods, address) = (self.tap(), self.pods(), self.address);
        ip(
            netns,
            &format!(
                "tuntap add {tap} mode tap\n\
                 link set {tap} master {BRIDGE} up\n\
                 route add {pods} via {address}\n"
            ),
        )
    }

    /// Removes tap device and route of [`Self::connect`]; safe to repeat.
    pub(crate) fn disconnect(self, netns: &NetNs) -> Result<()> {
        let exists = netns.enter(|| fs::exists(format!("/proc/sys/net/ipv4/conf/{}", self.tap())))??;
        if exists { ip(netns, &format!("route del {}\nlink del {}\n", self.pods(), self.tap())) } else { Ok(()) }
    }
}

fn ip(netns: &NetNs, batch: &str) -> Result<()> {
    let mut child = netns
        .command("ip")
        .args(["-batch", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .context("run ip (package iproute2)")?;
    child.stdin.take().context("no standard input")?.write_all(batch.as_bytes()).context("write to ip")?;
    let output = child.wait_with_output().context("wait for ip")?;
    if !output.status.success() {
        bail!("ip refused to set up the network: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

/// Sets a value below /proc/sys/net, in the namespace of the calling thread.
fn set_value(name: &str, value: &str) -> Result<()> {
    let path = format!("/proc/sys/net/ipv4/{name}");
    fs::write(&path, value).with_context(|| format!("write {path}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_a_node_follow_from_its_address() {
        let node = NodeNetwork::new(Ipv4Addr::new(10, 77, 0, 11)).unwrap();
        assert_eq!((node.tap().as_str(), node.pods().as_str()), ("tap11", "10.244.11.0/24"));
    }

    #[test]
    fn an_address_outside_the_bridge_or_of_the_gateway_is_refused() {
        for address in ["10.77.1.11", "10.77.0.1", "10.77.0.0", "10.77.0.255"] {
            assert!(NodeNetwork::new(address.parse().unwrap()).is_err(), "{address}");
        }
    }
}
