//! The page over caches that tests fill, and a fake API server for the pods of agents.

mod access;
mod agents;
mod answers;
mod events;
mod harness;
