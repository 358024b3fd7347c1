// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* Fallback for kernels that refuse the forwarding program: has no tables, and sends to user space all packets that
 * neither their header nor the kernel's own lookup assigns to the kernel. Needs no CAP_PERFMON. */
#define BYWASH_PLAIN
#include "bywash.bpf.c"
