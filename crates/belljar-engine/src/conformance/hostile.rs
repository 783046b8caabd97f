//! Code that attacks the guest. The guest survives, and the sandbox stays usable.

use std::time::Duration;

use super::case::{Case, Checked, cases, ensure, equal, within};
use super::context::Context;
use super::program::{check_usable, finish, py, python, sh};
use crate::engine::Sandbox;

pub(super) const CASES: &[Case] = cases![
    guest_survives_every_signal [ProtectedGuest],
    guest_survives_a_storm_of_signals [ProtectedGuest],
    guest_survives_many_processes [ProtectedGuest],
    guest_cannot_be_written_in_proc [ProtectedGuest],
    guest_cannot_be_limited [ProtectedGuest],
    run_times_out_with_a_slow_guest [],
    guest_cannot_be_traced [ProtectedGuest],
    program_that_closes_all_descriptors_exits_normally [],
    programs_get_three_descriptors [],
    programs_start_with_clean_state [],
    unusual_output_does_no_harm [],
];

/// Checks that the guest responds and the sandbox is usable.
async fn check_unharmed(sandbox: &Sandbox) -> Checked {
    within("a healthy guest's answer", Duration::from_secs(10), sandbox.guest().check()).await??;
    check_usable(sandbox).await
}

async fn guest_survives_every_signal(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    sh(&sandbox, "kill -9 $PPID; kill -STOP $PPID; kill -TERM $PPID; kill -9 1; kill -STOP 1").await?;
    check_unharmed(&sandbox).await?;
    let code = "
import os, signal
guest = os.getppid()
attempts = [os.kill]
try:
    handle = os.pidfd_open(guest)
    attempts.append(lambda _, number: signal.pidfd_send_signal(handle, number))
except OSError: pass
for number in range(1, 65):
    for attempt in attempts:
        # Where the guest is the first process, 2 is its other thread.
        for target in (guest, 2):
            if guest != 1 and target == 2: continue
            try: attempt(target, number)
            except OSError: pass
";
    py(&sandbox, code).await?;
    check_unharmed(&sandbox).await?;
    context.stop(sandbox).await
}

async fn guest_survives_a_storm_of_signals(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let code = "
import os, signal
guest = os.getppid()
for turn in range(50000):
    for number in (signal.SIGCHLD, signal.SIGPIPE, signal.SIGWINCH, signal.SIGHUP):
        try: os.kill(guest, number)
        except PermissionError: pass
";
    py(&sandbox, code).await?;
    check_unharmed(&sandbox).await?;
    context.stop(sandbox).await
}

async fn guest_survives_many_processes(context: &Context) -> Checked {
    let mut spec = context.spec();
    spec.limits.pids = "256".parse()?;
    // A watcher counts shared memory once per process.
    spec.limits.memory = "8g".parse()?;
    let sandbox = context.sandbox_with(&spec).await?;
    let code = "
import os, time
guest = os.getppid()
end = time.monotonic() + 2
made = 0
for number in range(200):
    if os.fork() == 0:
        while time.monotonic() < end:
            for signal in (9, 15, 17, 19, 1 + number % 64):
                try: os.kill(guest, signal)
                except OSError: pass
        os._exit(0)
    made += 1
for number in range(made): os.wait()
print(made)
";
    equal!(py(&sandbox, code).await?.text(), "200");
    check_unharmed(&sandbox).await?;
    context.stop(sandbox).await
}

async fn guest_cannot_be_written_in_proc(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let code = "
import os
guest = f'/proc/{os.getppid()}'
names = ['oom_score_adj', 'oom_adj', 'comm', 'mem', 'clear_refs', 'coredump_filter', 'autogroup', 'timerslack_ns',
         'attr/current', 'attr/exec', 'uid_map', 'gid_map', 'setgroups', 'environ', 'maps', 'syscall', 'sched',
         'io', 'fd/3', 'fdinfo/3', 'cwd/x', 'root/x', 'task/%d/comm' % os.getppid()]
for name in names:
    path = f'{guest}/{name}'
    try:
        with open(path, 'wb', buffering=0) as file: file.write(b'0')
        print('wrote', path)
    except OSError: pass
for name in ('mem', 'environ', 'maps', 'syscall', 'stack', 'auxv'):
    try:
        with open(f'{guest}/{name}', 'rb') as file:
            if file.read(64): print('read', name)
    except OSError: pass
for name in ('fd', 'map_files'):
    try: print('listed', name, os.listdir(f'{guest}/{name}'))
    except OSError: pass
for name in ('exe', 'cwd', 'root'):
    try: print('followed', name, os.readlink(f'{guest}/{name}'))
    except OSError: pass
";
    equal!(py(&sandbox, code).await?.text(), "");
    check_unharmed(&sandbox).await?;
    context.stop(sandbox).await
}

async fn guest_cannot_be_limited(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let code = "
import os, resource
guest = os.getppid()
for name in ('RLIMIT_NOFILE', 'RLIMIT_CPU', 'RLIMIT_AS', 'RLIMIT_NPROC', 'RLIMIT_FSIZE'):
    try:
        resource.prlimit(guest, getattr(resource, name), (0, 0))
        print('limited', name)
    except OSError: pass
";
    equal!(py(&sandbox, code).await?.text(), "");
    check_unharmed(&sandbox).await?;
    context.stop(sandbox).await
}

async fn run_times_out_with_a_slow_guest(context: &Context) -> Checked {
    let mut spec = context.spec();
    spec.limits.timeout = "1s".parse()?;
    let sandbox = context.sandbox_with(&spec).await?;
    // Any process may lower the priority of another one of the same user. The host enforces the timeout then.
    let code = "
import os
guest = os.getppid()
for attempt in (lambda: os.setpriority(os.PRIO_PROCESS, guest, 19),
                lambda: os.sched_setscheduler(guest, os.SCHED_IDLE, os.sched_param(0)),
                lambda: os.sched_setaffinity(guest, {min(os.sched_getaffinity(0))})):
    try: attempt()
    except OSError: pass
for child in range(8):
    if os.fork() == 0: break
while True: pass
";
    let language = super::runs::python_language()?;
    let running = super::runs::execute(&sandbox, &spec, &language, code);
    let result = within("a run of 1 s with a slow guest", Duration::from_secs(9), running).await??;
    equal!(result.outcome, belljar_model::Outcome::TimedOut);
    within("the end of a sandbox with a slow guest", Duration::from_secs(10), context.stop(sandbox)).await?
}

async fn guest_cannot_be_traced(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let code = "
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
guest = os.getppid()
buffer = ctypes.create_string_buffer(64)
class Piece(ctypes.Structure): _fields_ = [('base', ctypes.c_void_p), ('length', ctypes.c_size_t)]
here, there = Piece(ctypes.addressof(buffer), 64), Piece(0x400000, 64)
if libc.ptrace(16, guest, None, None) == 0: print('attached')
if libc.ptrace(0x4206, guest, None, None) == 0: print('seized')
if libc.process_vm_readv(guest, ctypes.byref(here), 1, ctypes.byref(there), 1, 0) >= 0: print('read')
if libc.process_vm_writev(guest, ctypes.byref(here), 1, ctypes.byref(there), 1, 0) >= 0: print('written')
pidfd = libc.syscall(434, guest, 0)
if pidfd >= 0 and libc.syscall(438, pidfd, 3, 0) >= 0: print('took its descriptor')
";
    equal!(py(&sandbox, code).await?.text(), "");
    check_unharmed(&sandbox).await?;
    context.stop(sandbox).await
}

async fn program_that_closes_all_descriptors_exits_normally(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let finished = finish(&sandbox, python("import os; os.closerange(0, 65536); os._exit(3)")).await?;
    equal!(finished.end(), (3, 0));
    check_unharmed(&sandbox).await?;
    context.stop(sandbox).await
}

async fn programs_get_three_descriptors(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let code = "
import os
for name in sorted(os.listdir('/proc/self/fd')):
    try: os.fstat(int(name)); print(name)
    except OSError: pass
";
    equal!(py(&sandbox, code).await?.text(), "0\n1\n2");
    context.stop(sandbox).await
}

async fn programs_start_with_clean_state(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let code = "
import os
status = dict(line.split(':\\t', 1) for line in open('/proc/self/status').read().splitlines() if ':\\t' in line)
print(status['SigBlk'], oct(os.umask(0o77)), os.getpgid(0) == os.getpid())
";
    let state = py(&sandbox, code).await?.text();
    // If the home directory is among the host's files, files created there are private.
    let among_others = context.has(super::Capability::HiddenHost) && !context.has(super::Capability::OwnTree);
    let umask = if among_others { "0o77" } else { "0o22" };
    equal!(state, format!("0000000000000000 {umask} True"));
    // Python itself ignores SIGPIPE and SIGXFSZ; a plain program ignores nothing.
    let ignored = sh(&sandbox, "grep SigIgn /proc/self/status").await?;
    equal!(ignored.text(), "SigIgn:\t0000000000000000");
    context.stop(sandbox).await
}

async fn unusual_output_does_no_harm(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    // Single bytes, an endless line, only NUL bytes, terminal control sequences.
    let code = "
import os
for turn in range(20000): os.write(1, b'a')
os.write(2, b'\\0' * 300000)
os.write(1, b'\\x1b]0;title\\x07\\x1b[2J' * 10000)
";
    let finished = py(&sandbox, code).await?;
    ensure!(finished.stdout.starts_with(&[b'a'; 20_000]), "single bytes were changed");
    equal!(finished.stdout.len(), 20_000 + 14 * 10_000);
    ensure!(finished.stderr == vec![0; 300_000], "{} NUL bytes came", finished.stderr.len());
    check_unharmed(&sandbox).await?;
    context.stop(sandbox).await
}
