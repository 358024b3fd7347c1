/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Byte order, in place of libbpf's header of this name, for the program's sources on a little-endian host. */
#ifndef BYWASH_FUZZ_BPF_ENDIAN_H
#define BYWASH_FUZZ_BPF_ENDIAN_H

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the router's programs are for little-endian machines"
#endif

#define bpf_htons(x) ((__be16)__builtin_bswap16(x))
#define bpf_ntohs(x) ((__u16)__builtin_bswap16(x))
#define bpf_htonl(x) ((__be32)__builtin_bswap32(x))
#define bpf_ntohl(x) ((__u32)__builtin_bswap32(x))
#define bpf_cpu_to_be64(x) ((__be64)__builtin_bswap64(x))
#define bpf_be64_to_cpu(x) ((__u64)__builtin_bswap64(x))

#endif
