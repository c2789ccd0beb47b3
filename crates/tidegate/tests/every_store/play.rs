//! Scenarios as texts, and the one `check` that plays them.

use crate::stores::{Store, patient};
use tidegate::{
    Algorithm, AskError, Capabilities, Clock, Condition, Gate, Grid, Layout, LimiterSpec, Match, Micros, Outcome,
    Policy, Request, Rules, Status, Target, Value,
};

/// When scenarios take place: a multiple of ten seconds long after the epoch.
pub(crate) const T: u64 = 1_700_000_000;

/// Limiters and what they are asked.
///
/// One line a call, on the first limiter; times are seconds from [`T`].
///
/// `AT KEY hit|peek N -> allow left=N | deny left=N retry=SECONDS|never REASON`
/// `AT NAME=VALUE… hit|peek N -> the same with " by LIMITER"`, for the limiters of these attributes together
/// `AT KEY increment N [TIME] -> counted|dropped`
/// `AT KEY analyze|recompute -> ok | limited SUM of LIMIT until TIME | blocked until TIME`
/// `AT KEY ok|is_limited -> true|false` · `AT KEY block_for S -> TIME` · `AT KEY unblock -> true|false`
/// `AT KEY override LIMIT[;LIMIT] [S] -> TIME|for good` (a limit's spaces are `_`) · `AT KEY clear -> true|false` · `AT all overridden -> KEY KEY…`
/// `AT all tracked|blocked -> KEY KEY…` · `AT all unblock_all -> N`
#[derive(Debug)]
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    pub(crate) limiters: &'static [Limiter],
    /// Limiter, conditions as `NAME=VALUE…`, and limits separated by `;`, `unlimited` or `deny`.
    pub(crate) matches: &'static [(&'static str, &'static str, &'static str)],
    pub(crate) script: &'static str,
}

/// Name, how it counts, limits, and the attribute that is its key, if any.
pub(crate) type Limiter = (&'static str, Algorithm, &'static [&'static str], Option<&'static str>);

/// Plays a scenario as far as the store can, and again in Pause's layout if it can.
pub(crate) fn check(store: &Store, scenario: &Scenario) {
    let algorithms = || scenario.limiters.iter().map(|limiter| limiter.1);
    let can = store.capabilities();
    if !algorithms().all(|algorithm| can.counts(algorithm)) {
        return;
    }
    play(store, scenario, (&can, Layout::Native), |spec| spec.in_scope(scope(scenario, "")));
    if can.pause_layout && algorithms().all(|algorithm| algorithm == Algorithm::Buckets) {
        let placed = |spec: LimiterSpec| spec.in_scope(scope(scenario, "pause")).in_pause_layout();
        play(store, scenario, (&can, Layout::Pause), placed);
    }
}

/// Scenarios on one store do not see each other's keys.
fn scope(scenario: &Scenario, layout: &str) -> String {
    format!("{}{layout}", scenario.name.replace(' ', "-"))
}

fn play(store: &Store, scenario: &Scenario, can: (&Capabilities, Layout), placed: impl Fn(LimiterSpec) -> LimiterSpec) {
    let (first, others) = scenario.limiters.split_first().unwrap();
    let spec = |limiter: &Limiter| matching(spec(limiter), scenario.matches);
    let limiters = || [placed(spec(first))].into_iter().chain(others.iter().map(spec)).collect::<Vec<_>>();
    let gate = store.gate(limiters(), patient(), Clock::manual(at("0")));
    if scenario.script.contains(" override ") && !(can.0.overrides && can.1 == Layout::Native) {
        return refuses_overrides(store, &gate, first.0);
    }
    // What every store says is what the embedded one says, to the last figure.
    let model = Gate::with_clock(Policy::new(limiters()).unwrap(), Clock::manual(at("0")));
    for line in scenario.script.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (call, expected) = line.split_once("->").unwrap();
        let words: Vec<&str> = call.split_whitespace().collect();
        gate.clock().set(at(words[0]));
        model.clock().set(at(words[0]));
        let told = store.wait(act(&gate, first.0, &words[1..]));
        let modelled = store.wait(act(&model, first.0, &words[1..])).unwrap();
        let place = format!("{:?}, {}: {line}", store.kind, scenario.name);
        if !can_do(can, &words) {
            let refused = told.unwrap_err().to_string();
            assert!(refused.starts_with("operation not supported"), "{place}: {refused}");
            // The remedy is another store than the one that cannot.
            let is_redis = can.0.name.starts_with("Redis");
            assert_eq!(refused.contains("kind = \"redis\""), !is_redis, "{place}: {refused}");
            assert_eq!(refused.contains("use redis:// or redis-sentinel://"), is_redis, "{place}: {refused}");
            let is_paused = can.1 == Layout::Pause;
            assert_eq!(refused.contains("list tracked keys in Pause's layout"), is_paused, "{place}: {refused}");
            continue;
        }
        let told = told.unwrap();
        assert_eq!(told.shown.trim(), expected.trim(), "{place}");
        assert_eq!(told.whole, modelled.whole, "{place}");
    }
}

/// A store without overrides, or a layout, says so and where to go instead.
fn refuses_overrides(store: &Store, gate: &Gate, limiter: &str) {
    let limits = gate.limiter(limiter).unwrap().spec().rules.limits().to_vec();
    let refusals = [
        store.wait(gate.set_override(limiter, b"k", &limits, None, None)).map(drop),
        store.wait(gate.clear_override(limiter, b"k")).map(drop),
        gate.overrides(limiter).map(drop),
    ];
    for refused in refusals.map(|refused| refused.unwrap_err().to_string()) {
        assert!(refused.starts_with("operation not supported"), "{:?}: {refused}", store.kind);
        assert!(refused.contains("write a [[limiter.match]]"), "{:?}: {refused}", store.kind);
    }
}

/// Do the store's capabilities cover what the line asks for?
fn can_do((can, layout): (&Capabilities, Layout), words: &[&str]) -> bool {
    match *words.last().unwrap() {
        "tracked" => can.lists_in(layout),
        "blocked" | "unblock" | "unblock_all" | "analyze" | "recompute" | "ok" | "is_limited" => can.blocks,
        _ if words.contains(&"increment") || words.contains(&"block_for") => can.blocks,
        _ => true,
    }
}

pub(crate) fn spec((name, algorithm, limits, by): &Limiter) -> LimiterSpec {
    let limits: Vec<_> = limits.iter().map(|text| text.parse().unwrap()).collect();
    let grid = Grid::new(Micros::from_secs(10), Micros::from_secs(60)).unwrap();
    let rules = match algorithm {
        Algorithm::Buckets => Rules::buckets(grid, &limits),
        algorithm => Rules::new(*algorithm, &limits),
    };
    let spec = LimiterSpec::new(*name, rules.unwrap());
    match by {
        Some(by) => spec.by(Some("all"), &[by]),
        None => spec,
    }
}

fn matching(spec: LimiterSpec, matches: &[(&str, &str, &str)]) -> LimiterSpec {
    let one = |(_, conditions, outcome): &(&str, &str, &str)| {
        let conditions: Vec<Condition> = conditions.split(' ').map(condition).collect();
        let (together, outcome) = match outcome.strip_prefix("together ") {
            Some(outcome) => (conditions.iter().map(|condition| condition.attribute.clone()).collect(), outcome),
            None => (Vec::new(), *outcome),
        };
        let outcome = match outcome {
            "unlimited" => Outcome::Unlimited,
            "deny" => Outcome::Deny,
            limits => {
                let limits: Vec<_> = limits.split(';').map(|text| text.parse().unwrap()).collect();
                Outcome::Limits(spec.rules.with_limits(&limits).unwrap())
            }
        };
        Match { conditions, together, outcome, metadata: None }
    };
    let matches = matches.iter().filter(|(limiter, ..)| *limiter == spec.name).map(one).collect();
    LimiterSpec { matches, ..spec }
}

fn condition(text: &str) -> Condition {
    let (name, value) = text.split_once('=').unwrap();
    Condition { attribute: name.to_owned(), values: vec![Value::of(name, value).unwrap()] }
}

/// What a line says, and of a decision all that was answered.
#[derive(Debug)]
struct Told {
    shown: String,
    whole: String,
}

impl From<String> for Told {
    fn from(shown: String) -> Told {
        Told { whole: shown.clone(), shown }
    }
}

async fn act(gate: &Gate, limiter: &str, words: &[&str]) -> Result<Told, AskError> {
    let call = words.iter().position(|word| !word.contains('=')).unwrap();
    if call > 0 {
        let attributes: Vec<_> = words[..call].iter().map(|word| word.split_once('=').unwrap()).collect();
        let attributes: Vec<(&str, &[u8])> = attributes.iter().map(|(name, value)| (*name, value.as_bytes())).collect();
        return decide(gate, Request::of(Some("all"), &attributes), &words[call..]).await;
    }
    match words[1] {
        "hit" | "peek" => decide(gate, Request::hit(limiter, words[0].as_bytes()), &words[1..]).await,
        _ => Ok(operate(gate, limiter, words).await?.into()),
    }
}

async fn decide(gate: &Gate, request: Request<'_>, words: &[&str]) -> Result<Told, AskError> {
    // A hit without an explanation may take a store's shortest path; a look tells all.
    let request = request.cost(words[1].parse().unwrap());
    let answer = gate.ask(&if words[0] == "peek" { request.peek().explained() } else { request }).await?;
    let left = answer.remaining.unwrap_or(0);
    let mut shown = match answer.allowed {
        true => format!("allow left={left}"),
        false => {
            let retry = answer.retry_after.map_or("never".to_owned(), seconds);
            format!("deny left={left} retry={retry} {}", answer.reason.as_str())
        }
    };
    if let (Some(limiter), Target::Attributes { .. }) = (&answer.limiter, request.target) {
        shown += &format!(" by {}", limiter.name);
    }
    Ok(Told { shown, whole: format!("{answer:?}") })
}

async fn operate(gate: &Gate, limiter: &str, words: &[&str]) -> Result<String, AskError> {
    let (action, all) = (gate.action(limiter, words[0]), gate.actions(limiter));
    let number = || words[2].parse::<u32>().unwrap();
    Ok(match words[1] {
        "increment" => {
            let counted = action.increment(number(), words.get(3).map(|word| at(word))).await?;
            if counted { "counted" } else { "dropped" }.to_owned()
        }
        "analyze" => shown(&action.analyze().await?.status),
        "recompute" => {
            let told = action.if_limited(|event| async move { shown(&Status::Limited(event)) }).await?;
            told.unwrap_or_else(|| "nothing".to_owned())
        }
        "ok" => action.ok().await?.to_string(),
        "is_limited" => action.is_limited().await?.to_string(),
        "block_for" => relative(action.block_for(Micros::from_secs(number().into())).await?),
        "unblock" => action.unblock().await?.to_string(),
        "override" => {
            let limits: Vec<_> = words[2].split(';').map(|limit| limit.replace('_', " ").parse().unwrap()).collect();
            let span = words.get(3).map(|word| Micros::from_secs(word.parse().unwrap()));
            let until = gate.set_override(limiter, words[0].as_bytes(), &limits, span, Some("a test")).await?;
            until.map_or("for good".to_owned(), relative)
        }
        "clear" => gate.clear_override(limiter, words[0].as_bytes()).await?.to_string(),
        "overridden" => names(gate.overrides(limiter)?.into_iter().map(|info| info.key).collect()),
        "unblock_all" => all.unblock_all().await?.to_string(),
        "tracked" => names(all.tracked().await?),
        "blocked" => names(all.blocked().await?),
        other => panic!("unknown call {other}"),
    })
}

pub(crate) fn at(word: &str) -> Micros {
    let (whole, part) = word.split_once('.').unwrap_or((word, "0"));
    let seconds = T.checked_add_signed(whole.parse().unwrap()).unwrap();
    Micros::saturating(seconds * 1_000_000 + format!("{part:0<6}").parse::<u64>().unwrap())
}

fn relative(time: Micros) -> String {
    (time.get() / 1_000_000 - T).to_string()
}

fn seconds(span: Micros) -> String {
    let (whole, part) = (span.get() / 1_000_000, span.get() % 1_000_000);
    if part == 0 { whole.to_string() } else { format!("{whole}.{part:06}") }
}

fn shown(status: &Status) -> String {
    match status {
        Status::Ok => "ok".to_owned(),
        Status::Denied => "denied".to_owned(),
        Status::Blocked { until } => format!("blocked until {}", relative(*until)),
        Status::Limited(event) => {
            format!("limited {} of {} until {}", event.sum, event.check, relative(event.blocked_until))
        }
    }
}

fn names(names: Vec<Vec<u8>>) -> String {
    names.into_iter().map(|name| String::from_utf8(name).unwrap()).collect::<Vec<_>>().join(" ")
}
