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
#include <rte_vect.h>

// Layout of RawFrame in crates/frame, as used in src/ffi.rs.
struct raw {
	uint64_t addr;
	uint32_t len;
	uint32_t options;
};

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 // linux/mman.h, since 5.14
#endif

// NOTED of crates/frame, in `options`: the mbuf of the frame's cell says what the frame says, and can be sent as it is.
#define NOTED (1u << 31)

// A worker's call into a driver. In: the cells of its own pool, whether there are others, how many free cells may stay
// in its cache afterwards, and how many did before. Out: how many do; bytes of the frames received or sent; received
// frames that were copied because they were not in one cell of the pool, or lost.
struct call {
	uint32_t first;
	uint32_t count;
	uint32_t keep;
	uint32_t kept;
	bool mixed;
	uint64_t bytes;
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
// Size of the mempool's caches. One takes half as many again before it is emptied: what a worker keeps and a burst.
#define CACHE (2u * BURST)
// Bytes of a cell before the mbuf's data area: META of crates/frame.
#define META 128
_Static_assert(RTE_PKTMBUF_HEADROOM == 128, "data begins 256 bytes into a cell");
// Data begin on one of so many lines of a cell. If all began on the same, data of all cells would share 2 of the 64
// sets of an L1 cache, and 64 of the 2,048 of an L2 cache.
#define COLOURS 4
#define LINE 64

static struct hooks hooks;
// Set if received mbufs are read by frames_of_lines, whose instructions the processor then has.
static bool lines;
static uint8_t *base;
// One mbuf for each cell. Inside the cells, 2,048 bytes apart, all mbufs would share a few cache sets.
static struct rte_mbuf *mbufs;
static size_t mbufs_len;
static uint32_t shift;
static uint32_t cells;
// Mempool of the arena's cells, to which each mbuf is freed, and mempools of devices whose drivers require memory of
// their own.
static struct rte_mempool *pool;
// The same cells, each as a buffer that begins right behind the metadata.
static struct rte_mempool *whole;
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

// Returns the line on which a cell's data begin: in runs of 16 neighbours the same, so that strides are constant, and
// another for cells 64 apart, which would share their set of an L2 cache.
static inline uint32_t colour_of(uint32_t cell)
{
	return ((cell >> 4) + (cell >> 6)) % COLOURS;
}

// Sets the start of a cell's buffer, `skip` bytes behind its metadata.
static inline void place(uint32_t cell, uint32_t skip)
{
	struct rte_mbuf *m = mbuf_of(cell);
	m->buf_addr = base + ((uint64_t)cell << shift) + META + skip;
	rte_mbuf_iova_set(m, (uintptr_t)m->buf_addr);
	m->buf_len = (1u << shift) - META - skip;
}

// Drivers take and free cells one at a time: with inlined code if the mempool has a cache for their lcore, otherwise
// with a call of the operations below for each cell. So each worker becomes an lcore of DPDK. Between a port's calls
// the cache keeps cells of the worker's own pool, which that pool counts as cached.
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

static void empty(struct rte_mempool_cache *of)
{
	unsigned int n = of->len;
	of->len = 0;
	give_back(of->objs, n);
}

static void thread_ends(void *arg)
{
	RTE_SET_USED(arg);
	if (pool == NULL)
		return;
	if (cache != NULL)
		empty(cache);
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

// To be called before a driver that is expected to take so many cells: there are that many in the cache, if possible.
static inline void enter(unsigned int expected)
{
	if (unlikely(!known))
		become_lcore();
	if (likely(cache != NULL) && unlikely(cache->len < expected) &&
	    take(cache->objs + cache->len, expected - cache->len))
		cache->len = expected;
}

// Gives back the cells of other pools.
static void sort_out(const struct call *call)
{
	unsigned int own = 0, foreign = 0;
	void *others[RTE_DIM(cache->objs)];
	for (unsigned int i = 0; i < cache->len; i++) {
		void *object = cache->objs[i];
		if (cell_of(object) - call->first < call->count)
			cache->objs[own++] = object;
		else
			others[foreign++] = object;
	}
	cache->len = own;
	give_back(others, foreign);
}

// To be called after a driver: the cache keeps as many cells as the call allows, those freed last.
static inline void leave(struct call *call)
{
	call->kept = 0;
	if (unlikely(cache == NULL))
		return;
	if (call->mixed && call->keep > 0) {
		const struct rte_mbuf *from = mbufs + call->first, *to = from + call->count;
		bool foreign = false;
		for (unsigned int i = 0; i < cache->len; i++)
			foreign |= (uintptr_t)cache->objs[i] < (uintptr_t)from || (uintptr_t)cache->objs[i] >= (uintptr_t)to;
		if (foreign)
			sort_out(call);
	}
	if (unlikely(cache->len > call->keep)) {
		unsigned int surplus = cache->len - call->keep;
		give_back(cache->objs, surplus);
		memmove(cache->objs, cache->objs + surplus, call->keep * sizeof(cache->objs[0]));
		cache->len = call->keep;
	}
	call->kept = cache->len;
}

// Allocates the mbufs, on huge pages if the arena is on huge pages and some are free.
static int make_mbufs(size_t page)
{
	mbufs_len = RTE_ALIGN_CEIL(cells * sizeof(*mbufs), (size_t)2 << 20);
	int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE;
	void *at = MAP_FAILED;
	if (page > 4096)
		at = mmap(NULL, mbufs_len, PROT_READ | PROT_WRITE, flags | MAP_HUGETLB, -1, 0);
	// Beyond the limit of a cgroup, pages are mapped without an error, and an access ends the process. Linux before
	// 5.14 does not know the advice.
	if (at != MAP_FAILED && madvise(at, mbufs_len, MADV_POPULATE_WRITE) && errno != EINVAL) {
		munmap(at, mbufs_len);
		at = MAP_FAILED;
	}
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
		place(cell, LINE * colour_of(cell));
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
	if (mp == whole && cache != NULL) {
		if (rte_mempool_generic_get(pool, objects, n, cache) < 0)
			return -ENOBUFS;
	} else if (!take(objects, n)) {
		return -ENOBUFS;
	}
	for (unsigned int i = 0; mp == whole && i < n; i++)
		place(cell_of(objects[i]), 0);
	return 0;
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

// Sets whether mbufs are read by frames_of_lines, if the processor can. Returns whether it can.
bool bywash_dpdk_lines(bool on)
{
	bool can = false;
#ifdef RTE_ARCH_X86_64
	can = __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
#endif
	lines = on && can;
	return can;
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
	bywash_dpdk_lines(true);
	if (rte_eal_init(argc, argv) < 0)
		return rte_errno > 0 ? -rte_errno : -EFAULT;
	return 0;
}

void bywash_dpdk_stop(void)
{
	// (Caches of threads that did not close their ports.)
	for (unsigned int lcore = 0; pool != NULL && lcore < RTE_MAX_LCORE; lcore++) {
		struct rte_mempool_cache *of = rte_mempool_default_cache(pool, lcore);
		if (of != NULL)
			empty(of);
	}
	rte_mempool_free(whole);
	rte_mempool_free(pool);
	whole = NULL;
	pool = NULL;
	if (base != NULL)
		rte_extmem_unregister(base, (size_t)cells << shift);
	base = NULL;
	rte_eal_cleanup();
	if (mbufs != NULL)
		munmap(mbufs, mbufs_len);
	mbufs = NULL;
}

// Creates a mempool of the cells, whose buffers have `less` bytes less than there is behind the metadata.
static int make_pool(const char *name, void *at, unsigned int cache_size, uint32_t less, struct rte_mempool **made)
{
	struct rte_mempool *mp = rte_mempool_create_empty(name, cells, 1u << shift, cache_size,
							  sizeof(struct rte_pktmbuf_pool_private), SOCKET_ID_ANY,
							  RTE_MEMPOOL_F_NO_CACHE_ALIGN);
	if (mp == NULL)
		return -rte_errno;
	*made = mp;
	struct rte_pktmbuf_pool_private private = { .mbuf_data_room_size = (1u << shift) - META - less };
	int rc = rte_mempool_set_ops_byname(mp, ops.name, NULL);
	if (rc < 0)
		return rc;
	rte_pktmbuf_pool_init(mp, &private);
	rc = rte_mempool_populate_iova(mp, at, (uintptr_t)at, (size_t)cells << shift, NULL, NULL);
	return rc < 0 ? rc : 0;
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
	// (`whole` needs no cache of its own: it takes from that of the other.)
	int rc = make_pool("bywash", at, RTE_MIN(CACHE, count * 2 / 3), LINE * (COLOURS - 1), &pool);
	if (rc == 0)
		rc = make_pool("bywash_whole", at, 0, 0, &whole);
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

// Returns the bytes that a buffer of a mempool can receive.
static int room_of(struct rte_mempool *mp)
{
	return rte_pktmbuf_data_room_size(mp) - RTE_PKTMBUF_HEADROOM;
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
	// Frames that fit only a whole cell, with two VLAN tags and FCS.
	uint16_t mtu = 1500;
	rte_eth_dev_get_mtu(port, &mtu);
	if (from == pool && mtu + RTE_ETHER_HDR_LEN + 2 * RTE_VLAN_HLEN + RTE_ETHER_CRC_LEN > room_of(pool))
		from = whole;
	for (uint16_t queue = 0; queue < device->queues; queue++) {
		*failed = "set up a receive queue";
		rc = rte_eth_rx_queue_setup(port, queue, rx, node, NULL, from);
		if (rc < 0 && from == pool) {
			// A driver that requires more room, if it can have any: net_af_packet, for its frame size.
			from = whole;
			rc = rte_eth_rx_queue_setup(port, queue, rx, node, NULL, from);
		}
		if (rc < 0)
			return rc;
		*failed = "set up a transmit queue";
		rc = rte_eth_tx_queue_setup(port, queue, tx, node, NULL);
		if (rc < 0)
			return rc;
	}
	__atomic_store_n(&removed[port], false, __ATOMIC_RELEASE);
	// The link counts as up for a thread that asks while another one queries the kernel for the first time.
	below[port] = (struct below){ .index = info.if_index, .link = 1 };
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
	mtu = 1500;
	rte_eth_dev_get_mtu(port, &mtu);
	device->mtu = mtu;
	device->max_frame = mtu + RTE_ETHER_HDR_LEN;
	device->descriptors = rx;
	return 0;
}

// `call` is that of a worker whose ports may all be closed now; NULL for another thread.
void bywash_dpdk_close(uint16_t port, struct call *call)
{
	rte_eth_dev_callback_unregister(port, RTE_ETH_EVENT_INTR_RMV, on_removed, NULL);
	struct rte_eth_dev_info info;
	int rc = rte_eth_dev_info_get(port, &info);
	rte_eth_dev_stop(port);
	rte_eth_dev_close(port);
	if (rc == 0 && info.device != NULL)
		rte_dev_remove(info.device);
	if (call != NULL) {
		call->keep = 0;
		leave(call);
	}
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
	// Deleted since its name was found. A thread that calls it up then could contradict one that found it deleted.
	int gone = rc < 0 && errno == ENODEV;
	close(fd);
	if (gone)
		return 2;
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
	size_t used = 0;
	text[0] = '\0';
	int most = rte_eth_xstats_get(port, NULL, 0);
	if (most <= 0)
		return 0;
	struct rte_eth_xstat *values = calloc(most, sizeof(*values));
	struct rte_eth_xstat_name *names = calloc(most, sizeof(*names));
	int n = values != NULL && names != NULL ? rte_eth_xstats_get(port, values, most) : 0;
	if (n > most || rte_eth_xstats_get_names(port, names, most) != n)
		n = 0;
	for (int i = 0; i < n; i++) {
		if (values[i].value == 0)
			continue;
		int more = snprintf(text + used, room - used, "%s%s=%" PRIu64, used ? " " : "",
				    names[values[i].id].name, values[i].value);
		if (more < 0 || used + more >= room)
			break;
		used += more;
	}
	free(values);
	free(names);
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

// The place of data_off, refcnt, nb_segs and port of an mbuf as one word, from the lowest bits up.
static inline uint64_t *rearm_of(struct rte_mbuf *m)
{
	return (uint64_t *)((char *)m + offsetof(struct rte_mbuf, data_off));
}

_Static_assert(offsetof(struct rte_mbuf, refcnt) == offsetof(struct rte_mbuf, data_off) + 2 &&
	       offsetof(struct rte_mbuf, nb_segs) == offsetof(struct rte_mbuf, data_off) + 4 &&
	       offsetof(struct rte_mbuf, port) == offsetof(struct rte_mbuf, data_off) + 6 &&
	       RTE_BYTE_ORDER == RTE_LITTLE_ENDIAN, "fields of the word");

// In that word, refcnt and nb_segs: 1 each for a frame in one segment to which there is no other reference.
#define SINGLE_MASK 0x0000ffffffff0000ull
#define SINGLE 0x0000000100010000ull

// Flags of a received mbuf that is not in a cell of its own, or that would make a driver do more than send it.
#define ODD_FLAGS (RTE_MBUF_F_INDIRECT | RTE_MBUF_F_EXTERNAL | RTE_MBUF_F_TX_OFFLOAD_MASK)

static bool in_one_cell(struct rte_mbuf *m)
{
	return m->pool == pool && (*rearm_of(m) & SINGLE_MASK) == SINGLE && RTE_MBUF_DIRECT(m);
}

// Receives frames some of which are not in one cell, or not to be sent as they are. Returns the number of those that
// are in one cell now.
static uint16_t exceptions(struct rte_mbuf **received, uint16_t n, struct raw *out, struct call *call)
{
	uint16_t good = 0;
	call->bytes = 0;
	for (uint16_t i = 0; i < n; i++) {
		struct rte_mbuf *m = received[i];
		if (in_one_cell(m)) {
			out[good].addr = (uint8_t *)m->buf_addr + m->data_off - base;
			out[good].len = m->data_len;
			out[good].options = 0;
		} else if (copy(m, &out[good])) {
			call->copied++;
		} else {
			call->lost++;
			continue;
		}
		call->bytes += out[good++].len;
	}
	return good;
}

// Writes the frames of received mbufs, and returns whether they are in one cell each, in which case these are complete.
// Sums up their bytes.
static bool frames_of(struct rte_mbuf **received, uint16_t n, struct raw *out, uint64_t *sum)
{
	// All have the same pool, refcnt and nb_segs, which is seen without a branch for each: bits that any has and that
	// all have.
	uint64_t any = SINGLE, all = SINGLE, flags = 0, bytes = 0;
	uintptr_t any_pool = (uintptr_t)pool, all_pool = (uintptr_t)pool;
	uint8_t *const from = base;
#pragma GCC unroll 4
	for (uint16_t i = 0; i < n; i++) {
		struct rte_mbuf *m = received[i];
		uint64_t rearm = *rearm_of(m);
		uint32_t len = m->data_len;
		any |= rearm;
		all &= rearm;
		flags |= m->ol_flags;
		any_pool |= (uintptr_t)m->pool;
		all_pool &= (uintptr_t)m->pool;
		out[i].addr = (uint8_t *)m->buf_addr + (uint16_t)rearm - from;
		out[i].len = len;
		out[i].options = NOTED;
		bytes += len;
	}
	*sum = bytes;
	return ((any ^ SINGLE) & SINGLE_MASK) == 0 && ((all ^ SINGLE) & SINGLE_MASK) == 0 && (flags & ODD_FLAGS) == 0 &&
	       any_pool == all_pool;
}

#ifdef RTE_ARCH_X86_64
_Static_assert(offsetof(struct rte_mbuf, buf_addr) == 0 && offsetof(struct rte_mbuf, data_off) == 16 &&
	       offsetof(struct rte_mbuf, ol_flags) == 24 && offsetof(struct rte_mbuf, data_len) == 40 &&
	       offsetof(struct rte_mbuf, pool) == 56, "fields of the line");

// Does the same with a whole line of each mbuf at once, but also returns false if data do not begin behind the usual
// headroom.
__attribute__((target("avx512f,avx512bw,avx512vl"))) static bool frames_of_lines(struct rte_mbuf **received, uint16_t n,
										 struct raw *out, uint64_t *sum)
{
	const __m512i same = _mm512_set_epi64((uintptr_t)pool, 0, 0, 0, 0, SINGLE | RTE_PKTMBUF_HEADROOM, 0, 0);
	const __m512i checked = _mm512_set_epi64(-1, 0, 0, 0, ODD_FLAGS, SINGLE_MASK | 0xffff, 0, 0);
	// buf_addr, and data_len as a word of 64 bits.
	const __m512i places = _mm512_set_epi64(0, 0, 0, 0, 0, 0, 20, 3ull << 48 | 2ull << 32 | 1 << 16);
	const __m128i add = _mm_set_epi64x((uint64_t)NOTED << 32, RTE_PKTMBUF_HEADROOM - (uintptr_t)base);
	__m512i differ = _mm512_setzero_si512();
	__m128i bytes = _mm_setzero_si128();
#pragma GCC unroll 4
	for (uint16_t i = 0; i < n; i++) {
		__m512i line = _mm512_loadu_si512(received[i]);
		// differ | (line ^ same)
		differ = _mm512_ternarylogic_epi64(differ, line, same, 0xf6);
		__m128i frame = _mm512_castsi512_si128(_mm512_maskz_permutexvar_epi16(0x1f, places, line));
		bytes = _mm_add_epi64(bytes, frame);
		_mm_storeu_si128((__m128i *)&out[i], _mm_add_epi64(frame, add));
	}
	*sum = _mm_extract_epi64(bytes, 1);
	return _mm512_test_epi64_mask(differ, checked) == 0;
}
#endif

// Receives up to `most` frames, of which about `expected` are there.
uint16_t bywash_dpdk_rx(uint16_t port, uint16_t queue, struct raw *out, uint16_t most, uint16_t expected,
			struct call *call)
{
	struct rte_mbuf *received[BURST];
	enter(expected);
	uint16_t n = rte_eth_rx_burst(port, queue, received, RTE_MIN(most, (uint16_t)BURST));
#ifdef RTE_ARCH_X86_64
	bool plain = lines && frames_of_lines(received, n, out, &call->bytes);
#else
	bool plain = false;
#endif
	if (unlikely(!plain) && !frames_of(received, n, out, &call->bytes))
		n = exceptions(received, n, out, call);
	leave(call);
	return n;
}

// Finds the mbufs of frames, and returns whether all of these are as they were received, in which case nothing needs to
// be written. Sums up their bytes.
__attribute__((target_clones("default", "avx2", "avx512f"))) static bool
mbufs_of(const struct raw *frames, uint16_t n, struct rte_mbuf **sent, uint64_t *sum)
{
	uint64_t all = -1ull, bytes = 0;
	const uintptr_t first = (uintptr_t)mbufs;
	const uint32_t by = shift;
	for (uint16_t i = 0; i < n; i++) {
		uint64_t size = frames[i].len | (uint64_t)frames[i].options << 32;
		// The byte before the data belongs to the cell, even if the frame is empty and at the cell's end.
		sent[i] = (struct rte_mbuf *)(first + ((frames[i].addr - 1) >> by) * sizeof(struct rte_mbuf));
		all &= size;
		bytes += (uint32_t)size;
	}
	*sum = bytes;
	return all >> 32 & NOTED;
}

// Fills in the mbufs of frames. Fields are written without a look at them: a comparison costs as much as the stores.
static void fill_in(struct rte_mbuf **mbufs, const struct raw *frames, uint16_t n)
{
	uint8_t *const from = base;
#pragma GCC unroll 4
	for (uint16_t i = 0; i < n; i++) {
		struct rte_mbuf *m = mbufs[i];
		uint8_t *data = from + frames[i].addr;
		// One that begins before its buffer, which need not begin where it does.
		if (unlikely(data < (uint8_t *)m->buf_addr))
			place(cell_of(m), 0);
		*rearm_of(m) = (uint64_t)RTE_MBUF_PORT_INVALID << 48 | SINGLE | (data - (uint8_t *)m->buf_addr);
		m->ol_flags = 0;
		m->pkt_len = frames[i].len;
		m->data_len = frames[i].len;
	}
}

// Sends up to n frames and returns how many. The caller keeps ownership of the others.
uint16_t bywash_dpdk_tx(uint16_t port, uint16_t queue, const struct raw *frames, uint16_t n, struct call *call)
{
	struct rte_mbuf *sent[BURST];
	n = RTE_MIN(n, (uint16_t)BURST);
	uint64_t bytes;
	if (!mbufs_of(frames, n, sent, &bytes))
		fill_in(sent, frames, n);
	enter(0);
	uint16_t done = rte_eth_tx_burst(port, queue, sent, n);
	for (uint16_t i = done; i < n; i++)
		bytes -= frames[i].len;
	call->bytes = bytes;
	leave(call);
	return done;
}

// Asks the driver to free sent frames. Returns a negative errno if the driver does not support that.
int bywash_dpdk_reclaim(uint16_t port, uint16_t queue, struct call *call)
{
	enter(0);
	int rc = rte_eth_tx_done_cleanup(port, queue, 0);
	leave(call);
	return rc;
}

// Returns the number of cells in the cache of this thread.
uint32_t bywash_dpdk_cached(void)
{
	return cache != NULL ? cache->len : 0;
}

// Restores that number after calls of the driver that were not a worker's.
void bywash_dpdk_restore(uint32_t n)
{
	if (cache == NULL)
		return;
	if (cache->len < n && take(cache->objs + cache->len, n - cache->len))
		cache->len = n;
	if (cache->len > n) {
		unsigned int surplus = cache->len - n;
		cache->len = n;
		give_back(cache->objs + n, surplus);
	}
}

// Empties the cache as far as the call demands.
void bywash_dpdk_settle(struct call *call)
{
	leave(call);
}
