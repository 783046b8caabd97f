//! Networks: programs in sandboxes against a simulated internet, which each test runs in a network namespace of its own.

#![cfg_attr(
    feature = "mutation",
    expect(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot continue has failed")
)]

#[cfg(feature = "mutation")]
#[path = "network/fixture.rs"]
mod fixture;
#[cfg(feature = "mutation")]
#[expect(dead_code, reason = "the commands of a service have more uses for it")]
#[path = "service_cli/fixture.rs"]
mod home;

#[cfg(feature = "mutation")]
#[path = "network/attacks.rs"]
mod attacks;
#[cfg(feature = "mutation")]
#[path = "network/builds.rs"]
mod builds;
#[cfg(feature = "mutation")]
#[path = "network/clients.rs"]
mod clients;
#[cfg(feature = "mutation")]
#[path = "network/headers.rs"]
mod headers;
#[cfg(feature = "mutation")]
#[path = "network/hop.rs"]
mod hop;
#[cfg(feature = "mutation")]
#[path = "network/images.rs"]
mod images;
#[cfg(feature = "mutation")]
#[path = "network/memory.rs"]
mod memory;
#[cfg(feature = "mutation")]
#[path = "network/names.rs"]
mod names;
#[cfg(feature = "mutation")]
#[path = "network/packages.rs"]
mod packages;
#[cfg(feature = "mutation")]
#[path = "network/programs.rs"]
mod programs;
#[cfg(feature = "mutation")]
#[path = "network/secrets.rs"]
mod secrets;
#[cfg(feature = "mutation")]
#[path = "network/service.rs"]
mod service;

/// A test by its name.
#[cfg(feature = "mutation")]
type Case = (&'static str, fn(&fixture::Fixture));

/// Those of them with programs that the image of the tests does not have: curl, OpenSSL.
#[cfg(feature = "mutation")]
const NEED_PROGRAMS: &[&str] = &[
    "n23_secret_is_nowhere_in_the_sandbox",
    "n23_impostor_gets_no_secret",
    "n25_reflecting_requests_are_refused",
    "n26_secrets_are_redacted_in_every_part_of_an_answer",
    "n29_terminated_tls_serves_its_host_only",
];

/// Tests that run on each engine with networks, as `docker::NAME` and `gvisor::NAME`: what programs meet there, which the gateway is not all
/// of. The others are about the gateway alone. Those of the second list take long, and are left to `make long`.
#[cfg(feature = "mutation")]
const OF_EACH_ENGINE: [&[&str]; 2] = [
    &[
        "allowed_name_is_reached",
        "any_tcp_protocol_is_allowed_by_name",
        "denied_name_is_not_resolved",
        "own_addresses_of_the_machine_are_unreachable",
        "only_tcp_leaves_the_sandbox",
        "loopback_of_the_machine_is_unreachable",
        "killed_gateway_is_replaced_by_one_with_the_same_policy",
        "n23_secret_reaches_only_its_host_and_header",
        "n23_secret_is_nowhere_in_the_sandbox",
        "nothing_is_left_after_the_sandbox_ends",
        "policy_changes_while_connections_are_open",
        "policy_outlives_its_server",
        "every_decision_is_logged",
        "probe_compares_the_policy_with_what_programs_meet",
    ],
    &[
        "tls_connects_to_the_requested_name",
        "mode_open_reaches_public_addresses",
        "range_allows_its_addresses",
        "connections_transfer_much_data",
        "keep_alive_and_protocol_upgrade_work",
        "connections_use_the_operators_proxy",
        "names_do_not_leave_the_sandbox_before_a_connection",
        "denied_port_is_refused",
        "address_does_not_bypass_name_rules",
        "tls_for_another_name_is_refused",
        "request_for_another_name_is_refused",
        "n15_ports_443_and_80_carry_their_own_protocols",
        "private_addresses_are_unreachable",
        "deny_overrides_allow",
        "number_of_connections_is_bounded",
        "resolver_answers_only_address_queries",
        "number_of_streams_to_the_resolver_is_bounded",
        "gateway_is_jailed",
        "invalid_input_does_not_end_the_gateway",
        "lying_or_hanging_resolver_gives_an_error",
        "truncated_answer_is_detected",
        "n12_request_for_another_host_is_refused",
        "n23_secret_is_bound_to_one_host",
        "n23_impostor_gets_no_secret",
        "n23_echoed_secret_is_redacted",
        "requests_are_restricted_by_rules",
        "n23_headers_are_set_only_for_their_hosts",
        "n25_reflecting_requests_are_refused",
        "n26_secrets_are_redacted_in_every_part_of_an_answer",
        "n28_denied_names_are_not_reached_by_address",
        "n29_terminated_tls_serves_its_host_only",
        "dead_gateway_is_started_again",
    ],
];

#[cfg(feature = "mutation")]
fn main() -> std::process::ExitCode {
    let arguments = libtest_mimic::Arguments::from_args();
    let cases = [
        clients::CASES,
        programs::CASES,
        attacks::CASES,
        service::CASES,
        builds::CASES,
        secrets::CASES,
        headers::CASES,
        hop::CASES,
        images::CASES,
        memory::CASES,
        names::CASES,
        packages::CASES,
    ]
    .concat();
    // Before there is a second thread; each test has a process of its own.
    let lack = if arguments.list { None } else { fixture::enter().err() };
    let trial = |name: String, case: fn(&fixture::Fixture), engine: fixture::Tested| {
        let lack = lack.clone();
        libtest_mimic::Trial::ignorable_test(name, move || {
            if let Some(lack) = lack {
                return Err(lack.into());
            }
            if let Err(reason) = engine.select() {
                std::io::Write::write_all(&mut std::io::stdout(), format!("SKIPPED {reason}\n").as_bytes())?;
                return Ok(libtest_mimic::Completion::ignored_with(reason));
            }
            case(&fixture::Fixture::start());
            Ok(libtest_mimic::Completion::Completed)
        })
    };
    let mut trials: Vec<_> =
        cases.iter().map(|&(name, case)| trial(name.to_owned(), case, fixture::Tested::Local)).collect();
    for (names, rest) in OF_EACH_ENGINE.into_iter().zip(["", "rest::"]) {
        for name in names {
            let found = cases.iter().find(|(known, _)| known == name);
            let Some(&(_, case)) = found else { panic!("there is no test {name}") };
            for engine in [fixture::Tested::Docker, fixture::Tested::Gvisor] {
                if engine == fixture::Tested::Docker && NEED_PROGRAMS.contains(name) {
                    continue;
                }
                trials.push(trial(format!("{}::{rest}{name}", engine.name()), case, engine));
            }
        }
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}

#[cfg(not(feature = "mutation"))]
fn main() {}
