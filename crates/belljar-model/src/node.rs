//! Untyped form of a specification, before its keys are interpreted.
//!
//! JSON and TOML are both parsed into this tree, so that both have the same rules and messages: a key that is unknown,
//! duplicate or of the wrong type is refused with the path to it.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

use crate::error::ModelError;
use crate::nearest::nearest;

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Node {
    Null,
    Flag(bool),
    Number(String),
    Text(String),
    List(Vec<Node>),
    /// Entries in order; keys may occur twice.
    Table(Vec<(String, Node)>),
}

impl Node {
    pub(crate) fn from_json(text: &str) -> Result<Self, ModelError> {
        serde_json::from_str(text).map_err(|source| ModelError::Json { source })
    }

    pub(crate) fn from_toml(text: &str) -> Result<Self, ModelError> {
        toml::from_str(text).map_err(|source| ModelError::Toml { source: Box::new(source) })
    }

    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Flag(_) => "true or false",
            Self::Number(_) => "a number",
            Self::Text(_) => "a text",
            Self::List(_) => "a list",
            Self::Table(_) => "a table",
        }
    }
}

/// Reader of the keys of one table. Each key is taken once; [`finish`](Self::finish) refuses the rest.
pub(crate) struct Fields {
    path: String,
    values: BTreeMap<String, Node>,
    known: Vec<&'static str>,
}

impl Fields {
    /// Opens the table at the root of a file.
    pub(crate) fn root(node: Node) -> Result<Self, ModelError> {
        Self::open(String::new(), node)
    }

    /// Opens a table at a path.
    pub(crate) fn open(path: String, node: Node) -> Result<Self, ModelError> {
        let entries = match node {
            Node::Table(entries) => entries,
            other => {
                let key = if path.is_empty() { "the whole text".to_owned() } else { path };
                return Err(ModelError::WrongType {
                    key,
                    found: other.name(),
                    expected: "a table of keys and values",
                });
            }
        };
        let mut values = BTreeMap::new();
        for (key, value) in entries {
            let whole_key = join(&path, &key);
            if values.insert(key, value).is_some() {
                return Err(ModelError::DuplicateKey { key: whole_key });
            }
        }
        Ok(Self { path, values, known: Vec::new() })
    }

    /// Takes a text, or a number as its text form in a flag.
    pub(crate) fn scalar(&mut self, key: &'static str) -> Result<Option<String>, ModelError> {
        match self.take(key) {
            Some(Node::Text(text) | Node::Number(text)) => Ok(Some(text)),
            other => self.none_or_wrong_type(key, other, "a text or a number"),
        }
    }

    /// Takes a text.
    pub(crate) fn text(&mut self, key: &'static str) -> Result<Option<String>, ModelError> {
        match self.take(key) {
            Some(Node::Text(text)) => Ok(Some(text)),
            other => self.none_or_wrong_type(key, other, "a text"),
        }
    }

    /// Takes a required text.
    pub(crate) fn required_text(&mut self, key: &'static str) -> Result<String, ModelError> {
        self.text(key)?
            .ok_or_else(|| ModelError::MissingKey { key: join(&self.path, key), expected: "a text" })
    }

    /// Takes a boolean.
    pub(crate) fn flag(&mut self, key: &'static str) -> Result<Option<bool>, ModelError> {
        match self.take(key) {
            Some(Node::Flag(flag)) => Ok(Some(flag)),
            other => self.none_or_wrong_type(key, other, "true or false"),
        }
    }

    /// Takes a list of texts.
    pub(crate) fn texts(&mut self, key: &'static str) -> Result<Option<Vec<String>>, ModelError> {
        let path = join(&self.path, key);
        self.take(key).map(|node| texts(&path, node)).transpose()
    }

    /// Takes all keys, with any names, whose values are lists of texts. A null counts as absent.
    pub(crate) fn all_texts(self) -> Result<BTreeMap<String, Vec<String>>, ModelError> {
        let given = self.values.into_iter().filter(|(_, node)| *node != Node::Null);
        let list = |(name, node): (String, Node)| Ok((name.clone(), texts(&join(&self.path, &name), node)?));
        given.map(list).collect()
    }

    /// Takes a required list of texts.
    pub(crate) fn required_texts(&mut self, key: &'static str) -> Result<Vec<String>, ModelError> {
        self.texts(key)?
            .ok_or_else(|| ModelError::MissingKey { key: join(&self.path, key), expected: "a list of texts" })
    }

    /// Takes a table with any keys and texts as values.
    pub(crate) fn text_table(
        &mut self,
        key: &'static str,
    ) -> Result<Option<BTreeMap<String, String>>, ModelError> {
        let Some(fields) = self.table(key)? else { return Ok(None) };
        let text = |(name, value): (String, Node)| match value {
            Node::Text(text) => Ok((name, text)),
            other => Err(ModelError::WrongType {
                key: join(&fields.path, &name),
                found: other.name(),
                expected: "a text",
            }),
        };
        fields.values.into_iter().map(text).collect::<Result<_, _>>().map(Some)
    }

    /// Opens a table.
    pub(crate) fn table(&mut self, key: &'static str) -> Result<Option<Self>, ModelError> {
        self.take(key).map(|node| Self::open(join(&self.path, key), node)).transpose()
    }

    /// Opens a table with any keys and tables as values. A null counts as absent.
    pub(crate) fn tables(&mut self, key: &'static str) -> Result<Option<BTreeMap<String, Self>>, ModelError> {
        let Some(fields) = self.table(key)? else { return Ok(None) };
        let given = fields.values.into_iter().filter(|(_, node)| *node != Node::Null);
        let table = |(name, node): (String, Node)| {
            let fields = Self::open(join(&fields.path, &name), node)?;
            Ok((name, fields))
        };
        given.map(table).collect::<Result<_, _>>().map(Some)
    }

    /// Parses a list of tables.
    pub(crate) fn table_list(&mut self, key: &'static str) -> Result<Option<Vec<Self>>, ModelError> {
        let path = join(&self.path, key);
        match self.take(key) {
            Some(Node::List(items)) => {
                let open = |(index, node)| Self::open(format!("{path}[{index}]"), node);
                items.into_iter().enumerate().map(open).collect::<Result<_, _>>().map(Some)
            }
            other => self.none_or_wrong_type(key, other, "a list of tables"),
        }
    }

    /// Names keys from here on, instead of from the root.
    pub(crate) fn rooted(self) -> Self {
        Self { path: String::new(), ..self }
    }

    /// Refuses the keys that were not taken.
    pub(crate) fn finish(self) -> Result<(), ModelError> {
        let Some(key) = self.values.into_keys().next() else { return Ok(()) };
        let mut allowed = self.known;
        allowed.sort_unstable();
        Err(ModelError::UnknownKey {
            nearest: nearest(&key, allowed.iter().copied()).map(|known| join(&self.path, known)),
            key: join(&self.path, &key),
            allowed: allowed.join(", "),
        })
    }

    /// Takes a value of any type; null counts as absent.
    pub(crate) fn take(&mut self, key: &'static str) -> Option<Node> {
        self.known.push(key);
        self.values.remove(key).filter(|node| *node != Node::Null)
    }

    fn none_or_wrong_type<T>(
        &self,
        key: &str,
        node: Option<Node>,
        expected: &'static str,
    ) -> Result<Option<T>, ModelError> {
        match node {
            None => Ok(None),
            Some(node) => {
                Err(ModelError::WrongType { key: join(&self.path, key), found: node.name(), expected })
            }
        }
    }
}

/// Converts a list of texts.
fn texts(path: &str, node: Node) -> Result<Vec<String>, ModelError> {
    let wrong =
        |key: String, found: &Node, expected| ModelError::WrongType { key, found: found.name(), expected };
    let Node::List(items) = node else { return Err(wrong(path.to_owned(), &node, "a list of texts")) };
    let text = |(index, item)| match item {
        Node::Text(text) => Ok(text),
        other => Err(wrong(format!("{path}[{index}]"), &other, "a text")),
    };
    items.into_iter().enumerate().map(text).collect()
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NodeVisitor)
    }
}

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value of JSON or TOML")
    }

    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::Null)
    }

    fn visit_none<E>(self) -> Result<Node, E> {
        Ok(Node::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Node, D::Error> {
        Node::deserialize(deserializer)
    }

    fn visit_bool<E>(self, flag: bool) -> Result<Node, E> {
        Ok(Node::Flag(flag))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Node, E> {
        Ok(Node::Number(number.to_string()))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Node, E> {
        Ok(Node::Number(number.to_string()))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Node, E> {
        Ok(Node::Number(number.to_string()))
    }

    fn visit_str<E>(self, text: &str) -> Result<Node, E> {
        Ok(Node::Text(text.to_owned()))
    }

    fn visit_string<E>(self, text: String) -> Result<Node, E> {
        Ok(Node::Text(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Node, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = sequence.next_element()? {
            items.push(item);
        }
        Ok(Node::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = map.next_entry()? {
            entries.push(entry);
        }
        Ok(Node::Table(entries))
    }
}

fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}
