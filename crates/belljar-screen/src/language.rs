//! The languages that can be screened.

use tree_sitter::{Language as Parser, Node};

use crate::syntax::{self, Facts, Shape};

/// A language that can be screened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Language {
    /// Python 3.
    Python,
    /// JavaScript, with JSX.
    JavaScript,
    /// TypeScript, with or without JSX.
    TypeScript,
    /// Bash and POSIX shell.
    Bash,
    /// Ruby.
    Ruby,
    /// PHP, with or without its opening tag.
    Php,
    /// Go.
    Go,
    /// Rust.
    Rust,
}

impl Language {
    /// All languages.
    pub const ALL: [Self; 8] = [
        Self::Python,
        Self::JavaScript,
        Self::TypeScript,
        Self::Bash,
        Self::Ruby,
        Self::Php,
        Self::Go,
        Self::Rust,
    ];

    /// Returns the name, which is that of `belljar languages`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Python => "python",
            Self::JavaScript => "javascript",
            Self::TypeScript => "typescript",
            Self::Bash => "bash",
            Self::Ruby => "ruby",
            Self::Php => "php",
            Self::Go => "go",
            Self::Rust => "rust",
        }
    }

    /// Finds a language by the name that `belljar languages` has for it. `sh` is read as Bash.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        let name = if name == "sh" { "bash" } else { name };
        Self::ALL.into_iter().find(|language| language.as_str() == name)
    }

    /// Returns the parsers to try, of which the first without an error is used.
    pub(crate) fn parsers(self, source: &str) -> Vec<Parser> {
        match self {
            Self::Python => vec![tree_sitter_python::LANGUAGE.into()],
            Self::JavaScript => vec![tree_sitter_javascript::LANGUAGE.into()],
            Self::TypeScript => {
                vec![
                    tree_sitter_typescript::LANGUAGE_TYPESCRIPT.into(),
                    tree_sitter_typescript::LANGUAGE_TSX.into(),
                ]
            }
            Self::Bash => vec![tree_sitter_bash::LANGUAGE.into()],
            Self::Ruby => vec![tree_sitter_ruby::LANGUAGE.into()],
            Self::Php if source.contains("<?") => vec![tree_sitter_php::LANGUAGE_PHP.into()],
            Self::Php => vec![tree_sitter_php::LANGUAGE_PHP_ONLY.into()],
            Self::Go => vec![tree_sitter_go::LANGUAGE.into()],
            Self::Rust => vec![tree_sitter_rust::LANGUAGE.into()],
        }
    }

    pub(crate) fn shape<'t>(self, node: Node<'t>, source: &'t str) -> Shape<'t> {
        match self {
            Self::Python => syntax::python::shape(node, source),
            Self::JavaScript | Self::TypeScript => syntax::javascript::shape(node, source),
            Self::Bash => syntax::bash::shape(node, source),
            Self::Ruby => syntax::ruby::shape(node, source),
            Self::Php => syntax::php::shape(node, source),
            Self::Go => syntax::go::shape(node, source),
            Self::Rust => syntax::rust::shape(node, source),
        }
    }

    pub(crate) fn bind<'t>(self, node: Node<'t>, source: &'t str, facts: &mut Facts<'t>) {
        match self {
            Self::Python => syntax::python::bind(node, source, facts),
            Self::JavaScript | Self::TypeScript => syntax::javascript::bind(node, source, facts),
            Self::Bash => syntax::bash::bind(node, source, facts),
            Self::Ruby => syntax::ruby::bind(node, source, facts),
            Self::Php => syntax::php::bind(node, source, facts),
            Self::Go => syntax::go::bind(node, source, facts),
            Self::Rust => syntax::rust::bind(node, source, facts),
        }
    }
}
