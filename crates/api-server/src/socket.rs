//! The API's sockets. The name of each belongs to one instance at a time, which removes it when it ends.

use crate::guard::Guard;
use anyhow::{Context, bail};
use bywash_port::broker::{self, NameLock};
use rustix::fs::Gid;
use std::fs::Permissions;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Unix socket, for root and a group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Address {
    /// Path of the socket.
    pub path: PathBuf,
    /// Group that may connect; `None` for root only.
    pub group: Option<Gid>,
}

/// TCP address for metrics only.
#[derive(Clone, PartialEq, Eq)]
pub struct Metrics {
    /// Address and port.
    pub at: SocketAddr,
    /// Token that requests must have; none if only this machine reaches the address.
    pub token: Option<String>,
}

impl std::fmt::Debug for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.at)
    }
}

/// Addresses at which the API listens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Addresses {
    /// Socket for all requests.
    pub all: Address,
    /// Socket for read-only requests.
    pub reading: Option<Address>,
    /// Address for metrics only.
    pub metrics: Option<Metrics>,
}

impl Addresses {
    /// Returns the address of one socket, for root and all requests.
    pub fn of(path: impl Into<PathBuf>) -> Self {
        Self { all: Address { path: path.into(), group: None }, ..Self::default() }
    }
}

/// Sockets on which the API listens.
///
/// Create it first at startup: a second instance detects this one by its socket.
#[derive(Debug)]
pub struct Listener {
    pub(crate) all: Named,
    /// Socket for read-only requests.
    pub(crate) reading: Option<Named>,
    /// TCP socket for metrics only, and who gets them.
    pub(crate) metrics: Option<(TcpListener, Guard)>,
}

impl Listener {
    /// Listens at all addresses. Replaces a socket at which no process listens any more. Errors with the pid if a
    /// process does listen there.
    pub fn bind(at: &Addresses) -> anyhow::Result<Self> {
        let mut listener = Self::make(at)?;
        listener.named().try_for_each(Named::claim)?;
        listener.listen_for_metrics(at)?;
        Ok(listener)
    }

    /// Creates the unix sockets under temporary names, with owner and mode, while another instance may still have their
    /// final names. Clients cannot find them yet.
    pub fn make(at: &Addresses) -> anyhow::Result<Self> {
        let all = Named::make(&at.all)?;
        let reading = at.reading.as_ref().map(Named::make).transpose()?;
        Ok(Self { all, reading, metrics: None })
    }

    /// Renames the sockets to their final names, even if another instance still has them.
    pub fn take_names(&mut self) -> anyhow::Result<()> {
        self.named().try_for_each(|named| {
            broker::rename(&named.now, &named.path).with_context(|| named.failed())?;
            named.now.clone_from(&named.path);
            Ok(())
        })
    }

    fn named(&mut self) -> impl Iterator<Item = &mut Named> {
        std::iter::once(&mut self.all).chain(&mut self.reading)
    }

    /// Listens for metrics requests, if configured. Errors while another instance still has the port.
    pub fn listen_for_metrics(&mut self, at: &Addresses) -> anyhow::Result<()> {
        let Some(Metrics { at, token }) = &at.metrics else { return Ok(()) };
        let socket = TcpListener::bind(at).with_context(|| {
            format!("cannot listen at {at}, [api] metrics: give another address or port, or leave it out")
        })?;
        self.metrics = Some((socket, Guard::new(*at, token.as_deref())));
        Ok(())
    }
}

/// Listening unix socket with a name, which is removed when this is dropped.
#[derive(Debug)]
pub struct Named {
    pub(crate) socket: UnixListener,
    /// Final name.
    path: PathBuf,
    /// Current name.
    now: PathBuf,
    /// Device and inode, to see whether the name has become another instance's.
    identity: (u64, u64),
}

impl Named {
    /// Listens under a temporary name beside the address's path: no client can connect before owner and mode are right.
    fn make(at: &Address) -> anyhow::Result<Self> {
        let (path, group) = (at.path.as_path(), at.group);
        let name = path.display();
        let directory = directory(path);
        // Elsewhere a missing directory is more likely a mistake, and would stay.
        if directory.starts_with("/run") || directory.starts_with("/var/run") {
            std::fs::DirBuilder::new()
                .recursive(true)
                .mode(0o755)
                .create(directory)
                .with_context(|| format!("cannot create {} for the API's socket", directory.display()))?;
        } else if !directory.exists() {
            bail!(
                "cannot listen at {name}: directory {} does not exist: create it, or give another",
                directory.display()
            );
        }
        /// Number of sockets this process has created.
        static MADE: AtomicUsize = AtomicUsize::new(0);
        let mut early = path.as_os_str().to_os_string();
        early.push(format!(".{}-{}", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed)));
        let early = PathBuf::from(early);
        // Left by an earlier process of the same pid that died before it renamed the socket.
        let _ = std::fs::remove_file(&early);
        let socket = UnixListener::bind(&early).with_context(|| format!("cannot listen at {name}"))?;
        let ready = || -> std::io::Result<(u64, u64)> {
            if let Some(group) = group {
                rustix::fs::chown(&early, None, Some(group))?;
            }
            std::fs::set_permissions(&early, Permissions::from_mode(0o660))?;
            let metadata = std::fs::metadata(&early)?;
            Ok((metadata.dev(), metadata.ino()))
        };
        match ready() {
            Ok(identity) => Ok(Self { socket, path: path.into(), now: early, identity }),
            Err(why) => {
                let _ = std::fs::remove_file(&early);
                Err(why).with_context(|| format!("cannot listen at {name}"))
            }
        }
    }

    /// Renames the socket to its final name, after checking that the name is free.
    fn claim(&mut self) -> anyhow::Result<()> {
        // Locked while the name changes hands, against another instance that starts at the same time.
        let _lock = NameLock::take(&self.path)?;
        vacate(&self.path)?;
        std::fs::rename(&self.now, &self.path).with_context(|| self.failed())?;
        self.now.clone_from(&self.path);
        Ok(())
    }

    fn failed(&self) -> String {
        format!("cannot listen at {}", self.path.display())
    }
}

fn directory(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Checks that no process listens at `path`, and that a file there is a socket.
fn vacate(path: &Path) -> anyhow::Result<()> {
    use std::os::unix::fs::FileTypeExt;
    let name = path.display();
    let Ok(metadata) = std::fs::symlink_metadata(path) else { return Ok(()) };
    if !metadata.file_type().is_socket() {
        bail!("cannot listen at {name}: there is something else, not a socket; move it, or give another --socket");
    }
    match UnixStream::connect(path) {
        Ok(stream) => {
            let pid = broker::peer(&stream).ok().and_then(|peer| peer.pid);
            let pid = pid.map_or_else(String::new, |pid| format!(", pid {pid}"));
            bail!("already runs{pid}, at {name}: stop it, or give this one another --socket")
        }
        Err(why) if why.kind() == std::io::ErrorKind::ConnectionRefused => Ok(()),
        Err(why) => Err(why).with_context(|| format!("cannot find out whether a process listens at {name}")),
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        // It may have another owner by now: the process that took over.
        let _ = broker::remove(&self.now, Some(self.identity));
    }
}
