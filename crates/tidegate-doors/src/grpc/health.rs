//! `grpc.health.v1`: does this server take calls? It does until it is told to stop.
//!
//! While the store does not answer, decisions are made all the same, so that it serves; `/readyz` of the HTTP door tells the difference.

use super::connection::Client;
use super::message::enter;
use super::reply::{Messages, Reply, stream};
use super::server::Door;
use crate::listener::{Account, Busy};
use bytes::Bytes;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tidegate_wire::grpc::health::{HealthCheckRequest, HealthCheckResponse, ServingStatus};
use tidegate_wire::grpc::{Code, Status, framed};

/// Services that can be asked for: the server itself, those that it has, and the name by which envoyproxy/ratelimit is asked.
const SERVICES: [&str; 5] = [
    "",
    "envoy.service.ratelimit.v3.RateLimitService",
    "kuadrant.service.ratelimit.v1.RateLimitService",
    "grpc.health.v1.Health",
    "ratelimit",
];

/// `Check`: how it is now.
pub(super) fn check(door: &Door, request: &HealthCheckRequest) -> Result<HealthCheckResponse, Status> {
    if !is_known(request) {
        let name: String = request.service.chars().take(64).flat_map(char::escape_debug).collect();
        return Err(Status::new(Code::NotFound, format!("there is no service \"{name}\" here; ask for \"\"")));
    }
    Ok(told(serving(*door.closing.borrow())))
}

/// `Watch`: how it is now, and when that changes.
pub(super) fn watch(client: &Client, request: &HealthCheckRequest) -> Result<Reply, Status> {
    let (door, peer) = (&client.door, client.connection.peer().ip());
    let place = enter(&door.settings.metrics.waiting_for_health, &Account::of(peer))?;
    let mut closing = door.closing.subscribe();
    let now = if is_known(request) { serving(*closing.borrow()) } else { ServingStatus::ServiceUnknown };
    let closed = Box::pin(async move {
        // A sender that is gone means the same.
        let _ = closing.wait_for(|closing| *closing).await;
    });
    let watched = Watched { next: Some(now), is_known: is_known(request), closed, is_closed: false };
    Ok(stream(watched, place, Busy::new(Arc::clone(&client.connection))))
}

fn is_known(request: &HealthCheckRequest) -> bool {
    SERVICES.contains(&request.service.as_str())
}

fn serving(closing: bool) -> ServingStatus {
    if closing { ServingStatus::NotServing } else { ServingStatus::Serving }
}

fn told(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse { status: status.into() }
}

struct Watched {
    /// What is still to be told.
    next: Option<ServingStatus>,
    is_known: bool,
    closed: Pin<Box<dyn Future<Output = ()> + Send>>,
    is_closed: bool,
}

impl Messages for Watched {
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<Bytes, Status>> {
        if let Some(status) = self.next.take() {
            return Poll::Ready(Ok(framed(&told(status)).into()));
        }
        if !self.is_closed {
            ready!(self.closed.as_mut().poll(cx));
            self.is_closed = true;
            if self.is_known {
                return Poll::Ready(Ok(framed(&told(ServingStatus::NotServing)).into()));
            }
        }
        Poll::Ready(Err(Status::new(Code::Unavailable, "the door is closing; ask another replica")))
    }
}
