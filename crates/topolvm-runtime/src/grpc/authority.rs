//! Serves clients that send the path of the socket as HTTP/2 `:authority`, as the kubelet and TopoLVM's agent do.
//!
//! grpc-go does so if it gets a bare path: the kubelet when it registers a plugin (1.36 still), and up to 1.25 for
//! every call; TopoLVM's agent when it calls lvmd. A path is no authority, and the `h2` crate refuses the stream with
//! `PROTOCOL_ERROR` (kubernetes/kubernetes#109081). So this decodes the incoming header blocks, replaces the authority,
//! and encodes them again; everything else passes as it is. Other clients prefix the path with `unix:`, and grpc-go
//! sends `localhost` then: CSI sidecars, and the newest versions of TopoLVM's agent.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::StreamExt as _;
use loona_hpack::{Decoder, Encoder};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedWriteHalf;
use tokio_util::io::{ReaderStream, StreamReader};
use tonic::transport::server::Connected;

/// Bytes that are read at once.
const CHUNK: usize = 8192;
/// Length of what a client sends first (RFC 9113 §3.4).
const PREFACE: usize = 24;
/// Length, type, flags and stream of a frame (RFC 9113 §4.1).
const FRAME_HEADER: usize = 9;
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;
/// The frame size that a peer accepts unless it announces another (RFC 9113 §4.2).
const MAX_FRAME: usize = 16384;
/// No gRPC client of ours sends more; without a bound a client could fill our memory.
const MAX_HEADER_BLOCK: usize = 64 * 1024;

/// The size of the header table that a client may use unless the server announces another, and ours does not (RFC 9113
/// §6.5.2).
const TABLE_SIZE: usize = 4096;

/// A connection whose requests may have any authority.
pub(super) struct AnyAuthority {
    reader: Pin<Box<dyn AsyncRead + Send>>,
    writer: OwnedWriteHalf,
}

impl AnyAuthority {
    pub(super) fn new(connection: UnixStream) -> Self {
        let (reader, writer) = connection.into_split();
        let mut filter = Filter::default();
        let rewritten = ReaderStream::with_capacity(reader, CHUNK).map(move |received| {
            let mut rewritten = Vec::new();
            filter.feed(&received?, &mut rewritten)?;
            Ok::<_, io::Error>(Bytes::from(rewritten))
        });
        Self { reader: Box::pin(StreamReader::new(rewritten)), writer }
    }
}

impl AsyncRead for AnyAuthority {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.reader.as_mut().poll_read(context, buffer)
    }
}

impl AsyncWrite for AnyAuthority {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.writer).poll_write(context, data)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.writer).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.writer).poll_shutdown(context)
    }
}

impl Connected for AnyAuthority {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

/// Rewrites the bytes of one direction of one connection. Header compression has a state per direction, hence a decoder
/// and an encoder that see every block.
struct Filter {
    preface_seen: usize,
    /// Of a frame that has not arrived completely.
    pending: Vec<u8>,
    /// Flags, stream and fragments of a header block that goes on in CONTINUATION frames.
    block: Option<Block>,
    decoder: Decoder<'static>,
    encoder: Encoder<'static>,
}

impl Default for Filter {
    fn default() -> Self {
        let mut decoder = Decoder::new();
        // Without this limit, the decoder lets the client choose the size of the table
        decoder.set_max_allowed_table_size(TABLE_SIZE);
        Self { preface_seen: 0, pending: Vec::new(), block: None, decoder, encoder: Encoder::default() }
    }
}

struct Block {
    flags: u8,
    stream: [u8; 4],
    fragments: Vec<u8>,
}

impl Filter {
    /// Takes what was received and appends what is passed on to `out`.
    fn feed(&mut self, mut bytes: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
        if self.preface_seen < PREFACE {
            let (preface, rest) = bytes.split_at(bytes.len().min(PREFACE - self.preface_seen));
            self.preface_seen += preface.len();
            out.extend_from_slice(preface);
            bytes = rest;
        }
        self.pending.extend_from_slice(bytes);
        let pending = std::mem::take(&mut self.pending);
        let mut rest = pending.as_slice();
        while let Some((frame, after)) = split_frame(rest) {
            self.frame(frame, out)?;
            rest = after;
        }
        // A frame of 16 MiB is legal only after our server has announced that it accepts such, which it never does
        if rest.len() > FRAME_HEADER + MAX_HEADER_BLOCK {
            return Err(invalid("a frame is too large"));
        }
        self.pending = rest.to_vec();
        Ok(())
    }

    fn frame(&mut self, frame: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
        let &[_, _, _, kind, flags, s0, s1, s2, s3, ref payload @ ..] = frame else {
            return Err(invalid("a frame without a header"));
        };
        let stream = [s0, s1, s2, s3];
        match (kind, self.block.take()) {
            (HEADERS, None) => {
                let fragments = fragment(flags, payload)?.to_vec();
                self.continue_or_finish(Block { flags, stream, fragments }, flags, out)
            }
            (CONTINUATION, Some(mut block)) => {
                block.fragments.extend_from_slice(payload);
                self.continue_or_finish(block, flags, out)
            }
            (CONTINUATION, None) | (_, Some(_)) => Err(invalid("a header block is interrupted")),
            _ => {
                out.extend_from_slice(frame);
                Ok(())
            }
        }
    }

    fn continue_or_finish(&mut self, block: Block, flags: u8, out: &mut Vec<u8>) -> io::Result<()> {
        if block.fragments.len() > MAX_HEADER_BLOCK {
            return Err(invalid("a header block is too large"));
        }
        if flags & END_HEADERS == 0 {
            self.block = Some(block);
            return Ok(());
        }
        let headers = self.decode(&block.fragments)?;
        let headers = headers.iter().map(|(name, value)| (name.as_slice(), valid_authority(name, value)));
        let encoded = self.encoder.encode(headers);
        write_block(&block, &encoded, out)
    }

    /// Returns names and values of a header block.
    fn decode(&mut self, block: &[u8]) -> io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let mut headers = Vec::new();
        let mut size = 0_usize;
        // One byte of a block can represent a whole header of the table
        let decoded = self.decoder.decode_with_cb(block, |name, value| {
            size = size.saturating_add(name.len() + value.len());
            if size <= MAX_HEADER_BLOCK {
                headers.push((name.into_owned(), value.into_owned()));
            }
        });
        decoded.map_err(|error| invalid(&error.to_string()))?;
        if size > MAX_HEADER_BLOCK {
            return Err(invalid("a header block is too large"));
        }
        Ok(headers)
    }
}

/// Returns the value of a header, `localhost` for an authority that is none.
fn valid_authority<'a>(name: &[u8], value: &'a [u8]) -> &'a [u8] {
    let is_invalid = name == b":authority" && http::uri::Authority::try_from(value).is_err();
    if is_invalid { b"localhost" } else { value }
}

/// Writes an encoded header block as one HEADERS frame and as many CONTINUATION frames as it takes.
fn write_block(block: &Block, encoded: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
    // Padding and the priority that HTTP/2 has given up are not sent on
    let mut flags = block.flags & !(PADDED | PRIORITY | END_HEADERS);
    let mut kind = HEADERS;
    let mut chunks = encoded.chunks(MAX_FRAME).peekable();
    while let Some(chunk) = chunks.next() {
        if chunks.peek().is_none() {
            flags |= END_HEADERS;
        }
        let length = u32::try_from(chunk.len()).map_err(|_| invalid("a header block is too large"))?;
        out.extend_from_slice(length.to_be_bytes().get(1..).unwrap_or_default());
        out.extend_from_slice(&[kind, flags]);
        out.extend_from_slice(&block.stream);
        out.extend_from_slice(chunk);
        (kind, flags) = (CONTINUATION, 0);
    }
    Ok(())
}

/// Splits off the first frame, when it has been received completely.
fn split_frame(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let &[l0, l1, l2, ..] = bytes else { return None };
    let length = usize::try_from(u32::from_be_bytes([0, l0, l1, l2])).ok()?;
    bytes.split_at_checked(FRAME_HEADER + length)
}

/// The part of a HEADERS payload that belongs to the header block (RFC 9113 §6.2).
fn fragment(flags: u8, payload: &[u8]) -> io::Result<&[u8]> {
    let mut start = 0;
    let mut end = payload.len();
    if flags & PADDED != 0 {
        let &[padding, ..] = payload else { return Err(invalid("padding without its length")) };
        start = 1;
        end = end.checked_sub(usize::from(padding)).ok_or_else(|| invalid("more padding than frame"))?;
    }
    if flags & PRIORITY != 0 {
        start += 5;
    }
    payload.get(start..end).ok_or_else(|| invalid("a HEADERS frame is too short"))
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("not HTTP/2: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    type Headers = Vec<(Vec<u8>, Vec<u8>)>;

    fn request(authority: &str) -> Headers {
        [(":method", "POST"), (":path", "/a.B/C"), (":authority", authority), ("te", "trailers")]
            .map(|(name, value)| (name.into(), value.into()))
            .into()
    }

    fn encode(encoder: &mut Encoder<'_>, headers: &Headers) -> Vec<u8> {
        encoder.encode(headers.iter().map(|(name, value)| (name.as_slice(), value.as_slice())))
    }

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&length[1..], &[kind, flags, 0, 0, 0, 1], payload].concat()
    }

    /// Feeds bytes in pieces of this size and reads the frames that come out.
    fn pass(bytes: &[u8], piece: usize) -> Vec<Vec<u8>> {
        let mut filter = Filter::default();
        let mut out = Vec::new();
        for piece in bytes.chunks(piece) {
            filter.feed(piece, &mut out).unwrap();
        }
        assert_eq!(&out[..PREFACE], &bytes[..PREFACE]);
        let mut rest = &out[PREFACE..];
        let mut frames = Vec::new();
        while let Some((frame, after)) = split_frame(rest) {
            frames.push(frame.to_vec());
            rest = after;
        }
        assert!(rest.is_empty());
        frames
    }

    #[test]
    fn authority_path_becomes_localhost_in_every_request() {
        let mut encoder = Encoder::new();
        let path = "%2Fvar%2Flib%2Fkubelet%2Fplugins_registry%2Fx-reg.sock";
        let first = encode(&mut encoder, &request(path));
        let (start, end) = first.split_at(7);
        // The second one refers to the first one's dynamic table
        let second = encode(&mut encoder, &request(path));
        let padded_and_prioritised = [&[2, 0, 0, 0, 0, 9][..], &second, &[0, 0]].concat();
        let bytes = [
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
            frame(4, 0, b"settings"),
            frame(HEADERS, 1, start),
            frame(CONTINUATION, END_HEADERS, end),
            frame(0, 1, b"data"),
            frame(HEADERS, END_HEADERS | PADDED | PRIORITY, &padded_and_prioritised),
        ]
        .concat();
        for piece in [1, 5, bytes.len()] {
            let frames = pass(&bytes, piece);
            assert_eq!(frames[0], frame(4, 0, b"settings"));
            assert_eq!(frames[2], frame(0, 1, b"data"));
            let mut decoder = Decoder::new();
            for (index, flags) in [(1, END_HEADERS | 1), (3, END_HEADERS)] {
                assert_eq!(frames[index][3..5], [HEADERS, flags]);
                let headers = decoder.decode(&frames[index][FRAME_HEADER..]).unwrap();
                assert_eq!(headers, request("localhost"));
            }
        }
    }

    #[test]
    fn a_real_authority_stays() {
        let block = encode(&mut Encoder::new(), &request("example:443"));
        let bytes = [&[b'P'; PREFACE][..], &frame(HEADERS, END_HEADERS, &block)].concat();
        let frames = pass(&bytes, 100);
        let headers = Decoder::new().decode(&frames[0][FRAME_HEADER..]).unwrap();
        assert!(headers.iter().any(|(name, value)| **name == *b":authority" && **value == *b"example:443"));
    }

    #[test]
    fn header_table_size_update_is_limited_to_the_default() {
        let after_size_update = |update: &[u8]| {
            let block = [update, &encode(&mut Encoder::new(), &request("/a.sock"))].concat();
            let bytes = [&[b'P'; PREFACE][..], &frame(HEADERS, END_HEADERS, &block)].concat();
            Filter::default().feed(&bytes, &mut Vec::new()).map_err(|error| error.to_string())
        };
        // RFC 7541 §6.3: 001 and the size, a number with a prefix of five bits; 0, 4096 and 1 MiB
        after_size_update(&[0x20]).unwrap();
        after_size_update(&[0x3f, 0xe1, 0x1f]).unwrap();
        let error = after_size_update(&[0x3f, 0xe1, 0xff, 0x3f]).unwrap_err();
        assert!(error.ends_with("table size exceeds the maximum size"), "{error}");
    }

    #[test]
    fn nonsense_is_an_error_and_memory_is_bounded() {
        let feed = |bytes: &[u8]| Filter { preface_seen: PREFACE, ..Filter::default() }.feed(bytes, &mut Vec::new());
        // A header of 2 KiB that goes into the table, and then its index, 62, a thousand times
        let large = encode(&mut Encoder::new(), &vec![(b"x".to_vec(), vec![b'x'; 2048])]);
        assert!(feed(&frame(HEADERS, END_HEADERS, &large)).is_ok());
        for (bytes, expected) in [
            (frame(CONTINUATION, 0, b""), "a header block is interrupted"),
            ([frame(HEADERS, 0, b""), frame(0, 0, b"")].concat(), "a header block is interrupted"),
            (frame(HEADERS, PADDED, b""), "padding without its length"),
            (frame(HEADERS, PADDED, &[9, 0]), "more padding than frame"),
            (frame(HEADERS, PRIORITY, &[0; 4]), "a HEADERS frame is too short"),
            (frame(HEADERS, END_HEADERS, &[0xff; 40]), "Too many octets in the integer"),
            (frame(HEADERS, 0, &vec![0; MAX_HEADER_BLOCK + 1]), "a header block is too large"),
            (frame(HEADERS, END_HEADERS, &[large, vec![0xbe; 1000]].concat()), "a header block is too large"),
            (vec![0xff; FRAME_HEADER + MAX_HEADER_BLOCK + 1], "a frame is too large"),
        ] {
            let error = feed(&bytes).unwrap_err().to_string();
            assert!(error.starts_with("not HTTP/2: ") && error.contains(expected), "{expected}: {error}");
        }
    }
}
