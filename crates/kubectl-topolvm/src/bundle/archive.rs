//! A tar archive, compressed with gzip, whose files are in one directory.

use std::io::{self, Write};

use flate2::Compression;
use flate2::write::GzEncoder;
use jiff::Timestamp;
use tar::{Builder, Header};

pub(super) struct Archive<W: Write> {
    builder: Builder<GzEncoder<W>>,
    directory: String,
    time: u64,
}

impl<W: Write> Archive<W> {
    pub(super) fn new(to: W, directory: &str, now: Timestamp) -> Self {
        let builder = Builder::new(GzEncoder::new(to, Compression::default()));
        let time = u64::try_from(now.as_second()).unwrap_or_default();
        Self { builder, directory: directory.to_owned(), time }
    }

    pub(super) fn add(&mut self, name: &str, text: &str) -> io::Result<()> {
        let mut header = Header::new_gnu();
        header.set_size(u64::try_from(text.len()).map_err(io::Error::other)?);
        // What is in it is for those who help alone
        header.set_mode(0o600);
        header.set_mtime(self.time);
        self.builder.append_data(&mut header, format!("{}/{name}", self.directory), text.as_bytes())
    }

    pub(super) fn finish(self) -> io::Result<()> {
        self.builder.into_inner()?.finish()?.flush()
    }
}
