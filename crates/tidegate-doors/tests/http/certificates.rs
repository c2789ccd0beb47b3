//! The table of routes and callers once more, for callers that are known by their certificate (mTLS).

use crate::access::{MINE, OTHERS, ROWS, Who, check_row, grant, with_streams};
use crate::server::Response;
use crate::state::{changed, filled, state};
use crate::tls::{ask, client, connect, pki};
use std::sync::Arc;
use tidegate_doors::access::{Access, Certificate, CertificatePattern, Rules, Scope, Tokens};
use tidegate_doors::http::HttpSettings;
use tidegate_testkit::certificates::{certify, write_ca};

/// The subject of the certificate that such a caller shows; `None`: it is a caller with a token.
fn subject(who: Who) -> Option<String> {
    match who {
        // Of the authority that is trusted, and in no entry of the file.
        Who::NoToken => Some("nobody".to_owned()),
        Who::Wrong(_) | Who::Expired => None,
        Who::Scope(scope) => Some(scope.name().to_owned()),
        Who::Narrowed(scope) => Some(format!("narrowed-{}", scope.name())),
        Who::Elsewhere(scope) => Some(format!("elsewhere-{}", scope.name())),
    }
}

fn rules() -> Rules {
    let certificate = |name: String, scopes: &[Scope], narrow| Certificate {
        of: CertificatePattern::Subject(name.parse().unwrap()),
        name,
        grant: grant(scopes, narrow),
    };
    let mut certificates = vec![certificate("all".to_owned(), &Scope::ALL, None)];
    for scope in Scope::ALL {
        let name = scope.name();
        certificates.push(certificate(name.to_owned(), &[scope], None));
        certificates.push(certificate(format!("narrowed-{name}"), &[scope], Some(MINE)));
        certificates.push(certificate(format!("elsewhere-{name}"), &[scope], Some(OTHERS)));
    }
    Rules { tokens: Some(Tokens::new(Vec::new(), certificates).unwrap()), ..Rules::default() }
}

#[test]
fn s5_every_route_refuses_the_certificates_that_it_should_and_a_refusal_changes_nothing() {
    let mut pki = pki();
    let folder = pki.folder.path("");
    pki.files.client_ca = Some(write_ca(&folder, "ca.pem", &pki.authority));
    let access = Arc::new(Access::new(rules()));
    let server = with_streams(HttpSettings { access, tls: Some(pki.tls()), ..HttpSettings::default() });
    let configured = |name: &str| {
        let own = certify(&folder, name, &pki.authority, "client", 2099);
        client(&pki.authority, rustls::ALL_VERSIONS, Some(&own))
    };
    let callers: Vec<_> = Who::all().into_iter().filter_map(|who| Some((who, configured(&subject(who)?)))).collect();
    let mut operator = connect(server.address, &configured("all"), "localhost").unwrap();
    let mut number = 0;
    for (row, needs, success, about) in ROWS {
        for (who, config) in &callers {
            number += 1;
            let mut by_operator = |request: &str| ask(&mut operator, request).unwrap().body;
            let request = filled(row, number, &mut by_operator);
            let before = (who.expected(needs, about) != 200).then(|| state(&mut by_operator));
            // Feeds do not end: each has a connection of its own.
            let response: Response = ask(&mut connect(server.address, config, "localhost").unwrap(), &request).unwrap();
            check_row(&request, *who, (needs, success, about), &response);
            if let Some(before) = before {
                let changed = changed(&before, state(&mut by_operator));
                assert!(changed.is_empty(), "{request} by {who:?} was refused, and changed {changed:#?}");
            }
        }
    }
}
