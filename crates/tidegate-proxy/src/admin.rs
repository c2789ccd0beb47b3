//! The admin address: `/metrics`, `/debug/vars`, `/livez`, `/readyz`. For people and monitors, not for clients.
//!
//! Invariant: what is answered is a row of [`ROUTES`], which states what it asks of its caller.

use crate::body::Reply;
use crate::state::ProxyState;
use crate::{share, shared_counting};
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue, WWW_AUTHENTICATE};
use http::request::Parts;
use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tidegate_doors::access::{Known, Needs, Refusal, Scope, What};
use tidegate_doors::listener::{self, Bounds, Busy, Caps, Census, Connection, Watched};
use tidegate_doors::metrics::{Format, Registry, fill_certificates, fill_process};
use tokio::net::TcpListener;

/// Monitors are few, and read what they asked for.
const CONNECTIONS: Caps = Caps::of(64);
const BOUNDS: Bounds = Bounds {
    reserved: 0,
    head_timeout: Duration::from_secs(10),
    idle_timeout: Duration::from_secs(60),
    write_timeout: Duration::from_secs(10),
    drain_timeout: Duration::ZERO,
    send_buffer_bytes: None,
};

/// Answers until it is dropped.
pub(crate) async fn serve(listener: TcpListener, state: Arc<ProxyState>) {
    let registry = Arc::new(registry(&state));
    let serve = |connection| serve_one(Arc::clone(&state), Arc::clone(&registry), connection);
    // An error: the listener is unusable. Requests are forwarded all the same.
    let tls = state.settings.admin_tls.clone();
    let _ =
        listener::serve(listener, BOUNDS, Arc::new(Census::new(CONNECTIONS)), tls, std::future::pending(), serve).await;
}

async fn serve_one(state: Arc<ProxyState>, registry: Arc<Registry>, connection: Arc<Connection>) {
    let secured = tokio::select! {
        secured = connection.secure() => secured.is_ok(),
        _ = connection.ordered() => false,
    };
    if !secured {
        return;
    }
    let (asked, known) = (Arc::clone(&connection), Known::of(connection.certificate()));
    let service = service_fn(move |request: Request<Incoming>| {
        let _busy = Busy::new(Arc::clone(&asked));
        let (parts, _) = request.into_parts();
        let admitted = admit(&state, &parts, asked.peer().ip(), &known);
        let response = admitted.map_or_else(refused, |shows| answer(&state, &registry, &parts, shows));
        async move { Ok::<_, Infallible>(response) }
    });
    let mut http = http1::Builder::new();
    // The listener's limits stand in for hyper's timer.
    http.header_read_timeout(None);
    let io = TokioIo::new(Watched::new(Arc::clone(&connection), |_: &mut [u8]| true));
    tokio::select! {
        // However the connection ends, no client is left to answer.
        _ = http.serve_connection(io, service) => {}
        _ = connection.ordered() => {}
    }
}

/// All figures of the proxy.
fn registry(state: &Arc<ProxyState>) -> Registry {
    let mut registry = Registry::default();
    let proxy = Arc::clone(state);
    registry.register(move |page| proxy.metrics.fill(proxy.queue.census(), proxy.pools.open.load(Relaxed), page));
    let log_lines_lost = state.settings.log_lines_lost;
    registry.register(move |page| fill_process(log_lines_lost(), page));
    let shared = Arc::clone(state);
    registry.register(move |page| share::push_metrics(&shared, page));
    let counted = Arc::clone(state);
    registry.register(move |page| shared_counting::push_metrics(&counted, page));
    let doors = [("proxy", &state.settings.tls), ("admin", &state.settings.admin_tls)];
    let certificates: Vec<_> = doors.into_iter().filter_map(|(door, tls)| Some((door, tls.clone()?))).collect();
    registry.register(move |page| fill_certificates(&certificates, page));
    registry
}

/// What a path shows.
#[derive(Clone, Copy, Debug)]
enum Shows {
    Metrics,
    Vars,
    Livez,
    Readyz,
}

/// A path, and what it asks of its caller.
struct Route {
    path: &'static str,
    needs: Needs,
    shows: Shows,
}

const fn route(path: &'static str, needs: Needs, shows: Shows) -> Route {
    Route { path, needs, shows }
}

/// Every path: there is no way to answer one that says nothing of its access. Figures are for callers that may read everything, health is for all.
static ROUTES: [Route; 4] = [
    route("/metrics", Needs::Scope(Scope::Read), Shows::Metrics),
    route("/debug/vars", Needs::Scope(Scope::Read), Shows::Vars),
    route("/livez", Needs::Nothing, Shows::Livez),
    route("/readyz", Needs::Nothing, Shows::Readyz),
];

/// What a request is shown, if it may see it; `None`: there is no such path, which is told to everybody.
fn admit(state: &ProxyState, parts: &Parts, peer: IpAddr, known: &Known) -> Result<Option<Shows>, Refusal> {
    let Some(route) = ROUTES.iter().find(|route| route.path == parts.uri.path()) else { return Ok(None) };
    let rules = state.settings.access.rules();
    let caller = rules.admit(route.needs, parts, peer, known, state.gate.now())?;
    if let Needs::Scope(scope) = route.needs {
        caller.check(scope, What::Everything)?;
    }
    Ok(Some(route.shows))
}

fn refused(refusal: Refusal) -> Response<Reply> {
    let status = StatusCode::from_u16(refusal.status).unwrap_or(StatusCode::FORBIDDEN);
    let mut response = text(status, "text/plain", format!("{}: {}\n", refusal.code, refusal.detail));
    if status == StatusCode::UNAUTHORIZED {
        response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"tidegate\""));
    }
    response
}

fn answer(state: &ProxyState, registry: &Registry, parts: &Parts, shows: Option<Shows>) -> Response<Reply> {
    if ![Method::GET, Method::HEAD].contains(&parts.method) {
        return text(StatusCode::METHOD_NOT_ALLOWED, "text/plain", "only GET is answered here\n".to_owned());
    }
    match shows {
        Some(Shows::Metrics) => {
            let format = Format::of(&parts.headers);
            text(StatusCode::OK, format.content_type(), registry.text(format))
        }
        Some(Shows::Vars) => {
            let mut page = state.metrics.json(state.queue.census(), state.pools.open.load(Relaxed));
            share::push_json(state, &mut page);
            shared_counting::push_json(state, &mut page);
            text(StatusCode::OK, "application/json", page)
        }
        Some(Shows::Livez) => text(StatusCode::OK, "text/plain", "ok\n".to_owned()),
        Some(Shows::Readyz) => match state.unready() {
            Some(why) => text(StatusCode::SERVICE_UNAVAILABLE, "text/plain", format!("{why}\n")),
            None => text(StatusCode::OK, "text/plain", "ok\n".to_owned()),
        },
        None => {
            let known: Vec<&str> = ROUTES.iter().map(|route| route.path).collect();
            text(StatusCode::NOT_FOUND, "text/plain", format!("there are {}\n", known.join(", ")))
        }
    }
}

fn text(status: StatusCode, kind: &'static str, text: String) -> Response<Reply> {
    let mut response = Response::new(Reply::Own(Some(Bytes::from(text))));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}
