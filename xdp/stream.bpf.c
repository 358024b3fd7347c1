// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* The tester's stream, made in the kernel: run by BPF_PROG_TEST_RUN with BPF_F_TEST_XDP_LIVE_FRAMES, it writes one
 * frame's headers, sequence number and time, corrects its UDP checksum, and sends it out of the device the run was
 * started for. The rest of a frame is zeros: the page's data, which are as long as the longest frame. To wait, the
 * program drops frames that are not due yet, and the run continues with the next. */

#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define HEAD 88
#define SHORTEST 60
#define STAMP 18
#define CLOCK_EVERY 8 /* frames, less than a microsecond at full rate */

/* Parameters of a run; written before it, `stop` also during it. */
struct order {
	__u64 limit;     /* frames */
	__u64 gap;       /* between frames, in 256ths of a nanosecond; 0: none */
	__u64 catch_up;  /* largest delay that is made up for, in the same unit */
	__u32 frames;    /* entries of `heads` in use */
	__u32 at;        /* offset of the UDP checksum; the stamp follows */
	__u32 stream;
	__u32 longest;   /* bytes of the page's data */
	__u64 stop;
};

/* Progress of a run. */
struct state {
	__u64 sequence;
	__u64 due;
	__u64 behind;    /* time not made up for, in the same unit as `gap` */
	__u64 first;     /* times at which the first and the last frame were sent, in nanoseconds */
	__u64 last;
	__u64 next;
};

/* Start of a frame, and the sum of its UDP checksum without stream, sequence number and time. */
struct head {
	__u64 words[HEAD / 8];
	__u32 len;
	__u32 sum;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct order);
} order SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct state);
} state SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1); /* set when loaded */
	__type(key, __u32);
	__type(value, struct head);
} heads SEC(".maps");

static __always_inline __u32 words(__u64 n)
{
	return (__u32)(n >> 48) + (__u32)(n >> 32 & 0xffff) + (__u32)(n >> 16 & 0xffff) + (__u32)(n & 0xffff);
}

/* Copies by words: copying bytes takes an instruction for each. */
static __always_inline void copy(__u8 *to, const __u64 *words, int bytes)
{
	__u64 *out = (void *)to;

#pragma unroll
	for (int i = 0; i < bytes / 8; i++)
		out[i] = words[i];
	if (bytes % 8)
		*(__u32 *)(to + bytes / 8 * 8) = *(const __u32 *)&words[bytes / 8];
}

SEC("xdp")
int stream(struct xdp_md *ctx)
{
	__u32 zero = 0;
	struct order *o = bpf_map_lookup_elem(&order, &zero);
	struct state *s = bpf_map_lookup_elem(&state, &zero);

	if (!o || !s)
		return XDP_ABORTED;
	if (s->sequence >= o->limit || o->stop)
		return XDP_DROP;

	/* Reading the clock takes as long as everything else together. At full rate the kernel gathers 16 frames before
	 * the device gets them, so a time that is a few frames old is as good. */
	if (o->gap || !(s->sequence % CLOCK_EVERY))
		s->last = bpf_ktime_get_ns();
	__u64 now = s->last;
	if (o->gap) {
		__u64 fine = now << 8;
		if (!s->due)
			s->due = fine;
		if (fine < s->due)
			return XDP_DROP;
		if (fine - s->due > o->catch_up) {
			__u64 late = fine - s->due - o->catch_up;
			s->behind += late;
			s->due += late;
		}
		s->due += o->gap;
	}

	__u32 next = s->next;
	s->next = next + 1 < o->frames ? next + 1 : 0;
	struct head *h = bpf_map_lookup_elem(&heads, &next);
	if (!h)
		return XDP_ABORTED;
	if (h->len != o->longest && bpf_xdp_adjust_tail(ctx, (int)h->len - (int)o->longest))
		return XDP_ABORTED;

	__u8 *p = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	/* Only the shortest frames have shorter heads; all head lengths but the shortest are multiples of 8. */
	if (p + HEAD <= end)
		copy(p, h->words, HEAD);
	else if (p + 80 <= end)
		copy(p, h->words, 80);
	else if (p + SHORTEST <= end)
		copy(p, h->words, SHORTEST);
	else
		return XDP_ABORTED;

	__u64 sequence = s->sequence++;
	__u32 low = sequence;
	__u32 sum = h->sum + o->stream + (low >> 16) + (low & 0xffff) + words(now);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	__u16 check = ~sum;
	/* Zero would mean that there is no checksum (RFC 768). */
	if (!check)
		check = 0xffff;

	__u8 *tail = p + (o->at & 127);
	if (tail + 2 + STAMP > end)
		return XDP_ABORTED;
	*(__u16 *)tail = bpf_htons(check);
	/* The magic number is in the head. */
	*(__u16 *)(tail + 6) = bpf_htons(o->stream);
	*(__u32 *)(tail + 8) = bpf_htonl(low);
	*(__u32 *)(tail + 12) = bpf_htonl(now >> 32);
	*(__u32 *)(tail + 16) = bpf_htonl(now);
	if (!s->first)
		s->first = now;
	return XDP_TX;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
