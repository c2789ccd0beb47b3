//! The server's side: tables as the embedded store has them, one for every limiter that it was asked about.
//!
//! What makes no sense ends the connection; connections, frames, tables and their memory are bounded.

use super::frame::{Reader, Writer, take};
use super::message::{Asked, Operation, read_question, write_analysis, write_answers, write_listing};
use crate::clock::Clock;
use crate::layout::Shape;
use crate::memory::Memory;
use crate::store::{self, Question, Store, StoreError, When};
use crate::table::{PageOf, Which};
use std::collections::HashSet;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tidegate_core::Micros;
use tidegate_core::all_or_nothing::{IfBlocked, Intent};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::Instant;

/// Most connections; more wait to be accepted.
const CONNECTIONS_MAX: usize = 64;
/// Most limiters, with tables or flags.
const LIMITERS_MAX: usize = 1_024;
/// Bytes of all tables.
const MEMORY_MAX: usize = 64 << 20;
/// Most keys of one page of a listing: with 512 bytes each they fit a frame.
const PAGE_MAX: usize = 1_000;

/// Answers every client that connects, by this process's clock, until the listener fails.
///
/// # Errors
/// When the socket fails.
pub fn serve(listener: std::net::TcpListener) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(accept(listener))
}

async fn accept(listener: std::net::TcpListener) -> io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    let (tables, places) = (Arc::new(Tables::new()), Arc::new(Semaphore::new(CONNECTIONS_MAX)));
    loop {
        let place = Arc::clone(&places).acquire_owned().await.map_err(io::Error::other)?;
        let (stream, _) = listener.accept().await?;
        let tables = Arc::clone(&tables);
        tokio::spawn(async move {
            // A client that hangs up has no more to say.
            let _ = tables.converse(stream).await;
            drop(place);
        });
    }
}

struct Tables {
    memory: Arc<Memory>,
    store: Store,
    disabled: Mutex<HashSet<String>>,
}

/// A reply's content, or why the store cannot do this. `None`: the request makes no sense.
type Reply = Option<Result<Writer, StoreError>>;

impl Tables {
    fn new() -> Tables {
        let memory = Arc::new(Memory::new(MEMORY_MAX, None));
        Tables { store: Store::embedded(Arc::clone(&memory), &Clock::process()), memory, disabled: Mutex::default() }
    }

    async fn converse(&self, mut stream: TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let mut bytes = Vec::new();
        while stream.read_buf(&mut bytes).await? > 0 {
            while let Some(frame) = take(&mut bytes).map_err(io::Error::other)? {
                let senseless = || io::Error::other("a request that makes no sense");
                let reply = self.answer(&mut Reader(&frame)).await.ok_or_else(senseless)?;
                let reply = reply.unwrap_or_else(|error| refusal(&error));
                stream.write_all(&reply.finish().ok_or_else(senseless)?).await?;
            }
        }
        Ok(())
    }

    async fn answer(&self, from: &mut Reader<'_>) -> Reply {
        let mut reply = Writer::new();
        reply.flag(true);
        match Operation::read(from)? {
            Operation::Ping => Some(Ok(reply)),
            Operation::Disabled => {
                let names = from.list(|from| from.name())?;
                let disabled = self.disabled();
                reply.count(names.len());
                names.iter().for_each(|name| reply.flag(disabled.contains(*name)));
                Some(Ok(reply))
            }
            Operation::SetDisabled => {
                let (name, disabled) = (from.name()?, from.flag()?);
                Some(self.set_disabled(name, disabled).map(|()| reply))
            }
            Operation::Decide => self.decide(from, reply).await,
            operation => {
                let when = when(from.maybe_micros()?);
                let asked = read_question(from)?;
                match self.table_for(&asked) {
                    Ok(()) => self.operate(operation, &asked.question(), when, from, reply).await,
                    Err(error) => Some(Err(error)),
                }
            }
        }
    }

    async fn decide(&self, from: &mut Reader<'_>, mut reply: Writer) -> Reply {
        let now = from.maybe_micros()?;
        let (is_hit, explain) = (from.flag()?, from.flag()?);
        let intent = if is_hit { Intent::Hit } else { Intent::Peek };
        let asked = from.list(read_question)?;
        if let Err(error) = asked.iter().try_for_each(|asked| self.table_for(asked)) {
            return Some(Err(error));
        }
        let questions: Vec<Question<'_>> = asked.iter().map(Asked::question).collect();
        let request = store::Asked { now, intent, explain, by: Instant::now() };
        let told = self.store.decide(&questions, &request).await;
        Some(told.map(|answers| {
            write_answers(&mut reply, &answers);
            reply
        }))
    }

    /// What people do with one key, or with one limiter's keys.
    async fn operate(
        &self,
        operation: Operation,
        question: &Question<'_>,
        when: When,
        from: &mut Reader<'_>,
        mut reply: Writer,
    ) -> Reply {
        let done = match operation {
            Operation::Increment => {
                let (count, at) = (from.small()?, from.maybe_micros()?);
                self.store.increment(question, count, at, when).await.map(|(at, counted)| {
                    reply.number(at.get());
                    reply.flag(counted);
                })
            }
            Operation::Analyze => {
                let if_blocked = if from.flag()? { IfBlocked::Tell } else { IfBlocked::Recompute };
                self.store.analyze(question, if_blocked, when).await.map(|(at, analysis)| {
                    reply.number(at.get());
                    write_analysis(&mut reply, &analysis);
                })
            }
            Operation::Block => {
                let until = self.store.block(question, from.micros()?, when).await;
                until.map(|until| reply.maybe(until.map(Micros::get)))
            }
            Operation::Unblock => self.store.unblock(question, when).await.map(|blocked| reply.flag(blocked)),
            Operation::UnblockAll => self.store.unblock_all(question, when).await.map(|count| reply.number(count)),
            Operation::List => {
                let which = if from.flag()? { Which::Blocked } else { Which::Tracked };
                let (after, most) = (from.maybe()?, usize::try_from(from.number()?).ok()?.min(PAGE_MAX));
                let listing = self.store.list(question, PageOf { which, after, most }, when).await;
                listing.map(|listing| write_listing(&mut reply, &listing))
            }
            Operation::Ping | Operation::Decide | Operation::Disabled | Operation::SetDisabled => return None,
        };
        Some(done.map(|()| reply))
    }

    /// The limiter's table is there and has the question's rules.
    fn table_for(&self, asked: &Asked) -> Result<(), StoreError> {
        let (algorithm, limits) = (asked.rules.algorithm(), asked.rules.limits().len());
        let shape = Shape { algorithm, limits, names: asked.names, stats: false };
        match self.memory.find(&asked.limiter) {
            Some(table) if table.shape() == shape && table.rules() == asked.rules => Ok(()),
            None if self.memory.tables().len() >= LIMITERS_MAX => Err(too_many()),
            _ => {
                self.memory.table(&asked.limiter, shape, &asked.rules);
                Ok(())
            }
        }
    }

    fn set_disabled(&self, name: &str, disable: bool) -> Result<(), StoreError> {
        let mut disabled = self.disabled();
        match disable {
            true if disabled.len() >= LIMITERS_MAX && !disabled.contains(name) => return Err(too_many()),
            true => disabled.insert(name.to_owned()),
            false => disabled.remove(name),
        };
        Ok(())
    }

    fn disabled(&self) -> MutexGuard<'_, HashSet<String>> {
        self.disabled.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The embedded store never waits, so that any deadline does.
fn when(now: Option<Micros>) -> When {
    When { now, by: Instant::now() }
}

fn too_many() -> StoreError {
    StoreError::Unsupported(format!("more than {LIMITERS_MAX} limiters on a memory server; start another"))
}

fn refusal(error: &StoreError) -> Writer {
    let mut reply = Writer::new();
    reply.flag(false);
    let text = match error {
        StoreError::Unsupported(what) => what.clone(),
        other => other.to_string(),
    };
    reply.text(text.as_bytes());
    reply
}
