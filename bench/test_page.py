"""Tests of the page's rows and tables, by results made up here."""

import argparse
import json
import os
import tempfile
import unittest

import ablation
import report
import spread
import tables

# Rates of four rounds: those of OURS lie above those of THEIRS in each, or on both sides of them.
OURS, AHEAD, EVEN = [2.0, 2.2, 2.1, 2.3], [1.0, 1.1, 1.0, 1.0], [2.1, 2.1, 2.2, 2.2]
REFUSED = "no ratio: its rounds say 0.95 to 1.05 x"


def rounds(ours, theirs, names):
    return [{names[0]: {"mpps": one}, names[1]: {"mpps": other}} for one, other in zip(ours, theirs)]


class Ratios(unittest.TestCase):
    def both(self, made):
        """Compares the text that `made` returns for rates of both sides with what the rates allow to say."""
        self.assertIn("2.15 x (2.00 to 2.30)", made(OURS, AHEAD))
        self.assertIn(REFUSED, made(OURS, EVEN))

    def test_of_lists(self):
        self.both(spread.beside)

    def test_of_comparisons(self):
        self.both(lambda *of: report.ratio_of("veth", {"rounds": rounds(*of, ("bywash", "peer"))}))
        self.both(lambda *of: report.ratio_of("nat", {"rounds": rounds(*of, ("driver", "kernel"))}))
        self.both(lambda ours, theirs: report.ratio_of("generator", {"rounds": list(zip(theirs, ours))}))

    def test_of_tcp(self):
        # The second direction is ten times as fast.
        directions = lambda rates: [rates, [10 * rate for rate in rates]]
        rows = lambda *of: [{"samples": dict(zip(("bywash", "kernel"), samples))} for samples in zip(*map(directions, of))]
        self.both(lambda *of: report.ratio_of("tcp", {"rows": rows(*of)}))

    def test_of_pools(self):
        def run(ours, theirs):
            row = lambda order, kind, t, rates: {"order": order, "kind": kind, "threads": t, "rounds_mpps": rates}
            return {"rows": [row(order, kind, t, rates) for order in ("fifo", "lifo") for t in (1, 2)
                             for kind, rates in (("tabm", ours), ("sdb", theirs))]}
        self.both(lambda *of: report.affine(run(*of)))

    def test_of_af_xdp(self):
        def table(*of):
            row = {"app": "rxdrop", "mode": "rtc", "size": 64, "seconds": 1, "mpps": 2.15, "peer_mpps": 1.0, "cycles_per_packet": 35,
                   "kernel_percent": 0, "system_calls_per_packet": {}, "rounds": rounds(*of, ("bywash", "peer"))}
            return tables.modes({"peer": "DPDK", "rows": [row]}, None, None)
        drawn, tables.draw = tables.draw, lambda *_: None
        try:
            self.both(table)
        finally:
            tables.draw = drawn

    def test_of_techniques(self):
        table, useless = ablation.text([("a", "b", OURS, AHEAD), ("c", "d", OURS, EVEN)]).split("No gain here:")
        self.assertIn("| a | b | 2.15 | 1.00 | 0.47 x (0.43 to 0.50) |", table)
        self.assertIn("- c (d): without it no ratio: its rounds say 0.95 to 1.05 x (2.15, 2.15)", useless)


class Kept(unittest.TestCase):
    def test_results_have_their_own_date_and_machine(self):
        with tempfile.TemporaryDirectory() as out:
            page = report.Report(argparse.Namespace(out=out))

            def row(script, **facts):
                path = os.path.join(out, script + ".json")
                with open(path, "w") as file:
                    json.dump(facts, file)
                page.rows = []
                page.beside(script, "what", lambda _: "figure")
                return page.rows[0], path
            plain = "| what | figure | `bench/peers/veth.sh` |"
            self.assertEqual(row("veth", **page.here)[0], plain)
            self.assertIn("| what (2001-02-03) | figure |", row("veth", **{**page.here, "date": "2001-02-03"})[0])
            self.assertIn("| what (2001-02-03, A Z80, Linux 0.1) | figure |",
                          row("veth", date="2001-02-03", cpu_model="A Z80", kernel="0.1")[0])
            # A result without a date is as old as its file.
            _, path = row("veth")
            os.utime(path, (1e9, 1e9))
            self.assertIn(page.apart("veth"), ("2001-09-08", "2001-09-09"))
            page.rows = []
            page.beside("tcp", "what", lambda _: "figure")
            self.assertEqual(page.rows[0], "| what | not measured: left out of this run | `bench/peers/tcp.sh` |")


if __name__ == "__main__":
    unittest.main()
