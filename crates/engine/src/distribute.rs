//! Distribution of a port's ends over workers.
//!
//! Every worker can send on every port. A worker that has no queue of a port passes its frames, through a ring in
//! memory, to a worker that has one.

use crate::{PortId, Role};
use bywash_port::{Port, pair};

/// Capacity of the ring by which a worker passes a port's frames to the one that has its queue, in frames.
const HANDOFF: usize = 1024;

/// One worker's share of a port: the end it sends on, and the ends it only receives from.
pub struct Share {
    /// End for the worker's [`PortTable`](crate::PortTable).
    pub main: Box<dyn Port>,
    /// Ends for [`Worker::add`](crate::Worker::add).
    pub more: Vec<(Box<dyn Port>, Role)>,
}

/// Distributes the ends of a port, each to the worker given with it, and returns each worker's share. Workers without
/// an end get a ring to the first worker that has one, which also sends the frames that arrive on `from_kernel`. `None`
/// if there are no ends.
///
/// # Panics
/// If an end's worker is not below `workers`.
pub fn distribute(
    id: PortId,
    ends: Vec<(usize, Box<dyn Port>)>,
    from_kernel: Option<Box<dyn Port>>,
    workers: usize,
) -> Option<Vec<Share>> {
    let mut own: Vec<Vec<Box<dyn Port>>> = (0..workers).map(|_| vec![]).collect();
    ends.into_iter().for_each(|(worker, end)| own[worker].push(end));
    let owner = own.iter().position(|ends| !ends.is_empty())?;
    let mut transit = vec![];
    for ends in own.iter_mut().filter(|ends| ends.is_empty()) {
        let (here, there) = pair(HANDOFF);
        ends.push(Box::new(here));
        transit.push((Box::new(there) as Box<dyn Port>, Role::Transit(id)));
    }
    let share = |mut ends: Vec<Box<dyn Port>>| {
        let main = ends.remove(0);
        Share { main, more: ends.into_iter().map(|end| (end, Role::Receive(id))).collect() }
    };
    let mut shares: Vec<Share> = own.into_iter().map(share).collect();
    transit.extend(from_kernel.map(|end| (end, Role::Transit(id))));
    shares[owner].more.extend(transit);
    Some(shares)
}
