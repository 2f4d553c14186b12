//! Names that LVM accepts, checked before they get near a command line: none of them can be an option or a path.

use std::fmt;
use std::str::FromStr;

/// lvm(8) "VALID NAMES" and LVM's `NAME_LEN`: the longest name is 127 bytes.
const MAX_NAME: usize = 127;
/// lvm(8) "TAGS": at most 1024 characters.
const MAX_TAG: usize = 1024;
/// lvm(8) "VALID NAMES": LVM keeps these beginnings for itself.
const RESERVED_PREFIXES: &[&str] = &["snapshot", "pvmove"];
/// lvm(8) "VALID NAMES": parts that mark the hidden volumes inside other volumes.
const RESERVED_PARTS: &[&str] = &[
    "_cdata", "_cmeta", "_corig", "_cpool", "_cvol", "_imeta", "_iorig", "_mimage", "_mlog", "_pmspare", "_rimage",
    "_rmeta", "_tdata", "_tmeta", "_vdata", "_vorigin", "_wcorig",
];

/// A name that LVM would not accept, or that would mean something else than a name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid {kind} {name:?}: {problem}")]
pub struct InvalidName {
    kind: &'static str,
    name: String,
    problem: &'static str,
}

macro_rules! name {
    ($(#[$doc:meta])* $type:ident, $kind:literal, $check:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $type(String);

        impl $type {
            /// Returns the name as LVM writes it.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $type {
            type Error = InvalidName;

            fn try_from(name: String) -> Result<Self, InvalidName> {
                match $check(&name) {
                    Ok(()) => Ok(Self(name)),
                    Err(problem) => Err(InvalidName { kind: $kind, name: shortened(name), problem }),
                }
            }
        }

        impl FromStr for $type {
            type Err = InvalidName;

            fn from_str(name: &str) -> Result<Self, InvalidName> {
                Self::try_from(name.to_owned())
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

name!(
    /// Name of a volume group.
    VgName, "volume group name", check_name
);
name!(
    /// Name of a logical volume, without its volume group.
    LvName, "logical volume name", check_volume_name
);
name!(
    /// A tag on a logical volume, without the `@` that selects by tag on command lines.
    Tag, "tag", check_tag
);

fn check_name(name: &str) -> Result<(), &'static str> {
    if name.is_empty() {
        Err("it is empty")
    } else if name.len() > MAX_NAME {
        Err("it is longer than 127 characters")
    } else if name.starts_with('-') {
        Err("it begins with a hyphen")
    } else if name == "." || name == ".." {
        Err("it is the name of a directory")
    } else if name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+_.-".contains(&byte)) {
        Ok(())
    } else {
        Err("only letters, digits and + _ . - are allowed")
    }
}

fn check_volume_name(name: &str) -> Result<(), &'static str> {
    check_name(name)?;
    if RESERVED_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
        || RESERVED_PARTS.iter().any(|part| name.contains(part))
    {
        return Err("it is reserved by LVM");
    }
    Ok(())
}

/// Name of a logical volume with its volume group, as in LVM's report field `lv_full_name`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FullName {
    vg: VgName,
    name: LvName,
}

impl FullName {
    /// Returns the full name of a logical volume in this group.
    pub fn new(vg: &VgName, name: &LvName) -> Self {
        Self { vg: vg.clone(), name: name.clone() }
    }
}

impl fmt::Display for FullName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.vg, self.name)
    }
}

/// Returns whether a name is a UUID, and so that of one volume only: topolvm-node and TopoLVM's own name volumes by the
/// UID of their object.
pub fn is_uuid(name: &str) -> bool {
    let is_hex = |part: &str, length: usize| part.len() == length && part.bytes().all(|byte| byte.is_ascii_hexdigit());
    let parts: Vec<_> = name.split('-').collect();
    parts.len() == 5 && parts.iter().zip([8, 4, 4, 4, 12]).all(|(part, length)| is_hex(part, length))
}

/// Checks a tag against lvm(8). LVM itself takes a leading hyphen in some versions and refuses it in others, and strips
/// a leading `@`.
fn check_tag(tag: &str) -> Result<(), &'static str> {
    if tag.is_empty() {
        Err("it is empty")
    } else if tag.len() > MAX_TAG {
        Err("it is longer than 1024 characters")
    } else if tag.starts_with('-') {
        Err("it begins with a hyphen")
    } else if tag.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_+.-/=!:&#".contains(&byte)) {
        Ok(())
    } else {
        Err("only letters, digits and _ + . - / = ! : & # are allowed")
    }
}

/// Callers send names of any length; what goes into error texts and logs is bounded.
fn shortened(name: String) -> String {
    if name.chars().count() > MAX_NAME { name.chars().take(MAX_NAME).chain("...".chars()).collect() } else { name }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("a")]
    #[case("0b5a2f4e-8d54-4f5c-9a0e-7d8f6f3c2b1a")]
    #[case("my_vg+1.0")]
    #[case("...")]
    fn names_that_lvm_accepts(#[case] name: &str) {
        assert_eq!(name.parse::<LvName>().unwrap().as_str(), name);
        assert_eq!(name.parse::<VgName>().unwrap().as_str(), name);
    }

    #[rstest]
    #[case("")]
    #[case("-y")]
    #[case("--config")]
    #[case(".")]
    #[case("..")]
    #[case("a b")]
    #[case("a/b")]
    #[case("../x")]
    #[case("@tag")]
    #[case("a\n")]
    #[case("a\0")]
    #[case("ü")]
    fn names_that_could_mean_something_else(#[case] name: &str) {
        assert!(name.parse::<LvName>().is_err());
        assert!(name.parse::<VgName>().is_err());
    }

    #[rstest]
    #[case("snapshot1")]
    #[case("pvmove0")]
    #[case("x_tdata")]
    #[case("x_mimage_0")]
    #[case("lvol0_pmspare")]
    fn names_that_lvm_keeps_for_itself(#[case] name: &str) {
        assert!(name.parse::<LvName>().is_err());
        assert!(name.parse::<VgName>().is_ok());
    }

    #[test]
    fn the_longest_name_has_127_characters() {
        assert!("a".repeat(127).parse::<LvName>().is_ok());
        let error = "a".repeat(128).parse::<LvName>().unwrap_err();
        assert!(error.to_string().ends_with("it is longer than 127 characters"));
    }

    #[rstest]
    #[case("topolvm.io/a=b", true)]
    #[case("a_+.-/=!:&#Z09", true)]
    #[case("", false)]
    #[case("-a", false)]
    #[case("@a", false)]
    #[case("a,b", false)]
    #[case("a b", false)]
    fn tags_keep_to_lvms_alphabet(#[case] tag: &str, #[case] valid: bool) {
        assert_eq!(tag.parse::<Tag>().is_ok(), valid);
    }

    #[rstest]
    #[case("0b5a2f4e-8d54-4f5c-9a0e-7d8f6f3c2b1a", true)]
    #[case("0B5A2F4E-8D54-4F5C-9A0E-7D8F6F3C2B1A", true)]
    #[case("0b5a2f4e8d544f5c9a0e7d8f6f3c2b1a", false)]
    #[case("0b5a2f4e-8d54-4f5c-9a0e-7d8f6f3c2b1g", false)]
    #[case("root", false)]
    fn uuid_is_recognized(#[case] name: &str, #[case] expected: bool) {
        assert_eq!(is_uuid(name), expected);
    }

    #[test]
    fn an_error_text_stays_short() {
        let error = "/".repeat(100_000).parse::<Tag>().unwrap_err();
        assert!(error.to_string().len() < 300);
    }

    proptest! {
        #[test]
        fn no_accepted_name_can_be_an_option_or_leave_its_group(name in ".{0,140}") {
            if let Ok(name) = name.parse::<LvName>() {
                prop_assert!(!name.as_str().starts_with('-'));
                prop_assert!(!name.as_str().contains(['/', ',', '@', ' ', '\n']));
                prop_assert!(!name.as_str().is_empty());
            }
        }
    }
}
