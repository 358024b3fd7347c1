#!/bin/bash
# Compares Bywash and l3fwd on the same DPDK devices: runs forward.sh with --net-pcap and takes its options.
#
# The driver (net_pcap with infinite_rx) copies each frame into a new mbuf and frees the sent ones singly. This work is
# the same for both, and most of the total: testpmd's io mode shows how much. Printed beside: the sum of that, our stages
# and 6 cycles, and both programs' io modes on net_null and net_memif.
here=$(cd "$(dirname "$0")" && pwd)
exec "$here/forward.sh" --net-pcap --out "$here/../../out/bench/dpdk.json" "$@"
