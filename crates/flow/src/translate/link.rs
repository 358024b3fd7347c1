//! Choice of links by a hash of the packet's flow: `multipath` and `bundle`.

use super::Trip;
use crate::field::Field;
use crate::key::{Flow, TAGGED, at, hash_words};
use crate::model::{Bundle, Hashed, Multipath, OfPort};
use bywash_wire::proto;

/// Returns one of `links` links by jump consistent hash (Lamping and Veach, 2014): with one more link, only as many
/// flows move as it gets. Its time grows with the logarithm of their number.
fn jump(mut hash: u64, links: u64) -> u64 {
    let (mut link, mut next) = (0, 0);
    while next < links {
        link = next;
        hash = hash.wrapping_mul(2_862_933_555_777_941_757).wrapping_add(1);
        next = ((link + 1) as f64 * ((1u64 << 31) as f64 / ((hash >> 33) + 1) as f64)) as u64;
    }
    link
}

impl Trip<'_, '_> {
    /// Returns a hash of a part of the packet, and records that the result depends on it.
    fn hash_flow(&mut self, hashed: Hashed, basis: u16) -> u64 {
        use Field::{DlDst, DlSrc, DlType, Ipv6Dst, Ipv6Src, NwDst, NwProto, NwSrc, TpDst, TpSrc, VlanTci};
        let whole = |field: Field| field.mask(u128::MAX);
        let ip = self.is_ip();
        let (mut alike, mut ends): (Flow, &[_]) = (whole(DlType), &[]);
        let l3: &[[Field; 2]] = &[[NwSrc, NwDst], [Ipv6Src, Ipv6Dst]];
        match hashed {
            Hashed::EthSrc => alike = alike | whole(DlSrc),
            Hashed::NwSrc if ip => alike = alike | whole(NwSrc) | whole(Ipv6Src),
            Hashed::NwDst if ip => alike = alike | whole(NwDst) | whole(Ipv6Dst),
            Hashed::SymmetricL4 => {
                alike = alike | VlanTci.mask((0xfff | TAGGED).into());
                ends = &[[DlSrc, DlDst], [NwSrc, NwDst], [Ipv6Src, Ipv6Dst]];
            }
            Hashed::SymmetricL3L4 | Hashed::SymmetricL3L4Udp | Hashed::SymmetricL3 if ip => ends = l3,
            _ => {}
        }
        let mut looked_at = ends.iter().flatten().fold(alike, |mask, field| mask | whole(*field));
        let mut hash = hash_words(&(self.now.flow & alike).0, u64::from(basis) | 1 << 32);
        // The sum over both ends does not show which is which.
        let mut both = |flow: &Flow, fields: &[Field; 2]| {
            let of = |field: &Field| {
                let value = field.get(flow);
                hash_words(&[value as u64, (value >> 64) as u64], basis.into())
            };
            hash = hash.rotate_left(13) ^ of(&fields[0]).wrapping_add(of(&fields[1]));
        };
        ends.iter().for_each(|fields| both(&self.now.flow, fields));
        if ip && matches!(hashed, Hashed::SymmetricL4 | Hashed::SymmetricL3L4 | Hashed::SymmetricL3L4Udp) {
            looked_at = looked_at | whole(NwProto);
            let protocol = self.now.flow.u8(at::NW_PROTO);
            let udp = protocol == proto::UDP && hashed == Hashed::SymmetricL3L4Udp;
            if matches!(protocol, proto::TCP | proto::SCTP) || udp {
                looked_at = looked_at | whole(TpSrc) | whole(TpDst);
                both(&self.now.flow, &[TpSrc, TpDst]);
            }
            both(&self.now.flow, &[NwProto, NwProto]);
        }
        self.unwildcard(&looked_at);
        hash
    }

    pub(super) fn multipath(&mut self, choice: &Multipath) {
        let hash = self.hash_flow(choice.hashed, choice.basis);
        let links = u64::from(choice.links);
        let link = match choice.algorithm {
            "modulo_n" => hash % links,
            "hash_threshold" => ((u128::from(hash) * u128::from(links)) >> 64) as u64,
            _ => jump(hash, links),
        };
        if self.has(choice.to.field.info().needs) {
            self.set(choice.to.field, u128::from(link) << choice.to.low, choice.to.mask());
        }
    }

    pub(super) fn bundle(&mut self, choice: &Bundle) {
        let pipeline = self.pipeline;
        let live = choice.members.iter().filter(|of| pipeline.port(**of).is_some_and(|port| port.up));
        let member = if choice.by_hash {
            let hash = self.hash_flow(choice.hashed, choice.basis);
            live.max_by_key(|of| hash_words(&[hash], of.0.into()))
        } else {
            live.into_iter().next()
        };
        match (choice.to, member) {
            (None, None) => {}
            (None, Some(of)) => self.output(*of),
            (Some(to), member) if self.has(to.field.info().needs) => {
                let of = member.unwrap_or(&OfPort::NONE).0;
                self.set(to.field, u128::from(of) << to.low, to.mask());
            }
            _ => {}
        }
    }
}
