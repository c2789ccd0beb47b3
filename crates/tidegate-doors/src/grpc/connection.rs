//! One client's connection, from its handshake to its end: in order when it is old or the door stops, at once when it stalls.

use super::call::answer;
use super::server::Door;
use crate::access::Known;
use crate::budget::Holder;
use crate::http::bounds::HEADER_BUFFER_MAX;
use crate::listener::{Busy, Connection, Http2, Order, Protocol, Watched, http2};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::task::{Wake, Waker};
use std::time::Duration;
use tokio::time::sleep;

/// A client and its connection.
pub(super) struct Client {
    pub(super) door: Arc<Door>,
    pub(super) connection: Arc<Connection>,
    /// Who it has shown to be.
    pub(super) known: Known,
    pub(super) holder: Holder,
    /// Cuts the connection.
    pub(super) cut: Waker,
}

/// Serves one connection to its end.
pub(super) async fn run(door: Arc<Door>, connection: Arc<Connection>) {
    let protocol = tokio::select! {
        protocol = connection.protocol() => protocol,
        // Whatever the order is: nothing is under way yet.
        _ = connection.ordered() => return,
    };
    match protocol {
        Ok(Protocol::Http2) => serve(door, connection).await,
        Ok(Protocol::Http1) => refuse_http1(&connection).await,
        Err(_) => {}
    }
}

async fn serve(door: Arc<Door>, connection: Arc<Connection>) {
    let (known, cut) = (Known::of(connection.certificate()), Waker::from(Arc::new(Cut(Arc::downgrade(&connection)))));
    let (age, grace) = (age(&door, &connection), door.settings.drain_timeout);
    let client = Client { door, connection: Arc::clone(&connection), known, holder: Holder::default(), cut };
    let client = Arc::new(client);
    let service = service_fn(move |request| {
        let client = Arc::clone(&client);
        async move {
            let _busy = Busy::new(Arc::clone(&client.connection));
            Ok::<_, Infallible>(answer(&client, request).await)
        }
    });
    let io = TokioIo::new(Watched::http2(Arc::clone(&connection)));
    let (mut http, requests) = http2(HEADER_BUFFER_MAX);
    // gRPC has no use for the date.
    http.auto_date_header(false);
    let serving = pin!(http.serve_connection(io, service));
    let mut serving = pin!(Http2::new(serving, requests));
    let mut aged = pin!(sleep(age));
    let mut is_told = false;
    loop {
        tokio::select! {
            biased;
            // An error here is the client's going away or not speaking HTTP: no client is left to answer.
            _ = serving.as_mut() => return,
            order = connection.ordered() => match order {
                Order::Cut => return,
                Order::Finish => serving.serving().graceful_shutdown(),
            },
            () = aged.as_mut() => {
                if is_told {
                    return;
                }
                is_told = true;
                serving.serving().graceful_shutdown();
                aged.set(sleep(grace));
            }
        }
    }
}

/// When a connection is old: up to a tenth later than the setting says, by its port, so that those that came together do not all
/// come again together.
fn age(door: &Door, connection: &Connection) -> Duration {
    let share = u32::from(connection.peer().port() % 64);
    door.settings.max_age + door.settings.max_age / 640 * share
}

async fn refuse_http1(connection: &Connection) {
    const BODY: &str = r#"{"type":"about:blank","title":"HTTP Version Not Supported","status":505,"code":"grpc_only","detail":"this address speaks gRPC, which is HTTP/2; use a gRPC client, or the HTTP door ([doors] http)"}"#;
    connection.refuse_in_words("505 HTTP Version Not Supported", BODY).await;
}

/// Cuts a connection when it is woken.
struct Cut(Weak<Connection>);

impl Wake for Cut {
    fn wake(self: Arc<Cut>) {
        if let Some(connection) = self.0.upgrade() {
            connection.cut();
        }
    }
}
