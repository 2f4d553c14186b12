//! A tar archive, compressed with gzip, whose files are in one directory.

use std::io::{self, Write};
use std::path::PathBuf;

use flate2::Compression;
use flate2::write::GzEncoder;
use jiff::Timestamp;
use tar::{Builder, Header};

use crate::error::Error;

pub(super) struct Archive {
    builder: Builder<GzEncoder<Box<dyn Write>>>,
    /// The file that is written, for errors.
    path: PathBuf,
    directory: String,
    time: u64,
}

impl Archive {
    pub(super) fn new(to: Box<dyn Write>, path: PathBuf, directory: &str, now: Timestamp) -> Self {
        let builder = Builder::new(GzEncoder::new(to, Compression::default()));
        let time = u64::try_from(now.as_second()).unwrap_or_default();
        Self { builder, path, directory: directory.to_owned(), time }
    }

    pub(super) fn add(&mut self, name: &str, text: &str) -> Result<(), Error> {
        let mut header = Header::new_gnu();
        header.set_size(u64::try_from(text.len()).unwrap_or(u64::MAX));
        // What is in it is for those who help alone
        header.set_mode(0o600);
        header.set_mtime(self.time);
        let added = self.builder.append_data(&mut header, format!("{}/{name}", self.directory), text.as_bytes());
        added.map_err(|source| Error::Write { path: self.path.clone(), source })
    }

    pub(super) fn finish(self) -> Result<(), Error> {
        let finish =
            |builder: Builder<GzEncoder<Box<dyn Write>>>| -> io::Result<()> { builder.into_inner()?.finish()?.flush() };
        finish(self.builder).map_err(|source| Error::Write { path: self.path, source })
    }
}
