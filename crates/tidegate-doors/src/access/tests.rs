//! Who is admitted, as data: the rules, the request, and what comes of it.

use super::*;
use http::Request;

const NOW: Micros = Micros::from_secs(1_000);

fn rules(tokens: Option<Tokens>) -> Arc<Rules> {
    Arc::new(Rules {
        tokens,
        hosts: vec!["gate.example".parse().unwrap()],
        origins: vec!["https://app.example:443".parse().unwrap()],
    })
}

/// `all` has every scope, `checks` one, `old` expires now.
fn tokens() -> Tokens {
    let token = |name: &str, scopes: &[Scope], expires| Token {
        name: name.to_owned(),
        hash: Hash::of(format!("tg_{name}").as_bytes()),
        grant: Grant { scopes: scopes.iter().copied().collect(), ..Grant::default() },
        expires,
    };
    let certificate = Certificate {
        name: "orders".to_owned(),
        of: CertificatePattern::San("orders.mesh".parse().unwrap()),
        grant: Grant { scopes: [Scope::Check].into_iter().collect(), ..Grant::default() },
    };
    let soon = Micros::from_secs(1_001);
    let all = vec![
        token("all", &Scope::ALL, Some(soon)),
        token("checks", &[Scope::Check], None),
        token("old", &Scope::ALL, Some(NOW)),
    ];
    Tokens::new(all, vec![certificate]).unwrap()
}

fn parts(fields: &[(&str, &str)]) -> Parts {
    let request = fields.iter().fold(Request::builder(), |request, (name, value)| request.header(*name, *value));
    request.body(()).unwrap().into_parts().0
}

/// What is said: who asks, or the status and code.
fn told(rules: &Arc<Rules>, needs: Needs, peer: &str, fields: &[(&str, &str)], known: &Known, now: Micros) -> String {
    match rules.admit(needs, &parts(fields), peer.parse().unwrap(), known, now) {
        Ok(caller) if caller.is_unknown() => "unknown".to_owned(),
        Ok(caller) => caller.to_string(),
        Err(refusal) => format!("{} {}", refusal.status, refusal.code),
    }
}

const CHECK: Needs = Needs::Scope(Scope::Check);
const OPERATE: Needs = Needs::Scope(Scope::Operate);
const LOCAL: (&str, &str) = ("host", "localhost:7400");

#[track_caller]
fn check_open(needs: Needs, peer: &str, fields: &[(&str, &str)], expected: &str) {
    let said = told(&rules(None), needs, peer, fields, &Known::default(), NOW);
    assert_eq!(said, expected, "{needs:?} {peer} {fields:?}");
}

#[test]
fn s6_without_a_token_a_host_is_an_address_localhost_or_one_of_hosts() {
    for host in [
        "127.0.0.1",
        "127.0.0.1:7400",
        "[::1]:7400",
        "192.0.2.1",
        "localhost",
        "LocalHost:1",
        "gate.example:80",
        "GATE.example",
    ] {
        check_open(CHECK, "127.0.0.1", &[("host", host)], "127.0.0.1");
    }
    for host in ["evil.example:7400", "", "127.0.0.1.evil.example", "localhost.evil.example", "gate.example.evil"] {
        for needs in [CHECK, OPERATE, Needs::Session, Needs::Scope(Scope::Read)] {
            check_open(needs, "127.0.0.1", &[("host", host)], "403 unknown_host");
        }
        check_open(Needs::Nothing, "127.0.0.1", &[("host", host)], "127.0.0.1");
    }
}

#[test]
fn s6_no_page_of_another_origin_asks_but_those_that_are_allowed() {
    let same = ("origin", "http://localhost:7400");
    let site = |value| ("sec-fetch-site", value);
    for needs in [CHECK, OPERATE, Needs::Session] {
        for fields in [&[LOCAL][..], &[LOCAL, same], &[LOCAL, same, site("same-origin")], &[LOCAL, site("none")]] {
            check_open(needs, "127.0.0.1", fields, "127.0.0.1");
        }
        for origin in
            ["http://evil.example", "null", "http://localhost:80", "https://app.example:8443", "http://app.example"]
        {
            check_open(needs, "127.0.0.1", &[LOCAL, ("origin", origin)], "403 cross_origin");
        }
        for value in ["cross-site", "same-site", "what"] {
            check_open(needs, "127.0.0.1", &[LOCAL, site(value)], "403 cross_origin");
            check_open(needs, "127.0.0.1", &[LOCAL, same, site(value)], "403 cross_origin");
        }
        check_open(needs, "127.0.0.1", &[LOCAL, ("origin", "https://app.example"), site("cross-site")], "127.0.0.1");
        // Rebinding: the page's own name points here, so that Origin and Host agree.
        let rebound = [("host", "evil.example:7400"), ("origin", "http://evil.example:7400"), site("same-origin")];
        check_open(needs, "127.0.0.1", &rebound, "403 unknown_host");
    }
    check_open(Needs::Nothing, "127.0.0.1", &[LOCAL, ("origin", "null"), site("cross-site")], "127.0.0.1");
}

#[test]
fn s2_without_tokens_only_this_machine_operates() {
    for peer in ["127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1"] {
        let shown = peer.parse::<IpAddr>().unwrap().to_canonical().to_string();
        check_open(OPERATE, peer, &[LOCAL], &shown);
        for passed_on in ["x-forwarded-for", "x-real-ip", "forwarded", "via"] {
            check_open(OPERATE, peer, &[LOCAL, (passed_on, "x")], "403 not_loopback");
            check_open(CHECK, peer, &[LOCAL, (passed_on, "x")], &shown);
        }
    }
    for peer in ["192.0.2.1", "2001:db8::1"] {
        check_open(OPERATE, peer, &[LOCAL], "403 not_loopback");
        check_open(CHECK, peer, &[LOCAL], peer);
    }
    check_open(OPERATE, "192.0.2.1", &[LOCAL, ("authorization", "Bearer tg_all")], "403 not_loopback");
}

#[track_caller]
fn check_tokens(needs: Needs, fields: &[(&str, &str)], expected: &str) {
    let (rules, known) = (rules(Some(tokens())), Known::default());
    // Twice: the second time the connection is known.
    for _ in 0..2 {
        assert_eq!(told(&rules, needs, "127.0.0.1", fields, &known, NOW), expected, "{needs:?} {fields:?}");
    }
}

#[test]
fn s5_with_tokens_nobody_asks_without_one() {
    let bearer = |value| ("authorization", value);
    check_tokens(CHECK, &[LOCAL], "401 unauthorized");
    check_tokens(Needs::Nothing, &[], "127.0.0.1");
    for wrong in [
        "Bearer tg_none",
        "Bearer tg_old",
        "Bearer ",
        "Bearer",
        "Basic YTpi",
        "tg_all",
        "Bearer tg_all2",
        "Bearer tg_al",
    ] {
        for needs in [CHECK, OPERATE, Needs::Session] {
            check_tokens(needs, &[LOCAL, bearer(wrong)], "401 unauthorized");
        }
    }
    check_tokens(CHECK, &[LOCAL, bearer("Bearer tg_all"), bearer("Bearer tg_all")], "401 unauthorized");
    for good in ["Bearer tg_checks", "bearer tg_checks", "BEARER  tg_checks "] {
        check_tokens(CHECK, &[LOCAL, bearer(good)], "token checks");
        check_tokens(OPERATE, &[LOCAL, bearer(good)], "403 forbidden");
        check_tokens(Needs::Session, &[LOCAL, bearer(good)], "token checks");
    }
    // No page has a token unless it was given one.
    let anywhere = [("host", "evil.example"), ("origin", "http://evil.example"), ("via", "x"), bearer("Bearer tg_all")];
    check_tokens(OPERATE, &anywhere, "token all");
}

/// A variable that was not set, hashed by hand: its hash must not let everybody in who shows nothing.
#[test]
fn s5_the_hash_of_nothing_opens_nothing() {
    let grant = Grant { scopes: Scope::ALL.into_iter().collect(), ..Grant::default() };
    let nothing = Token { name: "nothing".to_owned(), hash: Hash::of(b""), grant, expires: None };
    let rules = rules(Some(Tokens::new(vec![nothing], Vec::new()).unwrap()));
    for text in ["", "Bearer ", "Bearer", &format!("Bearer {}", "x".repeat(300))] {
        let said = told(&rules, CHECK, "127.0.0.1", &[LOCAL, ("authorization", text)], &Known::default(), NOW);
        assert_eq!(said, "401 unauthorized", "{text}");
    }
    assert_eq!(rules.caller_of(b"", NOW).unwrap_err().status, 401);
}

#[test]
fn s5_a_session_may_say_later_who_it_is_but_no_page_of_another_origin_begins_one() {
    check_tokens(Needs::Session, &[LOCAL], "unknown");
    check_tokens(Needs::Session, &[("host", "evil.example")], "403 unknown_host");
    check_tokens(Needs::Session, &[LOCAL, ("origin", "http://evil.example")], "403 cross_origin");
    let caller = rules(Some(tokens())).admit(
        Needs::Session,
        &parts(&[LOCAL]),
        IpAddr::from([127, 0, 0, 1]),
        &Known::default(),
        NOW,
    );
    assert_eq!(caller.unwrap().check(Scope::Subscribe, What::Stream("s")).unwrap_err().status, 401);
}

#[test]
fn s5_a_token_that_a_connection_has_shown_expires_and_is_revoked_all_the_same() {
    let (known, fields) = (Known::default(), [LOCAL, ("authorization", "Bearer tg_all")]);
    let rules_then = rules(Some(tokens()));
    let at = |rules, now| told(rules, CHECK, "127.0.0.1", &fields, &known, now);
    assert_eq!(at(&rules_then, NOW), "token all");
    assert_eq!(at(&rules_then, Micros::from_secs(1_001)), "401 unauthorized");
    assert_eq!(at(&rules_then, NOW), "token all");
    let revoked = rules(Some(Tokens::default()));
    assert_eq!(at(&revoked, NOW), "401 unauthorized");
    assert_eq!(at(&rules_then, NOW), "token all");
}

/// Browsers send certificates by themselves, also for pages of another origin.
#[test]
fn s6_a_certificate_is_a_caller_and_no_excuse_for_a_page() {
    let (rules, of) = (rules(Some(tokens())), |san: &str| Known::by_certificate(None, vec![san.to_owned()]));
    let at = |needs, fields: &[(&str, &str)], known: Known| told(&rules, needs, "192.0.2.1", fields, &known, NOW);
    assert_eq!(at(CHECK, &[LOCAL], of("orders.mesh")), "certificate orders");
    assert_eq!(at(OPERATE, &[LOCAL], of("orders.mesh")), "403 forbidden");
    assert_eq!(at(CHECK, &[LOCAL], of("other.mesh")), "401 unauthorized");
    assert_eq!(at(CHECK, &[LOCAL, ("origin", "http://evil.example")], of("orders.mesh")), "403 cross_origin");
    assert_eq!(at(OPERATE, &[LOCAL, ("authorization", "Bearer tg_all")], of("orders.mesh")), "token all");
}

#[test]
fn s5_who_lasts_is_looked_up_again_when_the_rules_change_or_its_time_is_up() {
    let access = Arc::new(Access::new((*rules(Some(tokens()))).clone()));
    let mut lasting = Lasting::new(&access, access.rules().caller_of(b"tg_all", NOW).unwrap());
    let mut unknown = Lasting::new(&access, Caller::unknown(IpAddr::from([127, 0, 0, 1])));
    let mut at = |now| lasting.check(Scope::Subscribe, What::Stream("s"), now).map_err(|refusal| refusal.status);
    assert_eq!((at(NOW), at(NOW)), (Ok(()), Ok(())));
    assert_eq!(at(Micros::from_secs(1_001)), Err(401));
    assert_eq!(unknown.check_scope(Scope::Subscribe, NOW).unwrap_err().status, 401);
    assert!(unknown.is_unknown() && unknown.identify(b"tg_none", NOW).is_err());
    unknown.identify(b"tg_all", NOW).unwrap();
    assert_eq!(unknown.check_scope(Scope::Subscribe, NOW), Ok(()));
    access.replace(Rules { tokens: Some(Tokens::default()), ..Rules::default() });
    assert_eq!(at(NOW), Err(401), "revoked");
    let mut anybody = Lasting::new(&access, Caller::address(IpAddr::from([127, 0, 0, 1])));
    assert_eq!(anybody.check_scope(Scope::Read, NOW).unwrap_err().status, 401, "tokens are asked for now");
    access.replace(Rules::default());
    let mut anybody = Lasting::new(&access, Caller::address(IpAddr::from([127, 0, 0, 1])));
    assert_eq!(anybody.check_scope(Scope::Read, NOW), Ok(()));
}

#[test]
fn names_and_origins_are_checked_when_they_are_configured() {
    for (text, part) in [
        ("", "is no name"),
        ("*", "is no name"),
        ("http://a", "without a scheme"),
        ("a:80", "or a port"),
        ("a b", "host's name"),
    ] {
        assert!(text.parse::<HostName>().unwrap_err().contains(part), "{text}");
    }
    for (text, origin) in [
        ("https://app.example", "https://app.example"),
        ("HTTP://App.example:80", "http://app.example"),
        ("http://localhost:3000", "http://localhost:3000"),
        ("https://[::1]:8443", "https://[::1]:8443"),
    ] {
        assert_eq!(text.parse::<WebOrigin>().unwrap().to_string(), origin);
    }
    for text in [
        "",
        "*",
        "null",
        "app.example",
        "https://app.example/",
        "https://u@app.example",
        "ftp://a",
        "https://",
        "https://a:x",
    ] {
        assert!(text.parse::<WebOrigin>().unwrap_err().contains("is no origin"), "{text}");
    }
}

#[test]
fn refusals_name_the_scope_the_caller_and_the_remedy() {
    let caller = rules(Some(tokens())).caller_of(b"tg_checks", NOW).unwrap();
    let detail = caller.check_scope(Scope::Operate).unwrap_err().detail;
    for part in ["scope operate", "token \"checks\" may check", "tidegate token new --scope operate"] {
        assert!(detail.contains(part), "{detail}");
    }
}
