//! Accepts connections, and refuses those past a cap.

use super::Bounds;
use super::account::Account;
use super::census::{Census, Place, Taken};
use super::tls::Tls;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// How long to wait after a failure to accept, most likely too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Refusals under way at once; past it a connection is closed without words.
const REFUSALS_MAX: usize = 128;
/// How long a refused client may take to read why.
const REFUSAL_TIME: Duration = Duration::from_secs(1);
/// A peer that is gone without a word is noticed after this and a few probes, however long it may be silent otherwise.
const KEEPALIVE: Duration = Duration::from_secs(60);

/// A listening socket and its caps.
pub struct Acceptor {
    listener: TcpListener,
    bounds: Bounds,
    census: Arc<Census>,
    tls: Option<Arc<Tls>>,
    refusals: JoinSet<()>,
    /// What a client past a cap is told.
    words: fn(Taken) -> String,
}

/// A connection that was let in.
pub struct Accepted {
    pub(super) stream: TcpStream,
    pub(super) peer: SocketAddr,
    pub(super) place: Place,
    pub(super) tls: Option<Arc<Tls>>,
}

/// A connection on its way to the runtime of another thread.
pub struct HandedOver {
    stream: std::net::TcpStream,
    peer: SocketAddr,
    place: Place,
    tls: Option<Arc<Tls>>,
}

impl Acceptor {
    /// Accepts on `listener`, with TLS or in clear text, and counts in `census`.
    #[must_use]
    pub fn new(listener: TcpListener, bounds: Bounds, census: Arc<Census>, tls: Option<Arc<Tls>>) -> Acceptor {
        keep_alive(&listener);
        Acceptor { listener, bounds, census, tls, refusals: JoinSet::new(), words: http_words }
    }

    /// The same for a door whose clients read no HTTP: what one past a cap is told.
    #[must_use]
    pub(crate) fn refusing_with(self, words: fn(Taken) -> String) -> Acceptor {
        Acceptor { words, ..self }
    }

    /// Where it counts.
    pub(super) fn census(&self) -> &Arc<Census> {
        &self.census
    }

    /// The next connection that is let in. Nothing is lost when the future is dropped.
    ///
    /// # Errors
    /// When the listener is unusable. Failures that pass, such as too many open files, are waited out.
    pub async fn next(&mut self) -> io::Result<Accepted> {
        loop {
            let accepted = self.listener.accept().await;
            while self.refusals.try_join_next().is_some() {}
            match accepted {
                Ok((stream, peer)) => {
                    if let Some(accepted) = self.admit(stream, peer) {
                        return Ok(accepted);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => return Err(error),
                Err(_) => sleep(ACCEPT_PAUSE).await,
            }
        }
    }

    fn admit(&mut self, stream: TcpStream, peer: SocketAddr) -> Option<Accepted> {
        // Heads and answers are written whole; waiting for more would only delay them.
        let _ = stream.set_nodelay(true);
        if let Some(bytes) = self.bounds.send_buffer_bytes {
            bound_send_buffer(&stream, bytes);
        }
        match self.census.enter(&Account::of(peer.ip())) {
            Ok(place) => Some(Accepted { stream, peer, place, tls: self.tls.clone() }),
            Err(taken) => {
                // With TLS it is closed without words: a handshake costs more than what is refused.
                if self.tls.is_none() && self.refusals.len() < REFUSALS_MAX {
                    self.refusals.spawn(refuse(stream, (self.words)(taken)));
                }
                None
            }
        }
    }
}

impl Accepted {
    /// Takes it out of this thread's runtime.
    ///
    /// # Errors
    /// When the runtime does not let go of the socket; the connection is closed then.
    pub fn hand_over(self) -> io::Result<HandedOver> {
        Ok(HandedOver { stream: self.stream.into_std()?, peer: self.peer, place: self.place, tls: self.tls })
    }
}

impl HandedOver {
    /// Takes it into this thread's runtime.
    ///
    /// # Errors
    /// When it cannot be registered, as the process is out of something; the connection is closed then.
    pub fn take_over(self) -> io::Result<Accepted> {
        Ok(Accepted { stream: TcpStream::from_std(self.stream)?, peer: self.peer, place: self.place, tls: self.tls })
    }
}

/// Accepted sockets inherit this from the listener. Connections that wait to be accepted already have none, and need none: they
/// are few, and have their other limits.
fn keep_alive(listener: &TcpListener) {
    #[cfg(unix)]
    let _ = socket2::SockRef::from(listener)
        .set_tcp_keepalive(&socket2::TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE / 4));
}

/// Bounds what lies in the kernel for a client that does not read. The kernel would let it grow to megabytes, and all of that would
/// be old by the time it is read. Not set at the listener: connections accepted before would have no bound.
fn bound_send_buffer(stream: &TcpStream, bytes: usize) {
    #[cfg(unix)]
    let _ = socket2::SockRef::from(stream).set_send_buffer_size(bytes);
}

/// Tells a client why it is refused, then reads until it closes: closing on unread bytes would reset the connection, and
/// the client would never see the answer.
async fn refuse(mut stream: TcpStream, text: String) {
    let farewell = async {
        stream.write_all(text.as_bytes()).await?;
        stream.shutdown().await?;
        let mut scratch = [0; 1024];
        while stream.read(&mut scratch).await? > 0 {}
        io::Result::Ok(())
    };
    let _ = timeout(REFUSAL_TIME, farewell).await;
}

fn http_words(taken: Taken) -> String {
    let detail = match taken {
        Taken::All => "all connections are taken; try again, and keep connections open between requests",
        Taken::ByAddress | Taken::ByToken => {
            "your address has as many connections as one address may; close some, and keep connections open between requests"
        }
    };
    let body = format!(
        r#"{{"type":"https://iana.org/assignments/http-problem-types#temporary-reduced-capacity","title":"Request cannot be satisfied due to temporary server capacity constraints","status":503,"code":"too_many_connections","detail":"{detail}"}}"#
    );
    format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/problem+json\r\ncontent-length: {}\r\nretry-after: 1\r\nconnection: close\r\n\r\n{body}",
        body.len()
    )
}
