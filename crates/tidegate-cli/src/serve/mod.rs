//! `tidegate serve`: the doors on the engine, until it is stopped.
//!
//! This file wires; what goes on beside the doors has a file each: reloading, tending (which saves),
//! signals. Invariant: every task ends before the last snapshot is written, so that it holds every
//! decision that was answered.

pub(crate) mod access;
pub(crate) mod audit;
pub(crate) mod banner;
pub(crate) mod certificates;
mod denials;
mod listen;
pub(crate) mod notify;
pub(crate) mod record;
mod reload;
mod shares;
pub(crate) mod signals;
pub(crate) mod store;
mod streams;
pub(crate) mod tending;
mod unrouted;

use crate::config::{self, Config, Doors};
use crate::log::{self, LogFormat};
use crate::{panics, room};
use access::AccessReloader;
use certificates::Certificates;
use reload::{Reloader, Running};
use signals::{Signal, Signals};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use tidegate::{Gate, Recording};
use tidegate_doors::grpc::{self, GrpcSettings};
use tidegate_doors::http::{self, HttpSettings, Limits};
use tidegate_doors::resp::{self, RespSettings};
use tidegate_doors::udp::{self, Counters, Responder, Sockets};
use tidegate_events::Streams;
use tokio::net::TcpListener;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tracing::{error, info, warn};

/// Serves decisions.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The configuration; without one: an example policy, in memory, on loopback
    #[arg(long, short, value_name = "FILE")]
    config: Option<PathBuf>,
    /// How log lines are written
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = LogFormat::Text, env = "TIDEGATE_LOG_FORMAT")]
    log_format: LogFormat,
}

/// How long blocking work that nobody waits for any more may hold up the end.
const LEFT_OVER_MAX: Duration = Duration::from_secs(1);

/// Serves until a signal stops it.
///
/// # Errors
/// A message for stderr, when it cannot start or its state could not be saved at the end.
pub(crate) fn run(args: &Args) -> Result<(), String> {
    let reloader = args.config.clone().map(Reloader::new);
    let config = load(args)?;
    room::check(&config)?;
    log::start(args.log_format)?;
    panics::watch();
    let runtime = tokio::runtime::Runtime::new().map_err(|error| format!("error: cannot start: {error}"))?;
    let outcome = runtime.block_on(serve(config, args.config.as_ref(), reloader));
    runtime.shutdown_timeout(LEFT_OVER_MAX);
    outcome
}

fn load(args: &Args) -> Result<Config, String> {
    let variables = config::from_environment();
    let config = match &args.config {
        Some(file) => config::load(file, variables),
        None => {
            let Config { policy, udp, streams, .. } = crate::example::config();
            config::parse("no file", String::new(), std::path::Path::new(""), variables).map(|config| {
                let keeps_streams = config.store.capabilities().is_none_or(|store| store.streams);
                let streams = if keeps_streams { streams } else { Vec::new() };
                Config { policy, udp, streams, ..config }
            })
        }
    };
    config.map_err(|error| error.to_string())
}

async fn serve(config: Config, file: Option<&PathBuf>, reloader: Option<Reloader>) -> Result<(), String> {
    let mut signals = Signals::catch().map_err(|error| format!("error: cannot catch signals: {error}"))?;
    let listener = match config.doors.http {
        Some(address) => Some(listen::on("http", address).await?),
        None => None,
    };
    let grpc_listener = match config.doors.grpc {
        Some(address) => Some(listen::on("grpc", address).await?),
        None => None,
    };
    let resp_listener = match config.doors.resp {
        Some(address) => Some(listen::on("resp", address).await?),
        None => None,
    };
    let sockets = config.doors.udp.map(listen::on_udp).transpose()?;
    let (gate, watch) = store::open(&config, config.store.path.clone()).await?;
    let streams = Arc::new(streams::open(&config, &gate).await?);
    let audit = audit::open(&config)?;
    let recording = record::start(&config, &gate)?;
    let responder = Responder::new(gate.clone(), &config.udp).map_err(|error| format!("error: udp: {error}"))?;
    let responder = Arc::new(responder);
    let certificates = Certificates::open(&config.certificates(), gate.now())?;
    let (stop, stopped) = watch::channel(false);
    let mut tasks = JoinSet::new();
    let address = |listener: &Option<(TcpListener, SocketAddr)>| listener.as_ref().map(|(_, address)| *address);
    let listening = Doors {
        http: address(&listener),
        udp: sockets.as_ref().map(Sockets::address),
        grpc: address(&grpc_listener),
        resp: address(&resp_listener),
    };
    banner::print(&listening, file.map(PathBuf::as_path), &config);
    let admin = config.proxy.as_ref().and_then(|proxy| proxy.admin);
    let access = AccessReloader::start(&config, listening.facing(admin));
    responder.allow(config.allow.clone());
    let counters = sockets.as_ref().map(|sockets| Arc::new(Counters::new(sockets, &responder)));
    let limits = Limits { connections: connections_max(&config.limits, &listening), ..config.limits.clone() };
    let grpc_settings = GrpcSettings {
        access: Arc::clone(access.access()),
        tls: certificates.of("grpc"),
        metrics: Arc::new(grpc::Metrics::new(limits.connections())),
        reserved_connections: Some(limits.reserved()),
        ratelimit: config.grpc.clone(),
        ..GrpcSettings::default()
    };
    let resp = resp_listener.map(|(listener, address)| {
        let settings = RespSettings {
            connections: limits.connections(),
            reserved_connections: Some(limits.reserved()),
            buffer_bytes: limits.unread_bytes,
            access: Arc::clone(access.access()),
            audit: Arc::clone(&audit),
            tls: certificates.of("resp"),
            ..RespSettings::default()
        };
        let door = Arc::new(resp::Door::new(gate.clone(), settings));
        tasks.spawn(resp_door(listener, address, Arc::clone(&door), stopped.clone()));
        door
    });
    if let Some((listener, address)) = listener {
        let resp = resp.as_ref().map(|door| (Arc::clone(door.counters()), certificates.of("resp")));
        let settings = HttpSettings {
            udp: counters.clone(),
            grpc: grpc_listener.as_ref().map(|_| Arc::clone(&grpc_settings.metrics)),
            grpc_tls: grpc_settings.tls.clone(),
            resp,
            streams: Arc::clone(&streams),
            access: Arc::clone(access.access()),
            audit: Arc::clone(&audit),
            tls: certificates.of("http"),
            limits,
            ratelimit: config.grpc.clone(),
            ratelimit_counters: Arc::clone(&grpc_settings.ratelimit_counters),
            log_lines_lost: log::lost,
            ..HttpSettings::default()
        };
        tasks.spawn(http_door(listener, address, gate.clone(), settings, stopped.clone()));
    }
    if let Some((listener, address)) = grpc_listener {
        tasks.spawn(grpc_door(listener, address, gate.clone(), grpc_settings, stopped.clone()));
    }
    if let Some((sockets, counters)) = sockets.zip(counters) {
        tasks.spawn(udp_door(sockets, Arc::clone(&responder), counters, stopped.clone()));
        tasks.spawn(unrouted::run(Arc::clone(responder.counts()), stopped.clone()));
    }
    let start = |proxy| crate::proxy::start(proxy, &gate, access.access(), &certificates);
    let proxy = config.proxy.as_ref().map(start).transpose()?.map(Arc::new);
    if let Some((proxy, settings)) = proxy.as_ref().zip(config.proxy.as_ref()) {
        let scheme = crate::proxy::scheme(&certificates, "proxy");
        let does = crate::proxy::describe(settings, &gate);
        banner::say(&format!("proxy on {scheme}://{}, {does}", proxy.address()));
        tasks.spawn(crate::proxy::beside(Arc::clone(proxy), told_to_stop(stopped.clone())));
    }
    notify::tell("READY=1");
    let proxys = config.proxy.as_ref().map(|proxy| proxy.limiter_name().to_owned());
    tasks.spawn(shares::run(gate.clone(), proxys, stopped.clone()));
    tasks.spawn(streams::watch(Arc::clone(&streams), stopped.clone()));
    tasks.spawn(tending::run(gate.clone(), watch, config.store.clone(), stopped.clone()));
    tasks.spawn(audit::watch(Arc::clone(&audit), stopped.clone()));
    tasks.spawn(record::watch(gate.clone(), stopped.clone()));
    tasks.spawn(denials::run(gate.clone(), stopped.clone()));
    let (config, reload) = (Arc::new(config), Arc::new(Notify::new()));
    let running = Running {
        gate: gate.clone(),
        responder,
        resp,
        proxy,
        access,
        certificates,
        audit,
        config: Arc::clone(&config),
    };
    tasks.spawn(reload::run(reloader, running, Arc::clone(&reload), stopped));
    // Nothing is done here that could panic: what is left in order is stopped and saved below.
    let outcome = loop {
        tokio::select! {
            // A task that a panic ended has ended for that reason: the panic is reported first.
            biased;
            () = panics::first() => break Err(panics::LAST_WORDS.to_owned()),
            signal = signals.next() => match signal {
                Signal::Stop(name) => {
                    info!("{name}: stopping; a second one ends at once");
                    break Ok(());
                }
                Signal::Reload => reload.notify_one(),
            },
            Some(ended) = tasks.join_next() => break Err(unexpected(ended)),
        }
    };
    notify::tell("STOPPING=1");
    let _ = stop.send(true);
    let end = tokio::select! {
        end = wind_up(tasks, gate, streams, recording, &config) => end,
        () = signals.second_stop() => std::process::exit(signals::ENDED_AT_ONCE),
        () = panics::stopped_too_slowly() => Err("error: state is not saved; what was saved before is still there".to_owned()),
    };
    // What was not saved is the worse news.
    end.and(outcome)
}

async fn http_door(
    listener: TcpListener,
    address: SocketAddr,
    gate: Gate,
    settings: HttpSettings,
    stopped: watch::Receiver<bool>,
) -> Result<(), String> {
    let served = http::serve(listener, gate, settings, told_to_stop(stopped)).await;
    served.map_err(|error| format!("error: the HTTP door at {address} failed: {error}; start again"))
}

async fn grpc_door(
    listener: TcpListener,
    address: SocketAddr,
    gate: Gate,
    settings: GrpcSettings,
    stopped: watch::Receiver<bool>,
) -> Result<(), String> {
    let served = grpc::serve(listener, gate, settings, told_to_stop(stopped)).await;
    served.map_err(|error| format!("error: the gRPC door at {address} failed: {error}; start again"))
}

async fn resp_door(
    listener: TcpListener,
    address: SocketAddr,
    door: Arc<resp::Door>,
    stopped: watch::Receiver<bool>,
) -> Result<(), String> {
    let served = resp::serve(listener, door, told_to_stop(stopped)).await;
    served.map_err(|error| format!("error: the RESP door at {address} failed: {error}; start again"))
}

/// The UDP door has threads of its own; this waits for them.
async fn udp_door(
    sockets: Sockets,
    responder: Arc<Responder>,
    counters: Arc<Counters>,
    stopped: watch::Receiver<bool>,
) -> Result<(), String> {
    let (address, stop) = (sockets.address(), Arc::new(AtomicBool::new(false)));
    let flag = Arc::clone(&stop);
    let mut threads = tokio::task::spawn_blocking(move || udp::serve(&sockets, &responder, &counters, &flag));
    let served = tokio::select! {
        ended = &mut threads => ended,
        () = told_to_stop(stopped) => {
            stop.store(true, Relaxed);
            threads.await
        }
    };
    let served = served.map_err(|error| error.to_string()).and_then(|ended| ended.map_err(|error| error.to_string()));
    served.map_err(|error| format!("error: the UDP door at {address} failed: {error}; start again"))
}

/// Waits for the stop; a sender that is gone means the same.
async fn told_to_stop(mut stopped: watch::Receiver<bool>) {
    let _ = stopped.wait_for(|stop| *stop).await;
}

fn unexpected(ended: Result<Result<(), String>, tokio::task::JoinError>) -> String {
    match ended {
        Ok(Err(message)) => message,
        Ok(Ok(())) => "error: a part of the server ended by itself; start again and report this".to_owned(),
        Err(error) => format!("error: a part of the server failed: {error}; start again and report this"),
    }
}

/// Lets requests under way end, then saves.
async fn wind_up(
    mut tasks: JoinSet<Result<(), String>>,
    gate: Gate,
    streams: Arc<Streams>,
    recording: Option<Recording>,
    config: &Config,
) -> Result<(), String> {
    while let Some(ended) = tasks.join_next().await {
        if !matches!(ended, Ok(Ok(()))) {
            error!("{}", unexpected(ended));
        }
    }
    // What streams still have to commit, and the recording to write.
    let stop = move || {
        streams.stop();
        drop(recording);
    };
    if let Err(error) = tokio::task::spawn_blocking(stop).await {
        error!("the streams did not stop in order: {error}");
    }
    let Some(path) = &config.store.path else {
        info!("stopped");
        return Ok(());
    };
    let saved = tokio::task::spawn_blocking(move || gate.save()).await;
    match saved.map_err(|error| error.to_string()).and_then(|saved| saved.map_err(|error| error.to_string())) {
        Ok(()) => {
            info!("stopped; state saved in {}", path.display());
            Ok(())
        }
        Err(error) => Err(format!("error: state is not saved: {error}")),
    }
}

/// As many connections as each of these doors may have, but not all the files that the process may open.
fn connections_max(limits: &Limits, listening: &Doors) -> usize {
    let (wanted, doors) = (limits.connections, [listening.http, listening.grpc, listening.resp]);
    let doors = doors.iter().flatten().count().max(1);
    let room = room::connections(wanted * doors) / doors;
    if room < wanted {
        warn!(
            "{room} connections at most to a door, for the files that this process may open; raise ulimit -n for more"
        );
    }
    room
}
