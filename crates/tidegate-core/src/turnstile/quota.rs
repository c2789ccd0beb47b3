//! The quota of each key at a store, when the replicas of a limit count there.
//!
//! Starts are then not this process's to give: the store **grants** them, for one key and window, and each start under
//! way takes a **slot** that the store lends. Here is an account for each place: what was granted, what was last
//! reported to the store, and when the next request is due. No I/O: the caller takes [`PendingRequest`]s from the
//! turnstile, carries them to the store, and brings the [`Grant`]s back.
//!
//! Invariants:
//! - One request of a key is out at a time; what is needed meanwhile waits for the next one. So one request serves
//!   many that wait in line, and reports reach the store in order.
//! - A granted start is used in its window or handed back, never kept for another. A grant that comes after its
//!   window gives no start, and neither does one that never comes: the store may have counted it, which only lets
//!   fewer start (promise A7).
//! - The number of slots in use is reported whole, never as a difference, so that the next report corrects a lost one.

use super::line::at;
use super::{Bounds, KeyHash};
use crate::{Micros, Windows};
use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::ops::RangeInclusive;

/// The name of a key, the same in all replicas: 128 bits of a cryptographic hash, so that no client can make two keys
/// collide.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Debug)]
pub struct Name(pub [u8; 16]);

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

/// A request for starts and slots of one key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QuotaRequest {
    /// The key's name.
    pub name: Name,
    /// The windows of the limit.
    pub windows: Windows,
    /// The number of the window.
    pub window: u64,
    /// How many may start in a window, over all replicas.
    pub limit: u32,
    /// How many may be under way, over all replicas; 0: no bound.
    pub in_flight: u32,
    /// The slots that this replica uses: requests under way, and granted starts that are not used yet.
    pub held: u32,
    /// How many more it wants to start.
    pub want: u32,
    /// How many starts that were granted in this window it hands back.
    pub unused: u32,
}

/// A request that was sent. It must come back through [`super::Turnstile::answered`].
#[derive(PartialEq, Eq, Debug)]
#[must_use = "while a request is not answered, its key sends no other"]
pub struct PendingRequest {
    pub(super) place: u32,
    /// When the window began.
    began: Micros,
    /// When it was taken from the turnstile.
    pub(super) at: Micros,
    /// The request itself.
    pub request: QuotaRequest,
}

/// The store's answer to a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Grant {
    /// How many more may start, at most as many as were wanted.
    pub granted: u32,
    /// What is left for the key after that.
    pub outlook: Outlook,
}

impl Grant {
    /// There was no answer, or none that can be used.
    pub const FAILED: Grant = Grant { granted: 0, outlook: Outlook::Failed };

    /// Were fewer starts granted than wanted, as no slot is free?
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
    /// All slots are in use.
    Full,
    /// Not known: the store did not answer.
    Failed,
}

/// On which terms a turnstile counts at a store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StoreTerms {
    /// For how long the store may fail before requests stop waiting for it.
    pub outage_max: Micros,
    /// True: with every refusal, the requests in line are called, so that they can be answered.
    pub call_all: bool,
}

/// What a place has at the store, as far as this process knows.
#[derive(Debug)]
struct Account {
    /// The key of the account: its place may have had another key before.
    key: KeyHash,
    name: Name,
    /// The window of `granted` and `outlook`.
    window: Micros,
    granted: u32,
    outlook: Outlook,
    /// Until when `outlook` is believed.
    believed: Micros,
    /// The slots that the store has noted for this replica; `None`: not known.
    reported: Option<u32>,
    /// The last grant fell short as no slot was free, and the store remembers that this replica wants more.
    is_short: bool,
    /// Since when the store has not answered.
    failing_since: Option<Micros>,
    next: NextRequest,
}

/// When the next request of an account is due.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum NextRequest {
    /// No request is due.
    Idle,
    /// At once.
    Now,
    /// Not before this time.
    At(Micros),
    /// It was sent, and its grant has not come back.
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
    /// Since when the store has answered for no key.
    failing_since: Option<Micros>,
    /// A window in which no start is wanted: the clock was set ahead into it.
    skipped: Option<Micros>,
}

/// How long a report that is not urgent waits, so that others join it.
const SOON: Micros = Micros::from_millis(20);
/// For how long a refusal is believed, as a fraction of the window: another replica may hand starts back.
const BELIEVED_FRACTION: u64 = 8;
const BELIEVED: RangeInclusive<Micros> = Micros::from_millis(20)..=Micros::from_millis(500);
/// For how long it is believed that no slot is free: about as long as a request takes.
const FULL_BELIEVED: Micros = Micros::from_millis(50);

impl Account {
    const fn new(key: KeyHash, name: Name) -> Account {
        Account {
            key,
            name,
            window: Micros::ZERO,
            granted: 0,
            outlook: Outlook::Open,
            believed: Micros::ZERO,
            reported: Some(0),
            is_short: false,
            failing_since: None,
            next: NextRequest::Idle,
        }
    }

    /// The outlook at `now` for a window.
    fn outlook(&self, window: Micros, now: Micros) -> Outlook {
        let speaks_of_it = self.window == window || self.outlook == Outlook::Failed;
        if speaks_of_it && now < self.believed { self.outlook } else { Outlook::Open }
    }

    /// Is there something to report, though no start is wanted?
    fn has_news(&self, needs: Needs) -> bool {
        needs.unused > 0 || self.reported != Some(needs.held) || self.is_short && needs.want == 0
    }

    /// When to send a request for these needs.
    fn next(&self, needs: Needs, window: Micros, now: Micros) -> NextRequest {
        let news = self.has_news(needs);
        let no_sooner = if news { now.saturating_add(SOON) } else { self.believed };
        match (self.next, self.outlook(window, now)) {
            // The needs are looked up again when it is sent or comes back.
            (NextRequest::Sent | NextRequest::Now, _) => self.next,
            _ if needs.want == 0 && !news => NextRequest::Idle,
            (_, Outlook::Failed) => NextRequest::At(self.believed),
            (_, Outlook::Open) if needs.want > 0 || self.reported.is_none() => NextRequest::Now,
            // A slot that this replica has freed makes room for its own next request.
            (_, Outlook::Full) if needs.want > 0 && self.reported > Some(needs.held) => NextRequest::Now,
            (NextRequest::At(due), _) => NextRequest::At(due.min(no_sooner)),
            _ => NextRequest::At(no_sooner),
        }
    }
}

impl QuotaAccounts {
    pub(super) fn new(terms: StoreTerms) -> QuotaAccounts {
        let (accounts, now, timed) = (Vec::new(), VecDeque::new(), BTreeSet::new());
        QuotaAccounts { terms, accounts, now, timed, failing_since: None, skipped: None }
    }

    /// Is no start wanted in this window?
    pub(super) fn skips(&self, window: Micros) -> bool {
        self.skipped == Some(window)
    }

    /// Wants no start in this window.
    pub(super) fn skip(&mut self, window: Micros) {
        self.skipped = Some(window);
    }

    /// The store has neither noted slots of any account nor granted starts that count.
    pub(super) fn forget_reports(&mut self) {
        for account in &mut self.accounts {
            (account.reported, account.granted) = (Some(0), 0);
        }
    }

    /// The clock was set back to `now`: what was to happen at a later time is due, and no outlook is believed.
    pub(super) fn set_back(&mut self, now: Micros) {
        self.skipped = None;
        self.failing_since = self.failing_since.map(|since| since.min(now));
        for account in &mut self.accounts {
            account.believed = account.believed.min(now);
            account.failing_since = account.failing_since.map(|since| since.min(now));
        }
        for (_, place) in std::mem::take(&mut self.timed) {
            self.accounts[at(place)].next = NextRequest::Now;
            self.now.push_back(place);
        }
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

    /// How many starts were granted to a place in a window.
    pub(super) fn granted(&self, place: u32, window: Micros) -> u32 {
        self.accounts.get(at(place)).filter(|account| account.window == window).map_or(0, |account| account.granted)
    }

    /// What a request of this place can expect of the store.
    pub(super) fn outlook(&self, place: u32, key: KeyHash, window: Micros, now: Micros) -> Outlook {
        let Some(account) = self.accounts.get(at(place)).filter(|account| account.key == key) else {
            return Outlook::Open;
        };
        match (account.failing_since, account.outlook(window, now)) {
            _ if self.skips(window) => Outlook::Exhausted,
            (Some(since), _) if now.saturating_sub(since) >= self.terms.outage_max => Outlook::Failed,
            // After one failure the store is asked again.
            (_, Outlook::Failed) => Outlook::Open,
            (_, outlook) => outlook,
        }
    }

    /// No request is out or due, and the store holds nothing for the place: it may be forgotten.
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

    /// When the next request is due: zero means at once.
    pub(super) fn next_due(&self) -> Option<Micros> {
        if self.now.is_empty() { self.timed.first().map(|(due, _)| *due) } else { Some(Micros::ZERO) }
    }

    /// The next place with a request due. It is due no longer, unless it is sent or arranged anew.
    pub(super) fn next(&mut self, now: Micros) -> Option<u32> {
        let due = match self.timed.first() {
            Some((due, _)) if *due <= now => self.timed.pop_first().map(|(_, place)| place),
            _ => None,
        };
        let next = due.or_else(|| self.now.pop_front())?;
        self.accounts[at(next)].next = NextRequest::Idle;
        Some(next)
    }

    /// The request of a place, if it needs one; it counts as sent. Starts that it hands back are gone at once.
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
        account.granted -= unused;
        let (windows, limit, in_flight) = (bounds.limit.windows(), bounds.limit.count(), bounds.in_flight);
        let (name, window) = (account.name, windows.number(began));
        let request = QuotaRequest { name, windows, window, limit, in_flight, held, want, unused };
        Some(PendingRequest { place, began, at: now, request })
    }

    /// Notes a grant. Its starts count if its window, and the length of windows, are still the current ones.
    pub(super) fn receive(
        &mut self,
        pending: &PendingRequest,
        grant: Grant,
        (window, windows): (Micros, Windows),
        now: Micros,
    ) {
        let account = &mut self.accounts[at(pending.place)];
        account.next = NextRequest::Idle;
        if account.window != window {
            (account.window, account.granted) = (window, 0);
        }
        let failed = grant.outlook == Outlook::Failed;
        let is_of_period = pending.request.windows == windows;
        let is_current = is_of_period && pending.began == window;
        if is_current {
            account.granted += grant.granted;
        }
        account.outlook = if is_current || failed { grant.outlook } else { Outlook::Open };
        let fraction = Micros::saturating(pending.request.windows.period().get() / BELIEVED_FRACTION);
        let believed = fraction.clamp(*BELIEVED.start(), *BELIEVED.end());
        let believed = if account.outlook == Outlook::Full { believed.min(FULL_BELIEVED) } else { believed };
        account.believed = now.saturating_add(believed);
        let slots = if pending.request.in_flight > 0 { grant.granted } else { 0 };
        account.reported = match is_of_period {
            true => (!failed).then(|| pending.request.held + slots),
            false => Some(0),
        };
        account.is_short = grant.is_short_of(pending.request.want);
        // A key that fails for the first time does not wait a full outage again if the others have failed for long.
        self.failing_since = if failed { self.failing_since.or(Some(now)) } else { None };
        account.failing_since = if failed { account.failing_since.or(self.failing_since) } else { None };
    }
}
