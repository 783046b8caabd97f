//! Prints what a screening of 10 KB costs: in the process, and in a jailed process of its own. Build it with `--release`.

use std::time::{Duration, Instant};

use belljar_screen::{Language, MAX_TIME, Modules, Request};

/// Lines of ordinary code in each language.
const LINES: [(Language, &str); 8] = [
    (Language::Python, "def f1(a, b=None):\n    return [x['name'] for x in a if x.get('size', 0) > 10]\n"),
    (
        Language::JavaScript,
        "const f1 = (a) => a.filter((x) => x.size > 10).map((x) => `${x.name}: ${x.size}`);\n",
    ),
    (
        Language::TypeScript,
        "const f1 = (a: Item[]): string[] => a.filter((x) => x.size > 10).map((x) => x.name);\n",
    ),
    (
        Language::Bash,
        "for file in *.txt; do name=\"${file%.txt}\"; wc -l \"$file\" | sort -n >> \"$name.count\"; done\n",
    ),
    (Language::Ruby, "def f1(a) = a.select { |x| x[:size] > 10 }.map { |x| \"#{x[:name]}: #{x[:size]}\" }\n"),
    (
        Language::Php,
        "$f1 = array_map(fn ($x) => $x['name'] . ': ' . $x['size'], array_filter($a, $large));\n",
    ),
    (
        Language::Go,
        "func f1(a []Item) string { for _, x := range a { if x.Size > 10 { return x.Name } }; return \"\" }\n",
    ),
    (
        Language::Rust,
        "fn f1(a: &[Item]) -> Vec<&str> { a.iter().filter(|x| x.size > 10).map(|x| x.name()).collect() }\n",
    ),
];

const BYTES: usize = 10_000;
const ROUNDS: usize = 50;

#[expect(clippy::print_stdout, clippy::expect_used, reason = "an example")]
fn main() {
    belljar_screen::enter_screener();
    println!("language    in the process  in a jailed process   (p50 of {ROUNDS}, {BYTES} bytes, ms)");
    for (language, line) in LINES {
        let start = if language == Language::Go { "package main\n" } else { "" };
        let code = format!("{start}{}", line.repeat(BYTES / line.len()));
        let request = Request { language, code, modules: Modules::default() };
        let inside =
            median(|| drop(belljar_screen::screen(&request, MAX_TIME).expect("the rules are valid")));
        let jailed = median(|| drop(belljar_screen::screen_in_jail(&request).expect("it can be jailed")));
        println!("{:<12}{:>14.2}{:>21.2}", language.as_str(), milliseconds(inside), milliseconds(jailed));
    }
}

fn median(mut action: impl FnMut()) -> Duration {
    let mut times: Vec<Duration> = (0..ROUNDS)
        .map(|_| {
            let begin = Instant::now();
            action();
            begin.elapsed()
        })
        .collect();
    times.sort();
    times[ROUNDS / 2]
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1_000.0
}
