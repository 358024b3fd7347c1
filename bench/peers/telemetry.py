#!/usr/bin/env python3
"""Prints the forwarding rate of a running DPDK process, from its own counters.

l3fwd prints no statistics, so they are read over the telemetry socket that every DPDK process has
(/run/dpdk/PREFIX/dpdk_telemetry.v2): /ethdev/stats of the given ports, at the start and the end of a window. A control
thread answers, which does not run on the forwarding core.

usage: telemetry.py [--received] PREFIX SECONDS PORT...      prints one JSON object

  --received    counts the packets received instead of those sent
"""

import json
import socket
import sys
import time


# Seconds to wait for a process to start, which takes long on a busy machine.
PATIENCE = 30


def connect(prefix, patience):
    """Connects to the socket, which appears once EAL is up; its first message has the maximum length of answers."""
    deadline = time.monotonic() + patience
    while True:
        peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            peer.connect(f"/run/dpdk/{prefix}/dpdk_telemetry.v2")
            break
        except OSError:
            peer.close()
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
    return peer, json.loads(peer.recv(4096))["max_output_len"]


def main():
    arguments = sys.argv[1:]
    counted = "opackets"
    if arguments[0] == "--received":
        counted = "ipackets"
        arguments = arguments[1:]
    prefix, seconds, ports = arguments[0], float(arguments[1]), [int(port) for port in arguments[2:]]
    peer, limit = connect(prefix, PATIENCE)

    def ask(request):
        peer.send(request.encode())
        return json.loads(peer.recv(limit))[request.split(",")[0]]

    def read():
        total = {"ipackets": 0, "opackets": 0, "imissed": 0, "oerrors": 0, "rx_nombuf": 0}
        for port in ports:
            stats = ask(f"/ethdev/stats,{port}")
            for name in total:
                total[name] += stats[name]
        # Read the clock after the answers, so that both ends of the window have the same delay.
        return time.monotonic(), total

    # Ports are listed before they forward: wait for the first packets, then let caches and clocks settle.
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        try:
            if read()[1][counted] > 0:
                break
        except (KeyError, TypeError):
            pass
        time.sleep(0.05)
    else:
        sys.exit("telemetry: the peer forwards nothing")
    time.sleep(0.5)

    started, before = read()
    time.sleep(seconds)
    ended, after = read()
    window = ended - started
    delta = {name: after[name] - before[name] for name in after}
    print(json.dumps({"mpps": delta[counted] / window / 1e6, "rx_mpps": delta["ipackets"] / window / 1e6, "packets": delta[counted],
                      "seconds": window, "drops": delta["oerrors"] + delta["rx_nombuf"] + delta["imissed"]}))


main()
