//! Kernel interfaces opened as ports.

use crate::Error;
use crate::checksums::Completing;
use bywash_port::Port;
use bywash_port::af_xdp::{
    AfXdpPort, Below, LinkInfo, Program, Promiscuous, SocketConfig, Transmit, Umem, XdpAttach, XdpConfig, XdpDatapath,
};
use std::sync::Arc;

/// XDP program on an interface, and what else holds while the application has the interface. Dropping it leaves every
/// frame to the kernel.
pub struct Attached {
    program: Program,
    _promiscuous: Option<Promiscuous>,
}

impl Attached {
    /// Attaches the program to an interface, as port `id`, and opens a socket for each of its queues, which are
    /// returned in their order. The program leaves all frames to the kernel until [`Attached::enable`], and then none
    /// if `whole`, or else those that a router's port leaves to it.
    pub fn open(
        datapath: &XdpDatapath,
        id: u16,
        link: &LinkInfo,
        umem: &Arc<Umem>,
        whole: bool,
    ) -> Result<(Self, Vec<Box<dyn Port>>), Error> {
        let below = Below::of(link);
        // A native program on a veth takes segmentation offload from its peer, and the kernel's TCP with it.
        let how = if !whole && below.driver() == "veth" { XdpAttach::Generic } else { XdpAttach::Auto };
        let mut program = Program::attach_to(datapath, id, link, how, None)?;
        let partial = below.leaves_checksums(program.is_native());
        let config = SocketConfig { transmit: Transmit::Socket, ..SocketConfig::default() };
        let (mut ends, mut max_frame) = (vec![], 0);
        for queue in 0..link.queues {
            let end = AfXdpPort::open(umem, link, queue, &config)?;
            if let Some(socket) = end.fd() {
                program.set_socket(queue, socket)?;
            }
            max_frame = end.max_frame() as u32;
            ends.push(if partial { Box::new(Completing::new(end)) } else { Box::new(end) as Box<dyn Port> });
        }
        program.set_config(XdpConfig { mac: link.mac, max_frame, raw: whole, ..XdpConfig::default() })?;
        let failed = |source| Error::Promiscuous { interface: link.name.clone(), source };
        let promiscuous = whole.then(|| Promiscuous::new(link.index)).transpose().map_err(failed)?;
        Ok((Self { program, _promiscuous: promiscuous }, ends))
    }

    /// Returns the program.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Begins to hand over frames to the sockets.
    pub fn enable(&mut self) -> Result<(), Error> {
        Ok(self.program.set_config(XdpConfig { enabled: true, ..self.program.config() })?)
    }
}
