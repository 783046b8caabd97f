//! A second sandbox beside the attacker's, which must remain unaffected.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use crate::attempt::{Binary, wait};
use crate::error::HarnessError;
use crate::judge::Fault;
use crate::scratch::token;

/// Maximum time for an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Stores the first line of its input in a file, and answers every further line with that line and the content of the file.
const PROGRAM: &str = r#"
umask 077
IFS= read -r token
printf '%s\n' "$token" > token
token=
while IFS= read -r line; do
  IFS= read -r kept < token
  printf '%s %s\n' "$line" "$kept"
done
"#;

/// The neighbour: a sandbox that holds a token and answers.
#[derive(Debug)]
pub(crate) struct Neighbour {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    token: String,
}

impl Neighbour {
    /// Starts the neighbour, and waits for its first answer.
    pub(crate) fn start(binary: &Binary) -> Result<Self, HarnessError> {
        let mut child = Command::new(&binary.program)
            .args(["run", "--quiet", "--timeout", "10m", "--memory", "32m", "--pids", "8"])
            .args(&binary.flags)
            .args(["-l", "sh", "-c", PROGRAM])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(HarnessError::step(format!("start {}", binary.program.display())))?;
        let (sender, lines) = channel();
        if let Some(stdout) = child.stdout.take() {
            std::thread::spawn(move || {
                for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                    if sender.send(line).is_err() {
                        return;
                    }
                }
            });
        }
        let stdin = child.stdin.take();
        let mut neighbour = Self { child, stdin, lines, token: token()? };
        let first = neighbour.token.clone();
        let answered = neighbour.send(&first).and_then(|()| neighbour.ask("first"));
        match answered {
            Ok(()) => Ok(neighbour),
            Err(what) => {
                // It has ended or hangs; its standard error says why.
                let _ = neighbour.child.kill();
                let mut said = String::new();
                if let Some(mut stderr) = neighbour.child.stderr.take() {
                    let _ = stderr.read_to_string(&mut said);
                }
                Err(HarnessError::Neighbour { said: format!("{what} {}", said.trim()) })
            }
        }
    }

    /// Checks that the neighbour still answers, and that its token is not in the attacker's `output`.
    pub(crate) fn faults(&mut self, output: &str) -> Vec<Fault> {
        let mut faults = Vec::new();
        let mut fault = |what: String| faults.push(Fault::Invariant { invariant: "neighbour", what });
        if output.contains(&self.token) {
            fault("its token was leaked".to_owned());
        }
        if let Err(what) = self.ask("after") {
            fault(what);
        }
        faults
    }

    /// Ends the neighbour.
    pub(crate) fn stop(&mut self) -> Result<(), HarnessError> {
        // The program exits at the end of its input.
        self.stdin = None;
        let ended =
            wait(&self.child, ANSWER_TIMEOUT).map_err(HarnessError::step("wait for the neighbour"))?;
        if !ended {
            self.child.kill().map_err(HarnessError::step("end the neighbour"))?;
        }
        self.child.wait().map_err(HarnessError::step("wait for the neighbour"))?;
        Ok(())
    }

    fn send(&mut self, line: &str) -> Result<(), String> {
        let stdin = self.stdin.as_mut().ok_or("its input is closed")?;
        writeln!(stdin, "{line}").map_err(|error| format!("cannot write its input: {error}"))
    }

    fn ask(&mut self, question: &str) -> Result<(), String> {
        self.send(question)?;
        match self.lines.recv_timeout(ANSWER_TIMEOUT) {
            Ok(line) if line == format!("{question} {}", self.token) => Ok(()),
            Ok(line) => Err(format!("it answered {line:?} to {question:?}, without its token")),
            Err(RecvTimeoutError::Timeout) => Err(format!("no answer within {} s", ANSWER_TIMEOUT.as_secs())),
            Err(RecvTimeoutError::Disconnected) => Err("it has ended".to_owned()),
        }
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        // Has no effect if it was stopped properly.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    /// Returns the faults of a neighbour that answers its first question correctly, and then runs `then`.
    fn faults(then: &str) -> Vec<String> {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("belljar");
        let script = format!("#!/bin/sh\nread -r token\nread -r line\necho \"$line $token\"\n{then}\n");
        std::fs::write(&program, script).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        let mut neighbour = Neighbour::start(&Binary { program, flags: Vec::new() }).unwrap();
        neighbour.faults("").iter().map(ToString::to_string).collect()
    }

    #[test]
    fn affected_neighbour_is_reported() {
        assert_eq!(faults("read -r line; echo \"$line $token\"; read -r line"), Vec::<String>::new());
        for (then, expected) in
            [("read -r line; echo \"$line other\"; read -r line", "without its token"), ("exit 1", "")]
        {
            let found = faults(then);
            assert!(found.len() == 1 && found[0].contains(expected), "{then}: {found:?}");
        }
    }
}
