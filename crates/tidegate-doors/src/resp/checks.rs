//! Decisions that wait for the rest of what was read, and are made in one call.
//!
//! There are two kinds: hits on one limiter each, which go to the store's batch; and requests that limiters match by attributes, or
//! whose keys are addresses. A round holds one kind, and ends where the other begins, so that all are decided in order.

use super::commands::Kind;
use super::door::Live;
use super::session::{Error, Taken, shown};
use super::throttle::Throttles;
use tidegate::{Answer, AskError, Gate, Hit, HitAnswer, KEY_LEN_MAX, Limiter, Micros, Request, Verdict};
use tidegate_wire::resp::answer::{Answers, Protocol};

/// Most decisions of one call.
const ROUND_MAX: usize = 1_024;
/// Hits that a client usually sends together.
const PIPELINE: usize = 16;
/// Most attributes of one request, as on every door.
const ATTRIBUTES_MAX: usize = crate::http::bounds::ATTRIBUTES_MAX;

/// Decisions that wait.
#[derive(Default)]
pub(super) struct Round<'i> {
    pub(super) hits: Vec<Waiting<'i>>,
    requests: Vec<Asking<'i>>,
}

/// A hit that waits.
pub(super) struct Waiting<'i> {
    pub(super) by: By,
    pub(super) key: &'i [u8],
    pub(super) cost: u32,
    pub(super) peek: bool,
}

/// The limiter of a hit, and how it is answered.
#[derive(Clone, Copy)]
pub(super) enum By {
    /// A limiter of the policy.
    Limiter(usize),
    /// A limit of `CL.THROTTLE`.
    Throttle(usize),
}

/// A request that waits.
struct Asking<'i> {
    /// A limiter's number, and the key; `None`: the domain and the attributes.
    named: Option<(usize, &'i [u8])>,
    domain: Option<&'i str>,
    attributes: Vec<(&'i str, &'i [u8])>,
    cost: u32,
    peek: bool,
}

impl<'i> Round<'i> {
    pub(super) fn is_empty(&self) -> bool {
        self.hits.is_empty() && self.requests.is_empty()
    }

    pub(super) fn has_requests(&self) -> bool {
        !self.requests.is_empty()
    }

    /// A hit that waits; room for a usual pipeline at once.
    #[inline]
    pub(super) fn push(&mut self, hit: Waiting<'i>) {
        if self.hits.capacity() == 0 {
            self.hits.reserve(PIPELINE);
        }
        self.hits.push(hit);
    }

    pub(super) fn is_full(&self) -> bool {
        self.hits.len() + self.requests.len() >= ROUND_MAX
    }
}

/// `TG.HIT limiter key [cost]` and `TG.PEEK`.
pub(super) fn take_hit<'i>(kind: Kind, live: &Live, parts: &[&'i [u8]], round: &mut Round<'i>) -> Result<Taken, Error> {
    let (limiter, key) = (parts[1], checked_key(parts[2])?);
    let cost = parts.get(3).map_or(Ok(1), |text| whole("cost", text))?;
    // The limiter of the hit before, more often than not.
    let last = round.hits.last().and_then(|last| if let By::Limiter(number) = last.by { Some(number) } else { None });
    let last = last.filter(|number| live.limiter(*number).spec().name.as_bytes() == limiter);
    let number = last.or_else(|| live.find(limiter)).ok_or_else(|| unknown_limiter(live, limiter))?;
    let found = live.limiter(number);
    found.check_has_limit()?;
    let peek = kind == Kind::Peek;
    if found.takes_any_key() {
        if !round.requests.is_empty() {
            return Ok(Taken::Full);
        }
        round.push(Waiting { by: By::Limiter(number), key, cost, peek });
    } else {
        if !round.hits.is_empty() {
            return Ok(Taken::Full);
        }
        let (domain, attributes) = (None, Vec::new());
        round.requests.push(Asking { named: Some((number, key)), domain, attributes, cost, peek });
    }
    Ok(Taken::Waits)
}

/// `TG.ATTR domain cost name value [name value…]`.
pub(super) fn take_attributes<'i>(parts: &[&'i [u8]], round: &mut Round<'i>) -> Result<Taken, Error> {
    let pairs = &parts[3..];
    if !pairs.len().is_multiple_of(2) {
        return Err(Error::new("attributes are names with their values; the last name has none"));
    }
    if pairs.len() / 2 > ATTRIBUTES_MAX {
        let text = format!("{} attributes, and at most {ATTRIBUTES_MAX} are taken; send fewer", pairs.len() / 2);
        return Err(Error::new(text));
    }
    if !round.hits.is_empty() {
        return Ok(Taken::Full);
    }
    let domain = text("domain", parts[1])?;
    let cost = whole("cost", parts[2])?;
    let mut attributes: Vec<(&str, &[u8])> = Vec::with_capacity(pairs.len() / 2);
    for pair in pairs.chunks_exact(2) {
        let name = text("attribute", pair[0])?;
        if attributes.iter().any(|(other, _)| *other == name) {
            return Err(Error::new(format!("the attribute '{}' is there twice; send it once", shown(pair[0]))));
        }
        attributes.push((name, checked_key(pair[1])?));
    }
    let domain = (!domain.is_empty()).then_some(domain);
    round.requests.push(Asking { named: None, domain, attributes, cost, peek: false });
    Ok(Taken::Waits)
}

/// Decides all that wait, and answers them in their order.
pub(super) async fn decide(
    gate: &Gate,
    live: &Live,
    throttles: &Throttles,
    round: &mut Round<'_>,
    protocol: Protocol,
    out: &mut Vec<u8>,
) {
    let mut answers = Answers::new(out, protocol);
    if !round.hits.is_empty() {
        decide_hits(gate, live, throttles, &round.hits, &mut answers).await;
        round.hits.clear();
    }
    if !round.requests.is_empty() {
        decide_requests(gate, live, &round.requests, &mut answers).await;
        round.requests.clear();
    }
}

async fn decide_hits(
    gate: &Gate,
    live: &Live,
    throttles: &Throttles,
    waiting: &[Waiting<'_>],
    answers: &mut Answers<'_>,
) {
    let limiter = |waiting: &Waiting<'_>| match waiting.by {
        By::Limiter(number) => live.limiter(number),
        By::Throttle(number) => throttles.limiter(number),
    };
    let hits: Vec<Hit<'_>> = waiting.iter().map(|waiting| waiting.hit(limiter(waiting))).collect();
    let batch = gate.batch(gate.now());
    let mut told = vec![HitAnswer::Disabled; hits.len()];
    gate.ask_each(&hits, &batch, |place, answer| told[place] = answer).await;
    for (waiting, told) in waiting.iter().zip(&told) {
        match waiting.by {
            By::Limiter(_) => push_decision(answers, told),
            By::Throttle(number) => throttles.push(answers, told, number),
        }
    }
}

impl<'i> Waiting<'i> {
    fn hit<'l>(&self, limiter: &'l Limiter) -> Hit<'l>
    where
        'i: 'l,
    {
        let hit = Hit::from_door(limiter, self.key).cost(self.cost);
        if self.peek { hit.peek() } else { hit }
    }
}

impl Asking<'_> {
    fn request<'r>(&'r self, live: &'r Live) -> Request<'r> {
        let request = match self.named {
            Some((number, key)) => Request::hit(&live.limiter(number).spec().name, key),
            None => Request::of(self.domain, &self.attributes),
        };
        let request = request.cost(self.cost);
        if self.peek { request.peek() } else { request }
    }
}

async fn decide_requests(gate: &Gate, live: &Live, asking: &[Asking<'_>], answers: &mut Answers<'_>) {
    let requests: Vec<Request<'_>> = asking.iter().map(|asking| asking.request(live)).collect();
    let told = gate.ask_many(&requests).await;
    for (asking, told) in asking.iter().zip(told) {
        match told {
            Ok(answer) => push_answer(answers, &answer, asking.named.is_none()),
            Err(error) => answers.error("ERR", &error.to_string()),
        }
    }
}

/// `[allowed, limit, remaining, retry_after_ms, reset_after_ms]`; -1 stands for none.
fn push_decision(answers: &mut Answers<'_>, told: &HitAnswer) {
    answers.numbers(match told {
        HitAnswer::Ruled { ruling, .. } => {
            let decision = &ruling.decision;
            let retry_after = match decision.verdict {
                Verdict::Deny { retry_after: Some(wait) } => millis(wait),
                _ => -1,
            };
            let (limit, remaining) = (decision.limit.into(), decision.remaining.into());
            [i64::from(ruling.is_allowed()), limit, remaining, retry_after, millis(decision.reset_after)]
        }
        HitAnswer::Disabled | HitAnswer::Unlimited => [1, -1, -1, -1, 0],
    });
}

/// The same, with the name of the limiter that decided, if several could have.
fn push_answer(answers: &mut Answers<'_>, answer: &Answer, with_limiter: bool) {
    answers.list(if with_limiter { 6 } else { 5 });
    answers.number(i64::from(answer.allowed));
    answers.number(answer.limit.map_or(-1, i64::from));
    answers.number(answer.remaining.map_or(-1, i64::from));
    answers.number(answer.retry_after.map_or(-1, millis));
    answers.number(answer.reset_after.map_or(0, millis));
    if with_limiter {
        match &answer.limiter {
            Some(limiter) => answers.text(limiter.name.as_bytes()),
            None => answers.nothing(),
        }
    }
}

/// Rounded up: who waits so long passes.
fn millis(span: Micros) -> i64 {
    i64::try_from(span.as_millis_ceil()).unwrap_or(i64::MAX)
}

/// A key of 1 to 512 bytes.
pub(super) fn checked_key(key: &[u8]) -> Result<&[u8], Error> {
    match key.len() {
        1..=KEY_LEN_MAX => Ok(key),
        0 => Err(Error::new(format!("the key is empty; use 1 to {KEY_LEN_MAX} bytes"))),
        len => Err(Error::new(format!(
            "the key has {len} bytes, more than {KEY_LEN_MAX}; use a shorter one, such as a hash of it"
        ))),
    }
}

/// A whole number from 0 to the largest `u32`.
pub(super) fn whole(what: &str, text: &[u8]) -> Result<u32, Error> {
    let number = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
    number.ok_or_else(|| Error::new(format!("the {what} '{}' is no whole number from 0 to {}", shown(text), u32::MAX)))
}

fn text<'i>(what: &str, bytes: &'i [u8]) -> Result<&'i str, Error> {
    std::str::from_utf8(bytes).map_err(|_| Error::new(format!("the {what} '{}' is no UTF-8", shown(bytes))))
}

/// As every door says it.
#[cold]
fn unknown_limiter(live: &Live, name: &[u8]) -> Error {
    let known = live.names().take(10).map(str::to_owned).collect();
    AskError::UnknownLimiter { name: String::from_utf8_lossy(name).into_owned(), known }.into()
}
