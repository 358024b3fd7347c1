// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* The program for a switch's ports: the router's program with another lookup, and none for traffic control, which
 * cannot hand a frame to user space. */
#define BYWASH_SWITCH
#include "bywash.bpf.c"
