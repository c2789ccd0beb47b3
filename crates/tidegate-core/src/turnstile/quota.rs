//! What is asked of a store, when the replicas of a limit count together.
//!
//! Starts are then not this process's to give: they are **bought**, for one key and window, and each start under
//! way takes a **slot** that the store lends. The desk keeps an account for each place: what was bought, what
//! the store was last told, and what is to be asked next. It asks nobody: the caller takes [`Ask`]s from the
//! turnstile, carries them to the store, and brings the answers back.
//!
//! Invariants:
//! - One ask of a key is out at a time; whatever comes meanwhile waits for the next one. So many who wait
//!   are served by one ask, and what the store is told comes in order.
//! - What was bought is used in its window or handed back, never kept for another. An answer that comes after its
//!   window buys nothing. An answer that never comes bought nothing: the store may have counted it, which
//!   only lets fewer start (promise A7).
//! - How many are under way is told whole, never as a difference, so that a lost message is put right by the next.

use super::line::at;
use super::{Bounds, KeyHash};
use crate::Micros;
use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::ops::RangeInclusive;

/// The name of a key, the same in all replicas: 128 bits of a cryptographic hash, so that nobody can make two keys
/// meet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Debug)]
pub struct Name(pub [u8; 16]);

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

/// What the store is asked about one key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QuotaRequest {
    /// Whom it is about.
    pub name: Name,
    /// The length of a window.
    pub period: Micros,
    /// The number of the window.
    pub window: u64,
    /// How many may start in a window, over all replicas.
    pub limit: u32,
    /// How many may be under way, over all replicas; 0: as many as like.
    pub in_flight: u32,
    /// How many this replica has under way, together with those that it may start by what it bought.
    pub held: u32,
    /// How many more it wants to start.
    pub want: u32,
    /// How many of those that it bought in this window it hands back.
    pub unused: u32,
}

/// A question that is on its way. It must come back through [`super::Turnstile::answered`].
#[derive(PartialEq, Eq, Debug)]
#[must_use = "while a request is not answered, its key asks no other"]
pub struct PendingRequest {
    pub(super) place: u32,
    /// When the window began.
    began: Micros,
    /// When the question was taken.
    pub(super) at: Micros,
    /// What is asked.
    pub request: QuotaRequest,
}

/// What the store says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Grant {
    /// How many more may start, of those that were wanted.
    pub granted: u32,
    /// What is left after that.
    pub outlook: Outlook,
}

impl Grant {
    /// There was no answer, or none that can be used.
    pub const FAILED: Grant = Grant { granted: 0, outlook: Outlook::Failed };

    /// Is there no room for all of what was wanted?
    #[must_use]
    pub const fn is_short_of(self, want: u32) -> bool {
        matches!(self.outlook, Outlook::Full) && self.granted < want
    }
}

/// What there is left for a key, over all replicas.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outlook {
    /// There may be more.
    Open,
    /// The window has no more starts.
    Exhausted,
    /// As many as may be are under way.
    Full,
    /// Nobody knows: the store did not answer.
    Failed,
}

/// How a turnstile deals with a store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StoreTerms {
    /// For how long the store may fail before nobody waits for it any more.
    pub outage_max: Micros,
    /// True: who stands in line is called with every answer that is no, so that he can go.
    pub call_all: bool,
}

/// What a place has at the store.
#[derive(Debug)]
struct Account {
    /// Whose it is: a place may have had another key before.
    key: KeyHash,
    name: Name,
    /// The window in which `bought` was bought and of which `outlook` speaks.
    window: Micros,
    bought: u32,
    outlook: Outlook,
    /// Until when `outlook` is believed.
    believed: Micros,
    /// What the store takes to be held; `None`: that is not known.
    reported: Option<u32>,
    /// It was told that there is no room for what it wanted, and the store remembers that.
    is_short: bool,
    /// Since when there was no answer.
    failing_since: Option<Micros>,
    next: NextRequest,
}

/// When the next question is to be asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum NextRequest {
    /// There is none.
    Idle,
    /// As soon as somebody carries it.
    Now,
    /// Not before this time.
    At(Micros),
    /// It is on its way.
    Sent,
}

/// What a place has and needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Needs {
    pub(super) held: u32,
    pub(super) want: u32,
    pub(super) unused: u32,
}

#[derive(Debug)]
pub(super) struct QuotaAccounts {
    pub(super) terms: StoreTerms,
    accounts: Vec<Account>,
    /// Places with [`NextRequest::Now`].
    now: VecDeque<u32>,
    /// Places with [`NextRequest::At`].
    timed: BTreeSet<(Micros, u32)>,
    /// Since when no answer came, of any key.
    failing_since: Option<Micros>,
}

/// How long what need not be told at once waits for company.
const SOON: Micros = Micros::from_millis(20);
/// For how long a no is believed, as a part of the window: somebody may hand starts back.
const BELIEVED_PART: u64 = 8;
const BELIEVED: RangeInclusive<Micros> = Micros::from_millis(20)..=Micros::from_millis(500);
/// For how long it is believed that there is no room: as long as a request takes.
const FULL_BELIEVED: Micros = Micros::from_millis(50);

impl Account {
    const fn new(key: KeyHash, name: Name) -> Account {
        Account {
            key,
            name,
            window: Micros::ZERO,
            bought: 0,
            outlook: Outlook::Open,
            believed: Micros::ZERO,
            reported: Some(0),
            is_short: false,
            failing_since: None,
            next: NextRequest::Idle,
        }
    }

    /// What is believed of the store at a time, in a window.
    fn outlook(&self, window: Micros, now: Micros) -> Outlook {
        let speaks_of_it = self.window == window || self.outlook == Outlook::Failed;
        if speaks_of_it && now < self.believed { self.outlook } else { Outlook::Open }
    }

    /// Is there something that the store should know, though nothing is wanted of it?
    fn has_news(&self, needs: Needs) -> bool {
        needs.unused > 0 || self.reported != Some(needs.held) || self.is_short && needs.want == 0
    }

    /// When to ask for what is needed.
    fn next(&self, needs: Needs, window: Micros, now: Micros) -> NextRequest {
        let news = self.has_news(needs);
        let no_sooner = if news { now.saturating_add(SOON) } else { self.believed };
        match (self.next, self.outlook(window, now)) {
            // Whoever carries it looks again what is needed by then.
            (NextRequest::Sent | NextRequest::Now, _) => self.next,
            _ if needs.want == 0 && !news => NextRequest::Idle,
            (_, Outlook::Failed) => NextRequest::At(self.believed),
            (_, Outlook::Open) if needs.want > 0 || self.reported.is_none() => NextRequest::Now,
            // What has ended here makes room for what waits here.
            (_, Outlook::Full) if needs.want > 0 && self.reported > Some(needs.held) => NextRequest::Now,
            (NextRequest::At(due), _) => NextRequest::At(due.min(no_sooner)),
            _ => NextRequest::At(no_sooner),
        }
    }
}

impl QuotaAccounts {
    pub(super) fn new(terms: StoreTerms) -> QuotaAccounts {
        QuotaAccounts { terms, accounts: Vec::new(), now: VecDeque::new(), timed: BTreeSet::new(), failing_since: None }
    }

    /// Opens an account for a place, if it has none under this name.
    pub(super) fn open(&mut self, place: u32, key: KeyHash, name: Name) {
        while self.accounts.len() <= at(place) {
            self.accounts.push(Account::new(key, Name::default()));
        }
        // A place gets another key only when the account of the one before is settled.
        if self.accounts[at(place)].name != name {
            self.accounts[at(place)] = Account::new(key, name);
        }
    }

    /// What was bought for a place in a window.
    pub(super) fn bought(&self, place: u32, window: Micros) -> u32 {
        self.accounts.get(at(place)).filter(|account| account.window == window).map_or(0, |account| account.bought)
    }

    /// What is believed of the store.
    pub(super) fn outlook(&self, place: u32, key: KeyHash, window: Micros, now: Micros) -> Outlook {
        let Some(account) = self.accounts.get(at(place)).filter(|account| account.key == key) else {
            return Outlook::Open;
        };
        match (account.failing_since, account.outlook(window, now)) {
            (Some(since), _) if now.saturating_sub(since) >= self.terms.outage_max => Outlook::Failed,
            // One failure is not the end: it is asked again.
            (_, Outlook::Failed) => Outlook::Open,
            (_, outlook) => outlook,
        }
    }

    /// Nothing is out, or to be asked, and the store holds nothing for it: its place may be forgotten.
    pub(super) fn is_settled(&self, place: u32) -> bool {
        self.accounts.get(at(place)).is_none_or(|account| account.next == NextRequest::Idle)
    }

    /// Notes what a place needs.
    pub(super) fn arrange(&mut self, place: u32, needs: Needs, window: Micros, now: Micros) {
        let Some(account) = self.accounts.get_mut(at(place)) else { return };
        let next = account.next(needs, window, now);
        let was = std::mem::replace(&mut account.next, next);
        if was == next {
            return;
        }
        if let NextRequest::At(due) = was {
            self.timed.remove(&(due, place));
        }
        match next {
            NextRequest::Now => self.now.push_back(place),
            NextRequest::At(due) => drop(self.timed.insert((due, place))),
            NextRequest::Idle | NextRequest::Sent => {}
        }
    }

    /// When there is something to ask: zero means at once.
    pub(super) fn next_due(&self) -> Option<Micros> {
        if self.now.is_empty() { self.timed.first().map(|(due, _)| *due) } else { Some(Micros::ZERO) }
    }

    /// The next place whose time to ask has come. Its errand is over, unless it is sent or arranged anew.
    pub(super) fn next(&mut self, now: Micros) -> Option<u32> {
        let due = match self.timed.first() {
            Some((due, _)) if *due <= now => self.timed.pop_first().map(|(_, place)| place),
            _ => None,
        };
        let next = due.or_else(|| self.now.pop_front())?;
        self.accounts[at(next)].next = NextRequest::Idle;
        Some(next)
    }

    /// The question of a place, if it has one; then it is on its way. What is handed back is gone at once.
    pub(super) fn send(
        &mut self,
        place: u32,
        needs: Needs,
        bounds: &Bounds,
        began: Micros,
        now: Micros,
    ) -> Option<PendingRequest> {
        let account = &mut self.accounts[at(place)];
        let Needs { held, want, unused } = needs;
        if want == 0 && !account.has_news(needs) {
            return None;
        }
        account.next = NextRequest::Sent;
        account.bought -= unused;
        let (period, limit, in_flight) = (bounds.limit.period(), bounds.limit.count(), bounds.in_flight);
        let (name, window) = (account.name, began.get() / period.get());
        let request = QuotaRequest { name, period, window, limit, in_flight, held, want, unused };
        Some(PendingRequest { place, began, at: now, request })
    }

    /// Notes an answer. What it grants counts if its window is still the current one.
    pub(super) fn receive(&mut self, pending: &PendingRequest, grant: Grant, window: Micros, now: Micros) {
        let account = &mut self.accounts[at(pending.place)];
        account.next = NextRequest::Idle;
        if account.window != window {
            (account.window, account.bought) = (window, 0);
        }
        let failed = grant.outlook == Outlook::Failed;
        let is_current = pending.began == window;
        if is_current {
            account.bought += grant.granted;
        }
        account.outlook = if is_current || failed { grant.outlook } else { Outlook::Open };
        let part = Micros::saturating(pending.request.period.get() / BELIEVED_PART);
        let believed = part.clamp(*BELIEVED.start(), *BELIEVED.end());
        let believed = if account.outlook == Outlook::Full { believed.min(FULL_BELIEVED) } else { believed };
        account.believed = now.saturating_add(believed);
        let lent = if pending.request.in_flight > 0 { grant.granted } else { 0 };
        account.reported = (!failed).then(|| pending.request.held + lent);
        account.is_short = grant.is_short_of(pending.request.want);
        // A key that fails for the first time has waited for nothing if the others have failed for long.
        self.failing_since = if failed { self.failing_since.or(Some(now)) } else { None };
        account.failing_since = if failed { account.failing_since.or(self.failing_since) } else { None };
    }
}
