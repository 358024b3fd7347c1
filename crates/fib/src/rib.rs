//! The routes: a path-compressed binary trie, private to the writer.

use crate::addr::{Addr, Net, STRIDE};
use crate::fib::NextHopId;

/// Index that stands for no node.
pub(crate) const NONE: u32 = u32::MAX;
/// Value of a node that only branches. No next hop has this id (ids are below 2^31).
const BRANCH: NextHopId = u32::MAX;

#[derive(Clone, Copy)]
struct Node<A> {
    key: A,
    value: NextHopId,
    child: [u32; 2],
    len: u8,
}

/// Number of free nodes up to which the trie is never compacted.
const ROOM: usize = 1 << 12;

/// Next hop that covers a place from above, and the length of its prefix (0 also for "no route").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cover {
    pub id: NextHopId,
    pub len: u8,
}

/// The 64 slots of one level: the cover of each, and the subtree with longer prefixes, if any.
pub(crate) struct Slots {
    pub cover: [Cover; 64],
    pub below: [u32; 64],
}

/// All routes, by prefix. Every node without a route has two children, except the top.
pub(crate) struct Rib<A> {
    nodes: Vec<Node<A>>,
    free: Vec<u32>,
    routes: usize,
}

impl<A: Addr> Rib<A> {
    pub fn new() -> Self {
        Self {
            nodes: vec![Node { key: A::ZERO, value: BRANCH, child: [NONE; 2], len: 0 }],
            free: Vec::new(),
            routes: 0,
        }
    }

    pub fn len(&self) -> usize {
        self.routes
    }

    /// Returns the bytes allocated.
    pub fn bytes(&self) -> usize {
        self.nodes.capacity() * size_of::<Node<A>>() + self.free.capacity() * 4
    }

    fn at(&self, n: u32) -> &Node<A> {
        &self.nodes[n as usize]
    }

    fn alloc(&mut self, node: Node<A>) -> u32 {
        if let Some(n) = self.free.pop() {
            self.nodes[n as usize] = node;
            return n;
        }
        self.nodes.push(node);
        (self.nodes.len() - 1) as u32
    }

    /// Adds or replaces a route; returns the former next hop.
    pub fn insert(&mut self, net: Net<A>, id: NextHopId) -> Option<NextHopId> {
        let (key, len) = (net.addr(), net.len());
        let mut n = 0;
        loop {
            let node = self.at(n);
            if node.len == len {
                let old = std::mem::replace(&mut self.nodes[n as usize].value, id);
                self.routes += usize::from(old == BRANCH);
                return (old != BRANCH).then_some(old);
            }
            let side = key.bit(node.len);
            let next = node.child[side];
            if next == NONE {
                self.nodes[n as usize].child[side] = self.alloc(Node { key, value: id, child: [NONE; 2], len });
                self.routes += 1;
                return None;
            }
            let (next_key, next_len) = (self.at(next).key, self.at(next).len);
            let common = next_key.common(key).min(next_len).min(len);
            if common == next_len {
                n = next;
                continue;
            }
            let mut child = [NONE; 2];
            child[next_key.bit(common)] = next;
            let top = if common == len {
                Node { key, value: id, child, len }
            } else {
                child[key.bit(common)] = self.alloc(Node { key, value: id, child: [NONE; 2], len });
                Node { key: key.mask(common), value: BRANCH, child, len: common }
            };
            self.nodes[n as usize].child[side] = self.alloc(top);
            self.routes += 1;
            return None;
        }
    }

    /// Removes a route; returns its next hop.
    pub fn remove(&mut self, net: Net<A>) -> Option<NextHopId> {
        let (key, len) = (net.addr(), net.len());
        let (mut above, mut parent, mut n) = (NONE, NONE, 0);
        while self.at(n).len < len {
            let next = self.at(n).child[key.bit(self.at(n).len)];
            if next == NONE || self.at(next).len > len || self.at(next).key.common(key) < self.at(next).len {
                return None;
            }
            (above, parent, n) = (parent, n, next);
        }
        let old = std::mem::replace(&mut self.nodes[n as usize].value, BRANCH);
        if old == BRANCH {
            return None;
        }
        self.routes -= 1;
        if parent != NONE {
            self.splice(parent, n);
            if above != NONE {
                self.splice(above, parent);
            }
        }
        if self.free.len() > 3 * (self.nodes.len() - self.free.len()) + ROOM {
            self.compact();
        }
        Some(old)
    }

    /// Moves all nodes into a smaller vector, after most routes have gone.
    fn compact(&mut self) {
        let mut nodes: Vec<Node<A>> = Vec::with_capacity(2 * (self.nodes.len() - self.free.len()));
        let mut stack = vec![(0, None)];
        while let Some((old, parent)) = stack.pop() {
            let (n, node) = (nodes.len() as u32, *self.at(old));
            nodes.push(node);
            if let Some((parent, side)) = parent {
                let above: &mut Node<A> = &mut nodes[parent as usize];
                above.child[side] = n;
            }
            let children = node.child.into_iter().enumerate().filter(|(_, child)| *child != NONE);
            stack.extend(children.map(|(side, child)| (child, Some((n, side)))));
        }
        (self.nodes, self.free) = (nodes, Vec::new());
    }

    /// Removes `n`, a child of `parent`, if it has neither a route nor two children.
    fn splice(&mut self, parent: u32, n: u32) {
        let node = self.at(n);
        let only = match node.child {
            [a, b] if a != NONE && b != NONE => return,
            [a, NONE] => a,
            [_, b] => b,
        };
        if node.value != BRANCH {
            return;
        }
        let up = &mut self.nodes[parent as usize].child;
        up[usize::from(up[1] == n)] = only;
        self.free.push(n);
    }

    pub fn get(&self, net: Net<A>) -> Option<NextHopId> {
        let mut n = 0;
        while n != NONE && self.at(n).len < net.len() {
            n = self.at(n).child[net.addr().bit(self.at(n).len)];
        }
        if n == NONE {
            return None;
        }
        let node = self.at(n);
        (node.len == net.len() && node.key == net.addr() && node.value != BRANCH).then_some(node.value)
    }

    pub fn longest_match(&self, addr: A) -> Option<(Net<A>, NextHopId)> {
        let (mut best, mut n) = (None, 0);
        while n != NONE {
            let node = self.at(n);
            if node.key.common(addr) < node.len {
                break;
            }
            if node.value != BRANCH {
                best = Net::new(node.key, node.len).map(|net| (net, node.value));
            }
            if node.len == A::BITS {
                break;
            }
            n = node.child[addr.bit(node.len)];
        }
        best
    }

    /// Returns the top node.
    pub fn top(&self) -> u32 {
        0
    }

    /// Returns a node's key, its length, and whether it has children.
    pub fn node(&self, n: u32) -> (A, u8, bool) {
        let node = self.at(n);
        (node.key, node.len, node.child != [NONE; 2])
    }

    /// Returns the next hop of a node's own route.
    pub fn route(&self, n: u32) -> Option<NextHopId> {
        let v = self.at(n).value;
        (v != BRANCH).then_some(v)
    }

    /// Returns the only child of `n`, or `n` itself.
    pub fn only_child(&self, n: u32) -> u32 {
        match self.at(n).child {
            [a, NONE] if a != NONE => a,
            [NONE, b] if b != NONE => b,
            _ => n,
        }
    }

    /// Searches from `from`, which lies above, for the place `key`/`depth`. Returns the topmost node with all longer
    /// prefixes there ([`NONE`] if there are none), and the cover of the place.
    pub fn place(&self, from: u32, mut cover: Cover, key: A, depth: u8) -> (u32, Cover) {
        let mut n = from;
        while n != NONE {
            let node = self.at(n);
            let common = node.key.common(key);
            if node.len > depth {
                return (if common >= depth { n } else { NONE }, cover);
            }
            if common < node.len {
                return (NONE, cover);
            }
            if node.value != BRANCH {
                cover = Cover { id: node.value, len: node.len };
            }
            if node.len == depth {
                return (if node.child == [NONE; 2] { NONE } else { n }, cover);
            }
            n = node.child[key.bit(node.len)];
        }
        (NONE, cover)
    }

    /// Returns the slots of the level at `depth` below `n`, given its `cover`.
    pub fn slots(&self, n: u32, depth: u8, cover: Cover) -> Slots {
        let mut slots = Slots { cover: [cover; 64], below: [NONE; 64] };
        if n != NONE {
            self.paint(n, depth, &mut slots);
        }
        slots
    }

    fn paint(&self, n: u32, depth: u8, slots: &mut Slots) {
        let (node, end) = (self.at(n), depth + STRIDE);
        if node.len > end {
            slots.below[node.key.slot(depth)] = n;
            return;
        }
        if node.len > depth && node.value != BRANCH {
            let first = node.key.slot(depth);
            let cover = Cover { id: node.value, len: node.len };
            slots.cover[first..first + (1 << (end - node.len))].fill(cover);
        }
        if node.len == end {
            if node.child != [NONE; 2] {
                slots.below[node.key.slot(depth)] = n;
            }
            return;
        }
        for c in node.child {
            if c != NONE {
                self.paint(c, depth, slots);
            }
        }
    }

    /// Returns all routes in order of address, shorter prefixes first.
    pub fn iter(&self) -> impl Iterator<Item = (Net<A>, NextHopId)> {
        let mut stack = vec![0u32];
        std::iter::from_fn(move || {
            loop {
                let node = self.at(stack.pop()?);
                stack.extend(node.child.iter().rev().filter(|c| **c != NONE));
                if node.value != BRANCH
                    && let Some(net) = Net::new(node.key, node.len)
                {
                    return Some((net, node.value));
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::Net;

    #[test]
    fn what_most_routes_leave_behind_is_given_back() {
        let net = |n: u32| Net::new(n.wrapping_mul(0x9e37_79b1), 32).unwrap();
        let mut rib = Rib::new();
        for n in 0..100_000 {
            rib.insert(net(n), n);
        }
        let full = rib.bytes();
        for n in (0..100_000).filter(|n| n % 100 > 0) {
            assert_eq!(rib.remove(net(n)), Some(n));
        }
        assert!(rib.bytes() < full / 10, "{} of {full}", rib.bytes());
        assert_eq!((rib.len(), rib.iter().count()), (1_000, 1_000));
        for n in 0..100_000 {
            assert_eq!(rib.get(net(n)), (n % 100 == 0).then_some(n));
        }
    }
}
