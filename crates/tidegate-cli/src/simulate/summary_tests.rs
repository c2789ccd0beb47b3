//! Summaries of replays: what they count, and what they warn of.

use super::summary;
use super::tests::{limiter, replay};
use super::{Format, Notes};

const LOGIN: &str = r#"
[[limiter]]
name = "login-user"
domain = "login"
by = ["user"]
algorithm = "sliding-log"
limits = ["2 per minute"]
[[limiter]]
name = "login-ip"
domain = "login"
by = ["ip"]
algorithm = "sliding-log"
limits = ["3 per minute"]
"#;

#[test]
fn the_summary_counts_hits_by_limiter_and_names_the_most_denied() {
    let hit = |key: &str| format!("{{\"at\":1,\"limiter\":\"api\",\"key\":\"{key}\"}}\n");
    let trace =
        hit("a").repeat(3) + &hit("b").repeat(5) + "{\"at\":1,\"op\":\"peek\",\"limiter\":\"api\",\"key\":\"a\"}";
    let text = summary_of(&limiter("sliding-log", "2 per minute"), &trace);
    assert_eq!(
        text.trim(),
        "8 requests: 4 allowed, 4 denied (50.0 %); keys limited: 2\n\n\
         LIMITER  REQUESTS  ALLOWED  DENIED  DENIED %  KEYS LIMITED\n\
         api             8        4       4    50.0 %             2\n\n\
         MOST DENIED  LIMITER  DENIED\n\
         b            api           3\n\
         a            api           1"
    );
}

#[track_caller]
fn summary_of(config: &str, trace: &str) -> String {
    let (_, outcome) = replay(&[config], Format::Ndjson, trace.as_bytes(), 2);
    summary::text(&outcome.unwrap().0, &Notes::default())
}

/// A limiter that was asked and did not decide was not counted, so that the busiest one seemed to have no requests.
#[test]
fn the_summary_counts_every_limiter_that_a_request_met() {
    let login = |user: &str| {
        format!("{{\"at\":1,\"domain\":\"login\",\"attributes\":{{\"user\":\"{user}\",\"ip\":\"192.0.2.1\"}}}}\n")
    };
    let text = summary_of(LOGIN, &(login("a").repeat(7) + &login("b")));
    let rows: Vec<String> =
        text.lines().map(|line| line.split_whitespace().take(4).collect::<Vec<_>>().join(" ")).collect();
    assert!(text.contains("8 requests: 3 allowed, 5 denied (62.5 %); keys limited: 1"), "{text}");
    assert!(rows.contains(&"login-user 8 3 5".to_owned()) && rows.contains(&"login-ip 8 8 0".to_owned()), "{text}");
}

/// "200,000 allowed" of requests that no limiter applied to.
#[test]
fn the_summary_warns_when_no_limiter_applied() {
    let stranger = "{\"at\":1,\"attributes\":{\"colour\":\"red\"}}\n";
    let text = summary_of(LOGIN, &stranger.repeat(3));
    assert!(text.contains("3 requests: 0 allowed, 0 denied (0 %), 3 without a limiter that applies"), "{text}");
    assert!(text.contains("warning: no limiter applied to any request"), "{text}");
    let some = "{\"at\":1,\"domain\":\"login\",\"attributes\":{\"ip\":\"192.0.2.1\"}}\n";
    let text = summary_of(LOGIN, &(some.to_owned() + stranger));
    assert!(text.contains("2 requests: 1 allowed, 0 denied (0 %), 1 without") && !text.contains("warning"), "{text}");
}

/// Submissions were "0 requests".
#[test]
fn the_summary_counts_submissions_and_operations() {
    let stream = "[[stream]]\nname = \"orders\"\nmode = \"only-once\"\n";
    let submit = "{\"at\":1,\"stream\":\"orders\",\"submit\":\"taco\"}\n";
    let text = summary_of(&format!("{LOGIN}{stream}"), &submit.repeat(3));
    assert_eq!(text.trim(), "3 submissions: 1 submitted, 2 conflict, 0 full");
    let block = "{\"at\":1,\"op\":\"block\",\"limiter\":\"login-ip\",\"key\":\"a\",\"for\":\"1m\"}";
    assert_eq!(summary_of(LOGIN, block).trim(), "1 operations, such as blocks and increments");
    assert!(summary_of(LOGIN, "").trim().starts_with("0 requests: 0 allowed"));
}

/// Each key on a thread of its own: what they counted is added up. By hand: of 3 and 5 hits within a minute one each passes by the candidate
/// limit, and none by the limiter that is a candidate itself.
#[test]
fn a12_the_summary_counts_candidates_beside_what_was_decided() {
    let tried = "[[limiter]]\nname = \"api\"\nby = [\"user\"]\nlimits = [\"2 per minute\"]\ncandidate_limits = [\"1 per minute\"]\n\
                 [[limiter]]\nname = \"new\"\nby = [\"user\"]\nlimits = [\"0 per hour\"]\ncandidate = true\n";
    let hit = |user: &str| format!("{{\"at\":1,\"attributes\":{{\"user\":\"{user}\"}}}}\n");
    let text = summary_of(tried, &(hit("a").repeat(3) + &hit("b").repeat(5)));
    assert!(text.contains("8 requests: 4 allowed, 4 denied"), "{text}");
    assert!(
        text.contains(
            "CANDIDATE  LIMITS    WOULD ALLOW  WOULD DENY  DENIED %\n\
             api        1 per 1m            2           6    75.0 %\n\
             new        0 per 1h            0           8     100 %\n"
        ),
        "{text}"
    );
}
