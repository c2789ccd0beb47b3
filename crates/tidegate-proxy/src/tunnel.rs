//! After a 101: bytes both ways, until one side ends or the proxy stops.
//!
//! The slot is held as long as the tunnel: a WebSocket is one request under way.

use crate::body::Held;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, copy, split};
use tokio::time::{sleep, timeout};

/// Starts the tunnel; it opens when the client has its 101.
pub(crate) fn open(on_upgrade: OnUpgrade, held: Held) {
    let state = Arc::clone(&held.client.state);
    tokio::spawn(async move {
        let grace = async {
            state.stopped().await;
            sleep(state.settings.drain_timeout).await;
        };
        tokio::select! {
            // However it ends, both ends are closed.
            _ = run(on_upgrade, held) => {}
            () = grace => {}
        }
    });
}

async fn run(on_upgrade: OnUpgrade, held: Held) -> io::Result<()> {
    let Held { link, slot, under_way, client: busy } = held;
    let client_timeout = busy.state.settings.client_timeout;
    let (mut wire, read_too_far, open) = link.into_wire();
    let mut client = TokioIo::new(on_upgrade.await.map_err(io::Error::other)?);
    if !read_too_far.is_empty() {
        client.write_all(&read_too_far).await?;
    }
    carry(&mut client, &mut wire, client_timeout).await?;
    drop((slot, under_way, busy, open));
    Ok(())
}

/// Carries bytes both ways. Once one side has ended, the other has so long to end, too: a client that keeps a
/// half-closed WebSocket would hold its slot without end.
async fn carry<Client, Wire>(client: &mut Client, wire: &mut Wire, last: Duration) -> io::Result<()>
where
    Client: AsyncRead + AsyncWrite + Unpin,
    Wire: AsyncRead + AsyncWrite + Unpin,
{
    let ((mut from_client, mut to_client), (mut from_wire, mut to_wire)) = (split(client), split(wire));
    let mut up = pin!(async {
        copy(&mut from_client, &mut to_wire).await?;
        to_wire.shutdown().await
    });
    let mut down = pin!(async {
        copy(&mut from_wire, &mut to_client).await?;
        to_client.shutdown().await
    });
    let rest = tokio::select! {
        ended = &mut up => { ended?; timeout(last, down).await }
        ended = &mut down => { ended?; timeout(last, up).await }
    };
    rest.unwrap_or(Ok(()))
}
