#!/usr/bin/env python3
"""Prints the parts of the program `bywash` as a CycloneDX document, the same for the same Cargo.lock.

usage: tools/sbom.py [--features FEATURES]
"""

import json
import os
import subprocess
import sys
import tomllib
import uuid

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
TARGET = "x86_64-unknown-linux-gnu"


def main():
    command = [os.environ.get("CARGO", "cargo"), "metadata", "--locked", "--format-version", "1"]
    command += ["--filter-platform", TARGET, *sys.argv[1:]]
    found = json.loads(subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout)
    packages = {package["id"]: package for package in found["packages"]}
    nodes = {node["id"]: node for node in found["resolve"]["nodes"]}
    program = next(identity for identity, package in packages.items() if package["name"] == "bywash")
    with open(os.path.join(ROOT, "Cargo.lock"), "rb") as file:
        lock = tomllib.load(file)["package"]
    sums = {(one["name"], one["version"]): one.get("checksum") for one in lock}

    # What the program links and what builds it; what only tests need is no part.
    edges, todo = {}, [program]
    while todo:
        at = todo.pop()
        if at in edges:
            continue
        needed = [d["pkg"] for d in nodes[at]["deps"] if any(kind["kind"] != "dev" for kind in d["dep_kinds"])]
        edges[at] = needed
        todo += needed

    def purl(identity):
        return f"pkg:cargo/{packages[identity]['name']}@{packages[identity]['version']}"

    def component(identity):
        package = packages[identity]
        part = {
            "type": "application" if identity == program else "library",
            "bom-ref": purl(identity),
            "name": package["name"],
            "version": package["version"],
            "purl": purl(identity),
        }
        if package["license"]:
            # Older manifests separate choices by a slash.
            part["licenses"] = [{"expression": package["license"].replace(" / ", "/").replace("/", " OR ")}]
        checksum = sums[(package["name"], package["version"])]
        if checksum:
            part["hashes"] = [{"alg": "SHA-256", "content": checksum}]
        return part

    order = sorted(edges, key=purl)
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": "",
        "version": 1,
        "metadata": {"component": component(program)},
        "components": [component(identity) for identity in order if identity != program],
        "dependencies": [{"ref": purl(i), "dependsOn": sorted({purl(d) for d in edges[i]})} for i in order],
    }
    document["serialNumber"] = f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(document))}"
    print(json.dumps(document, indent=1))


main()
