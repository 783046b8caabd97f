import os

import probe


def open_only(name, path):
    # Nothing is written: a file that opens is writable.
    probe.errno(name, lambda: os.close(os.open(path, os.O_WRONLY)))


for name in ["core_pattern", "modprobe", "hostname", "domainname", "ns_last_pid", "randomize_va_space"]:
    open_only(name, f"/proc/sys/kernel/{name}")
open_only("drop_caches", "/proc/sys/vm/drop_caches")
open_only("overcommit_memory", "/proc/sys/vm/overcommit_memory")
open_only("binfmt_misc", "/proc/sys/fs/binfmt_misc/register")
open_only("suid_dumpable", "/proc/sys/fs/suid_dumpable")
open_only("protected_hardlinks", "/proc/sys/fs/protected_hardlinks")
open_only("max_user_namespaces", "/proc/sys/user/max_user_namespaces")
open_only("ip_forward", "/proc/sys/net/ipv4/ip_forward")
for name, path in [
    ("sysrq-trigger", "sysrq-trigger"), ("kcore", "kcore"), ("kallsyms", "kallsyms"),
    ("irq", "irq/default_smp_affinity"), ("mtrr", "mtrr"), ("uid_map", "self/uid_map"), ("setgroups", "self/setgroups"),
    ("attr", "self/attr/current"), ("oom_score_adj of PID 1", "1/oom_score_adj"), ("own comm", "self/comm"),
]:
    open_only(name, f"/proc/{path}")
for name, path in [
    ("uevent_helper", "kernel/uevent_helper"), ("release_agent", "fs/cgroup/release_agent"),
    ("cgroup.procs", "fs/cgroup/cgroup.procs"), ("power state", "power/state"), ("debugfs", "kernel/debug/tracing/trace"),
]:
    open_only(name, f"/sys/{path}")
