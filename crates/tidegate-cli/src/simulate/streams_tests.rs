//! Streams in a replay, as data: the lines in, and what is said of each.

use super::tests::run;
use serde_json::Value;

/// `AT [EVENT] -> STATUS MESSAGES…`: `+taco@2` submitted, `!` invalidated, `*` published, `#` key frame.
#[track_caller]
fn check(mode: &str, settings: &str, script: &str) {
    let config = format!("[[stream]]\nname = \"s\"\nmode = \"{mode}\"\nduration = \"3s\"\n{settings}");
    let rows: Vec<(&str, &str)> = script.lines().filter_map(|row| row.trim().split_once(" -> ")).collect();
    let line = |(request, _): &(&str, &str)| match request.split_once(' ') {
        Some((at, event)) => format!("{{\"at\":{at},\"stream\":\"s\",\"submit\":\"{event}\"}}\n"),
        None => format!("{{\"at\":{request},\"stream\":\"s\"}}\n"),
    };
    let (out, outcome) = run(&config, &rows.iter().map(line).collect::<String>());
    outcome.unwrap();
    let mut clock = 0;
    for ((request, expected), got) in rows.iter().zip(out.lines()) {
        let got: Value = serde_json::from_str(got).unwrap();
        let words: Vec<String> = got["messages"].as_array().unwrap().iter().map(|m| word(m, &mut clock)).collect();
        let status = got["status"].as_str().unwrap_or("time");
        assert_eq!(format!("{status} {}", words.join(" ")).trim_end(), *expected, "{request}");
    }
    assert_eq!(out.lines().count(), rows.len());
}

fn word(message: &Value, clock: &mut u64) -> String {
    *clock += 1;
    assert_eq!(message["clock"], *clock, "C2");
    let event = &message["eventTime"];
    let seconds = event["time"].as_f64().unwrap_or(0.0) / 1_000.0;
    let sign = match message["messageType"].as_str().unwrap() {
        "SUBMITTED_EVENT" => '+',
        "PUBLISHED_EVENT" => '*',
        "INVALIDATED_EVENT" => '!',
        "KEY_FRAME" => return format!("#{}", message["snapshot"].as_array().unwrap().len()),
        other => panic!("{other}"),
    };
    format!("{sign}{}@{seconds}", event["event"].as_str().unwrap())
}

#[test]
fn the_example_only_once() {
    check(
        "only-once",
        "snapshot_every = \"1h\"",
        "1 🍎 -> submitted #0 +🍎@1
         2 🌮 -> submitted +🌮@2
         3 🌮 -> conflict
         4 🌮 -> conflict *🍎@1
         7 🌮 -> submitted *🌮@2 +🌮@7
         10 -> time *🌮@7",
    );
}

#[test]
fn the_example_strictly_once() {
    check(
        "strictly-once",
        "snapshot_every = \"1h\"",
        "1 🍎 -> submitted #0 +🍎@1
         2 🌮 -> submitted +🌮@2
         3 🌮 -> conflict !🌮@2
         4 🌮 -> conflict *🍎@1
         7 🌮 -> submitted +🌮@7
         10 -> time *🌮@7",
    );
    check(
        "strictly-once",
        "snapshot_every = \"1h\"",
        "2 a -> submitted #0 +a@2\n 4 a -> conflict !a@2\n 6 a -> conflict\n 9 a -> submitted +a@9\n 12 -> time *a@9",
    );
}

#[test]
fn key_frames_come_every_duration_and_full_is_said() {
    check(
        "only-once",
        "max_events = 1",
        "0 a -> submitted #0 +a@0
         1 b -> full
         9 -> time *a@0 #0 #0 #0
         9.0009 c -> submitted +c@9
         12 -> time *c@9 #0",
    );
}

#[test]
fn a_line_is_written_in_the_stated_order() {
    let config = "[[stream]]\nname = \"orders\"\nmode = \"only-once\"";
    let trace = "{\"at\":2,\"stream\":\"orders\",\"submit\":\"taco\"}\n{\"at\":3,\"stream\":\"orders\"}";
    let (out, outcome) = run(config, trace);
    outcome.unwrap();
    let expected = r#"{"at":2,"stream":"orders","submit":"taco","status":"submitted","messages":[{"clock":1,"snapshot":[],"messageType":"KEY_FRAME"},{"clock":2,"eventTime":{"event":"taco","time":2000},"messageType":"SUBMITTED_EVENT"}]}
{"at":3,"stream":"orders","messages":[]}
"#;
    assert_eq!(out, expected);
}

#[test]
fn lines_that_cannot_be_are_refused() {
    let config = "[[stream]]\nname = \"s\"\nmode = \"only-once\"\nduration = \"1ms\"";
    for (line, part) in [
        (r#"{"at":5,"stream":"t"}"#, "stream: \"t\" is unknown; there are: s"),
        (r#"{"at":5,"stream":"s","submit":""}"#, "submit: the event is empty"),
        (r#"{"at":99999999,"stream":"s"}"#, "more than 1000000 key frames"),
    ] {
        let (_, outcome) = run(config, &format!("{{\"at\":0,\"stream\":\"s\"}}\n{line}"));
        let message = outcome.unwrap_err();
        assert!(message.contains(part), "{message}");
    }
}
