#!/usr/bin/env python3
"""Builds the packages of Belljar into a directory: wheels, npm packages, a deb, a tarball, checksums, an SBOM and notices.

usage: dist.py --belljar PROGRAM --sdk-typescript DIRECTORY [--out DIRECTORY] [--fast]

PROGRAM is a compiled `belljar` with `belljar-service` and `belljar-guest` beside it, and DIRECTORY the TypeScript SDK after its build. Needs Python 3.11 and
cargo, and no network. Everything that varies is removed: the same inputs give the same bytes. Times are SOURCE_DATE_EPOCH, or that of
the commit.
"""

from __future__ import annotations

import argparse
import base64
import csv
import gzip
import hashlib
import io
import json
import lzma
import os
import re
import struct
import subprocess
import sys
import tarfile
import time
import tomllib
import zipfile
from pathlib import Path
from typing import Dict, Iterable, Iterator, List, NamedTuple, Optional, Set

ROOT = Path(__file__).resolve().parent.parent

PROGRAMS = ["belljar", "belljar-guest", "belljar-service"]

# The first time that a ZIP archive can express, in seconds since 1970.
ZIP_EPOCH = 315_532_800

MAINTAINER = "The Belljar developers <belljar@users.noreply.github.com>"


class Machine(NamedTuple):
    """The names of a processor's architecture."""

    # e_machine of elf(5).
    elf: int
    rust: str
    wheel: str
    npm: str
    debian: str


MACHINES = [
    Machine(62, "x86_64-unknown-linux-gnu", "x86_64", "x64", "amd64"),
    Machine(183, "aarch64-unknown-linux-gnu", "aarch64", "arm64", "arm64"),
]


class File(NamedTuple):
    """A file of a package."""

    path: str
    data: bytes
    mode: int = 0o644


class Build(NamedTuple):
    """What all packages have in common."""

    version: str
    # Seconds since 1970.
    epoch: int
    machine: Machine
    programs: List[File]
    manuals: List[File]
    completions: Dict[str, bytes]
    notices: bytes
    # 1 to 9.
    compression: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--belljar", type=Path, required=True, help="the program")
    parser.add_argument("--sdk-typescript", type=Path, required=True, help="the TypeScript SDK, built")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="where the packages go")
    parser.add_argument("--fast", action="store_true", help="compress little, for tests")
    given = parser.parse_args()
    programs = [File(name, (given.belljar.parent / name).read_bytes(), 0o755) for name in PROGRAMS]
    machine = static_machine(programs)
    packages = dependencies(machine)
    build = Build(
        version=version(),
        epoch=source_epoch(),
        machine=machine,
        programs=programs,
        manuals=manuals(given.belljar),
        completions={shell: output(given.belljar, "completion", shell) for shell in ["bash", "zsh", "fish"]},
        notices=notices(packages),
        compression=1 if given.fast else 9,
    )
    made = [
        *wheels(build),
        *npm_packages(build, given.sdk_typescript),
        deb(build),
        tarball(build),
        File(f"belljar-{build.version}.cdx.json", sbom(build, packages)),
        File("THIRD-PARTY.txt", build.notices),
    ]
    sums = "".join(f"{hashlib.sha256(file.data).hexdigest()}  {file.path}\n" for file in sorted(made))
    given.out.mkdir(parents=True, exist_ok=True)
    for file in [*made, File("SHA256SUMS", sums.encode())]:
        (given.out / file.path).write_bytes(file.data)
        print(f"{len(file.data):>12,}  {given.out / file.path}", flush=True)


# The inputs.


def version() -> str:
    """Returns the version, which the workspace's manifest alone states, after checking the copies that tools need."""
    stated = tomllib.loads((ROOT / "Cargo.toml").read_text("utf-8"))["workspace"]["package"]["version"]
    copies = {
        "sdk/python/src/belljar/_version.py": r'__version__ = "(.*)"',
        "sdk/typescript/package.json": r'"version": "(.*)"',
        "sdk/typescript/package-lock.json": r'"version": "(.*)"',
    }
    for path, pattern in copies.items():
        found = re.search(pattern, (ROOT / path).read_text("utf-8"))
        if found is None or found[1] != stated:
            sys.exit(f"dist: {path} has another version than Cargo.toml, {stated}; set it with scripts/set-version.sh {stated}")
    return stated


def source_epoch() -> int:
    """Returns the time that all files have, in seconds since 1970."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    if given is None:
        log = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        given = log.stdout.decode().strip() if log.returncode == 0 else ""
    return max(int(given or ZIP_EPOCH), ZIP_EPOCH)


def static_machine(programs: List[File]) -> Machine:
    """Returns the architecture that the programs are for. Exits if one of them needs a dynamic linker: the tags would be wrong."""
    machines = set()
    for program in programs:
        head = program.data[:64]
        if not head.startswith(b"\x7fELF\x02\x01"):
            sys.exit(f"dist: {program.path} is not an ELF program of 64 bits")
        machines.add(struct.unpack_from("<H", head, 18)[0])
        (offset,) = struct.unpack_from("<Q", head, 32)
        size, count = struct.unpack_from("<HH", head, 54)
        kinds = {struct.unpack_from("<I", program.data, offset + size * index)[0] for index in range(count)}
        # PT_INTERP of elf(5).
        if 3 in kinds:
            sys.exit(f"dist: {program.path} is linked dynamically; build it as .cargo/config.toml says")
    found = [machine for machine in MACHINES if {machine.elf} == machines]
    if not found:
        sys.exit(f"dist: the programs are for {machines or 'no machine'}; packages exist for {', '.join(m.rust for m in MACHINES)}")
    return found[0]


def output(program: Path, *arguments: str) -> bytes:
    """Runs the program, and returns its output."""
    environment = {"PATH": os.defpath, "COLUMNS": "80", "NO_COLOR": "1", "LC_ALL": "C.UTF-8"}
    return subprocess.run([program.resolve(), *arguments], env=environment, check=True, stdout=subprocess.PIPE).stdout


class Package(NamedTuple):
    """A crate that is part of the program."""

    name: str
    version: str
    license: str
    checksum: Optional[str]
    directory: Path
    dependencies: List[str]


def dependencies(machine: Machine) -> List[Package]:
    """Returns the crates that the program consists of, without those that only its build needs."""
    command = ["cargo", "metadata", "--locked", "--offline", "--format-version", "1", "--filter-platform", machine.rust]
    metadata = json.loads(subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout)
    lock = tomllib.loads((ROOT / "Cargo.lock").read_text("utf-8"))["package"]
    checksums = {(package["name"], package["version"]): package.get("checksum") for package in lock}
    by_id = {package["id"]: package for package in metadata["packages"]}
    edges = {
        node["id"]: [dep["pkg"] for dep in node["deps"] if any(kind["kind"] is None for kind in dep["dep_kinds"])]
        for node in metadata["resolve"]["nodes"]
    }
    pending = [id for id, package in by_id.items() if package["name"] == "belljar" and package["source"] is None]
    reached: Set[str] = set()
    while pending:
        id = pending.pop()
        if id not in reached:
            reached.add(id)
            pending += edges[id]
    packages = []
    for id in reached:
        package = by_id[id]
        packages.append(
            Package(
                name=package["name"],
                version=package["version"],
                license=(package["license"] or "").replace("/", " OR "),
                checksum=checksums.get((package["name"], package["version"])),
                directory=Path(package["manifest_path"]).parent,
                dependencies=sorted(purl(by_id[other]["name"], by_id[other]["version"]) for other in edges[id]),
            )
        )
    return sorted(packages)


def purl(name: str, version: str) -> str:
    """Returns the URL of a crate, as in github.com/package-url/purl-spec."""
    return f"pkg:cargo/{name}@{version}"


def sbom(build: Build, packages: List[Package]) -> bytes:
    """Returns the list of components, as CycloneDX 1.5."""
    components = []
    for package in packages:
        component = {
            "type": "library",
            "bom-ref": purl(package.name, package.version),
            "name": package.name,
            "version": package.version,
            "purl": purl(package.name, package.version),
        }
        if package.license:
            component["licenses"] = [{"expression": package.license}]
        if package.checksum:
            component["hashes"] = [{"alg": "SHA-256", "content": package.checksum}]
        components.append(component)
    own = purl("belljar", build.version)
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(build.epoch)),
            "component": {"type": "application", "bom-ref": own, "name": "belljar", "version": build.version, "purl": own},
        },
        "components": [component for component in components if component["bom-ref"] != own],
        "dependencies": [{"ref": purl(package.name, package.version), "dependsOn": package.dependencies} for package in packages],
    }
    return (json.dumps(document, indent=1, sort_keys=True) + "\n").encode()


LICENSE_NAMES = re.compile(r"(?i)(licen[cs]e|copying|notice|copyright)([-._].*)?$")

LINKED = """\
The programs belljar, belljar-guest and belljar-service are linked statically with the GNU C library (LGPL-2.1-or-later), with the support library of GCC
(GPL-3.0-or-later with the GCC Runtime Library Exception) and with the standard library of Rust (MIT OR Apache-2.0). Belljar's source,
with which the programs can be linked again with another version of these libraries, is at https://github.com/belljar/belljar.

"""


def notices(packages: List[Package]) -> bytes:
    """Returns the licenses of everything that the program includes, each text once."""
    users: Dict[str, List[str]] = {}
    for package in packages:
        if package.checksum is None:
            continue
        name = f"{package.name} {package.version} ({package.license})"
        texts = sorted(path for path in package.directory.iterdir() if path.is_file() and LICENSE_NAMES.match(path.name))
        for path in texts:
            users.setdefault(path.read_text("utf-8", "replace").strip() + "\n", []).append(name)
        if not texts:
            users.setdefault("The package has no text of its license.\n", []).append(name)
    parts = [LINKED]
    for text, names in sorted(users.items(), key=lambda item: item[1]):
        parts.append("=" * 80 + "\n" + "".join(f"{name}\n" for name in names) + "\n" + text + "\n")
    # The libraries of the console.
    parts.append((ROOT / "console/NOTICES.txt").read_text("utf-8"))
    return "".join(parts).encode()


def manuals(program: Path) -> List[File]:
    """Returns a page of the manual for the program and for each of its commands, made from their help."""
    top = output(program, "--help").decode()
    pages = [File("belljar.1", manual("belljar", [([], top)]))]
    for command in commands(top):
        sections = [(words, output(program, *words, "--help").decode()) for words in subcommands(program, [command])]
        pages.append(File(f"belljar-{command}.1", manual(f"belljar-{command}", sections)))
    return pages


def commands(text: str) -> List[str]:
    """Returns the names in the list of commands of a help text."""
    listed = re.search(r"^Commands:\n((?: .*\n)+)", text, re.MULTILINE)
    return re.findall(r"^  (\S+)", listed[1], re.MULTILINE) if listed else []


def subcommands(program: Path, words: List[str]) -> Iterator[List[str]]:
    """Yields a command, and all commands below it."""
    yield words
    for command in commands(output(program, *words, "--help").decode()):
        yield from subcommands(program, [*words, command])


def manual(name: str, sections: List[tuple[List[str], str]]) -> bytes:
    """Returns a page in the format of man(7): the help of one command, and of those below it, as it is."""
    about = sections[0][1].split("\n", 1)[0]
    lines = [f'.TH {name.upper()} 1 "" "belljar" "Belljar"', ".SH NAME", f"{name} \\- {roff(about)}"]
    for words, text in sections:
        lines += [f'.SH "{" ".join(["belljar", *words]).upper()}"', ".nf", *map(roff, text.rstrip("\n").split("\n")), ".fi"]
    other = "belljar(1)" if name != "belljar" else "belljar\\-COMMAND(1)"
    lines += [".SH SEE ALSO", f"{other}, https://github.com/belljar/belljar"]
    return ("\n".join(lines) + "\n").encode()


def roff(line: str) -> str:
    """Escapes a line of text."""
    escaped = line.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq")
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped


# The formats of archives.


def tar(files: Iterable[File], epoch: int, prefix: str = "", folders: bool = False) -> bytes:
    """Returns a tar archive of root's files, in order. With `folders` it also has the directories, as a deb needs."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        seen: Set[str] = set()
        for file in sorted(files):
            path = prefix + file.path
            parents = [str(parent) for parent in reversed(Path(path).parents) if str(parent) != "."] if folders else []
            for parent in ["./", *(f"./{parent}/" for parent in parents)] if folders else []:
                if parent not in seen:
                    seen.add(parent)
                    archive.addfile(tar_entry(parent, 0o755, epoch, tarfile.DIRTYPE))
            entry = tar_entry(f"./{path}" if folders else path, file.mode, epoch, tarfile.REGTYPE)
            entry.size = len(file.data)
            archive.addfile(entry, io.BytesIO(file.data))
    return buffer.getvalue()


def tar_entry(path: str, mode: int, epoch: int, kind: bytes) -> tarfile.TarInfo:
    """Returns the header of an entry."""
    entry = tarfile.TarInfo(path)
    entry.mode, entry.mtime, entry.type = mode, epoch, kind
    entry.uname = entry.gname = "root"
    return entry


def gz(data: bytes, level: int) -> bytes:
    """Compresses without a name and a time."""
    return gzip.compress(data, level, mtime=0)


# The packages.


def wheels(build: Build) -> Iterator[File]:
    """Yields the wheel with the programs, and one of the SDK alone for other machines, which are clients."""
    arch = build.machine.wheel
    # Static programs need no C library, so they run on every Linux; the tags are the oldest that installers know.
    tags = [f"py3-none-{system}_{arch}" for system in ["manylinux2014", "manylinux_2_17", "musllinux_1_1"]]
    yield wheel(build, tags, build.programs)
    yield wheel(build, ["py3-none-any"], [])


def wheel(build: Build, tags: List[str], programs: List[File]) -> File:
    """Returns a wheel, as in packaging.python.org/en/latest/specifications/binary-distribution-format."""
    source = ROOT / "sdk/python"
    project = tomllib.loads((source / "pyproject.toml").read_text("utf-8"))["project"]
    info = f"belljar-{build.version}.dist-info"
    metadata = [
        "Metadata-Version: 2.1",
        "Name: belljar",
        f"Version: {build.version}",
        f"Summary: {project['description']}",
        "Project-URL: Source, https://github.com/belljar/belljar",
        f"License: {project['license']['text']}",
        f"Keywords: {','.join(project['keywords'])}",
        *(f"Classifier: {classifier}" for classifier in project["classifiers"]),
        f"Requires-Python: {project['requires-python']}",
        "Description-Content-Type: text/markdown",
        *(f"Requires-Dist: {requirement}" for requirement in project["dependencies"]),
        "",
        (source / "README.md").read_text("utf-8"),
    ]
    kind = ["Wheel-Version: 1.0", "Generator: belljar-dist", "Root-Is-Purelib: " + ("false" if programs else "true")]
    package = [path for path in (source / "src/belljar").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    files = [
        *sorted(File(str(path.relative_to(source / "src")), path.read_bytes()) for path in package),
        *(program._replace(path=f"belljar-{build.version}.data/scripts/{program.path}") for program in programs),
        File(f"{info}/METADATA", "\n".join(metadata).encode()),
        File(f"{info}/WHEEL", "\n".join([*kind, *(f"Tag: {tag}" for tag in tags), ""]).encode()),
        File(f"{info}/LICENSE", (ROOT / "LICENSE").read_bytes()),
        *([File(f"{info}/THIRD-PARTY.txt", build.notices)] if programs else []),
    ]
    record = io.StringIO()
    rows = csv.writer(record, lineterminator="\n")
    for file in files:
        digest = base64.urlsafe_b64encode(hashlib.sha256(file.data).digest()).rstrip(b"=").decode()
        rows.writerow([file.path, f"sha256={digest}", len(file.data)])
    rows.writerow([f"{info}/RECORD", "", ""])
    files.append(File(f"{info}/RECORD", record.getvalue().encode()))
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=build.compression) as archive:
        for file in files:
            entry = zipfile.ZipInfo(file.path, time.gmtime(build.epoch)[:6])
            entry.create_system = 3
            # A regular file (S_IFREG of stat(2)).
            entry.external_attr = (0o100000 | file.mode) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, file.data, compresslevel=build.compression)
    platforms = ".".join(tag.removeprefix("py3-none-") for tag in tags)
    return File(f"belljar-{build.version}-py3-none-{platforms}.whl", buffer.getvalue())


def npm_packages(build: Build, sdk: Path) -> Iterator[File]:
    """Yields the package of the SDK, and that of the programs, which it depends on where they run."""
    machine = build.machine.npm
    manifest = json.loads((sdk / "package.json").read_text("utf-8"))
    platforms = [f"@belljar/linux-{other.npm}" for other in MACHINES if other.npm == machine]
    for unused in ["devDependencies", "scripts"]:
        manifest.pop(unused, None)
    manifest["optionalDependencies"] = {name: build.version for name in platforms}
    files = [File("package.json", dump(manifest))]
    for name in manifest["files"]:
        listed = sdk / name
        paths = sorted(path for path in listed.rglob("*") if path.is_file()) if listed.is_dir() else [listed]
        if not paths or not all(path.exists() for path in paths):
            sys.exit(f"dist: {listed} is missing; build the TypeScript SDK with `make -C sdk/typescript build`")
        runs = set(manifest["bin"].values())
        for path in paths:
            relative = str(path.relative_to(sdk))
            files.append(File(relative, path.read_bytes(), 0o755 if relative in runs else 0o644))
    yield File(f"belljar-{build.version}.tgz", gz(tar(files, build.epoch, "package/"), build.compression))
    own = {
        "name": f"@belljar/linux-{machine}",
        "version": build.version,
        "description": f"The programs of Belljar for Linux on {machine}",
        "license": "Apache-2.0",
        "repository": manifest["repository"],
        "os": ["linux"],
        "cpu": [machine],
        "main": "index.js",
        "preferUnplugged": True,
    }
    # The programs must lie in the file system with their modes, and the SDK finds them through this file.
    index = 'exports.program = require("node:path").join(__dirname, "bin", "belljar");\n'
    files = [
        File("package.json", dump(own)),
        File("index.js", index.encode()),
        File("LICENSE", (ROOT / "LICENSE").read_bytes()),
        File("THIRD-PARTY.txt", build.notices),
        *(program._replace(path=f"bin/{program.path}") for program in build.programs),
    ]
    yield File(f"belljar-linux-{machine}-{build.version}.tgz", gz(tar(files, build.epoch, "package/"), build.compression))


def dump(document: object) -> bytes:
    return (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode()


def unit(name: str) -> bytes:
    """Returns a unit of systemd for a package, which installs the program in /usr/bin."""
    return (ROOT / "deploy/systemd" / name).read_text("utf-8").replace("/usr/local/bin/", "/usr/bin/").encode()


def deb(build: Build) -> File:
    """Returns a package of Debian: deb(5), deb-control(5)."""
    doc = "usr/share/doc/belljar"
    level = build.compression
    configuration = "etc/belljar/belljar.toml"
    files = [
        *(program._replace(path=f"usr/bin/{program.path}") for program in build.programs),
        *(File(f"usr/share/man/man1/{page.path}.gz", gz(page.data, 9)) for page in build.manuals),
        File("usr/share/bash-completion/completions/belljar", build.completions["bash"]),
        File("usr/share/zsh/vendor-completions/_belljar", build.completions["zsh"]),
        File("usr/share/fish/vendor_completions.d/belljar.fish", build.completions["fish"]),
        File("usr/lib/systemd/system/belljar.service", unit("belljar.service")),
        File("usr/lib/systemd/system/belljar.socket", unit("belljar.socket")),
        File(configuration, (ROOT / "deploy/debian/belljar.toml").read_bytes()),
        File(f"{doc}/copyright", (ROOT / "LICENSE").read_bytes() + b"\n" + build.notices),
        File(f"{doc}/changelog.gz", gz((ROOT / "CHANGELOG.md").read_bytes(), 9)),
    ]
    sums = "".join(f"{hashlib.md5(file.data).hexdigest()}  {file.path}\n" for file in sorted(files) if file.path != configuration)
    kibibytes = sum(-(-len(file.data) // 1024) for file in files)
    control = (ROOT / "deploy/debian/control").read_text("utf-8").format(
        version=build.version, architecture=build.machine.debian, size=kibibytes, maintainer=MAINTAINER
    )
    scripts = ["postinst", "prerm", "postrm"]
    about = [
        File("control", control.encode()),
        File("conffiles", f"/{configuration}\n".encode()),
        File("md5sums", sums.encode()),
        *(File(name, (ROOT / "deploy/debian" / name).read_bytes(), 0o755) for name in scripts),
    ]
    members = [
        ("debian-binary", b"2.0\n"),
        ("control.tar.xz", lzma.compress(tar(about, build.epoch, folders=True), preset=6)),
        ("data.tar.xz", lzma.compress(tar(files, build.epoch, folders=True), preset=0 if level < 6 else 6)),
    ]
    archive = b"!<arch>\n"
    for name, data in members:
        archive += f"{name:<16}{build.epoch:<12}{0:<6}{0:<6}{'100644':<8}{len(data):<10}`\n".encode() + data + b"\n" * (len(data) % 2)
    return File(f"belljar_{build.version}_{build.machine.debian}.deb", archive)


def tarball(build: Build) -> File:
    """Returns an archive with everything, for other systems."""
    name = f"belljar-{build.version}-linux-{build.machine.wheel}"
    files = [
        *(program._replace(path=f"bin/{program.path}") for program in build.programs),
        *(page._replace(path=f"share/man/man1/{page.path}") for page in build.manuals),
        File("share/bash-completion/completions/belljar", build.completions["bash"]),
        File("share/zsh/site-functions/_belljar", build.completions["zsh"]),
        File("share/fish/vendor_completions.d/belljar.fish", build.completions["fish"]),
        *(File(str(path.relative_to(ROOT)), path.read_bytes()) for path in (ROOT / "deploy").rglob("*") if path.is_file()),
        *(File(other, (ROOT / other).read_bytes()) for other in ["LICENSE", "README.md", "CHANGELOG.md"]),
        File("THIRD-PARTY.txt", build.notices),
    ]
    return File(f"{name}.tar.gz", gz(tar(files, build.epoch, f"{name}/"), build.compression))


if __name__ == "__main__":
    main()
