//! Options for mkfs, as a StorageClass gives them.

/// Options for the program that makes a filesystem.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MkfsOptions(Vec<String>);

/// An option that cannot be given.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "mkfs option {0:?} cannot be used; an option names no file or device and consists of printable ASCII characters; change the StorageClass"
)]
pub struct MkfsOptionError(String);

impl MkfsOptions {
    /// Reads options that are separated by spaces, such as `-i size=512 -K`. There is no shell and no quoting.
    pub fn parse(text: &str) -> Result<Self, MkfsOptionError> {
        let options = text.split_whitespace().map(|option| match option {
            // A path could name another device than that of the volume
            option if option.contains('/') || !option.bytes().all(|byte| byte.is_ascii_graphic()) => {
                Err(MkfsOptionError(option.to_owned()))
            }
            // What follows would be names of devices
            "--" => Err(MkfsOptionError(option.to_owned())),
            option => Ok(option.to_owned()),
        });
        options.collect::<Result<_, _>>().map(Self)
    }

    /// One argument each.
    pub fn as_slice(&self) -> &[String] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[test]
    fn options_are_separated_by_spaces() {
        let options = MkfsOptions::parse("  -m 1\t-E nodiscard,lazy_itable_init=1 ").unwrap();
        assert_eq!(options.as_slice(), ["-m", "1", "-E", "nodiscard,lazy_itable_init=1"]);
        assert_eq!(MkfsOptions::parse(" "), Ok(MkfsOptions::default()));
    }

    #[rstest]
    #[case("/dev/sda")]
    #[case("-l logdev=/dev/sda")]
    #[case("--")]
    #[case("-L größe")]
    fn options_that_could_reach_another_device_are_refused(#[case] options: &str) {
        MkfsOptions::parse(options).unwrap_err();
    }
}
