//! `[access]`, `[udp] allow` and the tokens file.

use super::{check, check_parts, read};
use crate::config::parse_tokens;
use tidegate_testkit::Folder;

const HASH: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

#[test]
fn access_is_read() {
    let config = read(
        "[access]\nopen = [\"http\", \"udp\", \"admin\"]\nhosts = [\"Gate.example\"]\nallowed_origins = [\"https://app.example\"]\n\
         [udp]\nallow = [\"10.0.0.0/8\", \"::1\"]\n",
        &[],
    )
    .unwrap();
    assert_eq!(
        (config.access.open.len(), config.access.rules.hosts.len(), config.access.rules.origins.len()),
        (3, 1, 1)
    );
    assert_eq!(config.allow.iter().map(ToString::to_string).collect::<Vec<_>>(), ["10.0.0.0/8", "::1/128"]);
    assert!(config.access.rules.tokens.is_none());
    assert_eq!(read("", &[]).unwrap().access, crate::config::Access::default());
}

#[test]
fn what_is_wrong_with_access_is_told_with_its_place() {
    for (text, part) in [
        (
            "[access]\nopen = [\"ftp\"]",
            "2:9: [access] open: no door is named \"ftp\"; use some of \"http\", \"udp\", \"grpc\", \"resp\", \"admin\"",
        ),
        (
            "[access]\nopen = \"http\"",
            "2:8: [access] open: \"http\" is a string, not an array of strings; write open = [\"http\"]",
        ),
        ("[access]\nhosts = [\"http://a\"]", "2:10: [access] hosts: \"http://a\" is no host's name"),
        (
            "[access]\nallowed_origins = [\"*\"]",
            "2:20: [access] allowed_origins: \"*\" is no origin; write scheme, host and port",
        ),
        ("[access]\ntoken = \"x\"", "2:1: [access]: unknown setting \"token\"; did you mean \"tokens\"?"),
        ("[access]\ntokens = \"\"", "2:10: [access] tokens: \"\" is no file"),
        ("[access]\ntokens = \"none.toml\"", "2:10: [access] tokens: folder/none.toml cannot be read"),
        ("[udp]\nallow = [\"10.0.0.1/8\"]", "2:10: [udp] allow: \"10.0.0.1/8\" is an address inside a network"),
        ("[udp]\nallow = []", "2:9: [udp] allow: an empty list would let nobody ask"),
    ] {
        check_parts(text, &[part]);
    }
}

/// Everything was open to whoever reached a door, without a word.
#[test]
fn s4_a_door_beyond_loopback_says_who_may_ask() {
    check(
        "[doors]\nhttp = \"0.0.0.0:7400\"\n",
        r#"error: t.toml:2:8: [doors] http: 0.0.0.0:7400 can be reached from other machines, and nobody would be asked for a token; make one with tidegate token new --name NAME --scope check --file tokens.toml, and set [access] tokens = "tokens.toml" or TIDEGATE_ACCESS__TOKENS; or leave it open on purpose: [access] open = ["http"] or TIDEGATE_ACCESS__OPEN='["http"]'
   |
 2 | http = "0.0.0.0:7400"
   |        ^^^^^^^^^^^^^^"#,
    );
    let udp =
        "[udp] allow = [\"10.0.0.0/8\"] or TIDEGATE_UDP__ALLOW; or leave it open on purpose: [access] open = [\"udp\"]";
    check_parts("[doors]\nudp = \"[::]:7401\"\n", &["t.toml:2:7: [doors] udp: [::]:7401 can be reached", udp]);
    let proxy = "[proxy]\nupstream = \"http://h\"\nlisten = \"0.0.0.0:80\"\n";
    check_parts(
        &format!("{proxy}admin = \"192.0.2.1:4041\""),
        &["t.toml:4:9: [proxy] admin: 192.0.2.1:4041", "open = [\"admin\"]"],
    );
    assert!(read(proxy, &[]).is_ok(), "[proxy] listen is for everybody");
    for loopback in ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
        assert!(read(&format!("[doors]\nhttp = \"{loopback}\"\nudp = \"{loopback}\""), &[]).is_ok(), "{loopback}");
    }
    let both = "[doors]\nhttp = \"0.0.0.0:1\"\nudp = \"0.0.0.0:2\"\n";
    assert_eq!(super::problems(both), 2, "both at once");
    assert_eq!(super::problems(&format!("{both}[access]\nopen = [\"http\"]")), 1);
    assert!(read(&format!("{both}[access]\nopen = [\"http\", \"udp\"]"), &[]).is_ok());
    assert!(read(&format!("{both}[access]\nopen = [\"http\"]\n[udp]\nallow = [\"10.0.0.0/8\"]"), &[]).is_ok());
    assert!(read(both, &[("TIDEGATE_ACCESS__OPEN", "[\"http\", \"udp\"]")]).is_ok());
    let variable = read("", &[("TIDEGATE_DOORS__HTTP", "0.0.0.0:7400")]).unwrap_err();
    assert!(variable.contains("environment variable TIDEGATE_DOORS__HTTP: [doors] http: 0.0.0.0:7400"), "{variable}");
}

#[test]
fn s4_tokens_guard_tcp_doors_and_not_udp() {
    let folder = Folder::new();
    let file =
        folder.write("tokens.toml", &format!("[[token]]\nname = \"a\"\nsha256 = \"{HASH}\"\nscopes = [\"check\"]\n"));
    let tokens = format!("[access]\ntokens = \"{}\"\n[doors]\n", file.display());
    let config = read(&format!("{tokens}http = \"0.0.0.0:7400\""), &[]).unwrap();
    assert_eq!(config.access.rules.tokens.unwrap().tokens().len(), 1);
    check_parts(&format!("{tokens}http = \"0.0.0.0:1\"\nudp = \"0.0.0.0:2\""), &["[doors] udp: 0.0.0.0:2"]);
    // In a container, from a variable: a path, or the tokens themselves.
    let door = ("TIDEGATE_DOORS__HTTP", "0.0.0.0:7400");
    let inline = std::fs::read_to_string(&file).unwrap();
    for value in [file.to_str().unwrap(), &inline] {
        let config = read("", &[door, ("TIDEGATE_ACCESS__TOKENS", value)]).unwrap();
        assert_eq!(config.access.rules.tokens.unwrap().tokens().next().unwrap().name, "a");
    }
    let wrong = read("", &[("TIDEGATE_ACCESS__TOKENS", "[[token]]\nname = \"a b\"")]).unwrap_err();
    assert!(
        wrong.contains("environment variable TIDEGATE_ACCESS__TOKENS: token 1 name: \"a b\" is no name"),
        "{wrong}"
    );
    // A tokens file that is wrong stops the start, with its own place.
    let wrong = folder.write("wrong.toml", "[[token]]\nname = \"a\"\nsha256 = \"x\"\nscopes = [\"admin\"]\n");
    let parts = [
        "wrong.toml:3:10: token 1 sha256: \"x\" is no SHA-256",
        "wrong.toml:4:11: token 1 scopes: \"admin\" is no scope",
    ];
    check_parts(&format!("[access]\ntokens = \"{}\"", wrong.display()), &parts);
}

#[track_caller]
fn check_tokens(text: &str, part: &str) {
    let error = parse_tokens("tokens.toml", text.replace("HASH", HASH)).unwrap_err();
    assert!(error.contains(part), "{error}");
}

#[test]
fn tokens_and_certificates_are_read() {
    let text = format!(
        "[[token]]\nname = \"nginx\"\nsha256 = \"{HASH}\"\nscopes = [\"check\", \"read\"]\nlimiters = [\"login-*\"]\ndomains = [\"login\"]\n\
         streams = [\"orders\"]\nexpires = 2027-02-14T18:00:00Z\n\
         [[certificate]]\nname = \"orders\"\nsan = \"spiffe://mesh/*/orders\"\nscopes = [\"publish\"]\n\
         [[certificate]]\nname = \"monitor\"\nsubject = \"monitor\"\nscopes = [\"read\"]\n"
    );
    let tokens = parse_tokens("tokens.toml", text).unwrap();
    let token = tokens.tokens().next().unwrap();
    assert_eq!(token.grant.told(), "check, read for limiters login-* and domains login and streams orders");
    assert_eq!(token.expires.unwrap().get(), 1_802_628_000_000_000);
    assert_eq!(tokens.certificates().len(), 2);
}

#[test]
fn what_is_wrong_with_tokens_is_told_with_its_place() {
    let token = "[[token]]\nname = \"a\"\nsha256 = \"HASH\"\nscopes = [\"check\"]\n";
    for (text, part) in [
        ("[[token]]\nname = \"a\"", "tokens.toml:1:1: token 1: it has no sha256"),
        ("[[token]]\nsha256 = \"HASH\"", "token 1: it has no name"),
        ("[[tokens]]\nname = \"a\"", "1:3: unknown setting \"tokens\"; did you mean \"token\"?"),
        ("token = 1", "1:9: token: it must be an array of tables"),
        ("[[token]]\nname = \"a\"\nsha256 = \"HASH\"", "token 1: it has no scopes; add scopes = [\"check\"]"),
        ("[[token]]\nname = \"a\"\nsha256 = \"HASH\"\nscopes = []", "4:10: token 1 scopes: it opens nothing"),
        (&format!("{token}limiters = []"), "5:12: token 1 limiters: an empty list narrows to nothing"),
        (&format!("{token}expires = \"90d\""), "5:11: token 1 expires: it must be an instant in UTC"),
        (&format!("{token}expires = 2027-02-30T00:00:00Z"), "tokens.toml:5:11"),
        (&format!("{token}secret = \"x\""), "5:1: token 1: unknown setting \"secret\""),
        (&format!("{token}{token}"), "the name \"a\" is there twice"),
        (&format!("{token}{}", token.replace("\"a\"", "\"b\"")), "the tokens \"a\" and \"b\" have one hash"),
        ("[[certificate]]\nname = \"a\"\nscopes = [\"read\"]", "certificate 1: it must have either subject or san"),
    ] {
        check_tokens(text, part);
    }
}
