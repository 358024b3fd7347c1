// Forwards the packets of a capture file as in the TABM paper: a device with a channel for each thread, and threads
// that are bound to CPUs, poll, and send each packet back by the port that it came from.
//
//     cc -O2 -o forward forward.c -lbywash_npe -lpthread
//     ./forward in.pcap out.pcap PACKETS [THREADS]
//
// PACKETS is the number of packets in the file.
#define _GNU_SOURCE
#include <bywash_npe.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

struct thread {
    pthread_t handle;
    struct net_device *device;
    unsigned channel;
    unsigned long packets;  // of the whole file
};

// Packets that have left the device or were lost in it.
static unsigned long done(const struct net_device *device)
{
    struct net_counters n;
    net_device_counters(device, &n);
    return n.sent + n.channel_full + n.no_buffer + n.tx_full;
}

static void *start_npe_thread(void *tp)
{
    struct thread *thread = tp;
    while (done(thread->device) < thread->packets) {
        struct net_pkt *pkt = recv_pkt(thread->device, thread->channel);
        if (pkt == NULL) {
            sched_yield();  // only since the threads may have fewer CPUs than they are
            continue;
        }
        while (send_pkt(pkt, pkt->port, pkt->len) == -EAGAIN)
            sched_yield();
    }
    return NULL;
}

int main(int argc, char **argv)
{
    if (argc < 4) {
        fprintf(stderr, "usage: forward IN.pcap OUT.pcap PACKETS [THREADS]\n");
        return 2;
    }
    unsigned long packets = strtoul(argv[3], NULL, 10), dma_cnt = argc > 4 ? strtoul(argv[4], NULL, 10) : 2;
    struct net_device *device = create_net_device((uint32_t)dma_cnt, DISP_ROUND_ROBIN);
    if (device == NULL || add_pcap_port(device, argv[1], argv[2]) < 0 || start_net_device(device) < 0) {
        fprintf(stderr, "forward: %s\n", net_device_error());
        destroy_net_device(device);
        return 1;
    }
    struct thread threads[16];
    cpu_set_t allowed;
    sched_getaffinity(0, sizeof allowed, &allowed);
    int cpu = -1;
    for (unsigned i = 0; i < dma_cnt; i++) {
        threads[i] = (struct thread){.device = device, .channel = i, .packets = packets};
        pthread_attr_t attr;
        cpu_set_t set;
        CPU_ZERO(&set);
        do
            cpu = (cpu + 1) % CPU_SETSIZE;
        while (!CPU_ISSET(cpu, &allowed));
        CPU_SET(cpu, &set);
        pthread_attr_init(&attr);
        pthread_attr_setaffinity_np(&attr, sizeof set, &set);
        int error = pthread_create(&threads[i].handle, &attr, start_npe_thread, &threads[i]);
        pthread_attr_destroy(&attr);
        if (error != 0) {
            fprintf(stderr, "forward: cannot start thread %u on CPU %d: error %d\n", i, cpu, error);
            exit(1);
        }
    }
    for (unsigned i = 0; i < dma_cnt; i++)
        pthread_join(threads[i].handle, NULL);
    struct net_counters n;
    net_device_counters(device, &n);
    size_t kept = destroy_net_device(device);
    printf("%lu of %lu packets sent, %zu kept\n", (unsigned long)n.sent, packets, kept);
    return 0;
}
