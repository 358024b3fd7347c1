#!/usr/bin/env python3
"""Computes the packet rate of the engine on a PCIe link by packet size, from the TLPs of each packet. Prints a table.

Links, after line coding: generation 2 x8 32 Gbit/s (5 GT/s, 8b/10b), 3 x8 63.0 (8 GT/s, 128b/130b), 4 x8 126.0. Of these,
flow control and acknowledgements take 8 % (Neugebauer et al., "Understanding PCIe performance for end host networking",
SIGCOMM 2018, section 3: 57.88 of 62.96 Gbit/s). Headers, the same source: memory write and read request 24 bytes,
completion with data 20, with framing, sequence number and LCRC. A payload of at most 256 bytes, read requests of at most
512, completions of at most 256.
"""

LINKS = {"gen 2 x8": 32.0, "gen 3 x8": 63.0, "gen 4 x8": 126.0}
USABLE = 57.88 / 62.96
WRITE, READ, COMPLETION, PAYLOAD, REQUEST = 24, 24, 20, 256, 512
DESCRIPTOR, COMMAND = 32, 8


def pieces(n, most):
    return -(-n // most)


def load(length, batch):
    """Bytes a packet that is received and sent costs: to the host, from the host. Commands are register writes, or read
    from rings `batch` at a time."""
    up = pieces(length, PAYLOAD) * WRITE + length + WRITE + DESCRIPTOR + pieces(length, REQUEST) * READ
    down = pieces(length, PAYLOAD) * COMPLETION + length
    if batch == 0:
        return up, down + WRITE + COMMAND
    # The request; its completions, and the doorbell.
    up += READ / batch
    return up, down + (pieces(batch * COMMAND, PAYLOAD) * COMPLETION + WRITE + COMMAND) / batch + COMMAND


print("| bytes | to the host | from the host, registers | rings, 32 at a time | " + " | ".join(LINKS) + " |")
print("|---|---|---|---|" + "---|" * len(LINKS))
for length in (64, 128, 256, 512, 1024, 1500):
    (up, by_register), (up_ring, by_ring) = load(length, 0), load(length, 32)
    rates = (gbit * USABLE * length / max(up_ring, by_ring) for gbit in LINKS.values())
    print(f"| {length} | {up} | {by_register} | {by_ring:.0f} | " + " | ".join(f"{r:.1f}" for r in rates) + " |")
