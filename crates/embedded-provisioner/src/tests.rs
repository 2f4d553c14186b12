mod copies;
mod deletion;
mod driver;
mod failures;
mod harness;
mod provisioning;
