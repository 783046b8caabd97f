#!/usr/bin/env python3
"""Installs the packages of `make dist` as people do, runs the first lines of the README with them, and removes them.

usage: test_packages.py DIST PROGRAM [CLASS or CLASS.test...]

DIST is the directory of the packages, and PROGRAM the `belljar` that they were built from. pip and npm get the dependencies of the SDKs
from their registries, and mmdebstrap a tree of Debian from a mirror; a test that lacks one of them is skipped.
"""

from __future__ import annotations

import csv
import base64
import hashlib
import io
import json
import os
import pwd
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
import zipfile
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Union

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text("utf-8")
ACCOUNT = "belljar-test"

DIST = Path()
PROGRAM = Path()

# In seconds: far above the duration of any step.
STEP_TIMEOUT = 900.0
LEFTOVER_TIMEOUT = 60.0

PYTHON = '''\
from belljar import Sandbox

with Sandbox.create() as sandbox:
    print(sandbox.commands.run("python3 -c 'print(2**64)'").stdout)
'''

JAVASCRIPT = '''\
import { Sandbox } from "belljar";

const sandbox = await Sandbox.create();
console.log((await sandbox.commands.run("python3 -c 'print(2**64)'")).stdout);
await sandbox.kill();
'''

RESULT = str(2**64)


def only(pattern: str) -> Path:
    """Returns the one package with such a name."""
    (found,) = DIST.glob(pattern)
    return found


def account() -> Optional[pwd.struct_passwd]:
    """Returns the account of an ordinary user, if this machine has it and this process may become it."""
    try:
        return pwd.getpwnam(ACCOUNT) if os.geteuid() == 0 else None
    except KeyError:
        return None


class Installed(unittest.TestCase):
    """A directory for one installation, its user, and its home."""

    def setUp(self) -> None:
        self.user: Optional[pwd.struct_passwd] = None
        self.place = Path(tempfile.mkdtemp(prefix="belljar-packages-"))
        self.place.chmod(0o755)
        self.addCleanup(shutil.rmtree, self.place, True)
        self.env = {"PATH": os.environ["PATH"], "HOME": str(self.place / "home"), "LANG": "C.UTF-8"}
        # What this machine's clients of registries need.
        for name, value in os.environ.items():
            if name.upper().startswith(("PIP_", "NPM_CONFIG_", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "SSL_CERT", "NODE_EXTRA")):
                self.env[name] = value
        # Root's own home is that of the machine.
        self.env["BELLJAR_HOME"] = str(self.place / "home/service")
        self.env["BELLJAR_SERVER_LINGER"] = "1s"
        (self.place / "home").mkdir()

    def package(self, pattern: str) -> Path:
        """Returns a copy of a package that this user can read, whoever has built it."""
        copy = self.place / only(pattern).name
        shutil.copyfile(only(pattern), copy)
        return copy

    def become(self, user: pwd.struct_passwd) -> None:
        """Makes an ordinary user of what follows."""
        self.user = user
        for path in [self.place, self.place / "home"]:
            os.chown(path, user.pw_uid, user.pw_gid)
        # Such a user has no control group, so limits are watched.
        self.env["BELLJAR_LIMITS"] = "watched"

    def attempt(self, *command: Union[str, Path], **env: str) -> subprocess.CompletedProcess[str]:
        """Runs a command."""
        identity: Dict[str, Any] = {}
        if self.user is not None:
            identity = {"user": self.user.pw_uid, "group": self.user.pw_gid, "extra_groups": []}
        return subprocess.run(
            list(map(str, command)),
            cwd=self.place,
            env={**self.env, **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            timeout=STEP_TIMEOUT,
            text=True,
            **identity,
        )

    def run_ok(self, *command: Union[str, Path], **env: str) -> str:
        """Runs a command that has to succeed, and returns its output."""
        done = self.attempt(*command, **env)
        self.assertEqual(done.returncode, 0, f"{command}\n{done.stdout}\n{done.stderr}")
        return done.stdout

    def run_first_lines(self, program: Union[str, Path]) -> None:
        """Runs what the README begins with, and the attacks of the self-test."""
        version = json.loads((ROOT / "sdk/typescript/package.json").read_text("utf-8"))["version"]
        self.assertTrue(self.run_ok(program, "--version").startswith(f"belljar {version} (commit "))
        line = "belljar run -c 'print(2**64)'"
        self.assertIn(line, README)
        self.assertEqual(self.run_ok(program, *shlex.split(line)[1:]).strip(), RESULT)
        tests = json.loads(self.run_ok(program, "doctor", "--self-test", "--json"))
        self.assertTrue(tests["is_contained"], tests)
        guest = [found for found in json.loads(self.attempt(program, "doctor", "--json").stdout)["findings"] if found["name"] == "guest"]
        self.assertEqual([found["state"] for found in guest], ["good"], guest)

    def wait_for_nothing_left(self) -> None:
        """Waits until no process of this home is left."""

        def leftovers() -> List[str]:
            found = []
            for pid in filter(str.isdigit, os.listdir("/proc")):
                try:
                    line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
                except OSError:
                    continue
                if self.place.name in line:
                    found.append(f"{pid} {line}")
            return found

        deadline = time.monotonic() + LEFTOVER_TIMEOUT
        while leftovers():
            self.assertLess(time.monotonic(), deadline, leftovers())
            time.sleep(0.1)


def listing(folder: Path) -> List[str]:
    """Returns all paths below a folder, except compiled Python."""
    return sorted(str(path) for path in folder.rglob("*") if "__pycache__" not in path.parts)


class Files(unittest.TestCase):
    """The packages as files."""

    def test_same_inputs_give_the_same_bytes(self) -> None:
        """Neither the directory, the time, the user's settings nor those of files change a byte."""
        with tempfile.TemporaryDirectory(prefix="belljar-packages-") as work:
            sums = []
            for index, (umask, zone, language) in enumerate([(0o022, "UTC", "C.UTF-8"), (0o077, "Asia/Tokyo", "C")]):
                programs = Path(work) / f"programs-{index}"
                programs.mkdir()
                for name in ["belljar", "belljar-guest", "belljar-service"]:
                    shutil.copyfile(PROGRAM.with_name(name), programs / name)
                    (programs / name).chmod(0o700 if index else 0o755)
                out = Path(work) / f"out-{index}"
                command = [sys.executable, ROOT / "scripts/dist.py", "--belljar", programs / "belljar", "--out", out, "--fast"]
                command += ["--sdk-typescript", ROOT / "sdk/typescript"]
                env = {**os.environ, "TZ": zone, "LC_ALL": language, "PYTHONHASHSEED": str(index), "SOURCE_DATE_EPOCH": "1700000000"}
                done = subprocess.run(command, cwd=work if index else ROOT, env=env, umask=umask, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
                self.assertEqual(done.returncode, 0, done.stdout)
                sums.append((out / "SHA256SUMS").read_text("utf-8").splitlines())
            self.assertEqual(*sums)
            self.assertGreaterEqual(len(sums[0]), 8)

    def test_checksums_cover_every_file(self) -> None:
        lines = dict(reversed(line.split("  ")) for line in (DIST / "SHA256SUMS").read_text("utf-8").splitlines())
        self.assertEqual(sorted(lines), sorted(path.name for path in DIST.iterdir() if path.name != "SHA256SUMS"))
        for name, digest in lines.items():
            self.assertEqual(hashlib.sha256((DIST / name).read_bytes()).hexdigest(), digest, name)

    def test_wheel_is_recorded(self) -> None:
        with zipfile.ZipFile(only("*manylinux*.whl")) as wheel:
            (record,) = [name for name in wheel.namelist() if name.endswith("/RECORD")]
            for path, digest, size in csv.reader(io.StringIO(wheel.read(record).decode())):
                if path != record:
                    data = wheel.read(path)
                    want = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
                    self.assertEqual((digest, int(size)), (f"sha256={want}", len(data)), path)
            scripts = [entry for entry in wheel.infolist() if "/scripts/" in entry.filename]
            self.assertEqual(sorted(Path(entry.filename).name for entry in scripts), ["belljar", "belljar-guest", "belljar-service"])
            self.assertTrue(all(entry.external_attr >> 16 == 0o100755 for entry in scripts))

    def test_components_have_licenses(self) -> None:
        document = json.loads(only("*.cdx.json").read_text("utf-8"))
        outside = [component for component in document["components"] if not component["name"].startswith("belljar")]
        self.assertGreater(len(outside), 100)
        for component in outside:
            self.assertTrue(component.get("licenses") and component.get("hashes"), component)
        known = {component["bom-ref"] for component in document["components"]} | {document["metadata"]["component"]["bom-ref"]}
        for dependency in document["dependencies"]:
            self.assertLessEqual(set(dependency["dependsOn"]), known)
        notices = (DIST / "THIRD-PARTY.txt").read_text("utf-8")
        for component in outside:
            self.assertIn(f"{component['name']} {component['version']} (", notices)

    def test_debian_accepts_the_deb(self) -> None:
        if shutil.which("dpkg-deb") is None:
            self.skipTest("needs dpkg-deb")
        contents = subprocess.run(["dpkg-deb", "--contents", only("*.deb")], stdout=subprocess.PIPE, text=True, check=True).stdout
        for line in contents.splitlines():
            self.assertEqual(line.split()[1], "root/root", line)
        for path in ["bin/belljar", "bin/belljar-guest", "bin/belljar-service", "lib/systemd/system/belljar.service", "share/man/man1/belljar-run.1.gz"]:
            self.assertIn(f" ./usr/{path}\n", contents)
        service = subprocess.run(f"dpkg-deb --fsys-tarfile {only('*.deb')} | tar -xO ./usr/lib/systemd/system/belljar.service", shell=True, stdout=subprocess.PIPE, text=True, check=True).stdout
        self.assertIn("ExecStart=/usr/bin/belljar serve", service)
        self.assertNotIn("/usr/local", service)


class Wheel(Installed):
    """The wheel in a new virtual environment."""

    def install_and_remove(self) -> None:
        venv = self.place / "venv"
        self.run_ok("/usr/bin/python3", "-m", "venv", venv)
        before = listing(venv)
        pip = [venv / "bin/python", "-m", "pip", "--disable-pip-version-check", "--quiet"]
        self.run_ok(*pip, "install", self.package("*manylinux*.whl"))
        installed = listing(venv)
        self.run_first_lines(venv / "bin/belljar")
        (self.place / "first.py").write_text(PYTHON, "utf-8")
        # As an activated environment has it, and with nothing on the PATH.
        self.assertIn(PYTHON, README)
        for path in [f"{venv}/bin:{self.env['PATH']}", os.defpath]:
            self.assertEqual(self.run_ok(venv / "bin/python", "first.py", PATH=path).strip(), RESULT)
        self.wait_for_nothing_left()
        self.assertEqual(listing(venv), installed)
        self.run_ok(*pip, "uninstall", "--yes", "belljar")
        left = set(listing(venv)) - set(before)
        # The packages that it depends on stay.
        self.assertEqual([path for path in sorted(left) if "belljar" in path.removeprefix(str(self.place))], [])

    def test_as_root(self) -> None:
        if os.geteuid() != 0:
            self.skipTest("needs root")
        self.install_and_remove()

    def test_as_an_ordinary_user(self) -> None:
        user = account()
        if user is None:
            self.skipTest(f"needs root and the account {ACCOUNT}")
        self.become(user)
        self.install_and_remove()

    def test_without_a_control_group_one_command_helps(self) -> None:
        user = account()
        if user is None:
            self.skipTest(f"needs root and the account {ACCOUNT}")
        self.become(user)
        for name in ["belljar", "belljar-guest", "belljar-service"]:
            shutil.copy(PROGRAM.with_name(name), self.place)
        done = self.attempt(self.place / "belljar", "run", "-c", "print(2**64)", BELLJAR_LIMITS="")
        if done.returncode == 0:
            self.skipTest("ordinary users have control groups here")
        self.assertEqual(done.returncode, 125, done.stderr)
        self.assertIn("BELLJAR_LIMITS=watched", done.stderr)

    def test_old_python_is_refused_in_one_sentence(self) -> None:
        # Several may be installed beside the one in PATH, by pyenv.
        others = Path(os.environ.get("PYENV_ROOT", "/nonexistent"), "versions").glob("3.8.*/bin/python3")
        old = next((path for path in others if os.access(path, os.X_OK)), None) or shutil.which("python3.8")
        if old is None:
            self.skipTest("needs Python 3.8")
        self.run_ok(old, "-m", "venv", self.place / "venv")
        done = self.attempt(self.place / "venv/bin/python", "-m", "pip", "--disable-pip-version-check", "install", "--no-deps", self.package("*manylinux*.whl"))
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("requires a different Python", done.stderr)

    def test_sdk_names_what_it_lacks(self) -> None:
        """A program that is missing, or for another machine, is one sentence."""
        venv = self.place / "venv"
        self.run_ok("/usr/bin/python3", "-m", "venv", venv)
        self.run_ok(venv / "bin/python", "-m", "pip", "--disable-pip-version-check", "--quiet", "install", self.package("*any.whl"))
        (self.place / "first.py").write_text(PYTHON, "utf-8")
        done = self.attempt(venv / "bin/python", "first.py", PATH="/nonexistent")
        self.assertIn("no program belljar on this machine", done.stderr.strip().splitlines()[-1])
        other = bytearray(PROGRAM.read_bytes()[:4096])
        # e_machine of elf(5): RISC-V, or x86-64 on such a machine.
        other[18:20] = (243 if other[18] != 243 else 62).to_bytes(2, "little")
        (self.place / "belljar").write_bytes(other)
        (self.place / "belljar").chmod(0o755)
        done = self.attempt(venv / "bin/python", "first.py", BELLJAR_BIN=str(self.place / "belljar"))
        self.assertIn("Exec format error", done.stderr.strip().splitlines()[-1])


class Npm(Installed):
    """The npm packages in an empty directory."""

    def test_install_and_remove(self) -> None:
        if shutil.which("npm") is None:
            self.skipTest("needs npm")
        (self.place / "package.json").write_text('{"private": true, "type": "module"}', "utf-8")
        install = ["npm", "install", "--no-audit", "--no-fund", "--loglevel=error"]
        self.run_ok(*install, self.package("belljar-[0-9]*.tgz"), self.package("belljar-linux-*.tgz"))
        self.run_first_lines(self.place / "node_modules/.bin/belljar")
        self.assertEqual(self.run_ok("npx", "--no-install", "belljar", "run", "-c", "print(2**64)").strip(), RESULT)
        done = self.attempt(self.place / "node_modules/.bin/belljar", "run", "-c", "raise SystemExit(7)")
        self.assertEqual(done.returncode, 7, done.stderr)
        (self.place / "first.js").write_text(JAVASCRIPT, "utf-8")
        self.assertEqual(self.run_ok("node", "first.js").strip(), RESULT)
        self.wait_for_nothing_left()
        shutil.rmtree(self.place / "node_modules/@belljar")
        done = self.attempt(self.place / "node_modules/.bin/belljar", "--version")
        self.assertEqual(done.returncode, 127)
        self.assertRegex(done.stderr, r"^belljar: [^\n]+\n$")
        self.run_ok("npm", "uninstall", "--no-audit", "--no-fund", "belljar", f"@belljar/linux-{'x64' if os.uname().machine == 'x86_64' else 'arm64'}")
        self.assertEqual(json.loads((self.place / "package.json").read_text("utf-8")).get("dependencies", {}), {})


# Runs a command in a tree: as its root, with the machine's /proc, /sys and /dev. Sandboxes need namespaces, which a chroot forbids.
ENTER = '''
set -e
tree=$1; shift
mount --make-rprivate /
mount --bind "$tree" "$tree"
for part in proc sys dev; do mount --rbind "/$part" "$tree/$part"; done
mount -t tmpfs tmpfs "$tree/tmp"
cd "$tree"
mkdir -p .old
pivot_root . .old
umount -l /.old
exec "$@"
'''


class Deb(Installed):
    """The deb in new trees of Debian."""

    def install_and_remove(self, suite: str) -> None:
        if os.geteuid() != 0 or shutil.which("mmdebstrap") is None:
            self.skipTest("needs root and mmdebstrap")
        mirror = os.environ.get("BELLJAR_TEST_DEBIAN", "http://deb.debian.org/debian")
        tree = self.place / "tree"
        made = subprocess.run(
            ["mmdebstrap", "--quiet", "--variant=minbase", "--include=python3,passwd,nodejs", suite, tree, mirror],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=STEP_TIMEOUT,
        )
        if made.returncode != 0:
            self.skipTest(f"no tree of {suite} from {mirror}: {made.stdout.strip().splitlines()[-1:]}")
        shutil.copy(self.package("*.deb"), tree / "belljar.deb")

        def inside(*command: str) -> subprocess.CompletedProcess[str]:
            env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8", "BELLJAR_SERVER_LINGER": "1s"}
            # Below the directory that the package removes, with a name by which its processes are found.
            env["BELLJAR_HOME"] = f"/var/lib/belljar/{self.place.name}"
            enter = ["unshare", "--mount", "/bin/bash", "-c", ENTER, "enter", str(tree), *command]
            return subprocess.run(enter, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=STEP_TIMEOUT)

        def good(*command: str) -> str:
            done = inside(*command)
            self.assertEqual(done.returncode, 0, f"{command}\n{done.stdout}\n{done.stderr}")
            return done.stdout

        before = set(listing(tree))
        good("dpkg", "--install", "/belljar.deb")
        self.assertIn("belljar:", (tree / "etc/passwd").read_text("utf-8"))
        self.assertTrue(good("belljar", "--version").startswith("belljar "))
        self.assertEqual(good("belljar", "run", "-c", "print(2**64)").strip(), RESULT)
        self.assertTrue(json.loads(good("belljar", "doctor", "--self-test", "--json"))["is_contained"])
        good("belljar", "config", "check")
        # The SDKs with the program on the PATH.
        sdk = tree / "opt/sdk"
        self.run_ok("/usr/bin/python3", "-m", "pip", "--disable-pip-version-check", "--quiet", "install", "--target", sdk, self.package("*any.whl"))
        (sdk / "first.py").write_text(PYTHON, "utf-8")
        self.assertEqual(good("python3", "/opt/sdk/first.py").strip(), RESULT)
        (sdk / "package.json").write_text('{"private": true, "type": "module"}', "utf-8")
        self.run_ok("npm", "install", "--prefix", sdk, "--omit=optional", "--no-audit", "--no-fund", self.package("belljar-[0-9]*.tgz"))
        (sdk / "first.js").write_text(JAVASCRIPT, "utf-8")
        self.assertEqual(good("node", "/opt/sdk/first.js").strip(), RESULT)
        shutil.rmtree(sdk)
        self.wait_for_nothing_left()
        good("dpkg", "--purge", "belljar")
        ignored = ("/var/lib/dpkg", "/var/log/", "/etc/passwd", "/etc/group", "/etc/shadow", "/etc/gshadow", "/etc/subuid", "/etc/subgid", "/run/mount", "/.old")
        left = [path for path in set(listing(tree)) - before if not path[len(str(tree)):].startswith(ignored)]
        self.assertEqual(left, [])
        self.assertNotIn("belljar:", (tree / "etc/passwd").read_text("utf-8"))

    def test_debian_12(self) -> None:
        self.install_and_remove("bookworm")

    def test_debian_13(self) -> None:
        self.install_and_remove("trixie")


class Lines(unittest.TextTestResult):
    """Prints skipped tests as the gate reads them."""

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        super().addSkip(test, reason)
        print(f"\nSKIPPED the package test {test.id().removeprefix('__main__.')}: {reason}", flush=True)


def main() -> None:
    global DIST, PROGRAM
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    DIST, PROGRAM = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
    runner: Callable[..., Any] = unittest.TextTestRunner(verbosity=2, resultclass=Lines, stream=sys.stdout)
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], testRunner=runner)


if __name__ == "__main__":
    main()
