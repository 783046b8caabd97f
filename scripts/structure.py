#!/usr/bin/env python3
"""Checks the structure of the crates: which one uses which, and how many files of one import each other in a circle.

usage: structure.py [--circles]

Both are held at what they are, so that they change on purpose. With --circles the files of each circle are listed.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# The crates that each crate uses, without `belljar-` and without those of its tests. A crate uses only crates further up.
USES = {
    "files": [],
    "guest-config": [],
    "http-hop": [],
    "linux": [],
    "proto": [],
    "testing": [],
    "model": ["http-hop"],
    "screen": ["linux"],
    "guest": ["files", "guest-config", "linux", "proto"],
    "gateway": ["http-hop", "linux", "model"],
    "config": ["model"],
    "store": ["model"],
    "hostile": ["linux", "model"],
    "registry": ["model"],
    "engine": ["guest-config", "model", "proto"],
    "client": ["engine", "proto"],
    "image": ["engine", "model"],
    "local": ["engine", "gateway", "guest-config", "linux", "model"],
    "docker": ["engine", "guest-config", "linux", "local", "model"],
    "gvisor": ["engine", "guest-config", "linux", "local", "model"],
    "keeper": ["engine", "image", "model", "registry", "screen", "store"],
    "api": ["engine", "http-hop", "keeper", "model", "proto"],
    "belljar": [
        "api", "client", "config", "docker", "engine", "files", "guest", "guest-config", "gvisor", "hostile", "image", "keeper",
        "local", "model", "screen", "store",
    ],
    "fuzz": [
        "api", "engine", "files", "gateway", "guest", "guest-config", "http-hop", "image", "linux", "model", "proto", "screen",
    ],
}

# Number of files in the largest circle of a crate, where that is more than three.
CIRCLES = {"api": 10, "belljar": 30, "engine": 7, "gateway": 10, "guest": 9, "keeper": 37, "local": 7, "model": 4}


def used_crates(manifest):
    """Returns the crates of the workspace that a crate uses, without those of its tests."""
    section, used = "", set()
    for line in manifest.read_text().splitlines():
        if line.startswith("["):
            section = line
        elif section == "[dependencies]" and line.startswith("belljar-"):
            used.add(re.split(r"[. =]", line)[0][len("belljar-") :])
    return used


def imports(source):
    """Returns the files of a crate that each of its files imports."""
    files = {path.relative_to(source): path for path in source.rglob("*.rs")}
    modules = {}
    for path in files:
        parts = list(path.with_suffix("").parts)
        if parts[-1] in ("mod", "lib", "main"):
            parts.pop()
        modules[tuple(parts)] = path
    graph = {}
    for path, file in files.items():
        text = re.sub(r"//[^\n]*", "", file.read_text())
        text = re.sub(r"\bpub\([^)]*\)", "pub", text)
        # Tests may import what they like.
        text = text.split("#[cfg(test)]\nmod tests {")[0]
        parts = list(path.with_suffix("").parts)
        if parts[-1] in ("mod", "lib", "main"):
            parts.pop()
        named = set()
        for words in re.findall(r"\b(crate|super|self)((?:::super)*)((?:::[a-z_0-9]+)*)(::\{)?", text):
            start, supers, names, group = words
            if start == "crate":
                base = []
            elif start == "super":
                base = parts[: len(parts) - 1 - supers.count("super")]
            else:
                continue
            names = [name for name in names.split("::") if name]
            found = base + names
            while found and tuple(found) not in modules:
                found.pop()
            if group and tuple(found) == tuple(base):
                continue
            named.add(modules.get(tuple(found)))
        # `use crate::{a::B, c::D}`
        for group in re.findall(r"use crate::\{(.*?)\};", text, re.S):
            for name in re.findall(r"(?:^|[,{]\s*)([a-z_0-9]+)", group):
                named.add(modules.get((name,)))
        named.discard(None)
        named.discard(path)
        # A module's own file names its children to declare them.
        graph[path] = named
    return graph


def circles(graph):
    """Returns the strongly connected components with more than one file (Tarjan)."""
    index, low, stack, on, found = {}, {}, [], set(), []

    def visit(node):
        work = [(node, iter(graph[node]))]
        index[node] = low[node] = len(index)
        stack.append(node)
        on.add(node)
        while work:
            current, rest = work[-1]
            for other in rest:
                if other not in index:
                    index[other] = low[other] = len(index)
                    stack.append(other)
                    on.add(other)
                    work.append((other, iter(graph[other])))
                    break
                if other in on:
                    low[current] = min(low[current], index[other])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[current])
                if low[current] == index[current]:
                    component = set()
                    while True:
                        other = stack.pop()
                        on.discard(other)
                        component.add(other)
                        if other == current:
                            break
                    if len(component) > 1:
                        found.append(component)

    for node in graph:
        if node not in index:
            visit(node)
    return found


def main():
    faults = []
    names = {path.parent.name.replace("belljar-", ""): path for path in sorted(ROOT.glob("crates/*/Cargo.toml"))}
    order = list(USES)
    for name, manifest in names.items():
        used = used_crates(manifest)
        if used != set(USES.get(name, [])):
            listed = ", ".join(sorted(used)) or "none"
            faults.append(f"{name} uses {listed}, which is not what scripts/structure.py says; change it there if it is meant")
        for other in used:
            if name not in order or order.index(other) > order.index(name):
                faults.append(f"{name} uses {other}, which is further down; a crate uses only crates further up")
        found = sorted(circles(imports(manifest.parent / "src")), key=len, reverse=True)
        largest = max(map(len, found), default=1)
        allowed = CIRCLES.get(name, 3)
        if largest > allowed:
            faults.append(
                f"{largest} files of {name} import each other in a circle, {allowed} are allowed: "
                + ", ".join(sorted(map(str, found[0])))
            )
        elif name in CIRCLES and largest < allowed:
            faults.append(f"the largest circle of {name} has {largest} files now: write that into scripts/structure.py")
        if "--circles" in sys.argv:
            for circle in found:
                print(name, len(circle), ", ".join(sorted(map(str, circle))))
    for fault in faults:
        print(f"structure: {fault}", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
