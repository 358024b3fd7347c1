/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* A program of the user's on a port: it runs first, and the frames that it passes go on to ours. A port that
 * has one runs `bywash_first` in place of `bywash`; the others run nothing of this. */
#ifndef BYWASH_USER_PROGRAM_H
#define BYWASH_USER_PROGRAM_H

/* Continuation of each port: `bywash`, in the entry of the port's id. The kernel empties the map when the process
 * ends. */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, BYWASH_PORTS);
	__type(key, __u32);
	__type(value, __u32);
} next SEC(".maps");

/* Stands for the user's program, which the loader puts in its place (crates/port/src/af_xdp/user_program.rs). */
__attribute__((noinline)) int user_program(struct xdp_md *ctx)
{
	int verdict = XDP_PASS;

	asm volatile("" : "+r"(verdict) : "r"(ctx));
	return verdict;
}

SEC("xdp.frags")
int bywash_first(struct xdp_md *ctx)
{
	const struct bywash_port *port = port_of(ctx->ingress_ifindex);
	int verdict = user_program(ctx);

	if (!port)
		return verdict;
	if (verdict == XDP_TX || verdict == XDP_REDIRECT)
		return count(port->id, TO_PROGRAM, verdict);
	if (verdict != XDP_PASS)
		return count(port->id, DROP_PROGRAM, verdict);
	bpf_tail_call(ctx, &next, port->id);
	return XDP_PASS;
}

#endif
