//! A check and its parts.

use crate::facts::Facts;
use crate::finding::Finding;
use crate::read_error::ReadError;

/// A check: its name, its requirement, the meaning of a failure, and its function.
pub(crate) struct Check {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) explanation: &'static str,
    pub(crate) run: CheckFn,
}

/// Returns at least one finding, or the error of the first fact that it needs and that could not be read.
pub(crate) type CheckFn = fn(&Facts) -> Result<Vec<Finding>, ReadError>;
