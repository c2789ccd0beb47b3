//! Every command against every kind of caller, as one table.

use crate::server::Server;
use std::sync::Arc;
use tidegate::Micros;
use tidegate_doors::access::{Access, Grant, Hash, Pattern, Rules, Scope, Token, Tokens};
use tidegate_doors::audit::Audit;
use tidegate_doors::listener::Caps;
use tidegate_doors::resp::RespSettings;

/// A command (`{n}` is another number each time), the scope that it needs (`-`: to be known; `+`: nothing), and whether a token for
/// other limiters and domains may send it. A new command fails [`s5_every_resp_command_is_a_row_of_the_table`] until it has a row.
const ROWS: [(&str, &str, bool); 20] = [
    ("CL.THROTTLE k{n} 15 30 60", "check", false),
    ("TG.HIT api k{n}", "check", false),
    ("TG.PEEK api k{n}", "check", false),
    ("TG.ATTR login 1 user u{n}", "check", false),
    ("TG.BLOCK api k{n} 1000", "operate", false),
    ("TG.UNBLOCK api k{n}", "operate", false),
    ("TG.INCREMENT notify k{n}", "count", false),
    ("TG.ANALYZE notify k{n}", "count", false),
    ("TG.STATS api", "read", false),
    ("TG.STATS", "read", false),
    ("PING", "-", true),
    ("ECHO x", "-", true),
    ("SELECT 0", "-", true),
    ("CLIENT ID", "-", true),
    ("COMMAND COUNT", "-", true),
    ("INFO", "-", true),
    ("HELLO 3", "-", true),
    ("AUTH tg_check", "+", true),
    ("RESET", "+", true),
    ("QUIT", "+", true),
];

/// About everything, which no narrowed token may ask.
const OF_EVERYTHING: &str = "TG.STATS";

fn token(name: &str, scope: Scope, limiters: &[&str], expires: Option<Micros>) -> Token {
    let patterns: Vec<Pattern> = limiters.iter().map(|text| text.parse().unwrap()).collect();
    let grant = Grant {
        scopes: [scope].into_iter().collect(),
        limiters: patterns.clone(),
        domains: patterns,
        ..Grant::default()
    };
    Token { name: name.to_owned(), hash: Hash::of(format!("tg_{name}").as_bytes()), grant, expires }
}

fn server() -> (Server, Arc<Access>) {
    server_with(&Arc::default())
}

fn server_with(audit: &Arc<Audit>) -> (Server, Arc<Access>) {
    let mut all = vec![token("expired", Scope::Check, &[], Some(Micros::from_secs(1)))];
    for scope in Scope::ALL {
        let name = scope.name();
        all.push(token(name, scope, &[], None));
        all.push(token(&format!("narrowed-{name}"), scope, &["api", "notify", "cl.*", "login"], None));
        all.push(token(&format!("elsewhere-{name}"), scope, &["other"], None));
    }
    let rules = Rules { tokens: Some(Tokens::new(all, Vec::new()).unwrap()), ..Rules::default() };
    let access = Arc::new(Access::new(rules));
    let settings = RespSettings { access: Arc::clone(&access), audit: Arc::clone(audit), ..RespSettings::default() };
    (Server::with(settings), access)
}

/// All that a command could have changed or charged.
fn state(server: &Server, audit: &Audit) -> String {
    let mut told = format!("{} changes by hand\n", audit.count());
    for info in server.gate.limiters() {
        let name = info.spec.name.as_str();
        let blocked = server.gate.longest_blocked(name, 1_000).unwrap();
        told += &format!("{name} {:?} {:?} {} {blocked:?}\n", info.counts, info.entries, info.enabled);
    }
    told
}

/// Sends each row as somebody who may nothing, after `before`: it is refused, and nothing changes.
#[track_caller]
fn check_refused(server: &Server, audit: &Audit, before: &[&str]) {
    for (row, needs, _) in ROWS {
        let (state_before, mut client) = (state(server, audit), server.connect());
        for command in before {
            let reply = client.ask(command);
            assert!(reply.starts_with("-WRONGPASS"), "{command}: {reply}");
        }
        let reply = client.ask(&row.replace("{n}", "0"));
        assert_eq!(reply.starts_with("-NOAUTH"), needs != "+", "{row} after {before:?}: {reply}");
        assert_eq!(state(server, audit), state_before, "{row} after {before:?} was refused, and changed something");
    }
}

#[test]
fn s5_every_resp_command_refuses_strangers_wrong_and_expired_tokens() {
    let audit = Arc::default();
    let (server, _) = server_with(&audit);
    check_refused(&server, &audit, &[]);
    for wrong in ["tg_nobody", "tg_expired", "''", "tg_check2"] {
        check_refused(&server, &audit, &[&format!("AUTH {wrong}"), &format!("HELLO 3 AUTH default {wrong}")]);
    }
}

#[test]
fn s5_every_resp_command_refuses_whom_it_should_and_a_refusal_changes_nothing() {
    let audit = Arc::default();
    let (server, _) = server_with(&audit);
    let mut number = 0;
    for (row, needs, elsewhere_may) in ROWS {
        for scope in Scope::ALL {
            for (kind, may) in [("", true), ("narrowed-", row != OF_EVERYTHING), ("elsewhere-", elsewhere_may)] {
                number += 1;
                let (before, mut client) = (state(&server, &audit), server.connect());
                let who = format!("tg_{kind}{}", scope.name());
                // By a name, as most clients do, or by the token alone.
                let auth = if number % 2 == 0 { format!("AUTH {who}") } else { format!("AUTH default {who}") };
                assert_eq!(client.ask(&auth), "+OK");
                let reply = client.ask(&row.replace("{n}", &number.to_string()));
                let is_allowed = ["+", "-", scope.name()].contains(&needs) && may;
                assert_eq!(!reply.starts_with("-NOPERM"), is_allowed, "{row} by {who}: {reply}");
                assert!(!is_allowed || !reply.starts_with('-'), "{row} by {who}: {reply}");
                assert!(
                    is_allowed || state(&server, &audit) == before,
                    "{row} by {who} was refused, and changed something"
                );
            }
        }
    }
}

#[test]
fn s5_every_resp_command_is_a_row_of_the_table() {
    let mut rows: Vec<String> = ROWS.iter().map(|(row, ..)| row.split(' ').next().unwrap().to_lowercase()).collect();
    rows.dedup();
    let told = Server::start().connect().ask("COMMAND LIST");
    let mut commands: Vec<&str> = told.split(' ').filter(|word| !word.starts_with(['*', '$'])).collect();
    rows.sort();
    commands.sort_unstable();
    assert_eq!(rows, commands);
}

#[test]
fn s5_a_refused_command_charges_nothing_and_a_pipeline_goes_on() {
    let (server, _) = server();
    let mut client = server.connect();
    let all = ["TG.HIT api k", "AUTH tg_read", "TG.HIT api k", "AUTH tg_check", "TG.HIT api k"];
    client.send(&all.iter().flat_map(|command| crate::server::encode(command)).collect::<Vec<u8>>());
    let replies = all.map(|_| client.receive());
    assert!(replies[0].starts_with("-NOAUTH") && replies[2].starts_with("-NOPERM"), "{replies:?}");
    assert_eq!(replies[4], "*5 :1 :3 :2 :-1 :60000", "nothing was charged before");
}

#[test]
fn s5_a_token_that_is_revoked_ends_what_its_connections_may() {
    let (server, access) = server();
    let mut client = server.connect();
    assert!(client.ask("HELLO 3 AUTH default tg_check SETNAME x").starts_with('%'));
    assert!(client.ask("TG.HIT api k").starts_with("*5 :1"));
    let others = Tokens::new(vec![token("check2", Scope::Check, &[], None)], Vec::new()).unwrap();
    access.replace(Rules { tokens: Some(others), ..Rules::default() });
    assert!(client.ask("TG.HIT api k").starts_with("-NOAUTH the token was revoked"));
    assert_eq!(client.ask("AUTH tg_check2"), "+OK");
    assert!(client.ask("TG.HIT api k").starts_with("*5 :1"));
    assert_eq!(client.ask("RESET"), "+RESET");
    assert!(client.ask("TG.HIT api k").starts_with("-NOAUTH"));
    assert!(client.ask("HELLO 2").starts_with("-NOAUTH HELLO must be called"));
}

#[test]
fn m6_one_token_does_not_get_every_connection() {
    let rules = Rules {
        tokens: Some(Tokens::new(vec![token("one", Scope::Check, &[], None)], Vec::new()).unwrap()),
        ..Rules::default()
    };
    let connections = Caps { all: 10, per_address: 10, per_token: 2 };
    let access = Arc::new(Access::new(rules));
    let server = Server::with(RespSettings { access, connections, ..RespSettings::default() });
    let mut clients: Vec<_> = (0..3).map(|_| server.connect()).collect();
    let told: Vec<String> = clients.iter_mut().map(|client| client.ask("AUTH tg_one")).collect();
    let refused = "-ERR connections: your token has as many as one token may, 2; close some, and keep connections open between commands";
    assert_eq!(told, ["+OK", "+OK", refused]);
    assert!(clients[2].ask("TG.HIT api k").starts_with("-NOAUTH"));
    assert_eq!(clients[0].ask("AUTH tg_one"), "+OK", "the same connection counts once");
    assert_eq!(clients[0].ask("RESET"), "+RESET");
    assert_eq!(clients[2].ask("AUTH tg_one"), "+OK", "its place is free");
}

/// A web page can have a browser send a POST anywhere; its lines must not be taken for commands.
#[test]
fn s6_what_a_browser_sends_is_closed_before_its_body_is_read() {
    let server = Server::start();
    for head in ["POST / HTTP/1.1\r\nHost: 127.0.0.1:7403\r\n", "GET /v1/hit HTTP/1.1\r\n", "OPTIONS * HTTP/1.1\r\n"] {
        let mut client = server.connect();
        client.send(format!("{head}\r\nTG.HIT api k\r\n").as_bytes());
        assert!(client.receive().starts_with("-ERR unknown command"), "{head}");
        assert_eq!(client.receive(), "closed", "{head}");
    }
    // A page of this very address (its name was pointed here) chooses its methods, and so the first word; not the other words of the line.
    for method in ["TG.HIT", "TG.INCREMENT", "TG.BLOCK", "TG.ATTR", "CL.THROTTLE", "ECHO", "PING"] {
        let mut client = server.connect();
        client.send(format!("{method} /api HTTP/1.1\r\nHost: evil.example\r\n\r\nTG.HIT api k\r\n").as_bytes());
        assert!(client.receive().starts_with('-'), "{method}");
        assert!(client.receive().starts_with("-ERR unknown command 'Host:'"), "{method}");
        assert_eq!(client.receive(), "closed", "{method}");
    }
    // A browser that was told https:// has lines of a page's choice in the middle of its handshake (session tickets, names).
    let mut client = server.connect();
    client.send(b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03\r\nTG.HIT api k\r\n");
    assert!(client.receive().starts_with("-ERR unknown command"));
    assert_eq!(client.receive(), "closed");
    assert_eq!(server.connect().ask("TG.PEEK api k"), "*5 :1 :3 :3 :-1 :0", "nothing was charged");
}
