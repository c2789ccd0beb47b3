//! After a 101: bytes both ways, until one side ends or the proxy stops.
//!
//! The slot is held as long as the tunnel: a WebSocket is one request under way.

use crate::body::Held;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use std::sync::Arc;
use tokio::io::{AsyncWriteExt as _, copy_bidirectional};
use tokio::time::sleep;

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

async fn run(on_upgrade: OnUpgrade, held: Held) -> std::io::Result<()> {
    let Held { link, slot, under_way, client: busy } = held;
    let (mut wire, read_too_far, open) = link.into_wire();
    let mut client = TokioIo::new(on_upgrade.await.map_err(std::io::Error::other)?);
    if !read_too_far.is_empty() {
        client.write_all(&read_too_far).await?;
    }
    copy_bidirectional(&mut client, &mut wire).await?;
    drop((slot, under_way, busy, open));
    Ok(())
}
