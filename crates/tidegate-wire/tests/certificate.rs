//! Names and validity, from certificates that another library made.
#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

use tidegate_testkit::certificates::rcgen::{DnValue, KeyPair};
use tidegate_testkit::certificates::{CertificateParams, DnType, SanType, date_time_ymd};
use tidegate_testkit::{Random, number};
use tidegate_wire::certificate::{NAMES_MAX, parse};

fn made(change: impl FnOnce(&mut CertificateParams)) -> Vec<u8> {
    let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
    (params.not_before, params.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(2030, 1, 1));
    params.distinguished_name = Default::default();
    change(&mut params);
    params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().to_vec()
}

#[track_caller]
fn check(change: impl FnOnce(&mut CertificateParams), common_name: Option<&str>, alternative_names: &[&str]) {
    let names = parse(&made(change)).unwrap().names;
    let alternative: Vec<&str> = names.alternative_names.iter().map(String::as_str).collect();
    assert_eq!((names.common_name.as_deref(), &alternative[..]), (common_name, alternative_names));
}

fn dns(name: &str) -> SanType {
    SanType::DnsName(name.try_into().unwrap())
}

#[test]
fn names_are_told_as_texts() {
    check(|_| {}, None, &[]);
    check(|params| params.distinguished_name.push(DnType::CommonName, "api é"), Some("api é"), &[]);
    check(
        |params| {
            params.distinguished_name.push(DnType::OrganizationName, "an organization");
            params.distinguished_name.push(DnType::CommonName, DnValue::PrintableString("gate".try_into().unwrap()));
            params.subject_alt_names = vec![
                dns("API.example"),
                SanType::URI("spiffe://mesh/ns/a/sa/api".try_into().unwrap()),
                SanType::Rfc822Name("ops@example.com".try_into().unwrap()),
                SanType::IpAddress("192.0.2.1".parse().unwrap()),
                SanType::IpAddress("2001:db8::1".parse().unwrap()),
            ];
        },
        Some("gate"),
        &["api.example", "spiffe://mesh/ns/a/sa/api", "ops@example.com", "192.0.2.1", "2001:db8::1"],
    );
}

#[test]
fn names_with_two_readings_are_none() {
    check(|params| params.distinguished_name.push(DnType::CommonName, "api\0.evil"), None, &[]);
    check(|params| params.distinguished_name.push(DnType::CommonName, ""), None, &[]);
    // Several attributes of one kind: the other has the number of the common name, too.
    let twice = |params: &mut CertificateParams| {
        params.distinguished_name.push(DnType::CommonName, "a");
        params.distinguished_name.push(DnType::CustomDnType(vec![2, 5, 4, 3]), "b");
    };
    check(twice, None, &[]);
    check(|params| params.subject_alt_names = vec![dns("a\0b"), dns("a b"), dns("a\nb"), dns("ok")], None, &["ok"]);
}

#[test]
fn names_are_bounded() {
    let many = made(|params| params.subject_alt_names = (0..1_000).map(|n| dns(&format!("n{n}"))).collect());
    assert_eq!(parse(&many).unwrap().names.alternative_names.len(), NAMES_MAX);
}

#[test]
fn validity_is_told_in_seconds_since_the_epoch() {
    for (from, until, expected) in [
        ((2020, 1, 1), (2030, 1, 1), (1_577_836_800, 1_893_456_000)),
        // From 2050 on times are written with four digits for the year.
        ((2049, 12, 31), (2050, 1, 1), (2_524_521_600, 2_524_608_000)),
        ((1965, 1, 1), (1970, 1, 2), (0, 86_400)),
    ] {
        let der = made(|params| {
            params.not_before = date_time_ymd(from.0, from.1, from.2);
            params.not_after = date_time_ymd(until.0, until.1, until.2);
        });
        let certificate = parse(&der).unwrap();
        assert_eq!((certificate.not_before, certificate.not_after), expected, "{from:?} {until:?}");
    }
}

/// A failing one prints its bytes.
#[test]
fn no_bytes_break_the_reader() {
    let der = made(|params| {
        params.distinguished_name.push(DnType::CommonName, "gate");
        params.subject_alt_names = vec![dns("a.example"), SanType::IpAddress("2001:db8::1".parse().unwrap())];
    });
    for end in 0..der.len() {
        assert!(parse(&der[..end]).is_err(), "cut at {end}");
    }
    assert!(parse(&[&der[..], b"\0"].concat()).is_err(), "bytes behind the end");
    let mut random = Random(number("TIDEGATE_SEED", 7));
    for _ in 0..number("TIDEGATE_STEPS", 100_000_u64) {
        let mut mangled = der.clone();
        for _ in 0..=random.below(3) {
            let at = random.index(mangled.len());
            mangled[at] = u8::try_from(random.below(256)).unwrap();
        }
        let read = std::panic::catch_unwind(|| parse(&mangled));
        assert!(read.is_ok(), "{mangled:02x?}");
    }
}
