//! `grpc.health.v1`.

use crate::server::{Server, ask, call, connect};
use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tidegate_wire::grpc::health::{CHECK, HealthCheckRequest, HealthCheckResponse, ServingStatus, WATCH};
use tidegate_wire::grpc::{PREFIX_LEN, framed, read};

fn of(service: &str) -> HealthCheckRequest {
    HealthCheckRequest { service: service.to_owned() }
}

#[test]
fn known_services_serve_and_others_are_not_found() {
    let server = Server::start();
    server.runtime.block_on(async {
        let mut sender = connect(server.address).await;
        for service in ["", "ratelimit", "envoy.service.ratelimit.v3.RateLimitService"] {
            let said: HealthCheckResponse = ask(&mut sender, CHECK, &of(service)).await.said();
            assert_eq!(said.status(), ServingStatus::Serving, "{service}");
        }
        let unknown = ask(&mut sender, CHECK, &of("other")).await;
        assert_eq!((unknown.status, unknown.message.contains("no service \"other\"")), (5, true));
    });
}

async fn next(body: &mut Incoming) -> Option<ServingStatus> {
    let data: Bytes = body.frame().await?.unwrap().into_data().ok()?;
    Some(read::<HealthCheckResponse>(&data[PREFIX_LEN..]).unwrap().status())
}

/// Clients that watch go elsewhere before the door is closed to them.
#[test]
fn who_watches_is_told_of_the_stop() {
    let mut server = Server::start();
    let runtime = server.runtime.handle().clone();
    let (mut known, mut unknown) = runtime.block_on(async {
        let mut sender = connect(server.address).await;
        let mut watch =
            async |service: &str| sender.send_request(call(WATCH, framed(&of(service)))).await.unwrap().into_body();
        let (mut known, mut unknown) = (watch("").await, watch("other").await);
        assert_eq!(next(&mut known).await, Some(ServingStatus::Serving));
        assert_eq!(next(&mut unknown).await, Some(ServingStatus::ServiceUnknown));
        (known, unknown)
    });
    server.stop();
    runtime.block_on(async {
        assert_eq!(next(&mut known).await, Some(ServingStatus::NotServing));
        for body in [&mut known, &mut unknown] {
            let trailers = body.frame().await.unwrap().unwrap().into_trailers().unwrap();
            assert_eq!(trailers["grpc-status"], "14");
        }
    });
    server.ended();
}
