#!/usr/bin/env python3
"""Checks the licence of every dependency against the list in deny.toml, for machines without cargo-deny."""

import json
import pathlib
import re
import subprocess
import sys


def allowed_by(expression: str, allow: set[str]) -> bool:
    """Whether an SPDX expression can be satisfied from the list. AND binds closer than OR."""
    tokens = re.findall(r"\(|\)|[^\s()]+", expression.replace("/", " OR "))
    position = 0

    def either() -> bool:
        nonlocal position
        good = both()
        while position < len(tokens) and tokens[position].upper() == "OR":
            position += 1
            good = both() or good
        return good

    def both() -> bool:
        nonlocal position
        good = one()
        while position < len(tokens) and tokens[position].upper() == "AND":
            position += 1
            good = one() and good
        return good

    def one() -> bool:
        nonlocal position
        if tokens[position] == "(":
            position += 1
            good = either()
            position += 1  # the closing bracket
            return good
        name = tokens[position]
        position += 1
        if position < len(tokens) and tokens[position].upper() == "WITH":
            name = f"{name} WITH {tokens[position + 1]}"
            position += 2
        return name in allow

    return bool(tokens) and either()


def main() -> int:
    root = pathlib.Path(__file__).resolve().parent.parent
    # The one list of strings called `allow` in the file; no TOML reader comes with older Pythons.
    listed = re.search(r"^allow = \[(.*?)\]", (root / "deny.toml").read_text(), re.MULTILINE | re.DOTALL)
    allow = set(re.findall(r'"([^"]+)"', listed.group(1)))
    command = ["cargo", "metadata", "--format-version=1", "--locked"]
    packages = json.loads(subprocess.run(command, cwd=root, check=True, capture_output=True).stdout)["packages"]
    refused = [
        f"{p['name']} {p['version']}: {p['license'] or 'no licence in its manifest'}"
        for p in packages
        if not allowed_by(p["license"] or "", allow)
    ]
    for line in refused:
        print(f"licence not in deny.toml: {line}", file=sys.stderr)
    print(f"licences: {len(packages)} packages, {len(refused)} refused")
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main())
