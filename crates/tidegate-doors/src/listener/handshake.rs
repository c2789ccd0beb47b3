//! TLS handshakes: they take turns.
//!
//! A handshake takes up to a millisecond of a processor, as much as a hundred decisions. If each were to run as soon as its bytes are
//! there, a thousand of them would stand before every decision. So they stand in a line of their own, and so many at a time go on as
//! half of the processors can carry. A turn is taken for what there is to compute, never for a client that is waited for: slow
//! clients hold up nobody, and are cut when the head's time limit is over, which began when they were accepted.

use super::connection::Connection;
use super::stream::Protocol;
use super::tls::Tls;
use std::future::poll_fn;
use std::io::{self, ErrorKind};
use std::sync::LazyLock;
use std::task::Poll;
use tidegate_wire::certificate::{self, CertificateNames};
use tokio::sync::Semaphore;

/// Processors are the process's, and so are the turns.
static TURNS: LazyLock<Semaphore> = LazyLock::new(|| {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    Semaphore::new((processors / 2).max(1))
});

/// What a handshake settled.
pub(super) struct Settled {
    /// What the client speaks, if it said so.
    pub(super) protocol: Option<Protocol>,
    /// Who it is, if it has shown a certificate.
    pub(super) certificate: Option<CertificateNames>,
}

/// Shakes hands with the client of a connection, which has sent nothing yet.
///
/// # Errors
/// When it left or was refused; a client that speaks HTTP in clear text was told so.
pub(super) async fn shake_hands(connection: &Connection, tls: &Tls) -> io::Result<Settled> {
    let outcome = match poll_fn(|cx| connection.socket().poll_first_byte(cx)).await? {
        TLS_RECORD => {
            connection.socket().socket.begin_handshake(tls);
            let outcome = in_turns(connection).await;
            tls.note(&outcome);
            if outcome.is_err() {
                // It may be sending still, and would lose the alert that says why.
                connection.linger().await;
            }
            outcome
        }
        first => {
            let outcome = Err(ErrorKind::InvalidData.into());
            tls.note(&outcome);
            if first.is_ascii_uppercase() {
                refuse_clear_text(connection).await;
            }
            outcome
        }
    };
    outcome?;
    Ok(settled(connection))
}

/// How a handshake begins (RFC 8446, 5.1), and no request in clear text does.
const TLS_RECORD: u8 = 0x16;

async fn in_turns(connection: &Connection) -> io::Result<()> {
    loop {
        let turn = TURNS.acquire().await.map_err(io::Error::other)?;
        let polled = poll_fn(|cx| Poll::Ready(connection.socket().socket.poll_handshake(cx))).await;
        drop(turn);
        match polled {
            Poll::Ready(outcome) => return outcome,
            Poll::Pending => woken().await,
        }
    }
}

/// Waits for what was polled before: that wakes this task.
async fn woken() {
    let mut is_first = true;
    poll_fn(|_| if std::mem::take(&mut is_first) { Poll::Pending } else { Poll::Ready(()) }).await;
}

fn settled(connection: &Connection) -> Settled {
    let stream = connection.socket();
    let session = stream.socket.session();
    let protocol = match session.and_then(|session| session.alpn_protocol()) {
        Some(b"h2") => Some(Protocol::Http2),
        Some(_) => Some(Protocol::Http1),
        None => None,
    };
    // One that rustls has verified and that has no names in our reading has no names.
    let shown = session.and_then(|session| session.peer_certificates()?.first());
    let certificate = shown.and_then(|der| certificate::parse(der).ok()).map(|certificate| certificate.names);
    Settled { protocol, certificate }
}

/// `http://` where `https://` is meant is the most common mistake of all.
async fn refuse_clear_text(connection: &Connection) {
    const BODY: &str = r#"{"type":"about:blank","title":"Bad Request","status":400,"code":"tls_required","detail":"this address speaks TLS; ask for https:// instead of http://"}"#;
    connection.refuse_in_words("400 Bad Request", BODY).await;
}
