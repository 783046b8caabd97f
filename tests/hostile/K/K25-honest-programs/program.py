import concurrent.futures
import ctypes
import mmap
import multiprocessing
import os
import select
import signal
import socket
import subprocess
import tempfile
import threading

import probe


def square(number):
    return number * number


def say(name, attempt):
    try:
        probe.say(name, str(attempt()))
    except Exception as error:
        probe.say(name, f"{type(error).__name__} {error}")


def threads():
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        return sum(pool.map(square, range(100)))


def processes():
    with multiprocessing.get_context("fork").Pool(4) as pool:
        return sum(pool.map(square, range(100)))


def spawned():
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return sum(pool.map(square, range(10)))


def tcp():
    with socket.create_server(("127.0.0.1", 0)) as server:
        def answer():
            connection, _ = server.accept()
            with connection:
                connection.sendall(connection.recv(100).upper())

        thread = threading.Thread(target=answer)
        thread.start()
        with socket.create_connection(("localhost", server.getsockname()[1]), timeout=5) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.sendall(b"hello")
            reply = connection.recv(100)
        thread.join()
        return reply.decode()


def udp():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        one.bind(("127.0.0.1", 0))
        one.settimeout(5)
        other.sendto(b"hello", one.getsockname())
        return one.recv(100).decode()


def unix():
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with one, other, open("/dev/null", "rb") as null:
        socket.send_fds(one, [b"hello"], [null.fileno()])
        message, descriptors, _, _ = socket.recv_fds(other, 100, 1)
        os.close(descriptors[0])
        return message.decode()


def addresses():
    """Calls getifaddrs of the C library, which uses netlink."""
    listed = ctypes.c_void_p()
    if probe.libc.getifaddrs(ctypes.byref(listed)):
        raise OSError(ctypes.get_errno(), "getifaddrs")
    probe.libc.freeifaddrs(listed)
    return " ".join(name for _, name in socket.if_nameindex())


def memfd():
    descriptor = os.memfd_create("mine", os.MFD_ALLOW_SEALING)
    os.write(descriptor, b"hello")
    with mmap.mmap(descriptor, 5) as memory:
        return bytes(memory).decode()


def shared():
    with mmap.mmap(-1, mmap.PAGESIZE) as memory:
        pid = os.fork()
        if pid == 0:
            memory[:5] = b"hello"
            os._exit(0)
        os.waitpid(pid, 0)
        return memory[:5].decode()


def own_filter():
    """Installs a filter, as browsers and OpenSSH do: it refuses mkdir with EACCES (83; mkdirat is 258 or 34)."""
    load_number, equal, allow, refuse = (0x20, 0, 0, 0), 0x15, (0x06, 0, 0, 0x7FFF0000), (0x06, 0, 0, 0x00050000 | 13)
    numbers = (83, 258) if os.uname().machine == "x86_64" else (34, 34)
    code = [load_number, (equal, 1, 0, numbers[0]), (equal, 0, 1, numbers[1]), refuse, allow]
    packed = b"".join(a.to_bytes(2, "little") + bytes([b, c]) + d.to_bytes(4, "little") for a, b, c, d in code)
    text = ctypes.create_string_buffer(packed)
    program = ctypes.create_string_buffer(len(code).to_bytes(8, "little") + ctypes.addressof(text).to_bytes(8, "little"))
    installed = probe.outcome("prctl", 22, 2, program, 0, 0)
    try:
        os.mkdir("forbidden")
    except OSError as error:
        return f"{installed}, then {probe.name_of(error.errno)}, filters {probe.status('Seccomp_filters')}"
    return f"{installed}, but the directory is there"


def machine_code():
    page = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    # Returns 7: x86_64, aarch64.
    page.write(bytes.fromhex("b807000000c3" if os.uname().machine == "x86_64" else "e0008052c0035fd6"))
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    if probe.libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(mmap.PAGESIZE), mmap.PROT_READ | mmap.PROT_EXEC):
        raise OSError(ctypes.get_errno(), "mprotect")
    function = ctypes.CFUNCTYPE(ctypes.c_int)(address)
    value = function()
    function.page = page
    probe.kept = page
    return value


def timer():
    fired = []
    signal.signal(signal.SIGALRM, lambda *_: fired.append(1))
    signal.setitimer(signal.ITIMER_REAL, 0.01)
    while not fired:
        signal.pause()
    return "fired"


def events():
    poll, (reader, writer) = select.epoll(), os.pipe()
    poll.register(reader, select.EPOLLIN)
    os.write(writer, b"x")
    return len(poll.poll(1))


def files():
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "one")
        with open(path, "w", encoding="ascii") as file:
            file.write("hello")
        os.rename(path, path + "2")
        os.link(path + "2", path)
        os.symlink(path, path + "3")
        os.chmod(path, 0o755)
        os.setxattr(path, "user.mine", b"x")
        return open(path + "3", encoding="ascii").read()


def pty():
    master, slave = os.openpty()
    os.write(slave, b"hello")
    return os.read(master, 5).decode()


# Python runs this file again for spawned processes.
if __name__ == "__main__":
    say("threads", threads)
    say("processes", processes)
    say("spawned processes", spawned)
    say("TCP on the loopback", tcp)
    say("UDP on the loopback", udp)
    say("descriptors over a local socket", unix)
    say("getifaddrs", addresses)
    say("memfd", memfd)
    say("shared memory", shared)
    say("filter of its own", lambda: probe.in_child(own_filter))
    say("machine code", lambda: probe.in_child(machine_code))
    say("timer", timer)
    say("epoll", events)
    say("files", files)
    say("terminal", pty)
    say("pipeline", lambda: subprocess.run("seq 5 | sort -r | head -1", shell=True, capture_output=True, text=True, check=True).stdout.strip())
    say("vfork", lambda: subprocess.run(["/bin/true"], close_fds=False, check=True).returncode)
    say("random", lambda: len(os.getrandom(16)))
    say("own memory", lambda: len(open("/proc/self/maps", "rb").read()) > 0)
    say("priority", lambda: -os.nice(0) + os.nice(1))
