import ctypes
import sys

import probe

READ, SEARCH, DESCRIBE, LINK, JOIN, GET_KEYRING_ID, CLEAR = 11, 10, 6, 8, 1, 0, 7
THREAD, PROCESS, SESSION, USER, USER_SESSION = -1, -2, -3, -4, -5
key = int(sys.argv[1])
kind, name = ctypes.create_string_buffer(b"user"), ctypes.create_string_buffer(b"belljar-canary")
found = ctypes.create_string_buffer(256)

probe.syscall("search the session keyring", "keyctl", SEARCH, SESSION, kind, name, 0)
probe.syscall("read the key by its number", "keyctl", READ, key, found, 256)
probe.syscall("describe the key", "keyctl", DESCRIBE, key, found, 256)
probe.syscall("link the key", "keyctl", LINK, key, PROCESS, 0, 0)
probe.syscall("request the key", "request_key", kind, name, None, SESSION)
probe.syscall("add a key", "add_key", kind, ctypes.create_string_buffer(b"mine"), found, 16, PROCESS)
probe.syscall("user's keyring", "keyctl", GET_KEYRING_ID, USER, 0)
probe.syscall("clear the session keyring", "keyctl", CLEAR, SESSION)
probe.syscall("new session keyring", "keyctl", JOIN, None)
probe.say("what was read", "nothing" if not found.value.strip(b"\0") else "something")


def list_of_keys():
    with open("/proc/keys", encoding="ascii") as file:
        return "empty" if "canary" not in file.read() else "with the key"


try:
    probe.say("list of keys", list_of_keys())
except OSError as error:
    probe.say("list of keys", probe.name_of(error.errno))
