//! `POST /v1/hits`: many requests in one body, each decided by itself, or all of them together.
//!
//! A body with a field that is wrong is refused as a whole, and nothing is charged. What the engine refuses of one request, such as
//! an unknown limiter, is told in that request's place; of requests that are decided together it is the answer to all.

use super::bounds::{BATCH_REQUESTS_MAX, TOGETHER_MAX};
use super::door::Door;
use super::fields::truth;
use super::hit::{FIELDS, Hit, what};
use super::json;
use super::problem::Problem;
use super::reply::{Explain, Reply, answers_reply};
use crate::access::{Caller, Scope};
use std::time::Duration;
use tidegate::{Answer, Request};

/// Answers one body.
pub(crate) async fn answer(door: &Door, caller: &Caller, body: &[u8]) -> Result<Reply, Problem> {
    let (hits, together) = read(body)?;
    let attributes: Vec<_> = hits.iter().map(Hit::attributes).collect();
    let pairs = hits.iter().zip(&attributes).enumerate();
    let requests = pairs
        .map(|(place, (hit, attributes))| hit.request(attributes).map_err(|problem| problem.within(place)))
        .collect::<Result<Vec<Request<'_>>, Problem>>()?;
    if together {
        return ask_together(door, caller, &hits, &requests).await;
    }
    let refusals: Vec<Option<Problem>> = requests.iter().map(|request| refusal(caller, request)).collect();
    let asked: Vec<Request<'_>> =
        requests.iter().zip(&refusals).filter(|(_, refusal)| refusal.is_none()).map(|(request, _)| *request).collect();
    let mut told = door.gate.ask_many(&asked).await.into_iter().map(|told| told.map_err(Problem::from));
    let answers = refusals.into_iter().zip(&hits).enumerate().map(|(place, (refusal, hit))| {
        let problem = match refusal.map_or_else(|| told.next(), |problem| Some(Err(problem))) {
            Some(Ok(answer)) => return Ok(told_of(answer, hit)),
            Some(Err(problem)) => problem,
            None => Problem::new(500, "internal", "the engine gave fewer answers than it was asked for"),
        };
        Err(problem.within(place))
    });
    Ok(answers_reply(&answers.collect::<Vec<_>>(), false))
}

/// May the caller ask this?
fn refusal(caller: &Caller, request: &Request<'_>) -> Option<Problem> {
    caller.check(Scope::Check, what(request)).err().map(Problem::from)
}

fn told_of(answer: Answer, hit: &Hit<'_>) -> (Answer, Explain) {
    (answer, if hit.explain { Explain::Yes } else { Explain::No })
}

async fn ask_together(
    door: &Door,
    caller: &Caller,
    hits: &[Hit<'_>],
    requests: &[Request<'_>],
) -> Result<Reply, Problem> {
    if requests.len() > TOGETHER_MAX {
        let detail = format!("\"requests\" has {}, and at most {TOGETHER_MAX} are decided together", requests.len());
        return Err(Problem::new(400, "bad_batch", detail).field("requests"));
    }
    if let Some((place, problem)) =
        requests.iter().enumerate().find_map(|(place, request)| Some((place, refusal(caller, request)?)))
    {
        return Err(problem.within(place));
    }
    if let Some(place) = hits.iter().position(|hit| hit.explain) {
        let detail = "requests that are decided together are not explained; leave out \"explain\", or send it alone";
        return Err(Problem::new(400, "conflicting_fields", detail).field("explain").within(place));
    }
    let told = door.gate.ask_together(requests, Duration::MAX).await?;
    let answers: Vec<_> = told.into_iter().zip(hits).map(|(answer, hit)| Ok(told_of(answer, hit))).collect();
    Ok(answers_reply(&answers, true))
}

/// The requests of a body, and whether they are decided together.
fn read(body: &[u8]) -> Result<(Vec<Hit<'_>>, bool), Problem> {
    let mut hits: Vec<Hit<'_>> = Vec::new();
    let (count, together) =
        json::read_list(body, ("requests", "together"), &FIELDS, BATCH_REQUESTS_MAX, |place, index, value| {
            hits.resize_with(hits.len().max(place + 1), Hit::default);
            hits[place].take(FIELDS[index], value)
        })?;
    if !(1..=BATCH_REQUESTS_MAX).contains(&count) {
        let many = if count == 0 { "none".to_owned() } else { format!("more than {BATCH_REQUESTS_MAX}") };
        let detail = format!("\"requests\" must have 1 to {BATCH_REQUESTS_MAX} requests, and has {many}");
        return Err(Problem::new(400, "bad_batch", detail).field("requests"));
    }
    // An empty object has no member to be taken.
    hits.resize_with(count, Hit::default);
    let together = together.as_ref().map_or(Ok(false), |value| truth("together", value))?;
    Ok((hits, together))
}
