//! Every path of the admin address against every kind of caller, as one table.

use crate::support::{Origin, proxy_with, runtime, send, status};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use tidegate::Micros;
use tidegate_doors::access::{Access, Grant, Hash, Pattern, Rules, Scope, Token, Tokens};
use tidegate_proxy::Settings;

/// A path, and whether it needs the scope `read`. A new path fails [`s5_every_path_of_the_admin_address_is_a_row_of_the_table`] until it has a row.
const ROWS: [(&str, bool); 4] = [("/metrics", true), ("/debug/vars", true), ("/livez", false), ("/readyz", false)];

fn token(name: &str, scope: Scope, limiters: &[&str], expires: Option<Micros>) -> Token {
    let limiters = limiters.iter().map(|text| text.parse::<Pattern>().unwrap()).collect();
    let grant = Grant { scopes: [scope].into_iter().collect(), limiters, ..Grant::default() };
    Token { name: name.to_owned(), hash: Hash::of(format!("tg_{name}").as_bytes()), grant, expires }
}

fn rules() -> Rules {
    let mut tokens = vec![
        token("expired", Scope::Read, &[], Some(Micros::from_secs(1))),
        token("narrowed", Scope::Read, &["proxy"], None),
    ];
    tokens.extend(Scope::ALL.map(|scope| token(scope.name(), scope, &[], None)));
    Rules { tokens: Some(Tokens::new(tokens, Vec::new()).unwrap()), ..Rules::default() }
}

async fn ask(admin: SocketAddr, method: &str, path: &str, field: &str) -> String {
    let request = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{field}\r\n");
    send(admin, request.as_bytes()).await
}

#[test]
fn s5_every_path_of_the_admin_address_refuses_whom_it_should() {
    let origin = Origin::start();
    let access = Arc::new(Access::new(rules()));
    let settings = Settings { workers: 1, access: Arc::clone(&access), ..Settings::default() };
    let proxy = proxy_with(origin.policy("3 per minute"), settings);
    let admin = proxy.admin().unwrap();
    let callers = [
        ("", 401),
        ("authorization: Bearer tg_nobody\r\n", 401),
        ("authorization: Bearer \r\n", 401),
        ("authorization: Basic dGc6dGc=\r\n", 401),
        ("authorization: Bearer tg_expired\r\n", 401),
        ("authorization: Bearer tg_narrowed\r\n", 403),
        ("authorization: Bearer tg_check\r\n", 403),
        ("authorization: Bearer tg_count\r\n", 403),
        ("authorization: Bearer tg_publish\r\n", 403),
        ("authorization: Bearer tg_subscribe\r\n", 403),
        ("authorization: Bearer tg_operate\r\n", 403),
        ("authorization: Bearer tg_read\r\n", 200),
    ];
    runtime().block_on(async {
        for (path, needs_read) in ROWS {
            for (field, guarded) in callers {
                let expected = if needs_read { guarded } else { 200 };
                let answer = ask(admin, "GET", path, field).await;
                assert_eq!(status(&answer), expected, "{path} by {field:?}: {answer}");
                assert!(expected == 200 || !answer.contains("tidegate_"), "{path} by {field:?}: {answer}");
                let changing = ask(admin, "POST", path, field).await;
                assert_eq!(status(&changing), if expected == 200 { 405 } else { expected }, "POST {path} by {field:?}");
            }
        }
        // Without tokens: no web page of another origin, and under no name that somebody else chose.
        access.replace(Rules::default());
        for (path, needs_read) in ROWS {
            assert_eq!(status(&ask(admin, "GET", path, "").await), 200, "{path}");
            let page = ask(admin, "GET", path, "sec-fetch-site: cross-site\r\n").await;
            assert_eq!(status(&page), if needs_read { 403 } else { 200 }, "{path}");
        }
    });
}

/// The paths that were guarded were a list beside the paths that were answered: a new one would have been open to all.
#[test]
fn s5_every_path_of_the_admin_address_is_a_row_of_the_table() {
    let origin = Origin::start();
    let proxy = proxy_with(origin.policy("3 per minute"), Settings { workers: 1, ..Settings::default() });
    let nowhere = runtime().block_on(ask(proxy.admin().unwrap(), "GET", "/none", ""));
    assert_eq!(status(&nowhere), 404);
    let known = nowhere.split_once("there are ").unwrap().1.trim();
    let known: BTreeSet<&str> = known.split(", ").collect();
    assert_eq!(known, ROWS.iter().map(|(path, _)| *path).collect());
}
