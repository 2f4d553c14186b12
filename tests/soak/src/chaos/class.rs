//! StorageClasses of the chaos test, by the kind of their volumes.

/// A StorageClass of the test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    Thick,
    Thin,
}

impl Class {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Thick => "chaos-thick",
            Self::Thin => "chaos-thin",
        }
    }

    /// Returns the name of the StorageClass whose claims wait for a pod.
    pub(super) const fn waiting_name(self) -> &'static str {
        match self {
            Self::Thick => "chaos-thick-waiting",
            Self::Thin => "chaos-thin-waiting",
        }
    }
}
