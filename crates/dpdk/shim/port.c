// DPDK's inline functions and macros as functions, and the mempool operations by which drivers take and free cells of
// the arena.
//
// Each cell has a permanent mbuf in an array beside the arena, so the mbuf of a cell is found by its index. Declared
// for Rust in src/ffi.rs.

#define _GNU_SOURCE
#include <errno.h>
#include <net/if.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <rte_cycles.h>
#include <rte_dev.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_lcore.h>
#include <rte_log.h>
#include <rte_mbuf.h>
#include <rte_memory.h>
#include <rte_mempool.h>
#include <rte_version.h>

// Layout of RawFrame in crates/frame, as used in src/ffi.rs.
struct raw {
	uint64_t addr;
	uint32_t len;
	uint32_t options;
};

// Counts of received frames that are not in one cell of the pool.
struct rx_exceptions {
	uint64_t copied;
	uint64_t lost;
};

struct hooks {
	// Takes n cells and returns 1, or takes none and returns 0.
	int (*take)(uint32_t *cells, uint32_t n);
	void (*give)(uint32_t *cells, uint32_t n);
	uint32_t (*count)(void);
	void (*log)(uint32_t level, const char *text, size_t len);
};

#define BURST 64
// Bytes of a cell before the mbuf's data area: META of crates/frame.
#define META 128
_Static_assert(RTE_PKTMBUF_HEADROOM == 128, "data begins 256 bytes into a cell");

static struct hooks hooks;
static uint8_t *base;
// One mbuf for each cell. Inside the cells, 2,048 bytes apart, all mbufs would share a few cache sets.
static struct rte_mbuf *mbufs;
static size_t mbufs_len;
static uint32_t shift;
static uint32_t cells;
// Mempool of the arena's cells, and mempools of devices whose drivers require memory of their own.
static struct rte_mempool *pool;
static struct rte_mempool *copies[RTE_MAX_ETHPORTS];
static bool removed[RTE_MAX_ETHPORTS];

// Kernel interface below a device, whose driver may report the link as up whatever the state of that interface.
struct below {
	uint32_t index;
	int link;
	uint64_t asked;
};
static struct below below[RTE_MAX_ETHPORTS];

static inline struct rte_mbuf *mbuf_of(uint32_t cell)
{
	return mbufs + cell;
}

static inline uint32_t cell_of(const void *mbuf)
{
	return (const struct rte_mbuf *)mbuf - mbufs;
}

// Drivers take and free cells one at a time: with inlined code if the mempool has a cache for their lcore, otherwise
// with a call of the operations below for each cell. So each worker becomes an lcore of DPDK. The cache is empty
// between a port's calls: all free cells are in the arena's pools.
static __thread struct rte_mempool_cache *cache;
static __thread bool known;
static pthread_key_t leaving;

static void give_back(void *const *objects, unsigned int n)
{
	uint32_t some[BURST];
	while (n > 0) {
		unsigned int k = RTE_MIN(n, (unsigned int)BURST);
		for (unsigned int i = 0; i < k; i++)
			some[i] = cell_of(objects[i]);
		hooks.give(some, k);
		objects += k;
		n -= k;
	}
}

// Takes n cells as mbufs, or none and returns false.
static bool take(void **objects, unsigned int n)
{
	uint32_t some[BURST];
	for (unsigned int done = 0; done < n;) {
		unsigned int k = RTE_MIN(n - done, (unsigned int)BURST);
		if (!hooks.take(some, k)) {
			give_back(objects, done);
			return false;
		}
		for (unsigned int i = 0; i < k; i++)
			objects[done + i] = mbuf_of(some[i]);
		done += k;
	}
	return true;
}

static void thread_ends(void *arg)
{
	RTE_SET_USED(arg);
	if (pool != NULL)
		rte_thread_unregister();
}

// There are 128 lcores by default. A thread beyond that works without a cache.
static void become_lcore(void)
{
	known = true;
	if (rte_lcore_id() == LCORE_ID_ANY && rte_thread_register() == 0)
		pthread_setspecific(leaving, &leaving);
	cache = rte_mempool_default_cache(pool, rte_lcore_id());
}

// To be called before a driver that is expected to take so many cells: puts them into the cache.
static void enter(unsigned int expected)
{
	if (unlikely(!known))
		become_lcore();
	if (expected > 0 && likely(cache != NULL) && take(cache->objs, expected))
		cache->len = expected;
}

static void leave(void)
{
	if (likely(cache != NULL)) {
		unsigned int n = cache->len;
		cache->len = 0;
		give_back(cache->objs, n);
	}
}

// Allocates the mbufs, on huge pages if the arena is on huge pages and some are free.
static int make_mbufs(size_t page)
{
	mbufs_len = RTE_ALIGN_CEIL(cells * sizeof(*mbufs), (size_t)2 << 20);
	int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE;
	void *at = MAP_FAILED;
	if (page > 4096)
		at = mmap(NULL, mbufs_len, PROT_READ | PROT_WRITE, flags | MAP_HUGETLB, -1, 0);
	if (at == MAP_FAILED)
		at = mmap(NULL, mbufs_len, PROT_READ | PROT_WRITE, flags & ~MAP_POPULATE, -1, 0);
	if (at == MAP_FAILED)
		return -errno;
	if (page > 4096)
		madvise(at, mbufs_len, MADV_HUGEPAGE);
	mbufs = at;
	// State that DPDK expects of an mbuf in a pool. Drivers free mbufs in this state.
	for (uint32_t cell = 0; cell < cells; cell++) {
		struct rte_mbuf *m = &mbufs[cell];
		m->buf_addr = base + ((uint64_t)cell << shift) + META;
		rte_mbuf_iova_set(m, (uintptr_t)m->buf_addr);
		m->buf_len = (1u << shift) - META;
		m->pool = pool;
		m->data_off = RTE_PKTMBUF_HEADROOM;
		rte_mbuf_refcnt_set(m, 1);
		m->nb_segs = 1;
		m->port = RTE_MBUF_PORT_INVALID;
	}
	return 0;
}

static int ops_alloc(struct rte_mempool *mp)
{
	mp->pool_data = &hooks;
	return 0;
}

static void ops_free(struct rte_mempool *mp)
{
	mp->pool_data = NULL;
}

static int ops_put(struct rte_mempool *mp, void *const *objects, unsigned int n)
{
	RTE_SET_USED(mp);
	give_back(objects, n);
	return 0;
}

static int ops_get(struct rte_mempool *mp, void **objects, unsigned int n)
{
	RTE_SET_USED(mp);
	return take(objects, n) ? 0 : -ENOBUFS;
}

static unsigned int ops_count(const struct rte_mempool *mp)
{
	RTE_SET_USED(mp);
	return hooks.count();
}

// The cells already exist and are free. There is no room for the object headers that DPDK would write before each, and
// no code reads them.
static int ops_populate(struct rte_mempool *mp, unsigned int most, void *at, rte_iova_t iova, size_t len,
			rte_mempool_populate_obj_cb_t *call, void *arg)
{
	RTE_SET_USED(at);
	RTE_SET_USED(iova);
	RTE_SET_USED(call);
	RTE_SET_USED(arg);
	unsigned int n = RTE_MIN(most, (unsigned int)(len >> shift));
	mp->populated_size += n;
	return n;
}

static const struct rte_mempool_ops ops = {
	.name = "bywash_cells",
	.alloc = ops_alloc,
	.free = ops_free,
	.enqueue = ops_put,
	.dequeue = ops_get,
	.get_count = ops_count,
	.populate = ops_populate,
};

// Forwards log text. The stream is line buffered and the EAL writes a message in about one piece, so text holds whole
// lines.
static ssize_t write_log(void *cookie, const char *text, size_t len)
{
	RTE_SET_USED(cookie);
	int level = rte_log_cur_msg_loglevel();
	hooks.log(level < 0 ? RTE_LOG_INFO : (uint32_t)level, text, len);
	return len;
}

const char *bywash_dpdk_version(void)
{
	return rte_version();
}

// Version of the headers. A library of another year and month has another ABI.
const char *bywash_dpdk_built_with(void)
{
	return RTE_VER_PREFIX " " RTE_STR(RTE_VER_YEAR) "." RTE_STR(RTE_VER_MONTH);
}

// Starts the EAL. Returns 0 or a negative errno.
int bywash_dpdk_start(const struct hooks *with, int argc, char **argv)
{
	hooks = *with;
	cookie_io_functions_t io = { .write = write_log };
	FILE *log = fopencookie(NULL, "w", io);
	if (log != NULL) {
		setvbuf(log, NULL, _IOLBF, 512);
		rte_openlog_stream(log);
	}
	if (pthread_key_create(&leaving, thread_ends) != 0)
		return -EAGAIN;
	int index = rte_mempool_register_ops(&ops);
	if (index < 0)
		return index;
	if (rte_eal_init(argc, argv) < 0)
		return rte_errno > 0 ? -rte_errno : -EFAULT;
	return 0;
}

void bywash_dpdk_stop(void)
{
	rte_mempool_free(pool);
	pool = NULL;
	if (base != NULL)
		rte_extmem_unregister(base, (size_t)cells << shift);
	base = NULL;
	rte_eal_cleanup();
	if (mbufs != NULL)
		munmap(mbufs, mbufs_len);
	mbufs = NULL;
}

// Registers the arena as DPDK memory and creates the mempool from which drivers fill their queues. Returns 0, 1 if the
// arena is not registered for DMA, or a negative errno.
int bywash_dpdk_arena(void *at, uint32_t count, uint32_t cell_shift, size_t mapped, size_t page)
{
	base = at;
	cells = count;
	shift = cell_shift;
	// Devices look up memory by address. Virtual devices work even if this fails.
	int registered = rte_extmem_register(at, mapped, NULL, 0, page);
	pool = rte_mempool_create_empty("bywash", count, 1u << shift, BURST, sizeof(struct rte_pktmbuf_pool_private),
					SOCKET_ID_ANY, RTE_MEMPOOL_F_NO_CACHE_ALIGN);
	if (pool == NULL)
		return -rte_errno;
	struct rte_pktmbuf_pool_private private = { .mbuf_data_room_size = (1u << shift) - META };
	int rc = rte_mempool_set_ops_byname(pool, ops.name, NULL);
	if (rc < 0)
		return rc;
	rte_pktmbuf_pool_init(pool, &private);
	rc = rte_mempool_populate_iova(pool, at, (uintptr_t)at, (size_t)count << shift, NULL, NULL);
	if (rc < 0)
		return rc;
	rc = make_mbufs(page);
	if (rc < 0)
		return rc;
	return registered < 0 ? 1 : 0;
}

// Parameters and, after opening, properties of a port.
struct device {
	uint16_t port;
	uint16_t queues;
	uint16_t descriptors;
	uint16_t mtu;
	bool copies;
	uint16_t most_queues;
	uint32_t max_frame;
	uint8_t mac[6];
	char driver[32];
	uint64_t rx_offloads;
	uint64_t tx_offloads;
	uint64_t used;
	uint64_t rss;
};

// Finds or creates the device. On error, `failed` names the step that failed.
int bywash_dpdk_probe(const char *devargs, const char *name, struct device *device, const char **failed)
{
	*failed = "find a driver for it";
	if (rte_eth_dev_get_port_by_name(name, &device->port) != 0) {
		int rc = rte_dev_probe(devargs);
		if (rc < 0)
			return rc;
		rc = rte_eth_dev_get_port_by_name(name, &device->port);
		if (rc < 0)
			return rc;
	}
	struct rte_eth_dev_info info;
	*failed = "query its capabilities";
	int rc = rte_eth_dev_info_get(device->port, &info);
	if (rc < 0)
		return rc;
	snprintf(device->driver, sizeof(device->driver), "%s", info.driver_name);
	device->most_queues = RTE_MIN(info.max_rx_queues, info.max_tx_queues);
	return 0;
}

static int on_removed(uint16_t port, enum rte_eth_event_type event, void *arg, void *ret)
{
	RTE_SET_USED(event);
	RTE_SET_USED(arg);
	RTE_SET_USED(ret);
	__atomic_store_n(&removed[port], true, __ATOMIC_RELEASE);
	return 0;
}

// Creates a mempool for a device whose driver requires a layout of its own, in one piece of anonymous memory, because
// the EAL's memory would suffice for few devices only. A queue of net_af_xdp needs 2,048 buffers to receive into, and
// as many for each of sending and completion.
static int make_copies(uint16_t port, uint16_t queues)
{
	char name[RTE_MEMPOOL_NAMESIZE];
	snprintf(name, sizeof(name), "bywash_copies%u", port);
	struct rte_mempool *mp = rte_mempool_create_empty(name, 8192u * queues - 1,
							  sizeof(struct rte_mbuf) + RTE_MBUF_DEFAULT_BUF_SIZE, 256,
							  sizeof(struct rte_pktmbuf_pool_private), SOCKET_ID_ANY,
							  RTE_MEMPOOL_F_NO_IOVA_CONTIG);
	if (mp == NULL)
		return -rte_errno;
	struct rte_pktmbuf_pool_private private = { .mbuf_data_room_size = RTE_MBUF_DEFAULT_BUF_SIZE };
	rte_pktmbuf_pool_init(mp, &private);
	rte_errno = ENOMEM;
	int rc = rte_mempool_set_ops_byname(mp, "ring_mp_mc", NULL);
	if (rc == 0 && rte_mempool_populate_anon(mp) == 0)
		rc = -rte_errno;
	if (rc < 0) {
		rte_mempool_free(mp);
		return rc;
	}
	rte_mempool_obj_iter(mp, rte_pktmbuf_init, NULL);
	copies[port] = mp;
	return 0;
}

int bywash_dpdk_open(struct device *device, const char **failed)
{
	uint16_t port = device->port;
	struct rte_eth_dev_info info;
	struct rte_eth_conf conf = { 0 };
	*failed = "query its capabilities";
	int rc = rte_eth_dev_info_get(port, &info);
	if (rc < 0)
		return rc;
	struct rte_mempool *from = pool;
	if (device->copies) {
		*failed = "allocate memory for its copies";
		rc = make_copies(port, device->queues);
		if (rc < 0)
			return rc;
		from = copies[port];
	}
	if (device->queues > 1) {
		conf.rxmode.mq_mode = RTE_ETH_MQ_RX_RSS;
		conf.rx_adv_conf.rss_conf.rss_hf = info.flow_type_rss_offloads &
			(RTE_ETH_RSS_IP | RTE_ETH_RSS_TCP | RTE_ETH_RSS_UDP);
	}
	device->rss = conf.rx_adv_conf.rss_conf.rss_hf;
	device->rx_offloads = info.rx_offload_capa;
	device->tx_offloads = info.tx_offload_capa;
	// FAST_FREE requires that all sent mbufs come from one pool and have one reference, which holds here.
	conf.txmode.offloads = info.tx_offload_capa & RTE_ETH_TX_OFFLOAD_MBUF_FAST_FREE;
	device->used = conf.txmode.offloads;
	*failed = "configure its queues";
	rc = rte_eth_dev_configure(port, device->queues, device->queues, &conf);
	if (rc < 0)
		return rc;
	if (device->mtu != 0) {
		*failed = "set its MTU";
		rc = rte_eth_dev_set_mtu(port, device->mtu);
		if (rc < 0)
			return rc;
	}
	uint16_t rx = device->descriptors, tx = device->descriptors;
	*failed = "set its ring sizes";
	rc = rte_eth_dev_adjust_nb_rx_tx_desc(port, &rx, &tx);
	if (rc < 0)
		return rc;
	int node = rte_eth_dev_socket_id(port);
	for (uint16_t queue = 0; queue < device->queues; queue++) {
		*failed = "set up a receive queue";
		rc = rte_eth_rx_queue_setup(port, queue, rx, node, NULL, from);
		if (rc < 0)
			return rc;
		*failed = "set up a transmit queue";
		rc = rte_eth_tx_queue_setup(port, queue, tx, node, NULL);
		if (rc < 0)
			return rc;
	}
	__atomic_store_n(&removed[port], false, __ATOMIC_RELEASE);
	below[port] = (struct below){ .index = info.if_index };
	rte_eth_dev_callback_register(port, RTE_ETH_EVENT_INTR_RMV, on_removed, NULL);
	*failed = "start it";
	rc = rte_eth_dev_start(port);
	if (rc < 0)
		return rc;
	// Promiscuous mode: the program filters addresses itself. Devices that do not support it have no address filter
	// either.
	rte_eth_promiscuous_enable(port);
	struct rte_ether_addr mac;
	if (rte_eth_macaddr_get(port, &mac) == 0)
		memcpy(device->mac, mac.addr_bytes, sizeof(device->mac));
	uint16_t mtu = 1500;
	rte_eth_dev_get_mtu(port, &mtu);
	device->mtu = mtu;
	device->max_frame = mtu + RTE_ETHER_HDR_LEN;
	device->descriptors = rx;
	return 0;
}

void bywash_dpdk_close(uint16_t port)
{
	rte_eth_dev_callback_unregister(port, RTE_ETH_EVENT_INTR_RMV, on_removed, NULL);
	struct rte_eth_dev_info info;
	int rc = rte_eth_dev_info_get(port, &info);
	rte_eth_dev_stop(port);
	rte_eth_dev_close(port);
	if (rc == 0 && info.device != NULL)
		rte_dev_remove(info.device);
	leave();
	rte_mempool_free(copies[port]);
	copies[port] = NULL;
}

// Returns the kernel's state of an interface: 0 down, 1 up, 2 deleted; 1 if it cannot be determined.
static int interface(uint32_t index)
{
	struct ifreq request = { 0 };
	if (if_indextoname(index, request.ifr_name) == NULL)
		return errno == ENXIO ? 2 : 1;
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return 1;
	int rc = ioctl(fd, SIOCGIFFLAGS, &request);
	close(fd);
	return rc < 0 || (request.ifr_flags & (IFF_UP | IFF_RUNNING)) == (IFF_UP | IFF_RUNNING);
}

// Returns the link state: 0 down, 1 up, 2 unplugged. Queries the kernel at most ten times a second, because the caller
// may be a worker with packets to forward.
int bywash_dpdk_link(uint16_t port)
{
	if (__atomic_load_n(&removed[port], __ATOMIC_ACQUIRE))
		return 2;
	struct below *it = &below[port];
	if (it->index != 0) {
		uint64_t now = rte_get_timer_cycles(), asked = __atomic_load_n(&it->asked, __ATOMIC_RELAXED);
		if (asked == 0 || now - asked > rte_get_timer_hz() / 10) {
			__atomic_store_n(&it->asked, now, __ATOMIC_RELAXED);
			__atomic_store_n(&it->link, interface(it->index), __ATOMIC_RELAXED);
		}
		int link = __atomic_load_n(&it->link, __ATOMIC_RELAXED);
		if (link != 1)
			return link;
	}
	struct rte_eth_link link;
	if (rte_eth_link_get_nowait(port, &link) < 0)
		return 1;
	return link.link_status == RTE_ETH_LINK_UP;
}

// Writes the names, separated by blanks, of RSS types (what 0), receive offloads (1) or transmit offloads (2). Returns
// the length.
int bywash_dpdk_names(uint32_t what, uint64_t bits, char *text, size_t room)
{
	static const struct {
		uint64_t bit;
		const char *name;
	} rss[] = {
		{ RTE_ETH_RSS_IPV4, "IPV4" },
		{ RTE_ETH_RSS_FRAG_IPV4, "IPV4_FRAG" },
		{ RTE_ETH_RSS_NONFRAG_IPV4_TCP, "IPV4_TCP" },
		{ RTE_ETH_RSS_NONFRAG_IPV4_UDP, "IPV4_UDP" },
		{ RTE_ETH_RSS_NONFRAG_IPV4_OTHER, "IPV4_OTHER" },
		{ RTE_ETH_RSS_IPV6, "IPV6" },
		{ RTE_ETH_RSS_FRAG_IPV6, "IPV6_FRAG" },
		{ RTE_ETH_RSS_NONFRAG_IPV6_TCP, "IPV6_TCP" },
		{ RTE_ETH_RSS_NONFRAG_IPV6_UDP, "IPV6_UDP" },
		{ RTE_ETH_RSS_NONFRAG_IPV6_OTHER, "IPV6_OTHER" },
		{ RTE_ETH_RSS_IPV6_EX, "IPV6_EX" },
		{ RTE_ETH_RSS_IPV6_TCP_EX, "IPV6_TCP_EX" },
		{ RTE_ETH_RSS_IPV6_UDP_EX, "IPV6_UDP_EX" },
	};
	size_t used = 0;
	text[0] = '\0';
	for (uint64_t bit = 1; bit != 0; bit <<= 1) {
		if (!(bits & bit))
			continue;
		const char *name = NULL;
		for (size_t i = 0; what == 0 && i < RTE_DIM(rss); i++)
			if (rss[i].bit == bit)
				name = rss[i].name;
		if (what != 0)
			name = what == 1 ? rte_eth_dev_rx_offload_name(bit) : rte_eth_dev_tx_offload_name(bit);
		if (name == NULL)
			continue;
		int more = snprintf(text + used, room - used, "%s%s", used ? " " : "", name);
		if (more < 0 || used + more >= room)
			break;
		used += more;
	}
	text[used] = '\0';
	return used;
}

// Returns the link speed in Mb/s, 0 if unknown.
uint32_t bywash_dpdk_speed(uint16_t port)
{
	struct rte_eth_link link;
	if (rte_eth_link_get_nowait(port, &link) < 0 || link.link_speed == RTE_ETH_SPEED_NUM_UNKNOWN)
		return 0;
	return link.link_speed;
}

// Writes the extended statistics that are not zero, as "name=value name=value". Returns the length.
int bywash_dpdk_xstats(uint16_t port, char *text, size_t room)
{
	struct rte_eth_xstat values[256];
	struct rte_eth_xstat_name names[256];
	size_t used = 0;
	text[0] = '\0';
	int n = rte_eth_xstats_get(port, values, RTE_DIM(values));
	if (n < 0 || n > (int)RTE_DIM(values) || rte_eth_xstats_get_names(port, names, RTE_DIM(names)) != n)
		return 0;
	for (int i = 0; i < n; i++) {
		if (values[i].value == 0)
			continue;
		int more = snprintf(text + used, room - used, "%s%s=%" PRIu64, used ? " " : "",
				    names[values[i].id].name, values[i].value);
		if (more < 0 || used + more >= room)
			break;
		used += more;
	}
	text[used] = '\0';
	return used;
}

// Copies a frame that is not in one of the arena's cells, or is in several segments, to a new cell. Frees the frame;
// returns false if it does not fit or no cell is free.
static bool copy(struct rte_mbuf *m, struct raw *to)
{
	uint32_t cell;
	uint32_t room = (1u << shift) - META - RTE_PKTMBUF_HEADROOM;
	bool fits = m->pkt_len <= room && hooks.take(&cell, 1);
	if (fits) {
		uint8_t *at = base + ((uint64_t)cell << shift) + META + RTE_PKTMBUF_HEADROOM;
		to->addr = at - base;
		to->len = m->pkt_len;
		to->options = 0;
		for (struct rte_mbuf *s = m; s != NULL; s = s->next) {
			memcpy(at, rte_pktmbuf_mtod(s, void *), s->data_len);
			at += s->data_len;
		}
	}
	rte_pktmbuf_free(m);
	return fits;
}

uint16_t bywash_dpdk_rx(uint16_t port, uint16_t queue, struct raw *out, uint16_t most, uint16_t expected,
			struct rx_exceptions *exceptions)
{
	struct rte_mbuf *mbufs[BURST];
	enter(expected);
	uint16_t n = rte_eth_rx_burst(port, queue, mbufs, RTE_MIN(most, (uint16_t)BURST));
	uint16_t good = 0;
	for (uint16_t i = 0; i < n; i++) {
		struct rte_mbuf *m = mbufs[i];
		if (likely(m->pool == pool && m->nb_segs == 1 && RTE_MBUF_DIRECT(m) && rte_mbuf_refcnt_read(m) == 1)) {
			out[good].addr = (uint8_t *)m->buf_addr + m->data_off - base;
			out[good].len = m->data_len;
			out[good].options = 0;
			good++;
		} else if (copy(m, &out[good])) {
			exceptions->copied++;
			good++;
		} else {
			exceptions->lost++;
		}
	}
	leave();
	return good;
}

// Sends up to n frames and returns how many. The caller keeps ownership of the others.
uint16_t bywash_dpdk_tx(uint16_t port, uint16_t queue, const struct raw *frames, uint16_t n)
{
	struct rte_mbuf *mbufs[BURST];
	n = RTE_MIN(n, (uint16_t)BURST);
	for (uint16_t i = 0; i < n; i++) {
		struct rte_mbuf *m = mbuf_of(frames[i].addr >> shift);
		m->data_off = base + frames[i].addr - (uint8_t *)m->buf_addr;
		rte_mbuf_refcnt_set(m, 1);
		m->nb_segs = 1;
		m->port = RTE_MBUF_PORT_INVALID;
		m->ol_flags = 0;
		m->packet_type = 0;
		m->pkt_len = frames[i].len;
		m->data_len = frames[i].len;
		m->vlan_tci = 0;
		mbufs[i] = m;
	}
	enter(0);
	uint16_t sent = rte_eth_tx_burst(port, queue, mbufs, n);
	leave();
	return sent;
}

// Asks the driver to free sent frames. Returns a negative errno if the driver does not support that.
int bywash_dpdk_reclaim(uint16_t port, uint16_t queue)
{
	enter(0);
	int rc = rte_eth_tx_done_cleanup(port, queue, 0);
	leave();
	return rc;
}
