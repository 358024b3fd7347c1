// Checks the C interface: argument MODE, then paths. Run by c.rs.
#define _GNU_SOURCE
#include <bywash_npe.h>
#include <errno.h>
#include <net/if.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(what)                                                     \
    do {                                                                \
        if (!(what)) {                                                  \
            fprintf(stderr, "line %d: not: %s; last error: %s\n", __LINE__, #what, net_device_error()); \
            exit(1);                                                    \
        }                                                               \
    } while (0)

static struct net_counters counters(const struct net_device *device)
{
    struct net_counters n;
    CHECK(net_device_counters(device, &n) == 0);
    return n;
}

static struct net_pkt *next(const struct net_device *device, unsigned channel)
{
    struct net_pkt *pkt;
    while ((pkt = recv_pkt(device, channel)) == NULL)
        sched_yield();
    return pkt;
}

static void refused(void)
{
    CHECK(strcmp(net_device_error(), "") == 0);
    CHECK(create_net_device(0, DISP_ROUND_ROBIN) == NULL);
    CHECK(strcmp(net_device_error(), "create_net_device: invalid number of channels 0: must be 1 to 16") == 0);
    CHECK(create_net_device(17, DISP_BY_PORT) == NULL && strstr(net_device_error(), "channels 17") != NULL);
    CHECK(create_net_device(1, 2) == NULL && strstr(net_device_error(), "no such dispatch mode: 2") != NULL);

    struct net_device *device = create_net_device(1, DISP_ROUND_ROBIN);
    struct net_counters n;
    CHECK(recv_pkt(device, 0) == NULL && net_device_counters(device, &n) == -EINVAL);
    CHECK(start_net_device(device) == -1 && strstr(net_device_error(), "start_net_device: no ports") != NULL);
    CHECK(add_pcap_port(device, "/nowhere/in.pcap", NULL) == -1);
    CHECK(strstr(net_device_error(), "add_pcap_port: cannot read `/nowhere/in.pcap`") != NULL);
    CHECK(add_pcap_port(device, NULL, "/nowhere/out.pcap") == -1);
    CHECK(strstr(net_device_error(), "add_pcap_port: cannot create `/nowhere/out.pcap`") != NULL);
    CHECK(add_tap_port(device, NULL) == -1 && strstr(net_device_error(), "no name") != NULL);
    CHECK(add_pcap_port(device, NULL, NULL) == 0 && add_pcap_port(device, NULL, NULL) == 1);
    CHECK(start_net_device(device) == 0);
    CHECK(start_net_device(device) == -1 && strstr(net_device_error(), "started already") != NULL);
    CHECK(add_pcap_port(device, NULL, NULL) == -1 && strstr(net_device_error(), "add its ports before") != NULL);
    CHECK(recv_pkt(device, 0) == NULL && recv_pkt(device, 1) == NULL);
    CHECK(destroy_net_device(device) == 0);

    CHECK(recv_pkt(NULL, 0) == NULL && send_pkt(NULL, 0, 60) == -EINVAL && release_pkt(NULL) == -EINVAL);
    CHECK(start_net_device(NULL) == -1 && add_pcap_port(NULL, NULL, NULL) == -1 && destroy_net_device(NULL) == 0);
    // A device that was never started.
    CHECK(destroy_net_device(create_net_device(16, DISP_BY_PORT)) == 0);
}

// The file has 8 packets of 60, 61, .. bytes, filled with 0, 1, ..
static void packets(const char *file, const char *record)
{
    struct net_device *device = create_net_device(2, DISP_BY_PORT);
    CHECK(add_pcap_port(device, NULL, record) == 0 && add_pcap_port(device, file, NULL) == 1);
    CHECK(start_net_device(device) == 0);
    struct net_pkt *pkts[8];
    for (unsigned i = 0; i < 8; i++) {
        struct net_pkt *pkt = pkts[i] = next(device, 1);
        CHECK(pkt->len == 60 + i && pkt->port == 1 && pkt->channel == 1);
        for (unsigned at = 0; at < pkt->len; at++)
            CHECK(pkt->data[at] == i);
        // In blocks of the thread's own, one behind the other, and each names the next.
        CHECK(i == 0 || (pkt->data == pkts[i - 1]->data + 2048 && pkts[i - 1]->next == pkt));
    }
    CHECK(recv_pkt(device, 1) == NULL && recv_pkt(device, 0) == NULL);
    memset(pkts[0]->data, 0xab, 100);
    CHECK(send_pkt(pkts[0], 0, 100) == 0);
    CHECK(send_pkt(pkts[0], 0, 60) == -EINVAL && release_pkt(pkts[0]) == -EINVAL);
    CHECK(send_pkt(pkts[1], 0, 1793) == -EMSGSIZE && send_pkt(pkts[1], 0, 1792) == 0);
    CHECK(send_pkt(pkts[2], 9, 60) == 0);
    CHECK(release_pkt(pkts[3]) == 0 && release_pkt(pkts[3]) == -EINVAL);
    while (counters(device).sent < 2 || counters(device).no_port < 1 || counters(device).released < 1)
        sched_yield();
    struct net_counters n = counters(device);
    CHECK(n.dispatched == 8 && n.channel_full == 0 && n.no_buffer == 0 && n.tx_full == 0);
    CHECK(destroy_net_device(device) == 4);
}

static void tap(void)
{
    struct net_device *device = create_net_device(1, DISP_ROUND_ROBIN);
    CHECK(add_tap_port(device, "npe0") == 0 && if_nametoindex("npe0") != 0);
    CHECK(add_tap_port(device, "npe0") == -1 && strstr(net_device_error(), "add_tap_port: ") != NULL);
    CHECK(start_net_device(device) == 0 && destroy_net_device(device) == 0);
    CHECK(if_nametoindex("npe0") == 0);
}

int main(int argc, char **argv)
{
    if (argc == 4 && strcmp(argv[1], "packets") == 0)
        packets(argv[2], argv[3]);
    else if (argc == 2 && strcmp(argv[1], "tap") == 0)
        tap();
    else
        refused();
    puts("passed");
    return 0;
}
