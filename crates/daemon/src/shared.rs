//! State that the control loop, the API and the watch share.

use crate::live::Live;
use crate::ports::Xdp;
use crate::view::View;
use crate::workers;
use bywash_config::{Config, ConfigErrors, Level};
use bywash_engine::PortId;
use bywash_frame::PoolSet;
use bywash_port::PortCounters;
use bywash_port::af_xdp::Umem;
use std::sync::{Arc, Mutex, mpsc};

/// State shared by the control loop and the API.
pub struct Shared {
    pub live: Mutex<Arc<Live>>,
    /// Reads the configuration again, for a reload.
    pub source: Source,
    /// Requests to the control loop.
    pub asks: Mutex<mpsc::Sender<Ask>>,
    pub pools: Arc<PoolSet>,
    /// UMEM of the AF_XDP sockets.
    pub umem: Arc<Umem>,
    /// View of the mode.
    pub view: Arc<dyn View>,
    /// XDP programs, by port number.
    pub xdp: Mutex<Vec<Option<Xdp>>>,
    /// Counters of every end, with its port and queue.
    pub counters: Mutex<Vec<(PortId, u32, Arc<PortCounters>)>>,
    /// Levels requested at run time, by port number. They apply to an interface that has come back, too.
    pub levels: Mutex<Vec<Option<Level>>>,
    pub workers: Vec<workers::Shown>,
    /// Reason for which every port is left to the kernel, if it is: see [`crate::watch`].
    pub halted: Mutex<Option<String>>,
}

impl Shared {
    /// Returns the configuration in effect.
    pub fn live(&self) -> Arc<Live> {
        self.live.lock().expect("configuration").clone()
    }

    /// Replaces the configuration in effect.
    pub fn set_live(&self, live: Live) {
        *self.live.lock().expect("configuration") = Arc::new(live);
    }

    /// Returns the reason for which no port is forwarded: a hanging worker. `None` if all workers turn.
    pub fn halted(&self) -> Option<String> {
        self.halted.lock().expect("halted").clone()
    }
}

/// Reads the configuration; called for each reload.
pub type Source = Box<dyn Fn() -> Result<Config, ConfigErrors> + Send + Sync>;

/// Request to the control loop.
pub enum Ask {
    /// Applies this configuration; answers with what changed, or why nothing did.
    Reload(Box<Config>, mpsc::Sender<Result<Vec<String>, String>>),
    /// Connects to the process that takes over, at this abstract socket.
    TakeOver(String, mpsc::Sender<Result<(), String>>),
}
