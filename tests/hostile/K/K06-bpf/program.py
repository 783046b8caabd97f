import ctypes

import probe

MAP_CREATE, PROG_LOAD, OBJ_GET, BTF_LOAD, UNKNOWN = 0, 5, 7, 18, 0x7FFF

# Two instructions: r0 = 0, exit.
instructions = (ctypes.c_uint64 * 2)(0x00000000000000B7, 0x0000000000000095)
licence = ctypes.create_string_buffer(b"GPL")
path = ctypes.create_string_buffer(b"/sys/fs/bpf/any")


def bpf(name, command, attributes):
    attributes = bytes(attributes).ljust(128, b"\0")
    probe.syscall(name, "bpf", command, ctypes.create_string_buffer(attributes, 128), 128)


u32 = lambda *values: b"".join(value.to_bytes(4, "little") for value in values)
u64 = lambda *values: b"".join(value.to_bytes(8, "little") for value in values)

# An array of one entry with 4 bytes.
bpf("map create", MAP_CREATE, u32(2, 4, 4, 1))
# A socket filter.
bpf("program load", PROG_LOAD, u32(1, 2) + u64(ctypes.addressof(instructions), ctypes.addressof(licence)))
bpf("btf load", BTF_LOAD, u64(ctypes.addressof(instructions), 0) + u32(16, 0, 0))
bpf("object get", OBJ_GET, u64(ctypes.addressof(path)))
bpf("unknown command", UNKNOWN, b"")
