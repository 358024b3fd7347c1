//! Constants of the kernel's routing netlink, under the kernel's names (linux/rtnetlink.h, if_link.h, if_addr.h,
//! if_bridge.h, netconf.h, neighbour.h, nexthop.h).

pub const NLM_F_REPLACE: u16 = 0x100;
pub const NLM_F_EXCL: u16 = 0x200;
pub const NLM_F_APPEND: u16 = 0x800;

pub const RTM_NEWLINK: u16 = 16;
pub const RTM_DELLINK: u16 = 17;
pub const RTM_GETLINK: u16 = 18;
pub const RTM_NEWADDR: u16 = 20;
pub const RTM_DELADDR: u16 = 21;
pub const RTM_GETADDR: u16 = 22;
pub const RTM_NEWROUTE: u16 = 24;
pub const RTM_DELROUTE: u16 = 25;
pub const RTM_GETROUTE: u16 = 26;
pub const RTM_NEWNEIGH: u16 = 28;
pub const RTM_DELNEIGH: u16 = 29;
pub const RTM_GETNEIGH: u16 = 30;
pub const RTM_NEWNETCONF: u16 = 80;
pub const RTM_NEWNSID: u16 = 88;
pub const RTM_GETNSID: u16 = 90;
pub const NETNSA_NSID: u16 = 1;
pub const NETNSA_PID: u16 = 2;
pub const RTM_NEWNEXTHOP: u16 = 104;
pub const RTM_DELNEXTHOP: u16 = 105;
pub const RTM_GETNEXTHOP: u16 = 106;
pub const RTM_NEWVLAN: u16 = 112;
pub const RTM_DELVLAN: u16 = 113;
pub const RTM_GETVLAN: u16 = 114;
pub const RTM_NEWTUNNEL: u16 = 120;
pub const RTM_DELTUNNEL: u16 = 121;
pub const RTM_GETTUNNEL: u16 = 122;

pub const RTNLGRP_LINK: u32 = 1;
pub const RTNLGRP_NEIGH: u32 = 3;
pub const RTNLGRP_IPV4_IFADDR: u32 = 5;
pub const RTNLGRP_IPV4_ROUTE: u32 = 7;
pub const RTNLGRP_IPV6_IFADDR: u32 = 9;
pub const RTNLGRP_IPV6_ROUTE: u32 = 11;
pub const RTNLGRP_IPV4_NETCONF: u32 = 24;
pub const RTNLGRP_IPV6_NETCONF: u32 = 25;
pub const RTNLGRP_NEXTHOP: u32 = 32;
pub const RTNLGRP_BRVLAN: u32 = 33;
pub const RTNLGRP_TUNNEL: u32 = 35;

pub const AF_UNSPEC: u8 = 0;
pub const AF_INET: u8 = 2;
pub const AF_BRIDGE: u8 = 7;
pub const AF_INET6: u8 = 10;

pub const IFF_UP: u32 = 0x1;
pub const IFF_RUNNING: u32 = 0x40;
pub const IFF_NOARP: u32 = 0x80;
pub const IFF_LOWER_UP: u32 = 0x1_0000;
pub const ARPHRD_ETHER: u16 = 1;

pub const IFLA_ADDRESS: u16 = 1;
pub const IFLA_IFNAME: u16 = 3;
pub const IFLA_MTU: u16 = 4;
pub const IFLA_LINK: u16 = 5;
pub const IFLA_MASTER: u16 = 10;
pub const IFLA_WIRELESS: u16 = 11;
pub const IFLA_LINKINFO: u16 = 18;
pub const IFLA_EXT_MASK: u16 = 29;
pub const IFLA_NUM_RX_QUEUES: u16 = 32;
pub const IFLA_PHYS_SWITCH_ID: u16 = 36;
pub const IFLA_LINK_NETNSID: u16 = 37;
pub const IFLA_XDP: u16 = 43;
pub const IFLA_TARGET_NETNSID: u16 = 46;
pub const IFLA_XDP_ATTACHED: u16 = 2;
pub const IFLA_INFO_KIND: u16 = 1;
pub const IFLA_INFO_DATA: u16 = 2;
pub const IFLA_INFO_SLAVE_KIND: u16 = 4;
pub const IFLA_INFO_SLAVE_DATA: u16 = 5;
pub const IFLA_VLAN_ID: u16 = 1;
pub const IFLA_VLAN_FLAGS: u16 = 2;
pub const IFLA_VLAN_PROTOCOL: u16 = 5;
pub const VLAN_FLAG_REORDER_HDR: u32 = 1;
pub const IFLA_MACVLAN_MODE: u16 = 1;
pub const IFLA_IPVLAN_MODE: u16 = 1;
pub const IFLA_MACVLAN_BC_CUTOFF: u16 = 9;
pub const IFLA_VRF_TABLE: u16 = 1;

pub const IFLA_VXLAN_ID: u16 = 1;
pub const IFLA_VXLAN_GROUP: u16 = 2;
pub const IFLA_VXLAN_LINK: u16 = 3;
pub const IFLA_VXLAN_LOCAL: u16 = 4;
pub const IFLA_VXLAN_TTL: u16 = 5;
pub const IFLA_VXLAN_TOS: u16 = 6;
pub const IFLA_VXLAN_LEARNING: u16 = 7;
pub const IFLA_VXLAN_AGEING: u16 = 8;
pub const IFLA_VXLAN_PORT_RANGE: u16 = 10;
pub const IFLA_VXLAN_PROXY: u16 = 11;
pub const IFLA_VXLAN_RSC: u16 = 12;
pub const IFLA_VXLAN_PORT: u16 = 15;
pub const IFLA_VXLAN_GROUP6: u16 = 16;
pub const IFLA_VXLAN_LOCAL6: u16 = 17;
pub const IFLA_VXLAN_UDP_CSUM: u16 = 18;
pub const IFLA_VXLAN_UDP_ZERO_CSUM6_TX: u16 = 19;
pub const IFLA_VXLAN_UDP_ZERO_CSUM6_RX: u16 = 20;
pub const IFLA_VXLAN_REMCSUM_TX: u16 = 21;
pub const IFLA_VXLAN_REMCSUM_RX: u16 = 22;
pub const IFLA_VXLAN_GBP: u16 = 23;
pub const IFLA_VXLAN_COLLECT_METADATA: u16 = 25;
pub const IFLA_VXLAN_LABEL: u16 = 26;
pub const IFLA_VXLAN_GPE: u16 = 27;
pub const IFLA_VXLAN_TTL_INHERIT: u16 = 28;
pub const IFLA_VXLAN_DF: u16 = 29;
pub const IFLA_VXLAN_VNIFILTER: u16 = 30;
pub const IFLA_VXLAN_LABEL_POLICY: u16 = 32;
pub const IFLA_VXLAN_MC_ROUTE: u16 = 34;

// linux/if_tunnel.h
pub const IFLA_IPTUN_LINK: u16 = 1;
pub const IFLA_IPTUN_LOCAL: u16 = 2;
pub const IFLA_IPTUN_REMOTE: u16 = 3;
pub const IFLA_IPTUN_TTL: u16 = 4;
pub const IFLA_IPTUN_TOS: u16 = 5;
pub const IFLA_IPTUN_ENCAP_LIMIT: u16 = 6;
pub const IFLA_IPTUN_FLOWINFO: u16 = 7;
pub const IFLA_IPTUN_FLAGS: u16 = 8;
pub const IFLA_IPTUN_PROTO: u16 = 9;
pub const IFLA_IPTUN_PMTUDISC: u16 = 10;
pub const IFLA_IPTUN_ENCAP_TYPE: u16 = 15;
pub const IFLA_IPTUN_ENCAP_DPORT: u16 = 18;
pub const IFLA_IPTUN_COLLECT_METADATA: u16 = 19;
pub const IFLA_IPTUN_FWMARK: u16 = 20;
pub const IFLA_GRE_LINK: u16 = 1;
pub const IFLA_GRE_IFLAGS: u16 = 2;
pub const IFLA_GRE_OFLAGS: u16 = 3;
pub const IFLA_GRE_IKEY: u16 = 4;
pub const IFLA_GRE_OKEY: u16 = 5;
pub const IFLA_GRE_LOCAL: u16 = 6;
pub const IFLA_GRE_REMOTE: u16 = 7;
pub const IFLA_GRE_TTL: u16 = 8;
pub const IFLA_GRE_TOS: u16 = 9;
pub const IFLA_GRE_PMTUDISC: u16 = 10;
pub const IFLA_GRE_ENCAP_LIMIT: u16 = 11;
pub const IFLA_GRE_FLOWINFO: u16 = 12;
pub const IFLA_GRE_FLAGS: u16 = 13;
pub const IFLA_GRE_ENCAP_TYPE: u16 = 14;
pub const IFLA_GRE_ENCAP_DPORT: u16 = 17;
pub const IFLA_GRE_COLLECT_METADATA: u16 = 18;
pub const IFLA_GRE_IGNORE_DF: u16 = 19;
pub const IFLA_GRE_FWMARK: u16 = 20;
/// Flags of tunnels over IPv6: packets have no encapsulation limit, and have the traffic class of the inner packets.
pub const IP6_TNL_F_IGN_ENCAP_LIMIT: u32 = 1;
pub const IP6_TNL_F_USE_ORIG_TCLASS: u32 = 2;
/// Flags that the kernel sets itself, for tunnels that can send, receive, and have several ends.
pub const IP6_TNL_F_CAP: u32 = 7 << 16;
/// Flags of IFLA_GRE_IFLAGS and OFLAGS, in network byte order.
pub const GRE_KEY: u16 = 0x2000;
pub const GRE_CSUM: u16 = 0x8000;
pub const IFLA_PROTINFO: u16 = 12;
pub const IFLA_BR_FORWARD_DELAY: u16 = 1;
pub const IFLA_BR_AGEING_TIME: u16 = 4;
pub const IFLA_BR_STP_STATE: u16 = 5;
pub const IFLA_BR_VLAN_FILTERING: u16 = 7;
pub const IFLA_BR_VLAN_PROTOCOL: u16 = 8;
pub const IFLA_BR_NF_CALL_IPTABLES: u16 = 36;
pub const IFLA_BR_NF_CALL_IP6TABLES: u16 = 37;
pub const IFLA_BR_NF_CALL_ARPTABLES: u16 = 38;
pub const IFLA_BR_MULTI_BOOLOPT: u16 = 46;
pub const IFLA_BR_FDB_MAX_LEARNED: u16 = 49;
pub const BR_BOOLOPT_MST_ENABLE: u32 = 2;
/// Options of IFLA_BR_MULTI_BOOLOPT, up to BR_BOOLOPT_FDB_LOCAL_VLAN_0: of link-local frames, multicast and VLANs.
pub const BR_BOOLOPTS: u32 = 0x1f;
pub const IFLA_BRPORT_STATE: u16 = 1;
pub const IFLA_BRPORT_LEARNING: u16 = 8;
pub const IFLA_BRPORT_VLAN_TUNNEL: u16 = 29;
pub const IFLA_BRPORT_ISOLATED: u16 = 33;
pub const IFLA_BRPORT_BACKUP_PORT: u16 = 34;
pub const IFLA_BRPORT_LOCKED: u16 = 39;
pub const IFLA_BRPORT_MAB: u16 = 40;
pub const IFLA_BRPORT_BACKUP_NHID: u16 = 44;
pub const BR_STATE_FORWARDING: u8 = 3;
pub const BRIDGE_VLANDB_ENTRY: u16 = 1;
pub const BRIDGE_VLANDB_ENTRY_INFO: u16 = 1;
pub const BRIDGE_VLANDB_ENTRY_RANGE: u16 = 2;
pub const BRIDGE_VLANDB_ENTRY_STATE: u16 = 3;
pub const BRIDGE_VLANDB_ENTRY_TUNNEL_INFO: u16 = 4;
pub const BRIDGE_VLANDB_TINFO_ID: u16 = 1;

pub const VXLAN_VNIFILTER_ENTRY: u16 = 1;
pub const VXLAN_VNIFILTER_ENTRY_START: u16 = 1;
pub const VXLAN_VNIFILTER_ENTRY_END: u16 = 2;
/// Flags of a VLAN of a bridge or its member: received frames without a tag belong to it; its frames are sent without a
/// tag.
pub const BRIDGE_VLAN_INFO_PVID: u16 = 2;
pub const BRIDGE_VLAN_INFO_UNTAGGED: u16 = 4;
pub const IFLA_BOND_MODE: u16 = 1;
pub const IFLA_BOND_ACTIVE_SLAVE: u16 = 2;
pub const IFLA_BOND_ARP_INTERVAL: u16 = 7;
pub const IFLA_BOND_XMIT_HASH_POLICY: u16 = 14;
pub const IFLA_BOND_BROADCAST_NEIGH: u16 = 33;
pub const IFLA_BOND_SLAVE_STATE: u16 = 1;
pub const IFLA_BOND_SLAVE_MII_STATUS: u16 = 2;
pub const IFLA_BOND_SLAVE_QUEUE_ID: u16 = 5;
pub const IFLA_BOND_SLAVE_AD_CHURN_PARTNER_STATE: u16 = 12;
pub const RTEXT_FILTER_SKIP_STATS: u32 = 8;

pub const IFA_ADDRESS: u16 = 1;
pub const IFA_LOCAL: u16 = 2;
pub const IFA_FLAGS: u16 = 8;
pub const IFA_F_SECONDARY: u32 = 0x01;
pub const IFA_F_DADFAILED: u32 = 0x08;
pub const IFA_F_DEPRECATED: u32 = 0x20;
pub const IFA_F_TENTATIVE: u32 = 0x40;
pub const IFA_F_PERMANENT: u32 = 0x80;
pub const RT_SCOPE_UNIVERSE: u8 = 0;
pub const RT_SCOPE_LINK: u8 = 253;

pub const RTA_DST: u16 = 1;
pub const RTA_SRC: u16 = 2;
pub const RTA_OIF: u16 = 4;
pub const RTA_GATEWAY: u16 = 5;
pub const RTA_PRIORITY: u16 = 6;
pub const RTA_PREFSRC: u16 = 7;
pub const RTA_METRICS: u16 = 8;
pub const RTA_MULTIPATH: u16 = 9;
pub const RTA_FLOW: u16 = 11;
pub const RTA_CACHEINFO: u16 = 12;
pub const RTA_TABLE: u16 = 15;
pub const RTA_VIA: u16 = 18;
pub const RTA_ENCAP_TYPE: u16 = 21;
pub const RTA_ENCAP: u16 = 22;
pub const RTA_NH_ID: u16 = 30;
pub const RTAX_LOCK: u16 = 1;
pub const RTAX_MTU: u16 = 2;
pub const RTAX_HOPLIMIT: u16 = 10;
pub const RTM_F_CLONED: u32 = 0x200;
pub const RTM_F_LOOKUP_TABLE: u32 = 0x1000;
pub const RTM_F_FIB_MATCH: u32 = 0x2000;
/// Minimum MTU of IPv6 (linux/ipv6.h).
pub const IPV6_MIN_MTU: u32 = 1280;
pub const RTNH_F_DEAD: u32 = 1;
pub const RTNH_F_ONLINK: u32 = 4;
pub const RTNH_F_LINKDOWN: u32 = 16;
pub const RTPROT_STATIC: u8 = 4;
pub const RTPROT_RA: u8 = 9;

pub const RT_TABLE_MAIN: u8 = 254;
pub const RT_TABLE_LOCAL: u8 = 255;
pub const RTN_UNICAST: u8 = 1;
pub const RTN_LOCAL: u8 = 2;
pub const RTN_BROADCAST: u8 = 3;
pub const RTN_ANYCAST: u8 = 4;
pub const RTN_MULTICAST: u8 = 5;
pub const RTN_BLACKHOLE: u8 = 6;
pub const RTN_UNREACHABLE: u8 = 7;
pub const RTN_PROHIBIT: u8 = 8;
pub const RTN_THROW: u8 = 9;

pub const NETCONFA_IFINDEX: u16 = 1;
pub const NETCONFA_IGNORE_ROUTES_WITH_LINKDOWN: u16 = 6;
pub const NETCONFA_IFINDEX_ALL: u32 = -1i32 as u32;

pub const NDA_DST: u16 = 1;
pub const NDA_LLADDR: u16 = 2;
pub const NDA_VLAN: u16 = 5;
pub const NDA_PORT: u16 = 6;
pub const NDA_VNI: u16 = 7;
pub const NDA_IFINDEX: u16 = 8;
pub const NDA_MASTER: u16 = 9;
pub const NDA_SRC_VNI: u16 = 11;
pub const NDA_NH_ID: u16 = 13;
pub const NDA_FLAGS_EXT: u16 = 15;
pub const NTF_USE: u8 = 0x01;
pub const NTF_PROXY: u8 = 0x08;
pub const NUD_INCOMPLETE: u16 = 0x01;
pub const NUD_STALE: u16 = 0x04;
pub const NUD_DELAY: u16 = 0x08;
pub const NUD_FAILED: u16 = 0x20;
pub const NUD_NOARP: u16 = 0x40;
pub const NUD_PERMANENT: u16 = 0x80;
pub const NUD_NONE: u16 = 0;

// linux/lwtunnel.h; LWTUNNEL_IP6_* have the same numbers.
pub const LWTUNNEL_ENCAP_NONE: u16 = 0;
pub const LWTUNNEL_ENCAP_IP: u16 = 2;
pub const LWTUNNEL_ENCAP_IP6: u16 = 4;
pub const LWTUNNEL_IP_ID: u16 = 1;
pub const LWTUNNEL_IP_DST: u16 = 2;
pub const LWTUNNEL_IP_SRC: u16 = 3;
pub const LWTUNNEL_IP_TTL: u16 = 4;
pub const LWTUNNEL_IP_TOS: u16 = 5;
pub const LWTUNNEL_IP_FLAGS: u16 = 6;
pub const LWTUNNEL_IP_PAD: u16 = 7;
// linux/seg6_local.h; other types of encapsulation have no property of this number.
pub const SEG6_LOCAL_COUNTERS: u16 = 10;
// linux/if_tunnel.h, in network byte order there.
pub const TUNNEL_CSUM: u16 = 0x01;
pub const TUNNEL_KEY: u16 = 0x04;

pub const NHA_ID: u16 = 1;
pub const NHA_GROUP: u16 = 2;
pub const NHA_BLACKHOLE: u16 = 4;
pub const NHA_OIF: u16 = 5;
pub const NHA_GATEWAY: u16 = 6;
pub const NHA_ENCAP_TYPE: u16 = 7;
pub const NHA_ENCAP: u16 = 8;
pub const NHA_FDB: u16 = 11;
// struct rta_cacheinfo: rta_expires, in units of 1/USER_HZ s; negative once the route has expired, 0 for no lifetime.
pub const RTA_CACHEINFO_EXPIRES: usize = 8;
pub const USER_HZ: u32 = 100;
