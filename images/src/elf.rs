//! Loader and libraries that an ELF program needs, read from its headers without running it.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use object::elf::{DT_NEEDED, PT_INTERP};
use object::read::elf::{Dyn as _, ElfFile64, FileHeader as _, ProgramHeader as _};
use object::{Architecture, Endianness, Object as _};

/// An ELF program or library of 64 bits.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Elf {
    /// Architecture as in the OCI image specification.
    pub(crate) architecture: &'static str,
    /// Dynamic linker, by its whole path; `None` for a library and a static program.
    pub(crate) interpreter: Option<String>,
    /// Names of libraries, which the dynamic linker looks for.
    pub(crate) libraries: Vec<String>,
}

impl Elf {
    /// Reads the headers of a file.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let bytes = fs::read(path).with_context(|| format!("read {}", path.display()))?;
        Self::parse(&bytes).with_context(|| format!("{} is no ELF program that this knows", path.display()))
    }

    fn parse(bytes: &[u8]) -> Result<Self> {
        let file = ElfFile64::<Endianness>::parse(bytes)?;
        let known = [(Architecture::X86_64, "amd64"), (Architecture::Aarch64, "arm64")];
        let found = known.into_iter().find(|(architecture, _)| *architecture == file.architecture());
        let (_, architecture) = found.with_context(|| format!("architecture {:?}", file.architecture()))?;
        let endian = file.endian();
        let header = file.elf_header();
        let mut interpreter = None;
        let mut libraries = Vec::new();
        for segment in header.program_headers(endian, bytes)? {
            if segment.p_type(endian) == PT_INTERP {
                let path = segment.data(endian, bytes).ok().context("the path of the dynamic linker is cut off")?;
                interpreter = Some(String::from_utf8(path.iter().copied().take_while(|byte| *byte != 0).collect())?);
            }
        }
        let sections = header.sections(endian, bytes)?;
        if let Some((entries, strings)) = sections.dynamic(endian, bytes)? {
            let strings = sections.strings(endian, bytes, strings)?;
            for entry in entries.iter().filter(|entry| i64::from(entry.tag32(endian).unwrap_or_default()) == DT_NEEDED)
            {
                let name = entry.string(endian, strings)?;
                libraries.push(String::from_utf8(name.to_vec())?);
            }
        }
        Ok(Self { architecture, interpreter, libraries })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dynamic_program_names_its_linker_and_libraries() {
        let this = Elf::read(&std::env::current_exe().unwrap()).unwrap();
        assert!(this.interpreter.unwrap().contains("/ld-linux-"));
        assert!(this.libraries.iter().any(|name| name == "libc.so.6"), "{:?}", this.libraries);
    }

    #[test]
    fn what_is_no_program_is_refused() {
        assert!(Elf::parse(b"#!/bin/sh\n").is_err());
    }
}
