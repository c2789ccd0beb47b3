//! One client, from CONNECT to its end.
//!
//! Frames are taken one after another. A frame that cannot be taken ends the session with an ERROR that says
//! why; nothing of it has been done then.

use super::end::{End, refuse, shown};
use super::subscription::{Ended, Label, follow, follow_time};
use super::writer::{Gone, Writer};
use super::{SessionContext, SessionPlaces, VERSION, words};
use crate::access::{Scope, What};
use crate::budget::account;
use crate::listener::{Account, Connection, Order, Place, TooMuchUnread};
use bytes::{Buf as _, BytesMut};
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tidegate_events::{Cut, Mode, NoEpoch, Outcome, Seen, Stream, SubmitError};
use tidegate_wire::stomp::{self, Command, Frame};
use tidegate_wire::websocket::{self, Assembly, Opcode};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, WriteHalf};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep_until};

/// Longest id that is echoed, in bytes.
const ID_BYTES_MAX: usize = 256;
/// How long a client may take to say CONNECT.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);
/// The most often that this side beats, and wants the other to.
const BEAT_MS: u64 = 1_000;

/// Serves a client on a WebSocket that is open.
pub(crate) async fn serve<IO: AsyncRead + AsyncWrite + Send + 'static>(
    io: IO,
    connection: &Connection,
    context: SessionContext,
    places: SessionPlaces,
) {
    let (reader, writer) = tokio::io::split(io);
    let write_timeout = context.write_timeout;
    let mut session = Session::new(context, places, connection.peer().ip(), Arc::new(Writer::new(writer)));
    let end = tokio::select! {
        biased;
        end = session.run(reader) => end,
        () = cut(connection) => {
            session.subscriptions.values().filter_map(|kept| kept.stream.as_ref()).for_each(|stream| stream.note_cut());
            End::too_slow(write_timeout)
        }
    };
    let Session { out, tasks, .. } = session;
    drop(tasks);
    // A client that is gone hears nothing.
    out.end(end.words()).await;
}

/// Ends when the listener cuts the client. The closing door asks sessions to finish.
async fn cut(connection: &Connection) {
    while connection.ordered().await != Order::Cut {}
}

struct Session<IO> {
    context: SessionContext,
    places: SessionPlaces,
    address: IpAddr,
    /// Who is charged for what it takes.
    account: Account,
    out: Arc<Writer<WriteHalf<IO>>>,
    tasks: JoinSet<Ended>,
    /// By their id.
    subscriptions: HashMap<String, Kept>,
    state: State,
    /// When something came last.
    heard: Instant,
    /// How often something must be said, and when that is to be looked at.
    beat: Option<(Duration, Instant)>,
    assembly: Assembly,
}

/// A subscription of the session.
struct Kept {
    task: AbortHandle,
    /// `None`: the time is followed.
    stream: Option<Arc<Stream>>,
    _place: Place,
}

enum State {
    /// CONNECT must come until then.
    Awaited(Instant),
    /// The next byte must come until then, if heart-beats were agreed on.
    Connected { beats: Option<Duration>, next: Instant },
}

/// What a command asks of its client. SEND and SUBSCRIBE are for a stream, which must be one of the client's.
fn scope_of(command: Command) -> Option<Scope> {
    match command {
        // It says who the client is.
        Command::Connect => None,
        Command::Send => Some(Scope::Publish),
        Command::Subscribe => Some(Scope::Subscribe),
        // They end or acknowledge what the client was given.
        Command::Unsubscribe | Command::Ack | Command::Nack | Command::Disconnect => None,
        // Always refused.
        Command::Transaction => None,
    }
}

impl<IO: AsyncRead + AsyncWrite + Send + 'static> Session<IO> {
    fn new(
        context: SessionContext,
        places: SessionPlaces,
        address: IpAddr,
        out: Arc<Writer<WriteHalf<IO>>>,
    ) -> Session<IO> {
        Session {
            account: account(address, context.caller.caller()),
            context,
            places,
            address,
            out,
            tasks: JoinSet::new(),
            subscriptions: HashMap::new(),
            state: State::Awaited(Instant::now() + CONNECT_WITHIN),
            heard: Instant::now(),
            beat: None,
            assembly: Assembly::default(),
        }
    }

    async fn run(&mut self, mut reader: impl AsyncRead + Unpin) -> End {
        let mut buffer = BytesMut::with_capacity(4 << 10);
        let mut closing = self.context.closing.clone();
        loop {
            if let Err(end) = self.take_all(&mut buffer).await {
                return end;
            }
            if let Err(Gone) = self.say_beat().await {
                return End::Gone;
            }
            let deadline = self.deadline();
            tokio::select! {
                read = reader.read_buf(&mut buffer) => match read {
                    Ok(1..) => self.heard(),
                    _ => return End::Gone,
                },
                Some(ended) = self.tasks.join_next() => match ended {
                    Ok(Ended::Cut(Cut::Closed(_))) => return End::Closing,
                    Ok(Ended::Cut(cut)) => {
                        let message = if matches!(cut, Cut::Anew(_)) { "began anew" } else { "too slow" };
                        return End::Refused { message, detail: cut.to_string(), receipt: None };
                    }
                    Ok(Ended::TooMuchUnread) => {
                        let detail = TooMuchUnread.to_string();
                        return End::Refused { message: "too slow", detail, receipt: None };
                    }
                    Ok(Ended::Refused(refusal)) => return refusal.into(),
                    Ok(Ended::Gone) => return End::Gone,
                    Ok(Ended::Unavailable(unavailable)) => {
                        let detail = format!("{}; subscribe again later", unavailable.what);
                        return End::Refused { message: "unavailable", detail, receipt: None };
                    }
                    // An error: unsubscribed.
                    Ok(Ended::Over) | Err(_) => {}
                },
                _ = closing.wait_for(|closing| *closing) => return End::Closing,
                () = sleep_until(deadline) => return self.silent(),
                () = until_beat(self.beat) => {}
            }
        }
    }

    /// A heart-beat, if it is time for one.
    async fn say_beat(&mut self) -> Result<(), Gone> {
        if let Some((every, next)) = &mut self.beat
            && *next <= Instant::now()
        {
            *next = self.out.beat(*every).await?;
        }
        Ok(())
    }

    fn heard(&mut self) {
        self.heard = Instant::now();
        if let State::Connected { beats: Some(every), next } = &mut self.state {
            *next = Instant::now() + *every * 2 + Duration::from_secs(1);
        }
    }

    fn deadline(&self) -> Instant {
        match self.state {
            State::Awaited(until) => until,
            State::Connected { next, .. } if self.subscriptions.is_empty() => next.min(self.idle_until()),
            State::Connected { next, .. } => next,
        }
    }

    /// Until then something must come from a client without a subscription.
    fn idle_until(&self) -> Instant {
        self.heard + self.context.idle_timeout
    }

    fn silent(&self) -> End {
        let (message, detail) = match self.state {
            State::Awaited(_) => ("no CONNECT", "CONNECT did not come within 10 s".to_owned()),
            State::Connected { next, .. } if next <= Instant::now() => {
                ("no heart-beat", "nothing came for more than two heart-beats".to_owned())
            }
            State::Connected { .. } => {
                let seconds = self.context.idle_timeout.as_secs_f32();
                let remedy = "subscribe, or send something, such as heart-beats";
                ("idle", format!("there is no subscription, and nothing came for {seconds} s; {remedy}"))
            }
        };
        End::Refused { message, detail, receipt: None }
    }

    /// Takes every WebSocket frame that is all there.
    async fn take_all(&mut self, buffer: &mut BytesMut) -> Result<(), End> {
        while let Some(head) = websocket::read_head(buffer).map_err(End::Violation)? {
            if buffer.len() < head.head_len + head.payload_len {
                return Ok(());
            }
            buffer.advance(head.head_len);
            let mut payload = buffer.split_to(head.payload_len);
            head.unmask(&mut payload);
            match head.opcode {
                Opcode::Close => return Err(End::Gone),
                Opcode::Ping => self.say(words::pong(&payload)).await?,
                Opcode::Pong => {}
                _ => {
                    if let Some(message) = self.assembly.push(&head, &payload).map_err(End::Violation)? {
                        self.take_message(&message).await?;
                    }
                }
            }
        }
        Ok(())
    }

    /// A WebSocket message: whole STOMP frames, or line ends, which are heart-beats.
    async fn take_message(&mut self, message: &[u8]) -> Result<(), End> {
        let mut rest = message;
        loop {
            match stomp::read(&mut rest) {
                Ok(Some(frame)) => self.take(&frame).await.map_err(|end| end.with_receipt(short_receipt(&frame)))?,
                Ok(None) => return Ok(()),
                Err(malformed) => return refuse("bad frame", malformed.to_string()),
            }
        }
    }

    async fn take(&mut self, frame: &Frame<'_>) -> Result<(), End> {
        // Before anything is done: a frame that is refused changes nothing.
        let receipt = frame.header("receipt").map(|id| checked_id("receipt", id)).transpose()?;
        match (frame.command, &self.state) {
            (Command::Connect, State::Awaited(_)) => return self.connect(frame).await,
            (Command::Connect, _) => return refuse("connected already", "CONNECT is said once"),
            (_, State::Awaited(_)) => return refuse("not connected", "the first frame must be CONNECT or STOMP"),
            _ => {}
        }
        if frame.header("transaction").is_some() || frame.command == Command::Transaction {
            return refuse("no transactions", "transactions are not offered; send without one");
        }
        if let Some(scope) = scope_of(frame.command) {
            self.context.caller.check_scope(scope, self.context.gate.now())?;
        }
        let mut status = None;
        match frame.command {
            Command::Send => status = self.send(frame).await?,
            Command::Subscribe => self.subscribe(frame)?,
            Command::Unsubscribe => self.unsubscribe(frame).await?,
            // Acknowledgements are taken; resuming is by clock value.
            _ => {}
        }
        if let Some(id) = receipt {
            let mut headers = vec![("receipt-id", id)];
            headers.extend(status.map(|status| ("status", status)));
            self.say(words::frame("RECEIPT", &headers, b"")).await?;
        }
        if frame.command == Command::Disconnect { Err(End::Gone) } else { Ok(()) }
    }

    async fn connect(&mut self, frame: &Frame<'_>) -> Result<(), End> {
        let versions = frame.header("accept-version").unwrap_or("1.0");
        if !versions.split(',').any(|version| version.trim() == VERSION) {
            let asked = shown(versions);
            let detail = format!("this server speaks STOMP {VERSION}, not {asked}; send accept-version:{VERSION}");
            return Err(End::OtherVersions(detail));
        }
        // Others may send one, too: clients of other servers often say guest and guest.
        if self.context.caller.is_unknown() {
            let passcode = frame.header("passcode").unwrap_or_default();
            self.context.caller.identify(passcode.as_bytes(), self.context.gate.now())?;
            let caller = self.context.caller.caller();
            self.account = account(self.address, caller);
            let charged = self.places.charge(&self.context.budget, caller, &self.account);
            charged.or_else(|detail| refuse("too many sessions", detail))?;
        }
        let Some((theirs, wanted)) = heart_beats(frame.header("heart-beat").unwrap_or("0,0")) else {
            return refuse("bad heart-beat", "heart-beat must be two numbers of milliseconds, such as 10000,10000");
        };
        let interval = |ms: u64| (ms > 0).then(|| Duration::from_millis(ms.max(BEAT_MS)));
        let beats = interval(theirs);
        let never = Instant::now() + Duration::from_secs(86_400 * 365);
        self.state = State::Connected { beats, next: never };
        self.heard();
        let beat = format!("{BEAT_MS},{BEAT_MS}");
        let server = concat!("tidegate/", env!("CARGO_PKG_VERSION"));
        self.say(words::frame("CONNECTED", &[("version", VERSION), ("heart-beat", &beat), ("server", server)], b""))
            .await?;
        if let Some(every) = interval(wanted) {
            // A little earlier than agreed: the network takes its time, too.
            let every = every * 3 / 4;
            self.beat = Some((every, Instant::now() + every));
        }
        Ok(())
    }

    /// An event; the receipt tells what became of it.
    async fn send(&mut self, frame: &Frame<'_>) -> Result<Option<&'static str>, End> {
        let destination = needed(frame, "destination")?;
        let Some(name) = destination.strip_prefix("/app/") else {
            return refuse("unknown destination", format!("SEND goes to /app/STREAM, not to {}", shown(destination)));
        };
        if name == "time" {
            self.context.time.begin();
            return Ok(None);
        }
        match self.stream(Scope::Publish, name)?.submit(frame.body).await {
            Ok(Outcome::Submitted { .. }) => Ok(Some("submitted")),
            Ok(Outcome::Conflict { .. }) => Ok(Some("conflict")),
            Ok(Outcome::Full { .. }) => Ok(Some("full")),
            Err(SubmitError::Event(message)) => refuse("bad event", message),
            Err(SubmitError::Unavailable { .. }) => Ok(Some("unavailable")),
        }
    }

    fn subscribe(&mut self, frame: &Frame<'_>) -> Result<(), End> {
        let id = checked_id("id", needed(frame, "id")?)?;
        let destination = needed(frame, "destination")?;
        if self.subscriptions.contains_key(id) {
            return refuse("id in use", format!("the subscription {} is there already; choose another id", shown(id)));
        }
        let acknowledges = match frame.header("ack").unwrap_or("auto") {
            "auto" => false,
            "client" | "client-individual" => true,
            _ => return refuse("bad ack", "ack must be auto, client or client-individual"),
        };
        let from = from(frame)?;
        let Some(name) = destination.strip_prefix("/topic/") else {
            return refuse("unknown destination", format!("topics are /topic/STREAM, not {}", shown(destination)));
        };
        // Who may not subscribe is told that first.
        let stream = match name {
            "time" => None,
            name => Some(self.stream(Scope::Subscribe, name)?),
        };
        let place = self.place()?;
        let label = Label { id: id.to_owned(), destination: destination.to_owned(), acknowledges };
        let caller = (self.context.caller.clone(), self.context.gate.clone());
        let task = match &stream {
            None => self.tasks.spawn(follow_time(self.context.time.subscribe(), label, self.out.clone(), caller)),
            Some(stream) => {
                let unread = (Arc::clone(&self.context.budget.backlog), self.account.clone());
                self.tasks.spawn(follow(Arc::clone(stream), from, label, self.out.clone(), unread, caller))
            }
        };
        self.subscriptions.insert(id.to_owned(), Kept { task, stream, _place: place });
        self.places.idle = None;
        Ok(())
    }

    /// A place for one more subscription.
    fn place(&self) -> Result<Place, End> {
        let (budget, message) = (&self.context.budget, "too many subscriptions");
        let most = budget.limits.subscriptions_per_session;
        if self.subscriptions.len() >= most {
            return refuse(message, format!("a client has at most {most}; unsubscribe some"));
        }
        budget.subscriptions.enter(&self.account).or_else(|taken| {
            let most = budget.limits.subscriptions;
            refuse(
                message,
                format!("subscriptions and feeds: {taken} ({most} in all); end some, or raise [limits] subscriptions"),
            )
        })
    }

    async fn unsubscribe(&mut self, frame: &Frame<'_>) -> Result<(), End> {
        let id = needed(frame, "id")?;
        let Some(Kept { task, .. }) = self.subscriptions.remove(id) else {
            return refuse("unknown subscription", format!("no subscription has the id {}", shown(id)));
        };
        task.abort();
        if self.subscriptions.is_empty() {
            self.places.idle = Some(self.idle_place()?);
        }
        // It may have been writing: the rest of its frame goes out.
        Ok(self.out.write([]).await?)
    }

    fn idle_place(&self) -> Result<Place, End> {
        let budget = &self.context.budget;
        budget.idle_sessions.enter(&self.account).or_else(|taken| {
            let most = budget.limits.idle_sessions;
            refuse("too many sessions", format!("sessions without a subscription: {taken} ({most} in all); come again"))
        })
    }

    /// A stream by its name, or the first of a mode by the original's, if the client may use it so.
    fn stream(&mut self, scope: Scope, name: &str) -> Result<Arc<Stream>, End> {
        let streams = &self.context.streams;
        let found = streams.get(name).or_else(|| match name {
            "only-once" => streams.first_of(Mode::OnlyOnce),
            "strictly-once" => streams.first_of(Mode::StrictlyOnce),
            _ => None,
        });
        // Whether there is such a stream, a client that may not use it is not told.
        let named = found.map_or(name, |stream| &stream.spec().name);
        self.context.caller.check(scope, What::Stream(named), self.context.gate.now())?;
        match found {
            Some(stream) => Ok(Arc::clone(stream)),
            None => refuse("unknown destination", format!("no stream is named {}", shown(name))),
        }
    }

    async fn say(&mut self, bytes: bytes::Bytes) -> Result<(), End> {
        Ok(self.out.write([bytes]).await?)
    }
}

async fn until_beat(beat: Option<(Duration, Instant)>) {
    match beat {
        Some((_, next)) => sleep_until(next).await,
        None => std::future::pending().await,
    }
}

/// The receipt that a frame asks for, unless its id is too long to be echoed.
fn short_receipt<'f>(frame: &'f Frame<'_>) -> Option<&'f str> {
    frame.header("receipt").filter(|id| id.len() <= ID_BYTES_MAX)
}

/// Where a subscription goes on: after a clock value, of the history with that epoch if one is said.
fn from(frame: &Frame<'_>) -> Result<Option<Seen>, End> {
    let epoch = match frame.header("epoch").map(str::parse) {
        None => None,
        Some(Ok(epoch)) => Some(epoch),
        Some(Err(error @ NoEpoch)) => return refuse("bad epoch", error.to_string()),
    };
    match frame.header("from-clock").map(str::parse) {
        None => Ok(None),
        Some(Ok(clock)) => Ok(Some(Seen { clock, epoch })),
        Some(Err(_)) => refuse("bad from-clock", "from-clock must be the clock value of the last message seen"),
    }
}

fn needed<'f>(frame: &'f Frame<'_>, name: &'static str) -> Result<&'f str, End> {
    match frame.header(name) {
        Some(value) => Ok(value),
        None => refuse("header missing", format!("the frame has no header {name}; add it")),
    }
}

fn checked_id<'f>(name: &str, id: &'f str) -> Result<&'f str, End> {
    if id.len() <= ID_BYTES_MAX {
        return Ok(id);
    }
    refuse("header too long", format!("{name} has {} bytes, more than {ID_BYTES_MAX}; use a shorter one", id.len()))
}

/// `cx,cy`: what the client can send, and what it wants to get.
fn heart_beats(text: &str) -> Option<(u64, u64)> {
    let (send, get) = text.split_once(',')?;
    let number = |text: &str| text.trim().parse::<u64>().ok().filter(|ms| *ms <= 86_400_000);
    number(send).zip(number(get))
}
