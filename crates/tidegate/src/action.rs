//! Actions: one limiter and one identifier, for applications that count their work when it is done.
//!
//! Everything here is built from the gate's own calls, and decides nothing. The methods are async, as a
//! store may be on another machine; on the embedded store they never wait. Only limiters that count in buckets
//! have actions. Between asking and counting others may come, so that a limit can be exceeded by as many
//! as work at once; [`Action::hit`] asks and counts in one step and cannot be.

use crate::{Answer, AskError, Cursor, Gate, LimiterSpec, OnFailure, Page, Request, Which};
use tidegate_core::all_or_nothing::{Analysis, IfBlocked};
use tidegate_core::{Limit, Micros};

/// What one identifier does at one limiter.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use tidegate::{Gate, Grid, LimiterSpec, Micros, Policy, Rules, Unless};
/// let grid = Grid::new(Micros::from_secs(600), Micros::from_secs(86_400))?;
/// let rules = Rules::buckets(grid, &["1 per 2h block 4h".parse()?, "3 per day".parse()?])?;
/// let gate = Gate::embedded(Policy::new(vec![LimiterSpec::new("notify", rules)])?);
///
/// let action = gate.action("notify", "user-7");
/// let sent = action.unless_limited(async { Ok::<_, std::io::Error>("sent") }).await?;
/// assert!(matches!(sent, Unless::Done { value: "sent", .. }));
/// let again = action.unless_limited(async { Ok::<_, std::io::Error>("sent again") }).await?;
/// assert!(matches!(again, Unless::Limited(_)));
/// let told = action.if_limited(|event| async move { format!("{} of {}", event.sum, event.check) }).await?;
/// assert_eq!(told.as_deref(), Some("1 of 1 per 2h block 4h"));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Action {
    gate: Gate,
    limiter: String,
    identifier: Vec<u8>,
}

/// All identifiers of one limiter.
#[derive(Clone, Debug)]
pub struct Actions {
    gate: Gate,
    limiter: String,
}

/// What became of an increment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Incremented {
    /// The time that was asked for, or the clock's.
    pub timestamp: Micros,
    /// False: it was older than the history, its count was 0, or the limiter is disabled.
    pub counted: bool,
    /// The store did not answer, and this process counted alone.
    pub degraded: Option<OnFailure>,
}

/// What a key's counts say.
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use]
pub struct Analyzed {
    /// When this was found.
    pub at: Micros,
    /// What was found.
    pub status: Status,
    /// The store did not answer: how it was decided without it.
    pub degraded: Option<OnFailure>,
}

/// Whether a key has reached a limit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Status {
    /// No limit is reached.
    Ok,
    /// A limit is reached, and this very call has blocked the key.
    Limited(Event),
    /// The key was blocked before.
    Blocked {
        /// Until when it is blocked.
        until: Micros,
    },
    /// The store did not answer, and `on_failure = "deny"` says no; nothing is known of the counts.
    Denied,
}

/// A limit that was reached.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Event {
    /// The identifier that reached it.
    pub identifier: Vec<u8>,
    /// The sum, newest first, at which it was reached.
    pub sum: u64,
    /// When it was found.
    pub timestamp: Micros,
    /// The limit.
    pub check: Limit,
    /// Until when the identifier is blocked.
    pub blocked_until: Micros,
}

impl Analyzed {
    /// True when no limit is reached and no block lasts.
    #[must_use]
    pub fn is_ok(&self) -> bool {
        self.status == Status::Ok
    }

    /// A store's analysis by the rules of `spec`.
    pub(crate) fn of(spec: &LimiterSpec, key: &[u8], at: Micros, analysis: Analysis) -> Analyzed {
        let status = match analysis {
            Analysis::Ok => Status::Ok,
            Analysis::Blocked { until } => Status::Blocked { until },
            Analysis::Limited { limit_index, sum, blocked_until } => {
                // A store that answers by other rules in the middle of a reload may know more limits.
                let limits = spec.rules.limits();
                match limits.get(usize::from(limit_index)).or(limits.first()).copied() {
                    Some(check) => {
                        let identifier = key.to_vec();
                        Status::Limited(Event { identifier, sum, timestamp: at, check, blocked_until })
                    }
                    None => Status::Blocked { until: blocked_until },
                }
            }
        };
        Analyzed { at, status, degraded: None }
    }
}

/// What became of work that was to be done unless its limit was reached.
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use]
pub enum Unless<T, E> {
    /// Done, and counted if the store could be asked: the work is not lost when it could not.
    Done {
        /// What the work gave.
        value: T,
        /// Was it counted?
        counted: Result<bool, AskError>,
    },
    /// Begun, but it failed: not counted.
    Failed(E),
    /// Not begun.
    Limited(Analyzed),
}

impl Gate {
    /// What `identifier` does at a limiter of buckets. That there is such a limiter is found when it is used.
    #[must_use]
    pub fn action(&self, limiter: &str, identifier: impl AsRef<[u8]>) -> Action {
        Action { gate: self.clone(), limiter: limiter.to_owned(), identifier: identifier.as_ref().to_vec() }
    }

    /// All that a limiter knows of its identifiers.
    #[must_use]
    pub fn actions(&self, limiter: &str) -> Actions {
        Actions { gate: self.clone(), limiter: limiter.to_owned() }
    }
}

impl Action {
    /// The identifier that acts.
    #[must_use]
    pub fn identifier(&self) -> &[u8] {
        &self.identifier
    }

    /// True when no limit is reached; otherwise the identifier is blocked from now on.
    ///
    /// # Errors
    /// An unknown limiter, one that does not count in buckets, or a bad identifier; so do all methods.
    pub async fn ok(&self) -> Result<bool, AskError> {
        Ok(self.analyze().await?.is_ok())
    }

    /// The opposite of [`Action::ok`].
    ///
    /// # Errors
    /// As [`Action::ok`].
    pub async fn is_limited(&self) -> Result<bool, AskError> {
        Ok(!self.ok().await?)
    }

    /// Counts `count` at the time `at`, or now; was it counted? See [`Gate::increment`].
    ///
    /// # Errors
    /// As [`Action::ok`].
    pub async fn increment(&self, count: u32, at: Option<Micros>) -> Result<bool, AskError> {
        Ok(self.count(count, at).await?.counted)
    }

    /// The same, with the time at which it counts.
    ///
    /// # Errors
    /// As [`Action::ok`].
    pub async fn count(&self, count: u32, at: Option<Micros>) -> Result<Incremented, AskError> {
        self.gate.increment(&self.limiter, &self.identifier, count, at).await
    }

    /// Has a limit been reached, and which? See [`Gate::analyze`].
    ///
    /// # Errors
    /// As [`Action::ok`].
    pub async fn analyze(&self) -> Result<Analyzed, AskError> {
        self.look(IfBlocked::Tell).await
    }

    /// Asks and counts in one step: exact whatever comes at the same time.
    ///
    /// # Errors
    /// An unknown limiter, or a bad identifier.
    pub async fn hit(&self, cost: u32) -> Result<Answer, AskError> {
        self.gate.ask(&Request::hit(&self.limiter, &self.identifier).cost(cost)).await
    }

    /// Does the work if no limit is reached, and then counts it. Work that fails is not counted.
    ///
    /// # Errors
    /// As [`Action::ok`]; the work was not begun then.
    pub async fn unless_limited<T, E>(
        &self,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<Unless<T, E>, AskError> {
        let analyzed = self.analyze().await?;
        if !analyzed.is_ok() {
            return Ok(Unless::Limited(analyzed));
        }
        Ok(match work.await {
            Ok(value) => Unless::Done { value, counted: self.increment(1, None).await },
            Err(error) => Unless::Failed(error),
        })
    }

    /// Looks at the counts anew, whether a block lasts or not, and does the work if a limit is reached.
    ///
    /// # Errors
    /// As [`Action::ok`]; the work was not begun then.
    pub async fn if_limited<T, F: Future<Output = T>>(
        &self,
        work: impl FnOnce(Event) -> F,
    ) -> Result<Option<T>, AskError> {
        match self.look(IfBlocked::Recompute).await?.status {
            Status::Limited(event) => Ok(Some(work(event).await)),
            Status::Ok | Status::Blocked { .. } | Status::Denied => Ok(None),
        }
    }

    /// Blocks the identifier for a time from now, and says until when.
    ///
    /// # Errors
    /// As [`Gate::block`].
    pub async fn block_for(&self, span: Micros) -> Result<Micros, AskError> {
        self.gate.block(&self.limiter, &self.identifier, span).await
    }

    /// Forgets the identifier's counts and block; was it blocked?
    ///
    /// # Errors
    /// As [`Gate::unblock`].
    pub async fn unblock(&self) -> Result<bool, AskError> {
        self.gate.unblock(&self.limiter, &self.identifier).await
    }

    async fn look(&self, if_blocked: IfBlocked) -> Result<Analyzed, AskError> {
        self.gate.analyze(&self.limiter, &self.identifier, if_blocked).await
    }
}

/// Names that a listing fetches at a time.
const PAGE: usize = 1_000;

impl Actions {
    /// What one identifier does.
    #[must_use]
    pub fn of(&self, identifier: impl AsRef<[u8]>) -> Action {
        self.gate.action(&self.limiter, identifier)
    }

    /// Every identifier with counts or a block, sorted.
    ///
    /// # Errors
    /// As [`Gate::keys`].
    pub async fn tracked(&self) -> Result<Vec<Vec<u8>>, AskError> {
        self.list(Which::Tracked).await
    }

    /// Every identifier that is blocked, sorted.
    ///
    /// # Errors
    /// As [`Gate::keys`].
    pub async fn blocked(&self) -> Result<Vec<Vec<u8>>, AskError> {
        self.list(Which::Blocked).await
    }

    /// Forgets counts and blocks of all that are blocked; how many were there? The others keep theirs.
    ///
    /// # Errors
    /// As [`Gate::unblock_all`].
    pub async fn unblock_all(&self) -> Result<u64, AskError> {
        self.gate.unblock_all(&self.limiter).await
    }

    /// Limits apply.
    ///
    /// # Errors
    /// When there is no such limiter.
    pub async fn enable(&self) -> Result<(), AskError> {
        self.gate.set_enabled(&self.limiter, true).await
    }

    /// Everything is allowed and nothing counted.
    ///
    /// # Errors
    /// When there is no such limiter.
    pub async fn disable(&self) -> Result<(), AskError> {
        self.gate.set_enabled(&self.limiter, false).await
    }

    /// False after [`Actions::disable`].
    ///
    /// # Errors
    /// When there is no such limiter.
    pub async fn is_enabled(&self) -> Result<bool, AskError> {
        self.gate.is_enabled(&self.limiter)
    }

    /// About `most` names from where the page before ended; sorted within the page.
    ///
    /// # Errors
    /// When there is no such limiter, it keeps no names, or the store cannot list them.
    pub async fn page(&self, which: Which, after: Option<Cursor>, most: usize) -> Result<Page, AskError> {
        self.gate.keys(&self.limiter, which, after, most).await
    }

    async fn list(&self, which: Which) -> Result<Vec<Vec<u8>>, AskError> {
        let (mut names, mut after) = (Vec::new(), None);
        loop {
            let page = self.page(which, after, PAGE).await?;
            names.extend(page.keys);
            after = page.next;
            if after.is_none() {
                names.sort_unstable();
                return Ok(names);
            }
        }
    }
}
