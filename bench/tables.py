"""Tables and charts of docs/benchmarks.md with more than one figure in a row."""

import os

import charts
import spread

# Rates in Mpps from the document that compares AF_XDP modes on 40 Gbit/s NICs: run to completion, busy poll().
DOCUMENT = {"rxdrop": {"rtc": "39.3", "busy-poll": "30.4"}, "txpush": {"rtc": "68.0", "busy-poll": "51.1"},
            "l2fwd": {"rtc": "22.4; DPDK's scalar driver 20.0, vectorized 22.5", "busy-poll": "16.4"}}
SHORT = {"rxdrop": "rx", "txpush": "tx", "l2fwd": "fwd", "busy-poll": "busy"}
PEER = {"rxdrop": "rxonly", "txpush": "txonly", "l2fwd": "io"}


def draw(name, *args):
    with open(os.path.join(charts.IMG, name + ".svg"), "w") as file:
        file.write(charts.bars(*args))


def both(row):
    """Returns the rates of Bywash and of testpmd in each round."""
    return [turn["bywash"]["mpps"] for turn in row["rounds"]], [turn["peer"]["mpps"] for turn in row["rounds"]]


def modes(run, touched, by_socket):
    """`touched`, `by_socket`: runs with data that is read and written, and with sockets on both sides; None if there are none.

    testpmd's rxonly reads no data, so in rxdrop only Bywash's is touched."""
    # A mode `poll` that never calls poll(2) is `rtc`.
    same = [row for row in run["rows"] if row["mode"] == "poll" and row["system_calls_per_packet"].get("poll", 0) < 0.00005]
    rows = [row for row in run["rows"] if row not in same]

    def beside(other, row):
        found = [one for one in (other or {"rows": []})["rows"] if (one["app"], one["mode"]) == (row["app"], row["mode"])]
        return "; ".join(f"{one['mpps']:.2f}, {one['peer_mpps']:.2f}: {spread.beside(*both(one))}" for one in found)

    lines = [f"{run['peer']}, {rows[0]['size']} B, medians of {len(rows[0]['rounds'])} rounds of {rows[0]['seconds']} s, Mpps.", "",
             "| | mode | bywash | testpmd | ratio | data touched (in rxdrop by Bywash only): both, ratio | by sockets on both sides: both, ratio | cycles a packet | "
             "of them in the kernel | system calls a packet | published, NIC |", "|---|---|---|---|---|---|---|---|---|---|---|"]
    for row in rows:
        calls = ", ".join(f"{name} {n:.4f}" for name, n in row["system_calls_per_packet"].items() if n >= 0.00005)
        theirs = DOCUMENT[row["app"]].get(row["mode"])
        lines.append(f"| {row['app']} ({PEER[row['app']]}) | {row['mode']} | {row['mpps']:.2f} | {row['peer_mpps']:.2f} | "
                     f"{spread.beside(*both(row))} | {beside(touched, row)} | {beside(by_socket, row)} | {row['cycles_per_packet']:.0f} | {row['kernel_percent']:.0f} % | {calls or 'none'} | {theirs or ''} |")
    draw("afxdp", "AF_XDP on veth, 64 B", "Mpps", [f"{SHORT[row['app']]} {SHORT.get(row['mode'], row['mode'])}" for row in rows], "application and mode",
         [("Bywash", [row["mpps"] for row in rows]), ("testpmd", [row["peer_mpps"] for row in rows])])
    if same:
        lines += ["", "In mode `poll` " + " and ".join(row["app"] for row in same) + " did not call poll(2) once in 20,000 packets: this is "
                  "`rtc`, and is not listed."]
    return "\n".join([*lines, "", "![AF_XDP by mode](img/afxdp.svg)"])


def ports(run):
    by = {(row["ports"], row["size"]): row for row in run["rows"]}
    counts, sizes = sorted({row["ports"] for row in run["rows"]}), sorted({row["size"] for row in run["rows"]})
    lines = [f"Medians of {run['rounds']} rounds of {run['seconds']} s, Mpps: kernel / Bywash in user space / Bywash in the driver.", "",
             "| bytes | " + " | ".join(f"{n} ports" for n in counts) + " | Gbit/s in the driver, " + f"{counts[-1]} ports |",
             "|---|" + "---|" * (len(counts) + 1)]
    for size in sizes:
        cells = [" / ".join(f"{by[n, size][who + '_mpps']:.2f}" for who in ("kernel", "user", "driver")) for n in counts]
        # Includes preamble and inter-frame gap.
        gbps = by[counts[-1], size]["driver_mpps"] * (size + 20) * 8 / 1000
        lines.append(f"| {size} | " + " | ".join(cells) + f" | {gbps:.1f} |")
    last = counts[-1]
    draw("ports", f"Forwarding on {last} veth ports", "Mpps", sizes, "bytes a frame",
         [(name, [by[last, size][who + "_mpps"] for size in sizes])
          for name, who in (("kernel", "kernel"), ("user space", "user"), ("driver", "driver"))])
    return "\n".join([*lines, "", f"![Forwarding on {last} ports](img/ports.svg)"])


def rfc2544(run):
    devices, by = ("kernel", "user", "driver"), {}
    for row in run["rows"]:
        median = sorted(row["pps"])[len(row["pps"]) // 2]
        by[row["device"], row["size"], row["modifier"]] = f"{median / 1e3:.0f}" + ("*" if row["generator_was_the_limit"] else "")
    lines = [f"Throughput of all six ports, kpps, medians of {run['rounds']} searches with trials of {run['seconds']:g} s. *: at least "
             "that, since the generator was the limit.", "",
             "| bytes | beside it (RFC 2544, 11) | kernel | Bywash in user space, two workers | Bywash in the driver |", "|---|---|---|---|---|"]
    for size, modifier in dict.fromkeys((row["size"], row["modifier"]) for row in run["rows"]):
        lines.append(f"| {size} | {modifier or ''} | " + " | ".join(by[device, size, modifier] for device in devices) + " |")
    return "\n".join(lines)
