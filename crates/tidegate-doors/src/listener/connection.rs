//! One client's connection: its socket, what it does, and since when.
//!
//! The socket is behind a lock of its own, as two want it: HTTP reads and writes, and a request that waits must know whether
//! the client is still there. What is done under the lock never blocks.

use super::acceptor::Accepted;
use super::census::Place;
use super::handshake::shake_hands;
use super::stream::{Protocol, Stream};
use super::ticks::{IdleTimeout, TickClock};
use super::tls::Tls;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;
use tidegate_wire::certificate::CertificateNames;
use tokio::io::{AsyncRead as _, AsyncWrite as _, ReadBuf};
use tokio::sync::Notify;
use tokio::time::timeout;

/// A connection that a client opened.
#[derive(Debug)]
pub struct Connection {
    peer: SocketAddr,
    socket: Mutex<Stream>,
    /// What its handshake is made with; `None`: it is in clear text.
    tls: Option<Arc<Tls>>,
    /// Who the client is, if it has shown a certificate.
    certificate: OnceLock<CertificateNames>,
    clock: Arc<TickClock>,
    /// Requests that are being answered.
    busy: AtomicU32,
    /// The tick at which it became idle or began to send a head; the lowest bit tells which.
    since: AtomicU64,
    /// The tick since which the client has not read what is written; 0: it reads, or there is nothing to read.
    unread_since: AtomicU64,
    /// Bytes that it has read since then.
    taken: AtomicU64,
    /// What comes is not looked at any more: it is no HTTP/1.
    is_switched: AtomicBool,
    /// Its client was admitted, and keeps its place while places are scarce.
    is_admitted: AtomicBool,
    /// A client that has closed its side is answered all the same.
    answers_half_closed: AtomicBool,
    /// What has come ends with the end of a message.
    is_whole: AtomicBool,
    /// The tick at which the client had closed its side, or last took bytes since; 0: it has not, or nobody withholds it.
    half_closed_since: AtomicU64,
    /// The reader from which the end is withheld.
    end_awaited: Mutex<Option<Waker>>,
    order: AtomicU8,
    ordered: Notify,
    pub(super) place: Place,
}

/// What the listener tells a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// End after the answers under way.
    Finish,
    /// End now.
    Cut,
}

/// The time limits in ticks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) head: u64,
    pub(super) idle: u64,
    pub(super) write: u64,
}

const IN_HEAD: u64 = 1;

/// A client that takes fewer bytes than this within the write limit counts as one that takes none.
const PROGRESS_BYTES_MIN: u64 = 4 << 10;

/// For how long a client that has closed its side, and takes no bytes, may wait for its answer: 10 s.
const HALF_CLOSED_TICKS: u64 = 20;
/// How long a connection stays after its last answer while the client goes on sending.
const LINGER_MAX: Duration = Duration::from_secs(5);
const INTERIM: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

impl Connection {
    pub(super) fn new(accepted: Accepted, clock: Arc<TickClock>) -> Connection {
        let Accepted { stream, peer, place, tls } = accepted;
        Connection {
            peer,
            socket: Mutex::new(Stream::new(stream)),
            tls,
            certificate: OnceLock::new(),
            busy: AtomicU32::new(0),
            // The first head must come in time like any other.
            since: AtomicU64::new(clock.now() << 1 | IN_HEAD),
            unread_since: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            is_switched: AtomicBool::new(false),
            is_admitted: AtomicBool::new(false),
            answers_half_closed: AtomicBool::new(false),
            is_whole: AtomicBool::new(false),
            half_closed_since: AtomicU64::new(0),
            end_awaited: Mutex::default(),
            order: AtomicU8::new(0),
            ordered: Notify::new(),
            clock,
            place,
        }
    }

    /// Whose connection it is.
    #[must_use]
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// The names in the certificate that the client has shown, signed by an authority that the door trusts. `None`: it has shown
    /// none, as the door asks for none.
    #[must_use]
    pub fn certificate(&self) -> Option<&CertificateNames> {
        self.certificate.get()
    }

    /// Is what goes over it encrypted?
    #[must_use]
    pub fn is_encrypted(&self) -> bool {
        self.tls.is_some()
    }

    /// Makes the TLS handshake, if the door has certificates: what the client says that it speaks. Called once, before anything is
    /// read.
    ///
    /// # Errors
    /// When the connection broke, or the handshake failed.
    pub async fn secure(&self) -> io::Result<Option<Protocol>> {
        let Some(tls) = &self.tls else { return Ok(None) };
        let settled = shake_hands(self, tls).await?;
        settled.certificate.into_iter().for_each(|names| drop(self.certificate.set(names)));
        Ok(settled.protocol)
    }

    /// What the client speaks, once its handshake or its first bytes tell. Called once, before anything is read.
    ///
    /// # Errors
    /// When the connection broke, or the handshake failed.
    pub async fn protocol(&self) -> io::Result<Protocol> {
        let protocol = match self.secure().await? {
            Some(protocol) => protocol,
            None => poll_fn(|cx| self.socket().poll_protocol(cx)).await?,
        };
        if protocol == Protocol::Http2 {
            self.switch_protocol();
        }
        Ok(protocol)
    }

    /// What comes next on this connection is no HTTP/1.
    pub fn switch_protocol(&self) {
        self.is_switched.store(true, Relaxed);
        self.begin_idle();
    }

    /// Has the client closed its side, or broken off? The kernel knows even while unread bytes stand before the end.
    #[cfg(unix)]
    #[must_use]
    pub fn has_left(&self) -> bool {
        use rustix::event::PollFlags;
        self.is_in(PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR)
    }

    /// Is nobody left to read an answer? A client that has closed its socket, and not only its side, answers what is sent to it with
    /// a reset; before anything is sent, nobody can tell.
    #[cfg(unix)]
    #[must_use]
    pub fn has_broken_off(&self) -> bool {
        use rustix::event::PollFlags;
        self.is_in(PollFlags::HUP | PollFlags::ERR)
    }

    #[cfg(unix)]
    fn is_in(&self, states: rustix::event::PollFlags) -> bool {
        use rustix::event::{PollFd, Timespec, poll};
        let stream = self.socket();
        let Some(tcp) = stream.socket.tcp() else { return true };
        let mut fds = [PollFd::new(tcp, states)];
        let asked = poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
        asked.is_ok() && fds[0].revents().intersects(states)
    }

    /// Sends an interim answer to a client that has closed its side: if its socket is closed, a reset comes back. Clients of
    /// HTTP/1.1 skip it (RFC 9110, 15.2.1); not for others. Nothing is sent into the middle of an earlier answer, whose bytes
    /// do as well.
    pub fn send_interim(&self) {
        if self.unread_since.load(Relaxed) > 0 {
            return;
        }
        let mut cx = Context::from_waker(Waker::noop());
        let mut socket = self.socket();
        let written = Pin::new(&mut *socket).poll_write(&mut cx, INTERIM);
        let is_split = matches!(written, Poll::Ready(Ok(count)) if count < INTERIM.len());
        if is_split || Pin::new(&mut *socket).poll_flush(&mut cx).is_pending() {
            drop(socket);
            // What follows would stand in the middle of it.
            self.cut();
        }
    }

    /// Has the end come, and is it withheld from the reader?
    #[must_use]
    pub fn is_half_closed(&self) -> bool {
        self.half_closed_since.load(Relaxed) > 0
    }

    /// The client is known to be there: the time for which its end is withheld begins again.
    pub fn keep_half_closed(&self) {
        if self.is_half_closed() {
            self.half_closed_since.store(self.clock.now(), Relaxed);
        }
    }

    /// From now on a client that closes its side is answered, or is taken for gone at once. HTTP servers take the end of what they read
    /// for a client that is gone; some clients only say that no other request follows. The end is withheld for as long as the
    /// client takes bytes, and 10 s.
    pub fn answer_half_closed(&self, answers: bool) {
        self.answers_half_closed.store(answers, Relaxed);
        if !answers && self.half_closed_since.load(Relaxed) > 0 {
            self.half_closed_since.store(0, Relaxed);
            self.tell_end();
        }
    }

    /// Does what has come end with the end of a message? If not, a client that closes its side has left in the middle of one.
    pub fn note_whole(&self, is_whole: bool) {
        self.is_whole.store(is_whole, Relaxed);
    }

    /// Is the end withheld from this reader? It is woken when it is not any more.
    pub(super) fn withholds_end(&self, cx: &Context<'_>) -> bool {
        if !self.answers_half_closed.load(Relaxed) || !self.is_whole.load(Relaxed) || self.is_switched() {
            return false;
        }
        let now = self.clock.now();
        let since = self.half_closed_since.compare_exchange(0, now, Relaxed, Relaxed).unwrap_or_else(|since| since);
        let is_withheld = since == 0 || now.saturating_sub(since) <= HALF_CLOSED_TICKS;
        if is_withheld {
            *self.end_awaited() = Some(cx.waker().clone());
        }
        is_withheld
    }

    /// Tells a reader of the end that was withheld for long enough. Called by the sweep.
    pub(super) fn look_at_end(&self) {
        let since = self.half_closed_since.load(Relaxed);
        if since > 0 && self.clock.now().saturating_sub(since) > HALF_CLOSED_TICKS {
            self.tell_end();
        }
    }

    fn tell_end(&self) {
        let awaited = self.end_awaited().take();
        awaited.into_iter().for_each(Waker::wake);
    }

    fn end_awaited(&self) -> MutexGuard<'_, Option<Waker>> {
        self.end_awaited.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes our side, then reads what the client still sends and throws it away, until it closes its side or 5 s are over. A socket
    /// that is closed on unread bytes resets the connection, and the client may lose the answer that was written before.
    pub async fn linger(&self) {
        let drained = poll_fn(|cx| {
            let _ = Pin::new(&mut *self.socket()).poll_shutdown(cx);
            let mut scratch = [0; 4 << 10];
            loop {
                let mut came = ReadBuf::new(&mut scratch);
                let outcome = ready!(Pin::new(&mut *self.socket()).poll_read(cx, &mut came));
                if outcome.is_err() || came.filled().is_empty() {
                    return Poll::Ready(());
                }
            }
        });
        let _ = timeout(LINGER_MAX, drained).await;
    }

    /// Answers a client that does not speak what the door speaks, in HTTP/1.1, which it may read all the same. `problem` is JSON.
    pub(crate) async fn refuse_in_words(&self, status: &str, problem: &str) {
        let text = format!(
            "HTTP/1.1 {status}\r\ncontent-type: application/problem+json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{problem}",
            problem.len()
        );
        // The first bytes on a connection find room.
        let written = poll_fn(|cx| Pin::new(&mut *self.socket()).poll_write(cx, text.as_bytes())).await;
        if written.is_ok() {
            self.linger().await;
        }
    }

    /// A limit on how long a peer may be silent, in this connection's thread.
    #[must_use]
    pub fn idle_timeout(&self, limit_ticks: u64) -> IdleTimeout {
        IdleTimeout::new(Arc::clone(&self.clock), limit_ticks)
    }

    /// The next order of the listener.
    pub async fn ordered(&self) -> Order {
        loop {
            match self.order.load(Relaxed) {
                ORDER_CUT => return Order::Cut,
                // The connection is asked to finish once. A cut that came meanwhile stands.
                ORDER_FINISH if self.order.compare_exchange(ORDER_FINISH, 0, Relaxed, Relaxed).is_ok() => {
                    return Order::Finish;
                }
                0 => self.ordered.notified().await,
                _ => {}
            }
        }
    }

    /// Serves until `serving` ends, and does what the listener orders: `finish` lets it end after the answers under way. False: it
    /// was cut. An error of `serving` is the client's going away or not speaking HTTP: no client is left to answer.
    pub async fn serve<S: Future>(&self, mut serving: Pin<&mut S>, finish: impl Fn(Pin<&mut S>)) -> bool {
        let mut ordered = pin!(self.ordered());
        // The waker that the next order wakes: for most requests there is none, and nothing to look at.
        let mut awaiting: Option<Waker> = None;
        poll_fn(|cx| {
            loop {
                if serving.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(true);
                }
                let awaits = awaiting.as_ref().is_some_and(|waker| waker.will_wake(cx.waker()));
                if awaits && self.order.load(Relaxed) == 0 {
                    return Poll::Pending;
                }
                match ordered.as_mut().poll(cx) {
                    Poll::Pending => {
                        awaiting = Some(cx.waker().clone());
                        return Poll::Pending;
                    }
                    Poll::Ready(Order::Cut) => return Poll::Ready(false),
                    Poll::Ready(Order::Finish) => {
                        finish(serving.as_mut());
                        ordered.set(self.ordered());
                        awaiting = None;
                    }
                }
            }
        })
        .await
    }

    /// Is it ordered to end now?
    pub(crate) fn is_cut(&self) -> bool {
        self.order.load(Relaxed) == ORDER_CUT
    }

    /// Ends it now, as its client takes longer than it may.
    pub(crate) fn cut(&self) {
        if !self.is_cut() {
            self.place.census.cut.fetch_add(1, Relaxed);
            self.give(Order::Cut);
        }
    }

    pub(super) fn give(&self, order: Order) {
        let order = match order {
            Order::Finish => ORDER_FINISH,
            Order::Cut => ORDER_CUT,
        };
        self.order.fetch_max(order, Relaxed);
        self.ordered.notify_one();
    }

    /// Does it take longer than it may?
    pub(super) fn overstays(&self, limits: Limits) -> bool {
        let longer = |since: u64, limit: u64| self.clock.now().saturating_sub(since) > limit;
        let unread_since = self.unread_since.load(Relaxed);
        if unread_since > 0 && longer(unread_since, limits.write) {
            return true;
        }
        if self.busy.load(Relaxed) > 0 {
            return false;
        }
        let since = self.since.load(Relaxed);
        longer(since >> 1, if since & IN_HEAD == 0 { limits.idle } else { limits.head })
    }

    /// Is what comes no HTTP/1, but HTTP/2 or bytes of a tunnel?
    #[must_use]
    pub fn is_switched(&self) -> bool {
        self.is_switched.load(Relaxed)
    }

    /// Its client has asked what not everybody may, and may: it keeps its place when places become scarce, however long it is idle. For
    /// protocols whose clients keep connections in pools.
    pub(crate) fn note_admitted(&self) {
        self.is_admitted.store(true, Relaxed);
    }

    pub(super) fn is_admitted(&self) -> bool {
        self.is_admitted.load(Relaxed)
    }

    /// Bytes came in, and the last of them stands in a head, or not. While a request is being answered that is of no account.
    pub(super) fn note_read(&self, in_head: bool) {
        let was_in_head = self.since.load(Relaxed) & IN_HEAD != 0;
        if in_head != was_in_head && self.busy.load(Relaxed) == 0 {
            self.since.store(self.clock.now() << 1 | u64::from(in_head), Relaxed);
        }
    }

    /// Bytes of a protocol of messages came in: whole ones, and perhaps the beginning of another, which has to end in time as a
    /// head has. For connections whose bytes nobody else looks at.
    pub(crate) fn note_messages(&self, any_whole: bool, in_message: bool) {
        let was_in_message = self.since.load(Relaxed) & IN_HEAD != 0;
        if any_whole || in_message != was_in_message {
            self.since.store(self.clock.now() << 1 | u64::from(in_message), Relaxed);
        }
    }

    /// Bytes of HTTP/2 came in, and the last of them stands inside of a frame or of a head, which has to end in time, or not. It counts when
    /// no request is being answered, and from then on.
    pub(super) fn note_frames(&self, in_frame: bool) {
        if in_frame != (self.since.load(Relaxed) & IN_HEAD != 0) {
            self.since.store(self.clock.now() << 1 | u64::from(in_frame), Relaxed);
        }
    }

    /// It was tried to write. What the client takes ends its stall only if it is not next to nothing.
    pub(super) fn note_written(&self, written: &Poll<io::Result<usize>>) {
        let unread_since = self.unread_since.load(Relaxed);
        if matches!(written, Poll::Ready(Ok(_))) && self.half_closed_since.load(Relaxed) > 0 {
            self.half_closed_since.store(self.clock.now(), Relaxed);
        }
        match written {
            Poll::Pending if unread_since == 0 => {
                self.taken.store(0, Relaxed);
                self.unread_since.store(self.clock.now(), Relaxed);
            }
            Poll::Ready(Ok(count)) if unread_since > 0 => {
                let taken = self.taken.fetch_add(*count as u64, Relaxed) + *count as u64;
                if taken >= PROGRESS_BYTES_MIN {
                    self.unread_since.store(0, Relaxed);
                }
            }
            _ => {}
        }
    }

    /// All that there was to write is written.
    pub(super) fn note_flushed(&self) {
        if self.unread_since.load(Relaxed) > 0 {
            self.unread_since.store(0, Relaxed);
        }
    }

    fn begin_idle(&self) {
        self.since.store(self.clock.now() << 1, Relaxed);
    }

    pub(super) fn socket(&self) -> MutexGuard<'_, Stream> {
        self.socket.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

const ORDER_FINISH: u8 = 1;
const ORDER_CUT: u8 = 2;

/// A connection that is busy while this lives: neither idle nor sending a head.
#[derive(Debug)]
pub struct Busy(Arc<Connection>);

impl Busy {
    /// Begins.
    #[must_use]
    pub fn new(connection: Arc<Connection>) -> Busy {
        connection.busy.fetch_add(1, Relaxed);
        Busy(connection)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let connection = &self.0;
        // Only the bytes of HTTP/2 were looked at meanwhile.
        let in_frame = if connection.is_switched() { connection.since.load(Relaxed) & IN_HEAD } else { 0 };
        connection.since.store(connection.clock.now() << 1 | in_frame, Relaxed);
        connection.busy.fetch_sub(1, Relaxed);
    }
}
