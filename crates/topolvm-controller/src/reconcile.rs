//! What the controller does besides answering CSI calls. Finalizer and clean-up controllers come here.

mod resize_nudge;

pub(crate) use resize_nudge::ResizeNudge;
