#!/usr/bin/env python3
"""Generates from regs.toml everything that depends on the register map: the RTL's package, the host driver's constants,
the table in docs/rtl.md. With --check, only reports whether they are up to date."""

import pathlib
import sys
import textwrap
import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[2]
MAP = tomllib.loads((ROOT / "rtl/regs.toml").read_text())
MADE = "Made by rtl/tools/regs.py from rtl/regs.toml."
BEGIN, END = "<!-- registers: made by rtl/tools/regs.py -->", "<!-- end of registers -->"


def bits(field):
    high, low = (int(b) for b in field["bits"].split(":"))
    return low, high - low + 1


def rtl():
    out = [f"// {MADE}", "// Fields that only the host looks at are not used here.", "/* verilator lint_off UNUSEDPARAM */", "package npe_map;", f"    localparam logic [31:0] VERSION = {MAP['version']};"]
    for r in MAP["register"]:
        out.append(f"    localparam logic [11:0] {r['name']} = 12'h{r['at']:03x};")
    for r in MAP["register"]:
        for f in r.get("fields", []):
            low, width = bits(f)
            name = f"{r['name']}_{f['name']}"
            out.append(f"    localparam int {name} = {low};")
            if width > 1:
                out.append(f"    localparam int {name}_BITS = {width};")
    return "\n".join(out + ["endpackage", "/* verilator lint_on UNUSEDPARAM */", ""])


def header():
    out = [f"// {MADE}", "#pragma once", "#include <cstdint>", "namespace map {"]
    out.append(f"constexpr uint32_t VERSION = {MAP['version']};")
    for r in MAP["register"]:
        out.append(f"constexpr uint32_t {r['name']} = {r['at']:#05x};")
        out += [f"constexpr unsigned {r['name']}_{f['name']} = {bits(f)[0]};" for f in r.get("fields", [])]
    return "\n".join(out + ["}", ""])


def doc(text):
    return textwrap.wrap(text, 120, initial_indent="/// ", subsequent_indent="/// ", break_on_hyphens=False)


def rust():
    out = [f"//! The engine's registers. {MADE}", "", '#![allow(dead_code, reason = "the whole map, of which a driver uses a part")]', ""]
    out += ["/// The version of this map."]
    out.append(f"pub const VERSION: u32 = {MAP['version']};")
    for r in MAP["register"]:
        step = " The first; one each 8 bytes." if "each" in r else ""
        out += ["", *doc(f"{r['text']}{step}"), f"pub const {r['name']}: u32 = {r['at']:#05x};"]
        for f in r.get("fields", []):
            low, width = bits(f)
            text = f["text"][0].upper() + f["text"][1:]
            out += [*doc(f"{text}."), f"pub const {r['name']}_{f['name']}: Field = Field {{ low: {low}, bits: {width} }};"]
    out += ["", "/// A field of a register.", "#[derive(Clone, Copy)]", "pub struct Field {", "    low: u32,", "    bits: u32,"]
    out += ["}", "", "impl Field {", "    /// Returns its value in a register's.", "    pub const fn of(self, value: u64) -> u64 {"]
    out += ["        value >> self.low & (u64::MAX >> (64 - self.bits))", "    }", ""]
    out += ["    /// Returns `value` in its place.", "    pub const fn put(self, value: u64) -> u64 {"]
    out += ["        (value & (u64::MAX >> (64 - self.bits))) << self.low", "    }", "}", ""]
    return "\n".join(out)


def docs():
    out = [BEGIN, "", "| at | name | access | |", "|---|---|---|---|"]
    for r in MAP["register"]:
        at, name = f"`{r['at']:#05x}`", f"`{r['name']}`"
        if "each" in r:
            at, name = f"{at} + 8n", f"{name}, n < {r['each']}"
        text = r["text"]
        for f in r.get("fields", []):
            low, width = bits(f)
            where = f"{low + width - 1}:{low}" if width > 1 else f"{low}"
            text += f"<br>{where} `{f['name']}`: {f['text']}"
        out.append(f"| {at} | {name} | {r['access']} | {text} |")
    return "\n".join(out + ["", END])


def page(text):
    before, rest = text.split(BEGIN)
    return before + docs() + rest.split(END)[1]


def main():
    stale = []
    document = ROOT / "docs/rtl.md"
    made = {ROOT / "rtl/src/npe_map.sv": rtl(), ROOT / "rtl/bench/map.h": header(), ROOT / "crates/port/src/npe/rtl/regs.rs": rust()}
    if document.exists():
        made[document] = page(document.read_text())
    for path, text in made.items():
        if "--check" not in sys.argv:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            stale.append(str(path.relative_to(ROOT)))
    if stale:
        sys.exit(f"{', '.join(stale)}: not what regs.toml gives; run rtl/tools/regs.py")


main()
