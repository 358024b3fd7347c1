#!/bin/bash
# Bywash on DPDK's own devices against l3fwd on the same: forward.sh with --net-pcap, whose options are these.
#
# The driver (net_pcap with infinite_rx) copies each frame into a fresh mbuf and frees what is sent, one by one. That is
# the same work for both, and most of it: `-- --pool ring`, or testpmd's io mode, say how much.
here=$(cd "$(dirname "$0")" && pwd)
exec "$here/forward.sh" --net-pcap --out "$here/../../out/bench/dpdk.json" "$@"
