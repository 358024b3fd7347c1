// DPDK mempool operations bywash_stack, bywash_sdb and bywash_tabm, which pass DPDK's calls on to src/abi.rs.
//
// The operations are registered when the library is loaded (EAL option -d) and selected by --mbuf-pool-ops-name or
// rte_mempool_set_ops_byname.

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <rte_common.h>
#include <rte_eal.h>
#include <rte_lcore.h>
#include <rte_log.h>
#include <rte_mempool.h>

struct bywash_mempool;
struct bywash_mempool *bywash_mempool_new(uint32_t kind, uint32_t count, size_t stride, uint32_t takers, uint32_t block);
void bywash_mempool_drop(struct bywash_mempool *mempool);
void bywash_mempool_add(struct bywash_mempool *mempool, uintptr_t object);
void bywash_mempool_added(struct bywash_mempool *mempool);
int bywash_mempool_get(const struct bywash_mempool *mempool, uint32_t taker, void **out, uint32_t n);
int bywash_mempool_put(const struct bywash_mempool *mempool, void *const *objects, uint32_t n);
uint32_t bywash_mempool_count(const struct bywash_mempool *mempool);

enum kind { STACK, SDB, TABM };

#define SAY(...) rte_log(RTE_LOG_ERR, RTE_LOGTYPE_MEMPOOL, "bywash mempool: " __VA_ARGS__)

// Returns the objects of a block as set in the environment, 0 if not set: DPDK cannot pass options to its default
// operations.
static uint32_t block(void)
{
	const char *text = getenv("BYWASH_MEMPOOL_BLOCK");
	if (text == NULL)
		return 0;
	char *end;
	unsigned long n = strtoul(text, &end, 10);
	if (*text == '\0' || *end != '\0' || n == 0 || n > 65536 || (n & (n - 1)) != 0) {
		SAY("ignoring BYWASH_MEMPOOL_BLOCK=%s: must be a power of two from 1 to 65536\n", text);
		return 0;
	}
	return n;
}

static int new(struct rte_mempool *mp, enum kind kind)
{
	// pool_data points to memory of one process.
	if (rte_eal_process_type() != RTE_PROC_PRIMARY) {
		SAY("%s: not supported in a secondary process; use a primary process only\n", mp->name);
		return -ENOTSUP;
	}
	size_t stride = (size_t)mp->header_size + mp->elt_size + mp->trailer_size;
	// The last taker stands for all threads that are not lcores.
	mp->pool_data = bywash_mempool_new(kind, mp->size, stride, RTE_MAX_LCORE + 1, block());
	if (mp->pool_data == NULL) {
		SAY("%s: invalid size: %u objects of %zu bytes, at most 131072 bytes each\n", mp->name, mp->size, stride);
		return -EINVAL;
	}
	return 0;
}

static int new_stack(struct rte_mempool *mp) { return new(mp, STACK); }
static int new_sdb(struct rte_mempool *mp) { return new(mp, SDB); }
static int new_tabm(struct rte_mempool *mp) { return new(mp, TABM); }

static void drop(struct rte_mempool *mp)
{
	bywash_mempool_drop(mp->pool_data);
	mp->pool_data = NULL;
}

static int put(struct rte_mempool *mp, void *const *objects, unsigned int n)
{
	return bywash_mempool_put(mp->pool_data, objects, n) == 0 ? 0 : -EINVAL;
}

static int get(struct rte_mempool *mp, void **objects, unsigned int n)
{
	return bywash_mempool_get(mp->pool_data, rte_lcore_id(), objects, n) == 0 ? 0 : -ENOBUFS;
}

static unsigned int count(const struct rte_mempool *mp)
{
	return bywash_mempool_count(mp->pool_data);
}

// DPDK's callback, which puts each object into the mempool, and its argument.
struct inner {
	rte_mempool_populate_obj_cb_t *call;
	void *arg;
};

static void add(struct rte_mempool *mp, void *opaque, void *object, rte_iova_t iova)
{
	struct inner *inner = opaque;
	bywash_mempool_add(mp->pool_data, (uintptr_t)object);
	inner->call(mp, inner->arg, object, iova);
}

static int populate(struct rte_mempool *mp, unsigned int most, void *at, rte_iova_t iova, size_t len,
		    rte_mempool_populate_obj_cb_t *call, void *arg)
{
	struct inner inner = { call, arg };
	int n = rte_mempool_op_populate_default(mp, most, at, iova, len, add, &inner);
	bywash_mempool_added(mp->pool_data);
	return n;
}

#define OPS(kind) \
	{ \
		.name = "bywash_" #kind, .alloc = new_##kind, .free = drop, .enqueue = put, .dequeue = get, \
		.get_count = count, .populate = populate, \
	}

static const struct rte_mempool_ops all[] = { OPS(stack), OPS(sdb), OPS(tabm) };

// DPDK has room for 16 operations, of which all drivers of a distribution together leave two or fewer. So if the user
// names one of these operations, only that one is registered.
RTE_INIT(announce)
{
	const char *wanted = rte_eal_mbuf_user_pool_ops();
	bool one = false;
	for (size_t i = 0; i < RTE_DIM(all); i++)
		one |= wanted != NULL && strcmp(wanted, all[i].name) == 0;
	for (size_t i = 0; i < RTE_DIM(all); i++) {
		if (one && strcmp(wanted, all[i].name) != 0)
			continue;
		if (rte_mempool_register_ops(&all[i]) < 0)
			SAY("cannot register the operations %s: name them with --mbuf-pool-ops-name, or load fewer "
			    "drivers\n", all[i].name);
	}
}
