//! The admin address: `/metrics`, `/debug/vars`, `/livez`, `/readyz`. For people and monitors, not for clients.

use crate::body::Reply;
use crate::site::Site;
use crate::{counting, sharing};
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// Connections at once; monitors are few.
const CONNECTIONS_MAX: usize = 64;
/// How long one may stay.
const CONNECTION_TIME: Duration = Duration::from_secs(60);

/// Answers until it is dropped.
pub(crate) async fn serve(listener: TcpListener, site: Arc<Site>) {
    let mut tasks = JoinSet::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            sleep(Duration::from_millis(50)).await;
            continue;
        };
        while tasks.try_join_next().is_some() {}
        if tasks.len() >= CONNECTIONS_MAX {
            continue;
        }
        let site = Arc::clone(&site);
        let service = service_fn(move |request| {
            let response = answer(&site, &request);
            async move { Ok::<_, Infallible>(response) }
        });
        let connection = http1::Builder::new().timer(TokioTimer::new()).serve_connection(TokioIo::new(stream), service);
        tasks.spawn(timeout(CONNECTION_TIME, connection));
    }
}

fn answer(site: &Site, request: &Request<Incoming>) -> Response<Reply> {
    let upstream = site.pools.open.load(Relaxed);
    if ![Method::GET, Method::HEAD].contains(request.method()) {
        return text(StatusCode::METHOD_NOT_ALLOWED, "text/plain", "only GET is answered here\n".to_owned());
    }
    match request.uri().path() {
        "/metrics" => {
            let kind = "text/plain; version=0.0.4; charset=utf-8";
            let mut page = site.metrics.text(site.queue.census(), upstream);
            sharing::push_metrics(site, &mut page);
            counting::push_metrics(site, &mut page);
            text(StatusCode::OK, kind, page)
        }
        "/debug/vars" => {
            let mut page = site.metrics.json(site.queue.census(), upstream);
            sharing::push_json(site, &mut page);
            counting::push_json(site, &mut page);
            text(StatusCode::OK, "application/json", page)
        }
        "/livez" => text(StatusCode::OK, "text/plain", "ok\n".to_owned()),
        "/readyz" if site.is_stopping() => text(StatusCode::SERVICE_UNAVAILABLE, "text/plain", "stopping\n".to_owned()),
        "/readyz" => text(StatusCode::OK, "text/plain", "ok\n".to_owned()),
        _ => {
            let known = "there are /metrics, /debug/vars, /livez and /readyz\n";
            text(StatusCode::NOT_FOUND, "text/plain", known.to_owned())
        }
    }
}

fn text(status: StatusCode, kind: &'static str, text: String) -> Response<Reply> {
    let mut response = Response::new(Reply::Own(Some(Bytes::from(text))));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}
