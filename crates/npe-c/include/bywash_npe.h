// The dispatching device in C: packets on threads with their own blocks of memory.
// Made from the sources of the crate bywash-npe-c, where a program that uses it is in examples/.

#ifndef BYWASH_NPE_H
#define BYWASH_NPE_H

#include <stddef.h>
#include <stdint.h>

/**
 * Packets go to the channels in turn.
 */
#define DISP_ROUND_ROBIN 0

/**
 * Packets go to the channel with the number of their port, modulo the number of channels.
 */
#define DISP_BY_PORT 1

/**
 * Dispatching device: distributes the packets that its ports receive over channels, one for each thread.
 */
struct net_device;

/**
 * Received packet. It lies in the metadata of the packet's cell, in front of the packet.
 */
struct net_pkt {
  /**
   * First byte of the packet. The program may change the packet, and lengthen it up to 1,792 bytes.
   */
  uint8_t *data;
  /**
   * Next packet of this channel: where it will be once it is received. NULL if that is not known yet. Only an
   * address to prefetch; recv_pkt() says when it is there.
   */
  const struct net_pkt *next;
  /**
   * Its device. Not for the program.
   */
  const struct net_device *device;
  /**
   * Length in bytes, without check sequence.
   */
  uint32_t len;
  /**
   * Port that received it.
   */
  uint16_t port;
  /**
   * Channel that received it.
   */
  uint16_t channel;
};

/**
 * Packets of a device.
 */
struct net_counters {
  /**
   * Dispatched to channels.
   */
  uint64_t dispatched;
  /**
   * Sent by ports.
   */
  uint64_t sent;
  /**
   * Released by threads without sending.
   */
  uint64_t released;
  /**
   * Received and dropped because their channel was full.
   */
  uint64_t channel_full;
  /**
   * Received and dropped because no cell was free.
   */
  uint64_t no_buffer;
  /**
   * Dropped on transmit because their port did not take them.
   */
  uint64_t tx_full;
  /**
   * Dropped on transmit because their port does not exist.
   */
  uint64_t no_port;
};

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Creates a device with `dma_cnt` channels, 1 to 16, one for each of the program's threads. `disp_mode` selects the
 * channel of a packet: DISP_ROUND_ROBIN or DISP_BY_PORT. Returns NULL on failure, with the reason in
 * net_device_error().
 *
 * Add its ports next, then start it.
 */
struct net_device *create_net_device(uint32_t dma_cnt,
                                     uint32_t disp_mode);

/**
 * Starts a device: from now on it receives. Its thread also sends and takes buffers back. Each channel gets 32 MiB
 * of memory. Returns 0, or -1 on failure, with the reason in net_device_error().
 *
 * `device` is from create_net_device() and has not been destroyed, and no other thread uses it yet.
 */
int start_net_device(struct net_device *device);

/**
 * Ends a device once it has sent what it took over, and frees its memory. Returns the number of packets that the
 * program received and neither sent nor released; their pointers are invalid now, as is `device`. NULL is ignored.
 *
 * `device` is from create_net_device() and has not been destroyed, and no other thread uses it any more.
 */
size_t destroy_net_device(struct net_device *device);

/**
 * Adds a port that receives the packets of the capture file `file` and records those that it sends to the file
 * `record`. Either may be NULL: nothing is received, or what is sent is discarded. Returns the port's number, or -1 on
 * failure, with the reason in net_device_error().
 *
 * `device` is from create_net_device() and has not been destroyed, and no other thread uses it yet. The paths end with
 * a zero byte.
 */
int add_pcap_port(struct net_device *device,
                  const char *file,
                  const char *record);

/**
 * Adds a port that creates the TAP interface `name` and receives what the kernel sends by it (needs CAP_NET_ADMIN).
 * The interface goes away with the device. Returns the port's number, or -1 on failure, with the reason in
 * net_device_error().
 *
 * `device` is from create_net_device() and has not been destroyed, and no other thread uses it yet. `name` ends with a
 * zero byte.
 */
int add_tap_port(struct net_device *device,
                 const char *name);

/**
 * Returns the next packet of a channel, or NULL if there is none now. It is the program's until the same thread sends
 * or releases it.
 *
 * `device` is from create_net_device() and has not been destroyed. A channel is used by one thread.
 */
struct net_pkt *recv_pkt(const struct net_device *device,
                         uint32_t channel);

/**
 * Hands a packet back to the device, to send its first `pkt_len` bytes by port `outport`. Returns 0, and the packet is
 * the device's; or -EAGAIN if the device is behind: call again; or -EMSGSIZE if a cell has no room for `pkt_len`
 * bytes; or -EINVAL if the program does not have this packet. The device drops and counts packets for unknown ports.
 *
 * `pkt` is NULL, or from recv_pkt() on this thread, and its device has not been destroyed.
 */
int send_pkt(struct net_pkt *pkt,
             uint16_t outport,
             uint32_t pkt_len);

/**
 * Hands a packet back to the device without sending it. Returns 0; or -EAGAIN if the device is behind: call again; or
 * -EINVAL if the program does not have this packet.
 *
 * `pkt` is NULL, or from recv_pkt() on this thread, and its device has not been destroyed.
 */
int release_pkt(struct net_pkt *pkt);

/**
 * Writes the counters of a started device to `counters`. Returns 0, or -EINVAL if the device has not been started.
 * Any thread may call it.
 *
 * `device` is from create_net_device() and has not been destroyed; `counters` may be written.
 */
int net_device_counters(const struct net_device *device,
                        struct net_counters *counters);

/**
 * Returns the reason of this thread's last failure of a function that says so; an empty text if there was none. The
 * text stays until the next such failure on this thread.
 */
const char *net_device_error(void);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* BYWASH_NPE_H */
