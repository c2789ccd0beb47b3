//! A TCP proxy that fails on demand, for tests: it stands before a server and delays, cuts, resets, starves
//! or swallows what goes through it.
//!
//! It knows no protocol: faults are in bytes and time. Each connection has three threads, which end when the proxy is dropped.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What goes wrong, on connections that are there and on those that come.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Fault {
    /// Nothing.
    None,
    /// What the server says comes so much later; the order and the rate stay.
    Delay(Duration),
    /// The server is asked; after so many bytes of what it says the connection is closed.
    Cut(usize),
    /// The server is asked; after so many bytes of what it says there is silence.
    Mute(usize),
    /// Connections are taken, and nothing goes through in either direction (half-open).
    Silence,
    /// What the client says next never reaches the server, and its connection is reset.
    Reset,
    /// What the server says comes at so many bytes a second.
    Trickle(u32),
}

/// A proxy on a free port.
pub struct Proxy {
    /// Where clients connect instead.
    pub port: u16,
    shared: Arc<Shared>,
}

struct Shared {
    target: u16,
    fault: Mutex<Fault>,
    /// Counts the faults that were set: bytes are counted from there on.
    turn: AtomicU64,
    /// The fault goes when it has struck.
    once: AtomicBool,
    connections: AtomicU64,
    stop: AtomicBool,
}

/// How often threads look at the fault while nothing comes.
const LOOK_EVERY: Duration = Duration::from_millis(1);

impl Proxy {
    /// Stands before the server on this port of this machine.
    pub fn before(target: u16) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        listener.set_nonblocking(true).unwrap();
        let shared = Arc::new(Shared {
            target,
            fault: Mutex::new(Fault::None),
            turn: AtomicU64::new(0),
            once: AtomicBool::new(false),
            connections: AtomicU64::new(0),
            stop: AtomicBool::new(false),
        });
        let serving = Arc::clone(&shared);
        std::thread::spawn(move || serving.accept(&listener));
        Proxy { port, shared }
    }

    /// From now on this goes wrong.
    pub fn set(&self, fault: Fault) {
        self.shared.set(fault, false);
    }

    /// This goes wrong once: for `Cut` and `Reset`, on the connection that it strikes first.
    pub fn strike(&self, fault: Fault) {
        self.shared.set(fault, true);
    }

    /// Has the fault that was to strike once done so?
    pub fn has_struck(&self) -> bool {
        self.shared.fault().1 == Fault::None
    }

    /// Connections so far.
    pub fn connections(&self) -> u64 {
        self.shared.connections.load(Relaxed)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.stop.store(true, Relaxed);
    }
}

impl Shared {
    fn set(&self, fault: Fault, once: bool) {
        let mut now = self.fault.lock().unwrap_or_else(PoisonError::into_inner);
        *now = fault;
        self.once.store(once, Relaxed);
        self.turn.fetch_add(1, Relaxed);
    }

    /// The fault and its turn.
    fn fault(&self) -> (u64, Fault) {
        let fault = self.fault.lock().unwrap_or_else(PoisonError::into_inner);
        (self.turn.load(Relaxed), *fault)
    }

    /// May a fault that ends a connection do so? Only the first one may, if it is to strike once.
    fn strikes(&self, turn: u64) -> bool {
        let mut fault = self.fault.lock().unwrap_or_else(PoisonError::into_inner);
        let strikes = self.turn.load(Relaxed) == turn && *fault != Fault::None;
        if strikes && self.once.load(Relaxed) {
            *fault = Fault::None;
        }
        strikes
    }

    fn accept(self: &Arc<Shared>, listener: &TcpListener) {
        while !self.stop.load(Relaxed) {
            let Ok((client, _)) = listener.accept() else {
                std::thread::sleep(LOOK_EVERY);
                continue;
            };
            self.connections.fetch_add(1, Relaxed);
            // A server that is not there hangs up, as its port would.
            let Ok(server) = TcpStream::connect(("127.0.0.1", self.target)) else { continue };
            self.carry(client, server);
        }
    }

    fn carry(self: &Arc<Shared>, client: TcpStream, server: TcpStream) {
        for stream in [&client, &server] {
            stream.set_nonblocking(false).unwrap();
            stream.set_nodelay(true).unwrap();
            stream.set_read_timeout(Some(LOOK_EVERY)).unwrap();
        }
        let ended = Arc::new(AtomicBool::new(false));
        let (shared, end) = (Arc::clone(self), Arc::clone(&ended));
        let (to_client, from_server) = (client.try_clone().unwrap(), server.try_clone().unwrap());
        let (queue, queued) = channel();
        std::thread::spawn(move || shared.answers(from_server, &queue, &end));
        let (shared, end, mut to_client) = (Arc::clone(self), Arc::clone(&ended), to_client);
        std::thread::spawn(move || {
            shared.deliver(&queued, &mut to_client, &end);
            // After a reset nothing is said, not even that it is over.
            if !end.swap(true, Relaxed) {
                let _ = to_client.shutdown(Shutdown::Write);
            }
        });
        let shared = Arc::clone(self);
        std::thread::spawn(move || shared.questions(client, server, &ended));
    }

    /// From the client to the server.
    fn questions(&self, mut client: TcpStream, mut server: TcpStream, ended: &AtomicBool) {
        let mut buffer = [0; 65_536];
        while !ended.load(Relaxed) && !self.stop.load(Relaxed) {
            let (turn, fault) = self.fault();
            if fault == Fault::Silence {
                std::thread::sleep(LOOK_EVERY);
                continue;
            }
            if fault == Fault::Reset {
                // Closing with something unread is what makes the kernel send a reset.
                if client.peek(&mut buffer).is_ok_and(|len| len > 0) && self.strikes(turn) {
                    break;
                }
                continue;
            }
            match client.read(&mut buffer) {
                Ok(len @ 1..) if server.write_all(&buffer[..len]).is_ok() => {}
                Err(error) if is_pause(&error) => {}
                _ => break,
            }
        }
        ended.store(true, Relaxed);
        let _ = server.shutdown(Shutdown::Both);
    }

    /// From the server to a queue, with the time at which it came.
    fn answers(&self, mut server: TcpStream, queue: &Sender<(Instant, Vec<u8>)>, ended: &AtomicBool) {
        let mut buffer = [0; 65_536];
        while !ended.load(Relaxed) && !self.stop.load(Relaxed) {
            match server.read(&mut buffer) {
                Ok(len @ 1..) if queue.send((Instant::now(), buffer[..len].to_vec())).is_ok() => {}
                Err(error) if is_pause(&error) => {}
                _ => return,
            }
        }
    }

    /// From the queue to the client, until the server has hung up and all is passed on.
    fn deliver(&self, queue: &Receiver<(Instant, Vec<u8>)>, client: &mut TcpStream, ended: &AtomicBool) {
        let (mut counted, mut passed) = (0, 0);
        while let Ok((came, mut bytes)) = queue.recv() {
            while !bytes.is_empty() {
                if ended.load(Relaxed) || self.stop.load(Relaxed) {
                    return;
                }
                let (turn, fault) = self.fault();
                if counted != turn {
                    (counted, passed) = (turn, 0);
                }
                let due = if let Fault::Delay(delay) = fault { came + delay } else { came };
                std::thread::sleep(due.saturating_duration_since(Instant::now()));
                let Some(left) = self.pass(client, &bytes, &mut passed, fault, turn) else { return };
                if left == bytes.len() {
                    std::thread::sleep(LOOK_EVERY);
                }
                bytes.drain(..bytes.len() - left);
            }
        }
    }

    /// Passes bytes on as the fault lets it; how many are left, `None`: the connection is over.
    fn pass(&self, client: &mut TcpStream, bytes: &[u8], passed: &mut usize, fault: Fault, turn: u64) -> Option<usize> {
        let may = match fault {
            Fault::Cut(most) | Fault::Mute(most) => bytes.len().min(most.saturating_sub(*passed)),
            Fault::Trickle(_) => 1,
            Fault::Silence => 0,
            _ => bytes.len(),
        };
        client.write_all(&bytes[..may]).ok()?;
        *passed += may;
        match fault {
            Fault::Cut(_) if may < bytes.len() && self.strikes(turn) => return None,
            Fault::Trickle(rate) => std::thread::sleep(Duration::from_secs(1) / rate),
            _ => {}
        }
        Some(bytes.len() - may)
    }
}

fn is_pause(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}
