//! The system calls that a running instance makes, and the seccomp filter that refuses all others.
//!
//! Most calls are allowed by number alone, without a check of their arguments. For those the kernel keeps a bitmap and
//! does not run the filter (seccomp's action cache, Linux 5.11). All calls of workers that forward are of this kind.

use super::LOADS_CODE;
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen as Len, SeccompCmpOp as Op, SeccompCondition,
    SeccompFilter, SeccompRule, TargetArch, sock_filter,
};
use std::collections::BTreeMap;

macro_rules! calls {
    ($($name:ident)*) => { &[$((stringify!($name), libc::$name)),*] };
}

type Calls = &'static [(&'static str, libc::c_long)];

/// Calls of workers: send, wake up, wait, read clocks.
const HOT: Calls = calls! {
    SYS_sendto SYS_recvfrom SYS_sendmsg SYS_recvmsg SYS_sendmmsg SYS_recvmmsg SYS_read SYS_write SYS_readv SYS_writev
    SYS_ppoll SYS_epoll_pwait SYS_futex SYS_clock_nanosleep SYS_nanosleep SYS_clock_gettime SYS_gettimeofday
    SYS_sched_yield SYS_getcpu SYS_membarrier
};

const MEMORY: Calls = calls! {
    SYS_munmap SYS_mremap SYS_madvise SYS_brk SYS_mlock SYS_mlock2 SYS_munlock SYS_mbind SYS_set_mempolicy
    SYS_get_mempolicy SYS_memfd_create SYS_mincore
};

const FILES: Calls = calls! {
    SYS_openat SYS_close SYS_close_range SYS_pread64 SYS_pwrite64 SYS_preadv SYS_preadv2 SYS_pwritev SYS_lseek
    SYS_fstat SYS_newfstatat SYS_statx SYS_statfs SYS_fstatfs SYS_faccessat SYS_faccessat2 SYS_readlinkat SYS_getdents64
    SYS_ftruncate SYS_fallocate SYS_fsync SYS_fdatasync SYS_flock SYS_fcntl SYS_dup SYS_dup3 SYS_getcwd
};

/// Calls that change names and owners of files, of an instance without a broker.
const NAMES: Calls = calls! {
    SYS_mkdirat SYS_unlinkat SYS_renameat SYS_renameat2 SYS_fchmod SYS_fchmodat SYS_fchown SYS_fchownat SYS_umask
};

const SOCKETS: Calls = calls! {
    SYS_bind SYS_listen SYS_accept SYS_accept4 SYS_connect SYS_setsockopt SYS_getsockopt SYS_getsockname
    SYS_getpeername SYS_shutdown
};

const WAITING: Calls = calls! {
    SYS_epoll_create1 SYS_epoll_ctl SYS_epoll_pwait2 SYS_eventfd2 SYS_timerfd_create SYS_timerfd_settime SYS_pipe2
    SYS_pselect6 SYS_restart_syscall
};

/// Threads and signals of this process.
const THREADS: Calls = calls! {
    SYS_set_robust_list SYS_get_robust_list SYS_rseq SYS_set_tid_address SYS_gettid SYS_getpid SYS_getppid
    SYS_sched_setaffinity SYS_sched_getaffinity SYS_sched_getparam SYS_sched_getscheduler SYS_exit SYS_exit_group
    SYS_rt_sigaction SYS_rt_sigprocmask SYS_rt_sigreturn SYS_rt_sigpending SYS_sigaltstack
};

const ABOUT: Calls = calls! {
    SYS_getrandom SYS_uname SYS_sysinfo SYS_getuid SYS_geteuid SYS_getgid SYS_getegid SYS_getrusage SYS_prlimit64
    SYS_clock_getres SYS_capget SYS_times
};

/// Commands of bpf(2) that use objects and make none (linux/bpf.h): look up, change and remove elements of maps and ask
/// for the next; run a program over a packet; ask about an object, and for the programs at an interface; attach to a
/// tracepoint and to an interface, and replace what is attached.
const USES: [u64; 10] = [1, 2, 3, 4, 10, 15, 16, 17, 28, 29];

/// Older variants of the calls above, which the C library still uses.
const OLDER: Calls = calls! {
    SYS_open SYS_stat SYS_lstat SYS_access SYS_readlink SYS_dup2 SYS_pipe SYS_poll SYS_select SYS_epoll_create
    SYS_epoll_wait SYS_eventfd SYS_time SYS_getrlimit
};
const NAMES_OLDER: Calls = calls! { SYS_mkdir SYS_rmdir SYS_unlink SYS_rename SYS_chmod SYS_chown };

/// Calls that [`filter`] allows only with certain arguments.
const WITHIN: &[(&str, libc::c_long)] = calls! {
    SYS_bpf SYS_mmap SYS_mprotect SYS_socket SYS_socketpair SYS_ioctl SYS_prctl SYS_clone SYS_tgkill
};

/// `PR_SET_VMA` (linux/prctl.h): the C library names its memory areas with it.
const PR_SET_VMA: u64 = 0x5356_4d41;

fn all(broker: bool) -> impl Iterator<Item = &'static (&'static str, libc::c_long)> {
    let free = [HOT, MEMORY, FILES, SOCKETS, WAITING, THREADS, ABOUT, OLDER];
    // Code that is loaded later may also make files.
    let names = if broker && !LOADS_CODE { [&[][..]; 2] } else { [NAMES, NAMES_OLDER] };
    free.into_iter().chain(names).flatten().chain(WITHIN)
}

/// Returns the names of all allowed calls, sorted. `counters`, `broker`: as for [`filter`].
pub fn names(counters: bool, broker: bool) -> Vec<&'static str> {
    let more = counters.then_some("perf_event_open");
    let mut names: Vec<_> = all(broker).map(|(name, _)| name.trim_start_matches("SYS_")).chain(more).collect();
    names.sort_unstable();
    names
}

/// Builds the filter. A refused call fails with ENOSYS, as if the kernel lacked it: the C library then falls back to
/// another (`clone3`, whose arguments a filter cannot check, falls back to `clone`). `counters`: whether threads may
/// count their own events. `broker`: whether another process makes BPF objects, unix domain sockets and files.
pub fn filter(counters: bool, broker: bool) -> Result<BpfProgram, BackendError> {
    let mut rules: Rules = all(broker).map(|(_, number)| (*number, vec![])).collect();
    if broker {
        let command = |command: u64| any(vec![is(0, Op::Eq, command)?]);
        rules.insert(libc::SYS_bpf, USES.into_iter().map(command).collect::<Result<_, _>>()?);
    }
    // All code is in memory by now: no further memory can be executed, whether it is written before or not. Where a
    // reload may load code, memory may be executable, but not writable at the same time.
    let without = [Some(libc::PROT_EXEC), LOADS_CODE.then_some(libc::PROT_WRITE)];
    for call in [libc::SYS_mmap, libc::SYS_mprotect] {
        let either = without.into_iter().flatten().map(|flag| any(vec![is(2, Op::MaskedEq(flag as u64), 0)?]));
        rules.insert(call, either.collect::<Result<_, _>>()?);
    }
    let families = [libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK, libc::AF_PACKET, libc::AF_XDP];
    // An unconnected unix domain socket could be connected to any service. The sockets of a pair cannot, but a datagram
    // socket can send anywhere.
    let stream = vec![is(0, Op::Eq, libc::AF_UNIX as u64)?, is(1, Op::MaskedEq(0xf), libc::SOCK_STREAM as u64)?];
    rules.insert(libc::SYS_socketpair, vec![any(stream)?]);
    let unix = (!broker).then_some(libc::AF_UNIX);
    let family = |family: i32| any(vec![is(0, Op::Eq, family as u64)?]);
    rules.insert(libc::SYS_socket, families.into_iter().chain(unix).map(family).collect::<Result<_, _>>()?);
    // Refuse the requests that insert input into a terminal.
    rules.insert(libc::SYS_ioctl, vec![any(vec![is(1, Op::Ne, libc::TIOCSTI)?, is(1, Op::Ne, libc::TIOCLINUX)?])?]);
    let options = [libc::PR_SET_NAME as u64, libc::PR_GET_NAME as u64, PR_SET_VMA];
    let option = |option: u64| any(vec![is(0, Op::Eq, option)?]);
    rules.insert(libc::SYS_prctl, options.into_iter().map(option).collect::<Result<_, _>>()?);
    rules.insert(libc::SYS_clone, vec![threads()?]);
    // Signals may go only to this process's own threads: a panic that cannot unwind aborts by one.
    let own = u64::from(std::process::id());
    rules.insert(libc::SYS_tgkill, vec![any(vec![is(0, Op::Eq, own)?])?]);
    if counters {
        rules.insert(libc::SYS_perf_event_open, vec![any(vec![is(1, Op::Eq, 0)?])?]);
    }
    let rest = finished(rules)?;
    Ok(if broker { [&sending()[..], &rest].concat() } else { rest })
}

/// Returns instructions that come first and let a run of a BPF program through, by which each burst of frames is handed
/// to the kernel (BPF_PROG_TEST_RUN): otherwise it comes after all calls with lower numbers.
fn sending() -> BpfProgram {
    // linux/bpf_common.h; offsets in struct seccomp_data (linux/seccomp.h); linux/audit.h.
    let (load, equal, ret) = (0x20, 0x15, 0x06);
    let (number, architecture, first_argument) = (0, 4, 16);
    let native = 0xc000_003e;
    let test_run = 10;
    let step = |code, jf, k| sock_filter { code, jt: 0, jf, k };
    vec![
        step(load, 0, architecture),
        step(equal, 5, native),
        step(load, 0, number),
        step(equal, 3, libc::SYS_bpf as u32),
        step(load, 0, first_argument),
        step(equal, 1, test_run),
        step(ret, 0, libc::SECCOMP_RET_ALLOW),
    ]
}

/// Calls of the broker.
const OF_BROKER: Calls = calls! {
    SYS_bpf SYS_recvmsg SYS_sendmsg SYS_read SYS_write SYS_writev SYS_pread64 SYS_openat SYS_close SYS_lseek SYS_fstat
    SYS_newfstatat SYS_statx SYS_readlinkat SYS_fcntl SYS_dup SYS_dup3 SYS_getcwd SYS_munmap SYS_mremap SYS_madvise
    SYS_brk SYS_futex SYS_getrandom SYS_uname SYS_clock_gettime SYS_getpid SYS_gettid SYS_sched_yield
    SYS_sched_getaffinity SYS_rt_sigaction SYS_rt_sigprocmask SYS_rt_sigreturn SYS_sigaltstack SYS_restart_syscall
    SYS_exit SYS_exit_group SYS_bind SYS_listen SYS_connect SYS_setsockopt SYS_getsockname SYS_sendto SYS_recvfrom
    SYS_ftruncate SYS_fchmod SYS_unlinkat SYS_mkdirat SYS_renameat SYS_renameat2 SYS_flock SYS_geteuid
    SYS_clock_nanosleep SYS_rseq SYS_set_robust_list
};
const OF_BROKER_OLDER: Calls = calls! { SYS_open SYS_stat SYS_lstat SYS_readlink SYS_unlink SYS_mkdir SYS_rename };

/// Builds the filter of the broker, as [`filter`].
pub fn of_broker() -> Result<BpfProgram, BackendError> {
    let mut rules: Rules = OF_BROKER.iter().chain(OF_BROKER_OLDER).map(|(_, number)| (*number, vec![])).collect();
    for call in [libc::SYS_mmap, libc::SYS_mprotect] {
        rules.insert(call, vec![any(vec![is(2, Op::MaskedEq(libc::PROT_EXEC as u64), 0)?])?]);
    }
    // Programs are loaded side by side.
    rules.insert(libc::SYS_clone, vec![threads()?]);
    // Sockets for messages; those by which an interface is asked for its settings, and a name for its interface.
    let sockets = [
        (libc::AF_UNIX, libc::SOCK_SEQPACKET, 0),
        (libc::AF_INET, libc::SOCK_DGRAM, 0),
        (libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_ROUTE),
    ];
    let socket = |(family, kind, protocol): (i32, i32, i32)| {
        let kind = is(1, Op::MaskedEq(0xf), kind as u64)?;
        any(vec![is(0, Op::Eq, family as u64)?, kind, is(2, Op::Eq, protocol as u64)?])
    };
    rules.insert(libc::SYS_socket, sockets.into_iter().map(socket).collect::<Result<_, _>>()?);
    let requests =
        [SIOCETHTOOL, SIOCGIFINDEX, SIOCGIFNAME].into_iter().map(|request| any(vec![is(1, Op::Eq, request)?]));
    rules.insert(libc::SYS_ioctl, requests.collect::<Result<_, _>>()?);
    rules.insert(libc::SYS_tgkill, vec![any(vec![is(0, Op::Eq, u64::from(std::process::id()))?])?]);
    rules.insert(libc::SYS_prctl, vec![any(vec![is(0, Op::Eq, PR_SET_VMA)?])?]);
    finished(rules)
}

/// Requests about interfaces (linux/sockios.h).
const SIOCETHTOOL: u64 = 0x8946;
const SIOCGIFINDEX: u64 = 0x8933;
const SIOCGIFNAME: u64 = 0x8910;

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

fn is(at: u8, op: Op, value: u64) -> Result<SeccompCondition, BackendError> {
    SeccompCondition::new(at, Len::Dword, op, value)
}

/// Returns the rule for `clone` that allows new threads, and no new processes.
fn threads() -> Result<SeccompRule, BackendError> {
    let thread = libc::CLONE_THREAD as u64;
    any(vec![is(0, Op::MaskedEq(thread), thread)?])
}

fn any(conditions: Vec<SeccompCondition>) -> Result<SeccompRule, BackendError> {
    SeccompRule::new(conditions)
}

fn finished(rules: Rules) -> Result<BpfProgram, BackendError> {
    let architecture = TargetArch::try_from(std::env::consts::ARCH)?;
    let refused = SeccompAction::Errno(libc::ENOSYS as u32);
    SeccompFilter::new(rules, refused, SeccompAction::Allow, architecture)?.try_into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns whether the filter lets a call with these arguments through, by the instructions that it has.
    fn allowed(call: libc::c_long, args: &[u64]) -> bool {
        // struct seccomp_data: number, architecture (AUDIT_ARCH_X86_64), instruction, arguments.
        let mut data = [call as u32, 0xc000_003e, 0, 0].map(u32::to_ne_bytes).concat();
        data.extend((0..6).flat_map(|at| args.get(at).copied().unwrap_or(0).to_ne_bytes()));
        let (program, mut at, mut a) = (filter(false, true).unwrap(), 0, 0u32);
        loop {
            let step = &program[at];
            let jump = |yes: bool| 1 + usize::from(if yes { step.jt } else { step.jf });
            at += match step.code {
                0x20 => {
                    a = u32::from_ne_bytes(*data[step.k as usize..].first_chunk().unwrap());
                    1
                }
                0x54 => {
                    a &= step.k;
                    1
                }
                0x05 => 1 + step.k as usize,
                0x15 => jump(a == step.k),
                0x25 => jump(a > step.k),
                0x35 => jump(a >= step.k),
                0x45 => jump(a & step.k != 0),
                0x06 => return step.k == libc::SECCOMP_RET_ALLOW,
                other => panic!("instruction {other:#x}"),
            };
        }
    }

    #[test]
    fn no_further_memory_can_be_executed() {
        let (read, write, exec) = (libc::PROT_READ as u64, libc::PROT_WRITE as u64, libc::PROT_EXEC as u64);
        for call in [libc::SYS_mmap, libc::SYS_mprotect] {
            assert!(allowed(call, &[0, 4096, read | write]) && allowed(call, &[0, 4096, read]));
            // Memory that was writable before, too.
            assert_eq!(allowed(call, &[0, 4096, read | exec]), LOADS_CODE);
            assert!(!allowed(call, &[0, 4096, read | write | exec]));
        }
        for call in [libc::SYS_pkey_mprotect, libc::SYS_shmat, libc::SYS_remap_file_pages, libc::SYS_personality] {
            assert!(!allowed(call, &[0, 4096, read]));
        }
        assert!(allowed(libc::SYS_getpid, &[]) && !allowed(libc::SYS_execve, &[]));
    }

    #[test]
    fn no_socket_of_the_unix_domain_is_made() {
        let families = [libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK, libc::AF_PACKET, libc::AF_XDP];
        assert!(families.into_iter().all(|family| allowed(libc::SYS_socket, &[family as u64, 3])));
        for kind in [libc::SOCK_STREAM, libc::SOCK_DGRAM, libc::SOCK_SEQPACKET] {
            assert!(!allowed(libc::SYS_socket, &[libc::AF_UNIX as u64, kind as u64]));
            let pair = allowed(libc::SYS_socketpair, &[libc::AF_UNIX as u64, kind as u64]);
            assert_eq!(pair, kind == libc::SOCK_STREAM);
        }
    }

    /// The numbers are those of linux/bpf.h.
    #[test]
    fn bpf_objects_are_used_and_not_made() {
        let (look_up, update, test_run, attach, replace) = (1, 2, 10, 28, 29);
        for command in [look_up, update, test_run, attach, replace] {
            assert!(allowed(libc::SYS_bpf, &[command]), "{command}");
        }
        let (create, load, pin, get, load_types, iterate, token) = (0, 5, 6, 7, 18, 33, 36);
        // Programs, maps, links and types of others, by their ids.
        let by_id = [11, 12, 13, 14, 19, 30, 31];
        for command in [create, load, pin, get, load_types, iterate, token].into_iter().chain(by_id) {
            assert!(!allowed(libc::SYS_bpf, &[command]), "{command}");
        }
    }
}
