//! Events of an execution, one JSON object per line. `docs/schema/event.schema.json` describes them.

use serde::{Deserialize, Serialize};

use crate::encoding::Encoding;
use crate::engine::EngineName;
use crate::id::SandboxId;
use crate::result::{Phase, RunResult};

/// Event of an execution. The last one is always [`Event::Result`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// The sandbox has started.
    Started {
        /// Id of the sandbox.
        id: SandboxId,
        /// Engine of the sandbox.
        engine: EngineName,
    },
    /// A phase begins.
    Phase {
        /// Phase.
        phase: Phase,
    },
    /// Bytes of standard output.
    Stdout {
        /// Encoding of `data`.
        encoding: Encoding,
        /// Bytes. A character may be split between two events.
        data: String,
        /// Number of bytes of this stream that came before.
        offset: u64,
    },
    /// Bytes of standard error.
    Stderr {
        /// Encoding of `data`.
        encoding: Encoding,
        /// Bytes. A character may be split between two events.
        data: String,
        /// Number of bytes of this stream that came before.
        offset: u64,
    },
    /// A warning: a problem that stopped nothing.
    Warning {
        /// One sentence.
        message: String,
    },
    /// The end, with the result.
    Result(Box<RunResult>),
}

impl Event {
    /// Creates an event with bytes of standard output.
    pub fn stdout(offset: u64, bytes: &[u8]) -> Self {
        let (encoding, data) = Encoding::encode(bytes);
        Self::Stdout { encoding, data, offset }
    }

    /// Creates an event with bytes of standard error.
    pub fn stderr(offset: u64, bytes: &[u8]) -> Self {
        let (encoding, data) = Encoding::encode(bytes);
        Self::Stderr { encoding, data, offset }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_form_is_stable() {
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
