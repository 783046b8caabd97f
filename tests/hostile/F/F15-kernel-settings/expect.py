import host

SETTINGS = [
    "core_pattern", "modprobe", "hostname", "domainname", "randomize_va_space", "sysrq", "core_uses_pid", "panic",
    "kptr_restrict", "dmesg_restrict",
]
names = [f"/proc/sys/kernel/{name}" for name in SETTINGS]
names += ["/proc/sys/vm/overcommit_memory", "/proc/sys/fs/suid_dumpable", "/proc/sys/fs/protected_hardlinks"]
names += ["/proc/sys/user/max_user_namespaces", "/proc/sys/net/ipv4/ip_forward", "/sys/kernel/uevent_helper"]
before = [host.read(name) for name in names]
host.relay(host.run("program.py"))
host.say("host", "as it was" if [host.read(name) for name in names] == before else "changed")
