//! The two classes that decide which space a volume uses.

/// The device class and the lvcreate option class of a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct VolumeClasses {
    /// Its device class; empty is the node's default class.
    pub device_class: Box<str>,
    /// Its lvcreate option class; empty is the options of the device class.
    pub option_class: Box<str>,
}

impl VolumeClasses {
    /// Makes the pair of two names, of which each may be empty.
    #[must_use]
    pub fn new(device_class: &str, option_class: &str) -> Self {
        Self { device_class: device_class.into(), option_class: option_class.into() }
    }
}

/// A device class with its own options.
impl From<&str> for VolumeClasses {
    fn from(device_class: &str) -> Self {
        Self::new(device_class, "")
    }
}
