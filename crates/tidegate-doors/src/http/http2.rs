//! HTTP/2 on the door. What is asked and answered is the same as over HTTP/1.1; sessions of WebSocket are not.
//!
//! A connection of HTTP/2 carries many requests, and each has its own flow control. So two things that HTTP/1.1 has from its
//! connection are counted here by request: how many are under way from one address, with one token and in all (the caps on
//! connections, once more), and a client that leaves an answer unread. HTTP does not ask for a body while the client grants no window for it; nothing but
//! an alarm beside the body notices that, and cuts the connection.

use super::bounds::HEADER_BUFFER_MAX;
use super::client::Client;
use super::dispatch::dispatch;
use super::problem::Problem;
use super::reply::Reply;
use super::reply_body::ReplyBody;
use crate::listener::{Account, Connection, Http2, IdleTimeout, Place, Taken, Watched, http2, ticks};
use crate::turns::TurnsWhile;
use bytes::Bytes;
use http::header::{CONTENT_LENGTH, HOST, HeaderValue};
use http::{Method, Request, Response};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};
use tidegate::Micros;

/// Serves one connection to its end.
pub(crate) async fn serve(client: Arc<Client>) {
    let connection = Arc::clone(&client.connection);
    let cut = Waker::from(Arc::new(Cut(Arc::downgrade(&connection))));
    let served = Arc::clone(&client);
    let service = service_fn(move |request| {
        let (client, cut) = (Arc::clone(&served), cut.clone());
        async move { Ok::<_, Infallible>(answer(&client, request, cut).await) }
    });
    let io = TokioIo::new(Watched::http2(Arc::clone(&connection)));
    let (http, requests) = http2(HEADER_BUFFER_MAX);
    let serving = pin!(http.serve_connection(io, service));
    let mut serving = pin!(Http2::new(serving, requests));
    let serving = pin!(TurnsWhile::new(&client.feeds, serving.as_mut()));
    connection.serve(serving, |mut it| it.work().serving().graceful_shutdown()).await;
}

async fn answer(client: &Arc<Client>, mut request: Request<Incoming>, cut: Waker) -> Response<Unread> {
    let _busy = client.busy();
    let (door, is_head) = (&client.door, request.method() == Method::HEAD);
    let mut place = door.budget.http2_requests.enter(&Account::of(client.connection.peer().ip()));
    let reply = match &mut place {
        Ok(place) => {
            name_host(&mut request);
            dispatch(client, request, Some(place)).await
        }
        Err(taken) => too_many(*taken).into_reply(),
    };
    let mut unread = client.connection.idle_timeout(ticks(door.settings.write_timeout));
    let _ = unread.poll_silence(&mut Context::from_waker(&cut));
    let reply = if is_head { without_body(reply) } else { reply };
    let is_small = reply.body().is_end_stream() || reply.body().text().is_some_and(|text| text.len() <= SMALL);
    reply.map(|body| Unread { body, is_small, last: None, unread, cut, _place: place.ok() })
}

/// What HTTP/1.1 does by itself: the answer to HEAD has the length of the body, and no body.
fn without_body(mut reply: Reply) -> Reply {
    if let Some(length) = reply.body().size_hint().exact() {
        reply.headers_mut().insert(CONTENT_LENGTH, length.into());
    }
    reply.map(|_| ReplyBody::Text(None))
}

pub(crate) fn too_many(taken: Taken) -> Problem {
    let detail = format!(
        "requests of HTTP/2 under way: {taken}, and there may be as many as connections; end some, such as feeds, and try again"
    );
    Problem::new(503, "too_many_requests", detail).retry_after(Micros::from_secs(1))
}

/// HTTP/2 has the host in `:authority`. A request that has it in both, and not the same, has two.
fn name_host(request: &mut Request<Incoming>) {
    let authority = request.uri().authority().map(|authority| authority.as_str());
    let Some(authority) = authority.and_then(|authority| HeaderValue::from_str(authority).ok()) else { return };
    let is_same = |host: &HeaderValue| host.as_bytes().eq_ignore_ascii_case(authority.as_bytes());
    if !request.headers().get_all(HOST).iter().any(is_same) {
        request.headers_mut().append(HOST, authority);
    }
}

/// A body, and the alarm that rings when the client does not take its next piece in time.
///
/// HTTP/2 holds a piece until the client has granted a window for one byte of it, and what it takes then it keeps until there is a
/// window for the rest. So a body that is not small has its last byte as a piece of its own: that one waits until all the others had
/// their window, and the alarm with it.
pub(crate) struct Unread {
    body: ReplyBody,
    is_small: bool,
    last: Option<Bytes>,
    unread: IdleTimeout,
    cut: Waker,
    _place: Option<Place>,
}

/// An answer up to this size is HTTP/2's to keep.
const SMALL: usize = 1 << 10;

impl Body for Unread {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.unread.reset();
        let polled = self.poll_piece(cx);
        let Unread { unread, cut, .. } = &mut *self;
        // A feed without messages has nothing that the client could read.
        if polled.is_ready() {
            let _ = unread.poll_silence(&mut Context::from_waker(cut));
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream() && self.last.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Unread {
    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if let Some(last) = self.last.take() {
            return Poll::Ready(Some(Ok(Frame::data(last))));
        }
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        if self.is_small || !self.body.is_end_stream() {
            return polled;
        }
        polled.map_ok(|frame| {
            frame.map_data(|mut data| {
                self.last = (data.len() > 1).then(|| data.split_off(data.len() - 1));
                data
            })
        })
    }
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
