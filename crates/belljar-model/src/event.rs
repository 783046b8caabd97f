//! What happens during an execution, as one JSON object a line. `docs/schema/event.schema.json` describes it.

use serde::{Deserialize, Serialize};

use crate::encoding::Encoding;
use crate::engine::EngineName;
use crate::id::SandboxId;
use crate::result::{Phase, RunResult};

/// One thing that happens during an execution. The last one is always [`Event::Result`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// The sandbox stands.
    Started {
        /// Its name.
        id: SandboxId,
        /// What built its walls.
        engine: EngineName,
    },
    /// A phase begins.
    Phase {
        /// Which one.
        phase: Phase,
    },
    /// Bytes of the standard output.
    Stdout {
        /// How `data` is written.
        encoding: Encoding,
        /// The bytes. A character may be split between two events.
        data: String,
        /// The number of bytes of this stream that came before.
        offset: u64,
    },
    /// Bytes of the standard error.
    Stderr {
        /// How `data` is written.
        encoding: Encoding,
        /// The bytes. A character may be split between two events.
        data: String,
        /// The number of bytes of this stream that came before.
        offset: u64,
    },
    /// Something that a person should know, and that stopped nothing.
    Warning {
        /// One sentence.
        message: String,
    },
    /// The end: what came of it.
    Result(Box<RunResult>),
}

impl Event {
    /// Makes an event of bytes of the standard output.
    pub fn stdout(offset: u64, bytes: &[u8]) -> Self {
        let (encoding, data) = Encoding::encode(bytes);
        Self::Stdout { encoding, data, offset }
    }

    /// Makes an event of bytes of the standard error.
    pub fn stderr(offset: u64, bytes: &[u8]) -> Self {
        let (encoding, data) = Encoding::encode(bytes);
        Self::Stderr { encoding, data, offset }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_json_form_is_stable() {
        let id = SandboxId::from_entropy([0; 20]);
        let cases = [
            (
                Event::Started { id, engine: EngineName::LOCAL },
                r#"{"event":"started","id":"aaaaaaaaaaaaaaaaaaaa","engine":"local"}"#,
            ),
            (Event::Phase { phase: Phase::Compile }, r#"{"event":"phase","phase":"compile"}"#),
            (Event::stdout(0, b"a\n"), r#"{"event":"stdout","encoding":"utf-8","data":"a\n","offset":0}"#),
            (Event::stderr(7, b"\xff"), r#"{"event":"stderr","encoding":"base64","data":"/w==","offset":7}"#),
            (Event::Warning { message: "m".into() }, r#"{"event":"warning","message":"m"}"#),
        ];
        for (event, json) in cases {
            assert_eq!(serde_json::to_string(&event).unwrap(), json);
            assert_eq!(serde_json::from_str::<Event>(json).unwrap(), event);
        }
    }
}
