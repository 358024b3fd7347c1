// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* The router's programs of XDP and traffic control as functions of the host, with maps in its memory.
 *
 * A frame lies at the end of readable memory, or at its beginning, so that an access beyond either side is a fault of the
 * processor. The addresses have 32 bits, as many as struct xdp_md has for them. */
#define _GNU_SOURCE
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
/* The one instruction of BPF in the sources, in own_bit() of forward.h: a shift by the lowest six bits. */
#define asm(...) (own <<= last & 63)
#include "bywash.bpf.c"
#undef asm

#define AREA 0x10000u
#define START 0x20000000u
#define END (START + AREA)
/* Ports of the harness; their interfaces have the numbers from 1 on. */
#define MANY_PORTS 3

#define BACKED(name) \
	static typeof(*name.value) values_of_##name[sizeof(*name.max_entries) / sizeof(int)]; \
	static struct backing backing_of_##name = { VALUES, sizeof(*name.max_entries) / sizeof(int), sizeof(*name.value), \
						    values_of_##name }
BACKED(ports);
BACKED(counters);
BACKED(port_pairs);
BACKED(dst_cache4);
BACKED(dst_cache6);
BACKED(hops);
BACKED(buckets);
BACKED(stations);

/* Segments of tables, each a map of its own: of the routes of IPv4 and IPv6, of the program's flows, and of the router's, which
 * no map has. */
#define TABLES 6
static struct backing segments[TABLES][BYWASH_SEGMENTS], *segment_maps[TABLES][BYWASH_SEGMENTS];
static void *outer[TABLES][BYWASH_SEGMENTS];
static struct backing backing_of_tables[TABLES];

typedef int program(void *);
static program *flow_programs[2][2] = {
	{ (program *)bywash_flows, (program *)bywash_vlan_flows },
	{ (program *)bywash_tc_flows, (program *)bywash_tc_vlan_flows },
};
static program *vlan_programs[2] = { (program *)bywash_vlan, (program *)bywash_tc_vlan };
static program *bridge_programs[2] = { (program *)bywash_bridge, (program *)bywash_tc_bridge };
static struct backing backing_of_programs[6] = {
	{ PROGRAMS_OF, 2, 8, flow_programs[0] },
	{ PROGRAMS_OF, 2, 8, flow_programs[1] },
	{ PROGRAMS_OF, 1, 8, &vlan_programs[0] },
	{ PROGRAMS_OF, 1, 8, &vlan_programs[1] },
	{ PROGRAMS_OF, 1, 8, &bridge_programs[0] },
	{ PROGRAMS_OF, 1, 8, &bridge_programs[1] },
};

/* Ways in which a frame arrives at port 0. */
enum arrival {
	PLAINLY,
	TAGGED,  /* from the port's VLAN: with a tag, which an skb has beside its data */
	BRIDGED, /* from a station of the bridge that the port is a member of */
};

/* Entry of port 0 as such, and as a member of a bridge. */
static struct bywash_port port_alone, port_of_bridge;

/* The tag of the only VLAN, on port 0, whose entry is that of the port; and whether there is one. */
#define VLAN 5
static __u32 vlan_number = BYWASH_PORTS;
static int has_vlan;
static struct backing backing_of_vlans = { NUMBERS, 1, 4, &vlan_number };

static int is_target[MANY_PORTS];
/* Port of the last redirect; -1: none. */
static int redirected;
/* Whether the frame lies at the beginning of the memory. */
static int at_start;

/* Not inline, so that the key is read from the frame whether there is a VLAN or not. */
static __attribute__((noinline)) void *number_at(const struct backing *b, const void *key)
{
	__u64 of_port_0 = (__u64)bpf_htons(ETH_P_8021Q) << 16 | (__u64)bpf_htons(VLAN) << 32;

	return has_vlan && *(const __u64 *)key == of_port_0 ? b->memory : NULL;
}

static int (*program_at(const void *programs, __u32 which))(void *)
{
	const struct backing *b = *(const struct backing *const *)programs;

	return b && which < b->entries ? ((program **)b->memory)[which] : NULL;
}

static long bpf_redirect_map(const void *map, __u64 key, __u64 otherwise)
{
	/* No sockets. */
	if (map != &devices || key >= MANY_PORTS || !is_target[key])
		return otherwise;
	redirected = key;
	return XDP_REDIRECT;
}

static long bpf_redirect(__u32 ifindex, __u64 flags)
{
	(void)flags;
	redirected = ifindex - 1;
	return TC_ACT_REDIRECT;
}

/* Keeps the frame at its side of the memory: the program has no pointers into it any more. */
static long bpf_xdp_adjust_head(struct xdp_md *ctx, int delta)
{
	__u32 len = ctx->data_end - ctx->data;
	char *data = (void *)(long)ctx->data;

	if (!at_start) {
		ctx->data += delta;
	} else if (delta < 0) {
		memmove(data - delta, data, len);
		ctx->data_end -= delta;
	} else {
		memmove(data, data + delta, len - delta);
		ctx->data_end -= delta;
	}
	if (delta < 0)
		memset((void *)(long)ctx->data, 0xee, -delta);
	return 0;
}

/* As the kernel does with an skb whose checksum is finished (inet_proto_csum_replace_by_diff). */
static long bpf_l4_csum_replace(struct __sk_buff *skb, __u32 at, __u64 from, __u64 to, __u64 flags)
{
	__u16 *field = (void *)(long)(skb->data + at);
	__u64 sum = (__u32)to + (__u64)(__u32)~*field;

	if (from || skb->data + at + 2 > skb->data_end)
		__builtin_trap();
	if (flags & BPF_F_MARK_MANGLED_0 && !*field)
		return 0;
	sum = (__u32)sum + (sum >> 32);
	*field = ~fold(sum);
	if (flags & BPF_F_MARK_MANGLED_0 && !*field)
		*field = 0xffff;
	return 0;
}

/* Outcome of a run. */
struct outcome {
	__u32 verdict;
	__s32 reason; /* -1: not counted once */
	__s32 to;     /* port of a redirect; -1: none */
	__u32 len;
	const __u8 *data;
};

/* Makes the maps and the memory of frames. Returns whether that could be had. */
int xdp_begin(void)
{
	struct { void *map; struct backing *backing; } all[] = {
		{ &ports, &backing_of_ports },
		{ &counters, &backing_of_counters },
		{ &port_pairs, &backing_of_port_pairs },
		{ &dst_cache4, &backing_of_dst_cache4 },
		{ &dst_cache6, &backing_of_dst_cache6 },
		{ &hops, &backing_of_hops },
		{ &buckets, &backing_of_buckets },
		{ &stations, &backing_of_stations },
		{ &vlans, &backing_of_vlans },
		{ &fib4, &backing_of_tables[0] },
		{ &fib6, &backing_of_tables[1] },
		{ &flows4, &backing_of_tables[2] },
		{ &flows6, &backing_of_tables[3] },
		{ &flow_xdp, &backing_of_programs[0] },
		{ &flow_tc, &backing_of_programs[1] },
		{ &vlan_xdp, &backing_of_programs[2] },
		{ &vlan_tc, &backing_of_programs[3] },
		{ &bridge_xdp, &backing_of_programs[4] },
		{ &bridge_tc, &backing_of_programs[5] },
	};

	for (unsigned n = 0; n < sizeof(all) / sizeof(*all); n++)
		*(struct backing **)all[n].map = all[n].backing;
	for (int n = 0; n < TABLES; n++)
		backing_of_tables[n] = (struct backing){ MAPS, BYWASH_SEGMENTS, 0, outer[n] };
	void *at = (void *)(long)(START - AREA);
	return mmap(at, 3 * AREA, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == at &&
	       !mprotect((void *)(long)START, AREA, PROT_READ | PROT_WRITE);
}

/* Makes segment `n` of a table; returns a descriptor of its memory, or -1. */
int xdp_segment(__u32 table, __u32 n)
{
	const size_t bytes = sizeof(struct segment);
	int fd = memfd_create("segment", MFD_CLOEXEC);

	if (table >= TABLES || n >= BYWASH_SEGMENTS || fd < 0 || ftruncate(fd, bytes))
		return -1;
	void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (memory == MAP_FAILED)
		return -1;
	segments[table][n] = (struct backing){ VALUES, 1, bytes, memory };
	segment_maps[table][n] = &segments[table][n];
	outer[table][n] = &segment_maps[table][n];
	return fd;
}

/* Makes a port's entry of the words before the version and the filter of the host's own addresses. */
static struct bywash_port entry_of(const __u64 *words, __u64 own)
{
	struct bywash_port port = { .version = 1, .own = own };

	memcpy(&port, words, offsetof(struct bywash_port, version));
	return port;
}

/* Sets a port's entry: as such, and as a member of a bridge, which only port 0 is now and then. */
void xdp_port(__u32 id, const __u64 *words, const __u64 *bridged, __u64 own)
{
	struct bywash_port *port = &values_of_ports[id + 1];

	*port = entry_of(words, own);
	if (id == 0) {
		port_alone = values_of_ports[vlan_number] = *port;
		port_of_bridge = entry_of(bridged, own);
	}
}

/* Makes flow `n` of a table valid again, of generation 1, which one of its packets has closed. */
void xdp_renew(__u32 table, __u32 n)
{
	const __u32 words = flow_record_words(table & 1);
	__u32 first = (FLOW_REPORTS + FLOW_MANY_REPORTS * FLOW_REPORT + words - 1) / words;
	__u32 at = FLOW_RECORDS * BYWASH_SEGMENT + (first + n) * words + FLOW_STATE;

	*(__u32 *)(segments[table][at / BYWASH_SEGMENT].memory + at % BYWASH_SEGMENT * sizeof(__u64)) = 1;
}

void xdp_target(__u32 id)
{
	is_target[id] = 1;
}

/* Sets the next hops and the members of groups, of version 1. */
void xdp_hops(const struct bywash_hop *all, __u32 many, const __u32 *members, __u32 many_members)
{
	_Static_assert(sizeof(*all) == 32, "as in Rust");
	memcpy(&values_of_hops[BYWASH_HOPS], all, many * sizeof(*all));
	for (__u32 n = 0; n < many_members; n++)
		values_of_buckets[BYWASH_BUCKETS + n] = members[n];
}

/* Returns the reason that the last run has counted for a frame of this length, and forgets it; -1 if it was not one. Without the
 * counters of libFuzzer, which would take more time than the run. */
static __attribute__((noinline, no_sanitize("coverage"))) int counted(__u32 len)
{
	__u64 many = 0;
	int reason = -1;

	for (int n = 0; n < BYWASH_REASONS; n++) {
		if (values_of_counters[0].frames[n])
			reason = n;
		many += values_of_counters[0].frames[n];
		values_of_counters[0].frames[n] = 0;
	}
	for (int to = 0; to < MANY_PORTS; to++) {
		struct bywash_traffic *pair = &values_of_port_pairs[to];
		if (pair->frames && to == redirected && pair->bytes == len)
			reason = TO_PORT;
		many += pair->frames;
		*pair = (struct bywash_traffic){};
	}
	return many == 1 ? reason : -1;
}

/* Makes the frame's source a station of the bridge behind port 0, or no station. */
static void set_station(const __u8 *frame, int known)
{
	__u64 station = *(const __u64 *)(frame + 4) >> 16 | (__u64)(port_of_bridge.route_id - BYWASH_PORTS) << 48;
	struct stations *place = &values_of_stations[station * K1 >> 53];

	place->entries[STATIONS_AT_A_PLACE - 1] = known ? station | 128ull << 56 : 0;
}

/* Runs the program of XDP, or of traffic control, over a frame that arrives at port 0. */
void xdp_run(const __u8 *frame, __u32 len, int skb, int how, int start, struct outcome *out)
{
	const __u32 addresses = 12, tag = how == TAGGED && !skb ? VLAN_HLEN : 0;
	__u32 data = start ? START : END - len - tag, data_end = data + len + tag;
	__u8 *at = (void *)(long)data;

	at_start = start;
	has_vlan = how == TAGGED;
	values_of_ports[1] = how == BRIDGED ? port_of_bridge : port_alone;
	redirected = -1;
	memcpy(at, frame, tag ? addresses : len);
	if (how == BRIDGED)
		set_station(frame, 1);
	if (tag) {
		*(__be32 *)(at + addresses) = bpf_htonl(ETH_P_8021Q << 16 | VLAN);
		memcpy(at + addresses + tag, frame + addresses, len - addresses);
	}
	if (skb) {
		struct __sk_buff context = { .len = len, .ifindex = 1, .data = data, .data_end = data_end };
		context.protocol = *(const __u16 *)(frame + 12);
		if (how == TAGGED) {
			context.vlan_present = 1;
			context.vlan_proto = bpf_htons(ETH_P_8021Q);
			context.vlan_tci = VLAN;
		}
		out->verdict = bywash_tc(&context);
	} else {
		struct xdp_md context = { .data = data, .data_end = data_end, .data_meta = data, .ingress_ifindex = 1 };
		out->verdict = bywash(&context);
		data = context.data;
		data_end = context.data_end;
	}
	if (how == BRIDGED)
		set_station(frame, 0);
	out->to = redirected;
	out->data = (void *)(long)data;
	out->len = data_end - data;
	out->reason = counted(len);
}
