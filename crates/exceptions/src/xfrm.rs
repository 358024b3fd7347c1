//! IPsec policies: packets that a forward or output policy selects are encrypted, let through or blocked by the kernel.
//! IPsec states: packets that they decrypt are received once more, and checked by policies.

use crate::effect::{Effect, Kind, Scope};
use bywash_fib::model::{Families, Prefix};
use bywash_nl::wire::{Message, u8_at, u16_at, u32_at};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

// linux/xfrm.h
pub const XFRM_MSG_NEWPOLICY: u16 = 0x13;
pub const XFRM_MSG_GETPOLICY: u16 = 0x15;
pub const XFRM_MSG_GETDEFAULT: u16 = 0x28;
pub const XFRM_MSG_NEWSA: u16 = 0x10;
const XFRM_MSG_DELSA: u16 = 0x11;
pub const XFRM_MSG_GETSA: u16 = 0x12;
const XFRM_MSG_UPDSA: u16 = 0x1a;
const XFRM_MSG_FLUSHSA: u16 = 0x1c;
pub const XFRMNLGRP_SA: u32 = 3;
pub const XFRMNLGRP_POLICY: u32 = 4;
const XFRM_MODE_TRANSPORT: u8 = 0;
const XFRM_POLICY_IN: u8 = 0;
const XFRM_POLICY_OUT: u8 = 1;
const XFRM_POLICY_FWD: u8 = 2;
const XFRM_USERPOLICY_BLOCK: u8 = 1;

/// Parses the body of an `XFRM_MSG_NEWPOLICY` message (struct xfrm_userpolicy_info). `None` if the policy is that of a
/// socket; `Err` if the message is truncated, or its prefix longer than an address.
pub fn parse(body: &[u8]) -> Result<Option<Effect>, ()> {
    let (family, len) = (u16_at(body, 40).ok_or(())?, u8_at(body, 42).ok_or(())?);
    let (index, direction) = (u32_at(body, 156).ok_or(())?, u8_at(body, 160).ok_or(())?);
    let action = u8_at(body, 161).ok_or(())?;
    let named = match direction {
        XFRM_POLICY_IN => "in",
        XFRM_POLICY_OUT => "out",
        XFRM_POLICY_FWD => "fwd",
        _ => return Ok(None),
    };
    let (families, addr): (_, Option<IpAddr>) = match i32::from(family) {
        libc::AF_INET => (Families::V4, body.first_chunk::<4>().map(|octets| Ipv4Addr::from(*octets).into())),
        libc::AF_INET6 => (Families::V6, body.first_chunk::<16>().map(|octets| Ipv6Addr::from(*octets).into())),
        _ => (Families::BOTH, None),
    };
    let scope = match addr {
        _ if direction == XFRM_POLICY_IN => Scope::Own(families),
        Some(addr) if len > 0 => Scope::To(Prefix::containing(addr, len).ok_or(())?),
        _ => Scope::All(families),
    };
    let reason = if action == XFRM_USERPOLICY_BLOCK { "blocks" } else { "encrypts or lets through" };
    Ok(Some(Effect {
        kind: Kind::Ipsec,
        scope,
        object: format!("ip xfrm policy dir {named} index {index}"),
        reason: format!("{reason} the packets it selects"),
    }))
}

/// Returns the effect of an answer to `XFRM_MSG_GETDEFAULT` (struct xfrm_userpolicy_default: in, fwd, out). `None` if
/// no packets are blocked.
pub fn parse_default(body: &[u8]) -> Option<Effect> {
    let blocked = |at| u8_at(body, at) == Some(XFRM_USERPOLICY_BLOCK);
    let all = blocked(1) || blocked(2);
    (all || blocked(0)).then(|| Effect {
        kind: Kind::Ipsec,
        scope: if all { Scope::All(Families::BOTH) } else { Scope::Own(Families::BOTH) },
        object: "ip xfrm policy default".into(),
        reason: "blocks packets that no policy selects".into(),
    })
}

/// Returns whether an announcement may change the effects; `decrypts` if there are states that decrypt. Those are then
/// read from time to time: with thousands of peers, states change all the time (rekeying).
pub fn concerns(message: &Message<'_>, decrypts: bool) -> bool {
    match message.kind {
        XFRM_MSG_NEWSA | XFRM_MSG_UPDSA => !decrypts,
        XFRM_MSG_DELSA | XFRM_MSG_FLUSHSA => false,
        _ => true,
    }
}

/// Returns whether packets that a security association decrypts may be forwarded (`XFRM_MSG_NEWSA`, struct
/// xfrm_usersa_info); `None` if the message is truncated. In transport mode, they are this host's.
pub fn decrypts(body: &[u8]) -> Option<bool> {
    Some(u8_at(body, 214)? != XFRM_MODE_TRANSPORT)
}

/// Returns the effect of security associations on the packets that they decrypt: the kernel drops those that no policy
/// allows, whatever their destination is (XfrmInNoPols, __xfrm_policy_check).
pub fn decrypted() -> Effect {
    Effect {
        kind: Kind::Ipsec,
        scope: Scope::Decrypted,
        object: "ip xfrm state".into(),
        reason: "decrypted packets need a policy, and traffic control and generic XDP do not tell them from others"
            .into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(family: i32, len: u8, direction: u8) -> Vec<u8> {
        let mut body = vec![0; 168];
        body[..4].copy_from_slice(&[10, 1, 0, 0]);
        body[40..42].copy_from_slice(&(family as u16).to_ne_bytes());
        (body[42], body[160]) = (len, direction);
        body
    }

    #[test]
    fn policies_concern_their_destination() {
        let scope = |body: &[u8]| parse(body).unwrap().map(|effect| effect.scope);
        let prefix = Prefix { addr: "10.1.0.0".parse().unwrap(), len: 16 };
        assert_eq!(scope(&policy(libc::AF_INET, 16, XFRM_POLICY_OUT)), Some(Scope::To(prefix)));
        assert_eq!(scope(&policy(libc::AF_INET, 0, XFRM_POLICY_FWD)), Some(Scope::All(Families::V4)));
        assert_eq!(scope(&policy(libc::AF_INET6, 0, XFRM_POLICY_FWD)), Some(Scope::All(Families::V6)));
        assert_eq!(scope(&policy(0, 16, XFRM_POLICY_FWD)), Some(Scope::All(Families::BOTH)));
        assert_eq!(scope(&policy(libc::AF_INET, 16, XFRM_POLICY_IN)), Some(Scope::Own(Families::V4)));
        assert_eq!(scope(&policy(libc::AF_INET, 16, 3)), None, "a socket's");
        assert!(parse(&[0; 160]).is_err());
        // The kernel keeps the bits behind the prefix, which select nothing.
        let prefix = Prefix { addr: "10.0.0.0".parse().unwrap(), len: 8 };
        assert_eq!(scope(&policy(libc::AF_INET, 8, XFRM_POLICY_OUT)), Some(Scope::To(prefix)));
        assert!(parse(&policy(libc::AF_INET, 33, XFRM_POLICY_OUT)).is_err(), "longer than an address");
        assert!(parse(&policy(libc::AF_INET6, 129, XFRM_POLICY_FWD)).is_err());
        assert!(parse(&policy(libc::AF_INET6, 128, XFRM_POLICY_FWD)).is_ok());
    }

    #[test]
    fn a_blocking_default_concerns_everything() {
        let scope = |body: &[u8]| parse_default(body).map(|effect| effect.scope);
        assert_eq!([scope(&[0, 0, 0]), scope(&[2, 2, 2])], [None, None]);
        assert_eq!(scope(&[1, 2, 2]), Some(Scope::Own(Families::BOTH)));
        assert_eq!(
            [scope(&[0, 1, 0]), scope(&[1, 0, 1])],
            [Some(Scope::All(Families::BOTH)), Some(Scope::All(Families::BOTH))]
        );
    }
}
