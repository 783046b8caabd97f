//! Tests of the network policy.

mod matcher;
mod names;
mod policy;
mod presets;
mod properties;
mod ranges;
mod rules;
mod secrets;

use super::*;
use crate::error::ModelError;
use crate::node::Node;

/// Parses the value of the key `network` of a JSON text.
fn file(json: &str) -> Result<NetworkFile, ModelError> {
    NetworkFile::from_node(Node::from_json(json)?)
}

fn policy(json: &str) -> Result<NetworkPolicy, ModelError> {
    file(json)?.resolve()
}

fn name(text: &str) -> DomainName {
    text.parse().unwrap()
}
