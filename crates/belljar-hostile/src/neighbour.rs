//! Another sandbox beside the attacker's, which must not notice anything.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use crate::attempt::{Bell, wait};
use crate::error::HarnessError;
use crate::judge::Fault;
use crate::scratch::token;

/// How long it may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Keeps the first line of its input in a file, and answers every further line with the line and what is in the file.
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
    /// Starts it, and waits for its first answer.
    pub(crate) fn start(bell: &Bell) -> Result<Self, HarnessError> {
        let mut child = Command::new(&bell.program)
            .args(["run", "--quiet", "--timeout", "10m", "--memory", "32m", "--pids", "8"])
            .args(&bell.flags)
            .args(["-l", "sh", "-c", PROGRAM])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(HarnessError::step(format!("start {}", bell.program.display())))?;
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
        let answered = neighbour.tell(&first).and_then(|()| neighbour.ask("first"));
        match answered {
            Ok(()) => Ok(neighbour),
            Err(what) => {
                // Then it has ended, or never gets to it; its words say why.
                let _ = neighbour.child.kill();
                let mut said = String::new();
                if let Some(mut stderr) = neighbour.child.stderr.take() {
                    let _ = stderr.read_to_string(&mut said);
                }
                Err(HarnessError::Neighbour { said: format!("{what} {}", said.trim()) })
            }
        }
    }

    /// What is not as it was.
    pub(crate) fn faults(&mut self, said: &str) -> Vec<Fault> {
        let mut faults = Vec::new();
        let mut fault = |what: String| faults.push(Fault::Invariant { invariant: "neighbour", what });
        if said.contains(&self.token) {
            fault("its token came out".to_owned());
        }
        if let Err(what) = self.ask("after") {
            fault(what);
        }
        faults
    }

    /// Ends it.
    pub(crate) fn stop(&mut self) -> Result<(), HarnessError> {
        // The end of its input is the end of its program.
        self.stdin = None;
        let ended = wait(&self.child, PATIENCE).map_err(HarnessError::step("wait for the neighbour"))?;
        if !ended {
            self.child.kill().map_err(HarnessError::step("end the neighbour"))?;
        }
        self.child.wait().map_err(HarnessError::step("wait for the neighbour"))?;
        Ok(())
    }

    fn tell(&mut self, line: &str) -> Result<(), String> {
        let stdin = self.stdin.as_mut().ok_or("it has no input any more")?;
        writeln!(stdin, "{line}").map_err(|error| format!("its input cannot be written: {error}"))
    }

    fn ask(&mut self, question: &str) -> Result<(), String> {
        self.tell(question)?;
        match self.lines.recv_timeout(PATIENCE) {
            Ok(line) if line == format!("{question} {}", self.token) => Ok(()),
            Ok(line) => Err(format!("it answered {line:?} to {question:?}, without its token")),
            Err(RecvTimeoutError::Timeout) => {
                Err(format!("it does not answer within {} s", PATIENCE.as_secs()))
            }
            Err(RecvTimeoutError::Disconnected) => Err("it has ended".to_owned()),
        }
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        // Does nothing where it was stopped properly.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    /// A neighbour that answers its first question as it should, and then as this script does.
    fn faults(then: &str) -> Vec<String> {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("belljar");
        let script = format!("#!/bin/sh\nread -r token\nread -r line\necho \"$line $token\"\n{then}\n");
        std::fs::write(&program, script).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        let mut neighbour = Neighbour::start(&Bell { program, flags: Vec::new() }).unwrap();
        neighbour.faults("").iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_neighbour_that_noticed_something_is_told() {
        assert_eq!(faults("read -r line; echo \"$line $token\"; read -r line"), Vec::<String>::new());
        for (then, expected) in
            [("read -r line; echo \"$line other\"; read -r line", "without its token"), ("exit 1", "")]
        {
            let found = faults(then);
            assert!(found.len() == 1 && found[0].contains(expected), "{then}: {found:?}");
        }
    }
}
