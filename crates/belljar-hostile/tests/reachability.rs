//! Checks the table of `docs/threat-model.md` that says which of the public kernelCTF exploits can begin in a sandbox: its numbers
//! add up, and probes of the hostile suite confirm each of its rows.

#![allow(clippy::expect_used, reason = "helpers of tests fail like tests")]

use std::path::{Path, PathBuf};

use belljar_hostile::{Case, load};

/// A row other than the last.
#[derive(Debug, PartialEq, Eq)]
struct Row {
    class: String,
    exploits: u32,
    /// Case and probe.
    confirmed_by: Vec<(String, String)>,
    is_reachable: bool,
}

/// The rows, and the totals of the last one: all exploits, and the reachable ones.
#[derive(Debug, PartialEq, Eq)]
struct Table {
    rows: Vec<Row>,
    all: u32,
    reachable: u32,
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn document() -> String {
    std::fs::read_to_string(repository().join("docs/threat-model.md")).expect("the threat model can be read")
}

fn table(document: &str) -> Result<Table, String> {
    let (_, after) = document.split_once("## Ways of known exploits").ok_or("there is no such section")?;
    let section = after.split("\n## ").next().unwrap_or_default();
    let mut lines = section.lines().filter_map(|line| line.strip_prefix('|')?.strip_suffix('|')).skip(2);
    let mut rows = Vec::new();
    loop {
        let line = lines.next().ok_or("there is no row of all")?;
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let &[class, exploits, _, _, confirmed_by, reachable] = cells.as_slice() else {
            return Err(format!("{line:?} has not six cells"));
        };
        let number = |text: &str| text.parse::<u32>().map_err(|error| format!("{class}: {text:?}: {error}"));
        let exploits = number(exploits)?;
        if class == "all" {
            return Ok(Table { rows, all: exploits, reachable: number(reachable)? });
        }
        let is_reachable = match reachable {
            "yes" => true,
            "no" => false,
            other => return Err(format!("{class}: {other:?} is neither yes nor no")),
        };
        rows.push(Row {
            class: class.to_owned(),
            exploits,
            confirmed_by: probes(confirmed_by)?,
            is_reachable,
        });
    }
}

/// `` `K01: unshare user`, `K26: user namespace` ``
fn probes(cell: &str) -> Result<Vec<(String, String)>, String> {
    let quoted = cell.split('`').skip(1).step_by(2);
    let pairs = quoted.map(|text| {
        let (case, probe) = text.split_once(": ").ok_or_else(|| format!("{text:?} is not case: probe"))?;
        Ok((case.to_owned(), probe.to_owned()))
    });
    pairs.collect()
}

/// Checks one probe of a row. Returns a description of the fault, if any.
fn fault(row: &Row, cases: &[Case], id: &str, probe: &str) -> Option<String> {
    let Some(case) = cases.iter().find(|case| case.id == id) else {
        return Some(format!("{}: there is no case {id}", row.class));
    };
    let Some(answers) = case.expect.get(probe) else {
        return Some(format!("{}: {id} has no probe {probe:?}", row.class));
    };
    let succeeds = answers.iter().any(|answer| answer == "ok");
    if succeeds != row.is_reachable {
        return Some(format!("{}: {id}: {probe} may answer {}", row.class, answers.join(" or ")));
    }
    let is_proven = case.mutations.iter().any(|mutation| mutation.breaks.iter().any(|name| name == probe));
    if !row.is_reachable && !is_proven {
        return Some(format!(
            "{}: {id}: {probe} is in the breaks of no mutation, so it proves nothing",
            row.class
        ));
    }
    None
}

#[test]
fn numbers_add_up() {
    let document = document();
    let table = table(&document).expect("the table can be read");
    let sum = |is_wanted: fn(&Row) -> bool| -> u32 {
        table.rows.iter().filter(|row| is_wanted(row)).map(|row| row.exploits).sum()
    };
    assert_eq!(sum(|_| true), 100, "{:?}", table.rows);
    assert_eq!(table.all, 100);
    assert_eq!(sum(|row| row.is_reachable), table.reachable);
    assert_eq!(sum(|row| !row.is_reachable), 97);
    // The sentence above the table.
    let sentence = "97 cannot begin in a `local` sandbox, because their entry point is closed; 3 can";
    assert!(document.replace('\n', " ").contains(sentence));
}

#[test]
fn each_row_is_confirmed_by_the_suite() {
    let table = table(&document()).expect("the table can be read");
    let cases = load(&repository().join("tests/hostile")).expect("the cases can be read").cases;
    let faults: Vec<String> = table
        .rows
        .iter()
        .flat_map(|row| row.confirmed_by.iter().filter_map(|(id, probe)| fault(row, &cases, id, probe)))
        .collect();
    assert_eq!(faults, Vec::<String>::new());
    // K26 tries every row, so that no row is without a probe.
    for row in &table.rows {
        assert!(row.confirmed_by.iter().any(|(id, _)| id == "K26"), "{}: K26 does not try it", row.class);
        assert!(
            row.is_reachable || row.confirmed_by.iter().any(|(id, _)| id != "K26"),
            "{}: only K26",
            row.class
        );
    }
}

#[test]
fn wrong_rows_are_detected() {
    let cases = load(&repository().join("tests/hostile")).expect("the cases can be read").cases;
    let row =
        |is_reachable| Row { class: "x".to_owned(), exploits: 1, confirmed_by: Vec::new(), is_reachable };
    let check = |is_reachable, id: &str, probe: &str, expected: &str| {
        let found = fault(&row(is_reachable), &cases, id, probe).unwrap_or_default();
        assert!(
            found.contains(expected) && found.is_empty() == expected.is_empty(),
            "{id} {probe}: {found:?}"
        );
    };
    check(false, "K01", "unshare user", "");
    check(false, "K99", "unshare user", "there is no case");
    check(false, "K01", "unshare nothing", "no probe");
    check(true, "K01", "unshare user", "may answer EPERM");
    check(false, "K26", "AF_UNIX, out-of-band data", "may answer ok");
    check(false, "K01", "unshare mount", "proves nothing");
    let head = "## Ways of known exploits\n|a|b|c|d|e|f|\n|-|-|-|-|-|-|\n";
    for (rows, expected) in [
        ("| x | 1 | | | | perhaps |\n", "neither yes nor no"),
        ("| x | many | | | | no |\n", "many"),
        ("| x | 1 | | no |\n", "six cells"),
        ("| x | 1 | | | `K01` | no |\n", "case: probe"),
        ("| x | 1 | | | | no |\n", "no row of all"),
    ] {
        let error = table(&format!("{head}{rows}")).expect_err(rows);
        assert!(error.contains(expected), "{rows}: {error}");
    }
}
