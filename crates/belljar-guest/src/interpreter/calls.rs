//! Calls of tools by running code. What the code's kernel sends is controlled by the code: a call counts, and is passed on only if the
//! execution's caller has allowed it.

use std::collections::{HashMap, HashSet};

use belljar_proto::{ConnectError, v1};
use bytes::Bytes;

/// Maximum number of tools and functions of an execution.
const MAX_TOOLS: usize = 64;

/// Maximum length of a name, in bytes.
const MAX_NAME_BYTES: usize = 64;

/// Number of calls of an execution if the request gives none, and the maximum.
const DEFAULT_CALLS: u32 = 100;
const MAX_CALLS: u32 = 1000;

/// Maximum number of calls of an execution that wait for their answers at a time.
const MAX_OPEN: usize = 16;

/// The calls of one execution.
pub(super) struct ToolCalls {
    allowed: HashSet<String>,
    most: u32,
    made: u32,
    /// The kernel's numbers of the calls that wait, by ours.
    open: HashMap<u64, u64>,
    /// Why no call is passed on any more.
    closed: Option<&'static str>,
    /// Whether each call is passed on: tests disable the wall.
    is_open: bool,
}

impl ToolCalls {
    pub(super) fn new(request: &v1::ExecuteCodeRequest, is_open: bool) -> Self {
        Self {
            allowed: request.tools.iter().chain(&request.functions).cloned().collect(),
            most: if request.max_tool_calls == 0 { DEFAULT_CALLS } else { request.max_tool_calls },
            made: 0,
            open: HashMap::new(),
            closed: None,
            is_open,
        }
    }

    /// Begins a call, which has the number `call` in the kernel.
    ///
    /// # Errors
    /// The reason why it is not passed on.
    pub(super) fn begin(
        &mut self,
        call: u64,
        name: String,
        arguments: Bytes,
    ) -> Result<v1::ToolCalled, String> {
        if let Some(reason) = self.closed {
            return Err(reason.to_owned());
        }
        if !self.is_open && !self.allowed.contains(&name) {
            return Err(format!("this execution may not call {name:?}"));
        }
        if !self.is_open && self.made >= self.most {
            return Err(format!("this execution may call tools {} times, and has done so", self.most));
        }
        if self.open.len() >= MAX_OPEN {
            return Err(format!("{MAX_OPEN} calls wait for their answers already"));
        }
        self.made += 1;
        let number = u64::from(self.made);
        self.open.insert(number, call);
        Ok(v1::ToolCalled { call: number, name, arguments, ..Default::default() })
    }

    /// Passes no further call on, for this reason. Returns the kernel's numbers of those that wait.
    pub(super) fn close(&mut self, reason: &'static str) -> Vec<u64> {
        self.closed = Some(reason);
        self.open.drain().map(|(_, call)| call).collect()
    }

    /// Ends the call with our number; returns the kernel's one.
    pub(super) fn end(&mut self, number: u64) -> Option<u64> {
        self.open.remove(&number)
    }
}

/// Checks the names that code may call.
pub(super) fn check(request: &v1::ExecuteCodeRequest) -> Result<(), ConnectError> {
    let names = || request.tools.iter().chain(&request.functions);
    let refuse = |reason: String| Err(ConnectError::invalid_argument(format!("tools: {reason}")));
    if names().count() > MAX_TOOLS {
        return refuse(format!("too many: an execution can have {MAX_TOOLS}, with its functions"));
    }
    if let Some(name) = names()
        .find(|name| name.is_empty() || name.len() > MAX_NAME_BYTES || name.chars().any(char::is_control))
    {
        return refuse(format!(
            "invalid name {name:?}: give 1 to {MAX_NAME_BYTES} bytes without control characters"
        ));
    }
    if names().collect::<HashSet<_>>().len() != names().count() {
        return refuse("a name is given twice".to_owned());
    }
    if request.max_tool_calls > MAX_CALLS {
        return Err(ConnectError::invalid_argument(format!(
            "max_tool_calls: at most {MAX_CALLS} are allowed"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(tools: &[&str], functions: &[&str], max_tool_calls: u32) -> v1::ExecuteCodeRequest {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        v1::ExecuteCodeRequest {
            tools: names(tools),
            functions: names(functions),
            max_tool_calls,
            ..Default::default()
        }
    }

    #[test]
    fn calls_are_bounded_and_numbered_here() {
        let mut calls = ToolCalls::new(&request(&["a"], &["b"], 20), false);
        let begin = |calls: &mut ToolCalls, name: &str| calls.begin(7, name.to_owned(), Bytes::new());
        assert_eq!(begin(&mut calls, "c").unwrap_err(), "this execution may not call \"c\"");
        let first = begin(&mut calls, "a").unwrap();
        assert_eq!((first.call, first.name.as_str()), (1, "a"));
        // The same number of the kernel makes another call.
        assert_eq!(begin(&mut calls, "b").unwrap().call, 2);
        assert_eq!((calls.end(1), calls.end(1), calls.end(3)), (Some(7), None, None));
        for _ in 0..15 {
            begin(&mut calls, "a").unwrap();
        }
        assert_eq!(begin(&mut calls, "a").unwrap_err(), "16 calls wait for their answers already");
        for number in 2..=17 {
            assert_eq!(calls.end(number), Some(7));
        }
        for _ in 0..3 {
            begin(&mut calls, "a").unwrap();
        }
        let over = "this execution may call tools 20 times, and has done so";
        assert_eq!(begin(&mut calls, "a").unwrap_err(), over);
    }

    #[test]
    fn closed_calls_are_given_back() {
        let mut calls = ToolCalls::new(&request(&["a"], &[], 5), false);
        for call in [7, 8] {
            calls.begin(call, "a".to_owned(), Bytes::new()).unwrap();
        }
        assert_eq!(calls.end(1), Some(7));
        assert_eq!(calls.close("nobody answers"), [8]);
        assert_eq!(calls.begin(9, "a".to_owned(), Bytes::new()).unwrap_err(), "nobody answers");
        assert_eq!((calls.end(2), calls.close("twice")), (None, Vec::new()));
    }

    #[test]
    fn names_are_checked() {
        let error = |request| check(&request).unwrap_err().to_string();
        assert!(check(&request(&["analyse"], &["lookup"], 1000)).is_ok());
        assert!(error(request(&["a"], &["a"], 0)).contains("given twice"));
        assert!(error(request(&["a\n"], &[], 0)).contains("invalid name \"a\\n\""));
        assert!(error(request(&[], &[""], 0)).contains("invalid name \"\""));
        assert!(error(request(&["a"], &[], 1001)).contains("max_tool_calls: at most 1000"));
        let many: Vec<String> = (0..65).map(|number| number.to_string()).collect();
        let many = v1::ExecuteCodeRequest { tools: many, ..Default::default() };
        assert!(error(many).contains("too many"));
    }
}
