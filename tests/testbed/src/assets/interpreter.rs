//! Replaces the ELF interpreter of a program, so that it runs with another C library than the machine's.
//!
//! Starting the interpreter with the program as argument would be simpler, but a User-Mode Linux that is started so
//! panics.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

use anyhow::{Context, Result, bail};

const USUAL: &[u8] = b"/lib64/ld-linux-x86-64.so.2\0";

/// Writes a copy of `program` with `interpreter` in its header. The path must not be longer than the usual one (27
/// characters).
pub(super) fn replace(program: &Path, copy: &Path, interpreter: &Path) -> Result<()> {
    let mut bytes = fs::read(program).with_context(|| format!("read {}", program.display()))?;
    patch(&mut bytes, interpreter.as_os_str().as_encoded_bytes()).with_context(|| program.display().to_string())?;
    fs::write(copy, bytes).with_context(|| format!("write {}", copy.display()))?;
    fs::set_permissions(copy, fs::Permissions::from_mode(0o755))
        .with_context(|| format!("make {} executable", copy.display()))
}

fn patch(program: &mut [u8], interpreter: &[u8]) -> Result<()> {
    if interpreter.len() >= USUAL.len() {
        bail!("the path of the interpreter has more than {} characters", USUAL.len() - 1);
    }
    let at = program.windows(USUAL.len()).position(|window| window == USUAL);
    let place =
        at.and_then(|at| program.get_mut(at..at + USUAL.len())).context("no usual ELF interpreter found in it")?;
    place.fill(0);
    for (byte, new) in place.iter_mut().zip(interpreter) {
        *byte = *new;
    }
    Ok(())
}

/// Creates the symbolic link `link` to `target`, or corrects it.
pub(super) fn make_link(link: &Path, target: &Path) -> Result<()> {
    if fs::read_link(link).is_ok_and(|present| present == target) {
        return Ok(());
    }
    // Under another name first, one for each caller: a guest may be starting, and others may be doing the same, in this
    // process too.
    let directory = link.parent().with_context(|| format!("{} is in no directory", link.display()))?;
    tempfile::Builder::new()
        .prefix(".uml-ld-")
        .make_in(directory, |temporary| symlink(target, temporary))
        .and_then(|made| Ok(made.into_temp_path().persist(link)?))
        .with_context(|| format!("link {} to {}", link.display(), target.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_is_replaced_in_place_and_the_rest_stays() {
        let mut program = [b"\x7fELF....", USUAL, b"rest"].concat();
        let length = program.len();
        patch(&mut program, b"/var/tmp/x.so").unwrap();
        assert_eq!(program.len(), length);
        assert!(program.starts_with(b"\x7fELF..../var/tmp/x.so\0\0") && program.ends_with(b"\0rest"));
    }

    #[test]
    fn patch_rejects_long_paths_and_programs_without_interpreter() {
        let mut program = USUAL.to_vec();
        assert!(patch(&mut program, &[b'x'; 28]).is_err());
        assert!(patch(&mut program, &[b'x'; 27]).is_ok());
        assert!(patch(&mut b"static".to_vec(), b"/x").is_err());
    }

    #[test]
    fn a_link_is_made_by_many_at_once() {
        let directory = tempfile::tempdir().unwrap();
        let name = directory.path().join("ld.so");
        let barrier = std::sync::Barrier::new(8);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    barrier.wait();
                    make_link(&name, Path::new("/a")).unwrap();
                });
            }
        });
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 1);
    }

    #[test]
    fn a_link_is_made_and_corrected() {
        let directory = tempfile::tempdir().unwrap();
        let name = directory.path().join("ld.so");
        for target in ["/a", "/b"] {
            make_link(&name, Path::new(target)).unwrap();
            assert_eq!(fs::read_link(&name).unwrap(), Path::new(target));
        }
    }
}
