//! Stored tools, and the patches of tools.

use belljar_api::fuzzing::patch;
use belljar_model::ToolFile;

use crate::data::{check_text, text};

pub(crate) fn tool_file(data: &[u8]) {
    let tools = match ToolFile::list_from_toml(&text(data)) {
        Ok(tools) => tools,
        Err(error) => {
            check_text(&error.to_string());
            return;
        }
    };
    for tool in tools {
        assert!(ToolFile::is_name(&tool.name) && !tool.languages.is_empty(), "{tool:?}");
        let json = serde_json::to_string(&tool).expect("a tool can be written");
        assert_eq!(serde_json::from_str::<ToolFile>(&json).expect("a written tool can be read"), tool);
        assert_eq!(tool.clone().check().expect("a checked tool is valid"), tool);
    }
}

/// The file is what follows the first NUL.
pub(crate) fn tool_patch(data: &[u8]) {
    let text = text(data);
    let (changes, file) = text.split_once('\0').unwrap_or((&text, "one\ntwo\nthree\n"));
    // Nothing but new lines is added, and nothing but old ones is taken away.
    if let Ok(lines) = patch(changes, file) {
        let [before, after, added, removed] = lines;
        assert_eq!(before + added, after + removed);
    }
}
