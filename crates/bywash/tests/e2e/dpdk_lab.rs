//! The router's lab tests run again on DPDK ports: `net_af_packet` on the lab's links, or the driver that
//! `BYWASH_DPDK_DRIVER` names (`net_af_xdp`), each port with a TAP twin that has the addresses. Only in a build with
//! the feature `dpdk`.
//!
//! Tests of features that such ports lack are left out. The kernel forwards nothing on their links, so there are no
//! levels, no moves between them and no failing open (`moves`, `fail_open`), and the kernel can have no interfaces
//! above the links (`around`, most of `interfaces`). There is no XDP program, and so none of its modes and verdicts
//! (`sandbox`, parts of `tcp` and `garbage`). The configuration of DPDK ports and their rings is tested in `dpdk`;
//! tests that do not depend on the kind of port run without DPDK only (`pools`, `reload`, `input`).

use bywash_lab::detached;

/// Number of ports to run on DPDK that covers all ports of every test.
const ALL: usize = 17;

/// Defines a test that runs an existing one with the given number of the lab's ports, counted from the first, on DPDK.
macro_rules! once_more {
    ($($module:ident::$test:ident on $ports:expr;)*) => {
        $(#[test]
        fn $test() {
            detached($ports, crate::$module::$test);
        })*
    };
}

once_more! {
    forward::hosts_reach_each_other_and_the_router on ALL;
    forward::a_hop_limit_that_runs_out_is_answered_by_the_router on ALL;
    forward::routes_that_lead_nowhere_say_so on ALL;
    forward::a_smaller_mtu_ahead_causes_an_error_or_fragments on ALL;
    forward::a_neighbour_that_does_not_answer_is_reported on ALL;
    forward::a_forgotten_neighbour_is_found_again on ALL;
    forward::a_packet_that_waited_for_its_neighbour_is_checked_against_the_mtu on ALL;
    garbage::every_kind_of_broken_frame_is_dropped_by_name on ALL;
    garbage::extension_headers_are_left_to_the_destination on ALL;
    garbage::a_forwarded_packet_changes_only_where_it_must on ALL;
    follow::routes_come_move_and_go on ALL;
    follow::equal_paths_share_the_flows_and_a_flow_keeps_its_path on ALL;
    follow::neighbours_and_addresses_are_followed on ALL;
    follow::a_link_goes_down_and_comes_back on ALL;
    follow::the_kernel_sends_what_leaves_by_no_port on 2;
    follow::every_queue_is_served on ALL;
    tcp::bytes_arrive_as_they_were_sent on ALL;
    churn::routes_change_under_traffic on ALL;
    drift::drift_is_seen_and_is_none_when_idle on ALL;
    interfaces::renamed on ALL;
}
