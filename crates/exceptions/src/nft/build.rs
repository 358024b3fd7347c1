//! Rules and chains for tests, as nft makes them.

use super::{Chain, Comparison, Expression, Rule, Tracking, Verdict, ct};

pub fn load(key: u32) -> Expression {
    Expression::Meta { key, register: 0 }
}

pub fn is(value: &[u8]) -> Expression {
    Expression::Compare { register: 0, by: Comparison::Equal, value: value.to_vec() }
}

pub fn mask(mask: &[u8]) -> Expression {
    Expression::Bitwise { from: 0, to: 0, mask: mask.to_vec(), xor: vec![0; mask.len()] }
}

/// Returns `ct state & bits != 0`.
pub fn state(bits: u32) -> Vec<Expression> {
    let load = Expression::Ct { key: ct::STATE, direction: None, register: 0 };
    let any = Expression::Compare { register: 0, by: Comparison::NotEqual, value: vec![0; 4] };
    vec![load, mask(&bits.to_ne_bytes()), any]
}

pub fn acts(how: &str) -> Expression {
    Expression::Acts { how: how.into(), tracking: Tracking::No }
}

pub fn accept() -> Expression {
    Expression::Verdict(Verdict::Accept)
}

pub fn drop() -> Expression {
    Expression::Verdict(Verdict::Drop)
}

pub fn jump(chain: &str) -> Expression {
    Expression::Verdict(Verdict::Jump(chain.into()))
}

/// Returns a chain whose rules have the handles 1, 2 and so on.
pub fn chain(name: &str, rules: &[Vec<Expression>]) -> Chain {
    let rule = |(expressions, handle): (&Vec<_>, _)| Rule { handle, expressions: expressions.clone(), comment: None };
    Chain { name: name.into(), base: None, rules: rules.iter().zip(1..).map(rule).collect(), opaque: None }
}
