//! TLS handshakes: they take turns.
//!
//! A handshake takes up to a millisecond of a processor, as much as a hundred decisions. If each were to run as soon as its bytes are
//! there, a thousand of them would stand before every decision. So each step of one waits for its turn (`turns.rs`), and slow clients,
//! which hold none, are cut when the head's time limit is over, which began when they were accepted.

use super::connection::Connection;
use super::stream::Protocol;
use super::tls::Tls;
use crate::turns::each_in_turn;
use std::future::poll_fn;
use std::io::{self, ErrorKind};
use tidegate_wire::certificate::{self, CertificateNames};

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
            let outcome = each_in_turn(|cx| connection.socket().socket.poll_handshake(cx)).await;
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
