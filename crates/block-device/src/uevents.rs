//! The kernel's messages about devices that come, change and go (netlink(7), `NETLINK_KOBJECT_UEVENT`).

use std::io;

use rustix::net::netlink::{KOBJECT_UEVENT, SocketAddrNetlink};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with};
use tokio::net::unix::pipe::Receiver;

/// The group of messages that come from the kernel, as opposed to those of udev.
const KERNEL: u32 = 1;
/// Length of the longest message (the kernel's `UEVENT_BUFFER_SIZE`) and the line in front of it.
const LONGEST: usize = 4096;

/// A subscription to the kernel's messages about block devices.
#[derive(Debug)]
pub struct Uevents {
    /// Messages are read from the socket as bytes are from a pipe, and tokio waits for both in the same way.
    socket: Receiver,
}

impl Uevents {
    /// Subscribes. In a container the messages arrive, too, unless it has a separate user namespace.
    pub fn subscribe() -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::NETLINK, SocketType::DGRAM, flags, Some(KOBJECT_UEVENT))?;
        bind(&socket, &SocketAddrNetlink::new(0, KERNEL))?;
        Ok(Self { socket: Receiver::from_owned_fd_unchecked(socket)? })
    }

    /// Waits for a message about a block device that is none of device-mapper's. Lost ones count as one. Cancel safe.
    pub async fn block_device(&mut self) {
        let mut buffer = [0; LONGEST];
        loop {
            if self.socket.readable().await.is_err() {
                // The runtime is going away
                return std::future::pending().await;
            }
            match self.socket.try_read(&mut buffer) {
                Ok(length) if is_of_block_device(buffer.get(..length).unwrap_or_default()) => return,
                // More came than the buffer of the socket can hold (ENOBUFS)
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return,
                Ok(_) | Err(_) => {}
            }
        }
    }
}

/// Returns whether a message is about a block device: strings that each end with a zero byte. Devices of device-mapper
/// do not count: they come and go with each logical volume.
fn is_of_block_device(message: &[u8]) -> bool {
    let has = |is_wanted: fn(&[u8]) -> bool| message.split(|byte| *byte == 0).any(is_wanted);
    has(|field| field == b"SUBSYSTEM=block") && !has(|field| field.starts_with(b"DEVNAME=dm-"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_about_other_devices_are_none() {
        let of = |subsystem: &str| {
            format!("add@/devices/x\0ACTION=add\0DEVPATH=/devices/x\0SUBSYSTEM={subsystem}\0SEQNUM=7\0")
        };
        assert!(is_of_block_device(of("block").as_bytes()));
        assert!(!is_of_block_device(of("net").as_bytes()));
        assert!(!is_of_block_device(of("blocks").as_bytes()));
        assert!(!is_of_block_device(b""));
    }

    #[test]
    fn logical_volumes_are_no_reason_to_look_at_disks() {
        let of = |name: &str| format!("change@/devices/x\0ACTION=change\0SUBSYSTEM=block\0DEVNAME={name}\0SEQNUM=7\0");
        assert!(!is_of_block_device(of("dm-12").as_bytes()));
        for disk in ["sdb", "nvme0n1", "md0"] {
            assert!(is_of_block_device(of(disk).as_bytes()), "{disk}");
        }
    }
}
