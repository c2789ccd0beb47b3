//! `tidegate proxy`: the transparent proxy alone, until it is stopped. `serve` starts it too.

use crate::config::{self, Config, Listening, Store};
use crate::log::{self, LogFormat};
use crate::serve::access::AccessReloader;
use crate::serve::certificates::Certificates;
use crate::serve::signals::{self, Signal, Signals};
use crate::serve::{audit, banner, notify, store, tending};
use crate::watch::Watch;
use crate::{human, panics, room};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tidegate::{Gate, Limit};
use tidegate_doors::access::Access;
use tidegate_doors::audit::{Audit, Change};
use tidegate_proxy::{Policy, Proxy, Settings, WhenLimited};
use tracing::{error, info, warn};

/// Forwards requests to an upstream, each path within its limit.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The configuration; its [proxy] table counts here
    #[arg(long, short, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Where to listen [default: 127.0.0.1:4040]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// Requests started per path and window [default: 100 per minute]
    #[arg(long, value_name = "LIMIT", value_parser = config::proxy_limit)]
    limit: Option<Limit>,
    /// The upstream, such as http://127.0.0.1:9000
    #[arg(value_name = "URL")]
    url: Option<String>,
    /// How log lines are written
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = LogFormat::Text, env = "TIDEGATE_LOG_FORMAT")]
    log_format: LogFormat,
}

/// How often the file is looked at for a change.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long blocking work that nobody waits for any more may hold up the end.
const LEFT_OVER_MAX: Duration = Duration::from_secs(1);

/// Forwards until a signal stops it.
///
/// # Errors
/// A message for stderr, when it cannot start.
pub(crate) fn run(args: &Args) -> Result<(), String> {
    let watch = args.config.clone().map(Watch::new);
    let (config, proxy) = load(args, config::load)?;
    room::check(&config)?;
    log::start(args.log_format)?;
    panics::watch();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("error: cannot start: {error}"))?;
    let outcome = runtime.block_on(forward(args, config, &proxy, watch));
    runtime.shutdown_timeout(LEFT_OVER_MAX);
    outcome
}

type Read = fn(&Path, Vec<(String, String)>) -> Result<Config, config::ConfigError>;

/// The file as `read` reads it, with what was typed over it.
fn load(args: &Args, read: Read) -> Result<(Config, config::Proxy), String> {
    let variables = config::from_environment();
    let config = match &args.config {
        Some(file) => read(file, variables),
        None => config::parse("no file", String::new(), Path::new(""), variables),
    };
    let mut config = config.map_err(|error| error.to_string())?;
    let mut proxy = config.proxy.take().unwrap_or_default();
    proxy.listen = args.listen.unwrap_or(proxy.listen);
    proxy.limit = args.limit.or(proxy.limit);
    proxy.upstream = args.url.clone().or(proxy.upstream);
    if proxy.makes_limiter() {
        config.policy = config.policy.with(proxy.own_limiter()).map_err(|error| format!("error: [proxy]: {error}"))?;
    }
    Ok((config, proxy))
}

async fn forward(args: &Args, whole: Config, config: &config::Proxy, mut watch: Option<Watch>) -> Result<(), String> {
    let mut signals = Signals::catch().map_err(|error| format!("error: cannot catch signals: {error}"))?;
    // The state that `serve` keeps on disk is not this process's.
    let (gate, watching) = store::open(&whole, None).await?;
    let listening = Listening { admin: config.admin, ..Listening::default() };
    let access = AccessReloader::start(&whole, listening);
    let certificates = Certificates::open(&whole.tls.in_use(None, Some(config)), gate.now())?;
    let proxy = start(config, &gate, access.access(), &certificates)?;
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let housekeeping = Store { path: None, ..whole.store.clone() };
    let tending = tokio::spawn(tending::run(gate.clone(), watching, housekeeping, stopped));
    let [scheme, of_admin] = ["proxy", "admin"].map(|door| scheme(&certificates, door));
    let admin = proxy.admin().map(|admin| format!("admin on {of_admin}://{admin}\n")).unwrap_or_default();
    let version = env!("CARGO_PKG_VERSION");
    banner::say(&format!(
        "tidegate {version}\nlistening on {scheme}://{}\n{admin}{}",
        proxy.address(),
        describe(config, &gate)
    ));
    notify::tell("READY=1");
    let mut reloader = Reloader {
        args,
        started: config,
        audit: audit::for_the_log(&whole),
        in_force: Config { proxy: Some(config.clone()), ..whole },
        proxy: &proxy,
        gate: &gate,
        access,
        certificates,
    };
    let mut look = tokio::time::interval(LOOK_EVERY);
    look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let outcome = loop {
        tokio::select! {
            signal = signals.next() => match signal {
                Signal::Stop(name) => {
                    info!("{name}: stopping; a second one ends at once");
                    break Ok(());
                }
                Signal::Reload if watch.is_some() => reloader.reload("SIGHUP").await,
                Signal::Reload => {
                    info!("no file to reload: started without one");
                    reloader.certificates.read_again(gate.now());
                }
            },
            _ = look.tick() => {
                reloader.access.look();
                if watch.as_mut().is_some_and(Watch::has_changed) {
                    reloader.reload(CHANGE_OF_THE_FILE).await;
                }
                reloader.note_tokens(CHANGE_OF_THE_FILE).await;
                reloader.certificates.look(gate.now());
            }
            () = panics::first() => break Err(panics::LAST_WORDS.to_owned()),
        }
    };
    notify::tell("STOPPING=1");
    tokio::select! {
        _ = tokio::task::spawn_blocking(move || proxy.stop()) => info!("stopped"),
        () = signals.second_stop() => std::process::exit(signals::ENDED_AT_ONCE),
        () = panics::stopped_too_slowly() => return outcome,
    }
    let _ = stop.send(true);
    let _ = tending.await;
    outcome
}

/// Starts the proxy.
///
/// # Errors
/// A message for stderr.
pub(crate) fn start(
    config: &config::Proxy,
    gate: &Gate,
    access: &Arc<Access>,
    certificates: &Certificates,
) -> Result<Proxy, String> {
    let policy = config.policy(gate).map_err(|message| format!("error: {message}"))?;
    let listener = listen(config.listen, "[proxy] listen or --listen")?;
    let admin = config.admin.map(|address| listen(address, "[proxy] admin")).transpose()?;
    let (tls, admin_tls) = (certificates.of("proxy"), certificates.of("admin"));
    let settings = Settings { access: Arc::clone(access), tls, admin_tls, ..settings(config, &policy) };
    let proxy = Proxy::start(listener, admin, gate.clone(), policy, settings);
    proxy.map_err(|error| format!("error: the proxy cannot start: {error}"))
}

/// How a door is asked.
pub(crate) fn scheme(certificates: &Certificates, door: &str) -> &'static str {
    if certificates.of(door).is_some() { "https" } else { "http" }
}

/// Runs until it is stopped, then until the requests under way have ended.
pub(crate) async fn beside(proxy: Arc<Proxy>, stopped: impl Future<Output = ()>) -> Result<(), String> {
    stopped.await;
    let ended = tokio::task::spawn_blocking(move || proxy.stop()).await;
    ended.map_err(|error| format!("error: the proxy failed: {error}; start again and report this"))
}

/// One line on what the proxy does.
pub(crate) fn describe(config: &config::Proxy, gate: &Gate) -> String {
    let Ok(policy) = config.policy(gate) else { return String::new() };
    let in_flight = match policy.in_flight {
        0 => String::new(),
        count => format!(" and {count} in flight"),
    };
    let others = match policy.when_limited {
        WhenLimited::Wait => "others wait their turn",
        WhenLimited::Reject => "others are answered 429",
    };
    let spec = policy.limiter.spec();
    let store = gate.store();
    let shared = store.capabilities().shared.then(|| store.address());
    let counted = human::counted_with(spec.replicas, shared.as_deref());
    let limit = spec.rules.limits().first().map(ToString::to_string).unwrap_or_default();
    format!("forwarding to {:?}: {limit}{in_flight} for each key, {counted}; {others}", policy.upstream)
}

fn listen(address: SocketAddr, setting: &str) -> Result<TcpListener, String> {
    TcpListener::bind(address).map_err(|error| {
        format!(
            "error: cannot listen on {address}: {error}; stop the program that has it, or choose another with {setting}"
        )
    })
}

/// Connections within what the process may open: each is a file, and so is one to the upstream.
fn settings(config: &config::Proxy, policy: &Policy) -> Settings {
    let default = Settings::default();
    let wanted = config.max_connections.unwrap_or(default.max_connections);
    let client_timeout = config.client_timeout.unwrap_or(default.client_timeout);
    let upstream = policy.max_upstream as usize;
    let room = room::connections(wanted + upstream).saturating_sub(upstream).max(room::CONNECTIONS_MIN);
    if room < wanted {
        warn!(
            "{room} client connections at most, for the files that this process may open, of which {upstream} may go to the upstream; \
             raise ulimit -n for more"
        );
    }
    Settings { max_connections: wanted.min(room), client_timeout, log_lines_lost: log::lost, ..default }
}

/// Who changes what is changed without a word to the process.
const CHANGE_OF_THE_FILE: &str = "change of the file";

/// What a reload of `tidegate proxy` changes.
struct Reloader<'p> {
    args: &'p Args,
    /// What the process started with.
    started: &'p config::Proxy,
    /// What is in force, with what was typed over it.
    in_force: Config,
    proxy: &'p Proxy,
    gate: &'p Gate,
    access: AccessReloader,
    certificates: Certificates,
    audit: Arc<Audit>,
}

impl Reloader<'_> {
    /// Reads the file again; `who` asked for it.
    async fn reload(&mut self, who: &str) {
        let gate = self.gate;
        let reloaded = load(self.args, config::load_again).and_then(|(whole, config)| {
            gate.reload(&whole.policy).map_err(|error| format!("error: {error}"))?;
            Ok((whole, config))
        });
        match reloaded {
            Ok((whole, config)) => {
                self.access.replace(&whole);
                self.certificates.reload(&whole.tls.in_use(None, Some(&config)), gate.now());
                reload(self.started, &config, self.proxy, gate);
                let new = Config { proxy: Some(config), ..whole };
                self.note(who, "reload", audit::difference(&self.in_force, &new)).await;
                self.in_force = new;
                self.note_tokens(who).await;
            }
            Err(problems) => error!("the file is refused, and the policy stays as it was:\n{problems}"),
        }
    }

    /// Notes the tokens that came, went or changed, if any did.
    async fn note_tokens(&mut self, who: &str) {
        if let Some(detail) = self.access.take_changes() {
            self.note(who, "tokens", detail).await;
        }
    }

    /// Notes a change in the log: nobody can ask this process for its audit.
    async fn note(&self, who: &str, what: &'static str, detail: String) {
        info!("{what} by {who}: {detail}");
        self.audit.note(self.gate.now(), &Change { who: who.to_owned(), what, detail, ..Change::default() }).await;
    }
}

/// Puts a new configuration in force; `running` is what the process started with.
pub(crate) fn reload(running: &config::Proxy, new: &config::Proxy, proxy: &Proxy, gate: &Gate) {
    match new.policy(gate) {
        Ok(policy) => {
            proxy.reload(policy);
            info!("reloaded the proxy: {}", describe(new, gate));
        }
        Err(message) => error!("[proxy] is refused, and stays as it was: {message}"),
    }
    let changed = [
        ("listen", running.listen != new.listen),
        ("admin", running.admin != new.admin),
        ("max_connections", running.max_connections != new.max_connections),
        ("client_timeout", running.client_timeout != new.client_timeout),
        ("replicas", running.replicas != new.replicas),
    ];
    for (setting, _) in changed.into_iter().filter(|(_, changed)| *changed) {
        warn!("[proxy] {setting} has changed; it takes effect at the next start");
    }
}
