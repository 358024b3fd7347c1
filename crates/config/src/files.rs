//! Files that an instance opens while it runs.

use crate::model::Config;
use std::path::PathBuf;

/// Files that a configuration names, or was read from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Files {
    /// Files that are read, some of them again at a reload.
    pub read: Vec<PathBuf>,
    /// Files that are made.
    pub written: Vec<PathBuf>,
    /// Sockets that are made.
    pub sockets: Vec<PathBuf>,
}

impl Config {
    /// Returns the files of this configuration.
    pub fn files(&self) -> Files {
        let mut files = Files { read: self.sources.clone(), ..Files::default() };
        files.read.extend(self.switch.flows.clone());
        files.read.extend(self.groups.iter().filter_map(|group| group.file.clone()));
        files.sockets.extend([Some(&self.api.socket), self.api.read_socket.as_ref()].into_iter().flatten().cloned());
        for port in &self.ports {
            files.read.extend(port.af_xdp.iter().filter_map(|af_xdp| af_xdp.program.clone()));
            if let Some(pcap) = &port.pcap {
                files.read.extend(Some(pcap.file.clone()).filter(|file| !file.as_os_str().is_empty()));
                files.written.extend(pcap.record.clone());
            }
            let socket = port.memif.as_ref().map(|memif| memif.socket.clone());
            // An abstract name is not a file.
            files.sockets.extend(socket.filter(|socket| !socket.as_os_str().as_encoded_bytes().starts_with(b"@")));
        }
        files
    }
}
