//! An upstream that notes when each request came, by the kernel, which stamps what a socket receives.
//!
//! Its own threads may have their turn late on a busy machine: what was started in time would count for the next window.

use nix::cmsg_space;
use nix::sys::socket::sockopt::ReceiveTimestampns;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg, setsockopt};
use nix::sys::time::TimeSpec;
use std::io::{IoSliceMut, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd as _;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// When a start came, and from which slot's clients.
pub(crate) type Starts = Arc<Mutex<Vec<(Duration, usize)>>>;

/// Reading so much late is printed: by so much a stamp of the reader would be wrong.
const WORTH_A_WORD: Duration = Duration::from_millis(50);

/// Notes when each request came, and answers.
pub(crate) fn upstream(seen: Starts) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    // Connections have it from here: what comes before they are accepted is stamped, too.
    setsockopt(&listener, ReceiveTimestampns, &true).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let seen = Arc::clone(&seen);
            std::thread::spawn(move || answer(&stream.unwrap(), &seen));
        }
    });
    address
}

fn answer(stream: &TcpStream, seen: &Mutex<Vec<(Duration, usize)>>) {
    let mut request = Vec::new();
    while let Some(at) = receive(stream, &mut request) {
        let text = String::from_utf8_lossy(&request);
        let Some((head, _)) = text.split_once("\r\n\r\n") else { continue };
        let slot = head.lines().find_map(|line| line.strip_prefix("x-slot: ")).map_or(0, |slot| slot.parse().unwrap());
        seen.lock().unwrap().push((at, slot));
        request.clear();
        if (&*stream).write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").is_err() {
            return;
        }
    }
}

/// Appends what has come, and tells when it came, by the kernel: on a busy machine this thread may have its turn only
/// in the next window, and what was started in time would count there. `None`: the connection is over.
fn receive(stream: &TcpStream, request: &mut Vec<u8>) -> Option<Duration> {
    let (mut bytes, mut room) = ([0; 4096], cmsg_space!(TimeSpec));
    let mut parts = [IoSliceMut::new(&mut bytes)];
    let message = recvmsg::<()>(stream.as_raw_fd(), &mut parts, Some(&mut room), MsgFlags::empty()).ok()?;
    let stamp = |message| if let ControlMessageOwned::ScmTimestampns(at) = message { Some(at) } else { None };
    let at = message.cmsgs().ok()?.find_map(stamp).map(Duration::from);
    let len = message.bytes;
    if let Some(late) = at.map(|at| now().saturating_sub(at)).filter(|late| *late > WORTH_A_WORD) {
        println!("read {} ms after it came", late.as_millis());
    }
    request.extend(&bytes[..len]);
    if len == 0 { None } else { Some(at.expect("the kernel stamps what it receives")) }
}

/// The wall clock.
pub(crate) fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap()
}
