// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* The program where the kernel refuses the one that forwards: no tables; what is not plainly the kernel's, nor so by its own
 * lookup, is user space's. Needs no CAP_PERFMON. */
#define BYWASH_PLAIN
#include "bywash.bpf.c"
