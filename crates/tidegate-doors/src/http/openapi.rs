//! `/openapi.json`: the door's own description. The text is a file beside this one; the tests hold
//! its paths against the routes, and its numbers against the bounds.

/// The text, with the version filled in.
pub(crate) fn text() -> String {
    include_str!("openapi.json").replace("{{version}}", env!("CARGO_PKG_VERSION"))
}

#[cfg(test)]
mod tests {
    use super::super::bounds::{
        ATTRIBUTES_MAX, BATCH_BODY_BYTES_MAX, BATCH_REQUESTS_MAX, BODY_BYTES_MAX, HEADER_BYTES_MAX, HEADER_FIELDS_MAX,
        PAGE_KEYS_MAX, TOGETHER_MAX,
    };
    use super::super::routes::ROUTES;
    use crate::access::Needs;
    use serde_json::Value;
    use std::collections::BTreeSet;

    fn document() -> Value {
        serde_json::from_str(&super::text()).unwrap()
    }

    #[test]
    fn every_route_is_described_and_nothing_else() {
        let described: BTreeSet<(String, String)> = document()["paths"]
            .as_object()
            .unwrap()
            .iter()
            .flat_map(|(path, item)| {
                let methods = item.as_object().unwrap().keys().filter(|name| *name != "parameters");
                methods.map(|method| (method.to_uppercase(), path.clone())).collect::<Vec<_>>()
            })
            .collect();
        let served: BTreeSet<(String, String)> =
            ROUTES.iter().map(|route| (route.method.to_owned(), route.template.to_owned())).collect();
        assert_eq!(described, served);
    }

    #[test]
    fn s2_every_route_with_a_rule_says_that_it_may_refuse() {
        let document = document();
        for route in &ROUTES {
            let responses = &document["paths"][route.template][route.method.to_lowercase()]["responses"];
            let is_public = route.needs == Needs::Nothing;
            for status in ["401", "403"] {
                assert_eq!(responses.get(status).is_none(), is_public, "{} {}", route.method, route.template);
            }
        }
    }

    #[test]
    fn s5_every_operation_names_the_scope_that_it_needs() {
        let document = document();
        for route in &ROUTES {
            let security = &document["paths"][route.template][route.method.to_lowercase()]["security"];
            let expected = match route.needs {
                Needs::Nothing => serde_json::json!([]),
                Needs::Session => serde_json::json!([{ "token": [] }]),
                Needs::Scope(scope) => serde_json::json!([{ "token": [scope.name()] }]),
            };
            assert_eq!(*security, expected, "{} {}", route.method, route.template);
        }
    }

    #[test]
    fn every_reference_leads_somewhere() {
        let document = document();
        let mut open = vec![&document];
        let mut references = 0;
        while let Some(value) = open.pop() {
            match value {
                Value::Object(members) => {
                    if let Some(target) = members.get("$ref").and_then(Value::as_str) {
                        references += 1;
                        assert!(document.pointer(target.trim_start_matches('#')).is_some(), "{target}");
                    }
                    open.extend(members.values());
                }
                Value::Array(items) => open.extend(items),
                _ => {}
            }
        }
        assert!(references > 20);
    }

    #[test]
    fn s1_the_bounds_are_the_real_ones() {
        let document = document();
        let number =
            |pointer: &str| document.pointer(pointer).and_then(Value::as_u64).unwrap_or_else(|| panic!("{pointer}"));
        assert_eq!(number("/components/schemas/Hit/properties/key/maxLength"), tidegate::KEY_LEN_MAX as u64);
        assert_eq!(number("/components/schemas/Hit/properties/cost/maximum"), u64::from(u32::MAX));
        assert_eq!(number("/components/schemas/Hit/properties/attributes/maxProperties"), ATTRIBUTES_MAX as u64);
        assert_eq!(number("/components/parameters/most/schema/maximum"), PAGE_KEYS_MAX as u64);
        assert_eq!(number("/components/schemas/Hits/properties/requests/maxItems"), BATCH_REQUESTS_MAX as u64);
        let hits = document["paths"]["/v1/hits"]["post"]["description"].as_str().unwrap();
        for bound in [BATCH_BODY_BYTES_MAX, TOGETHER_MAX] {
            assert!(hits.contains(&bound.to_string()), "{bound} is not in the description of /v1/hits");
        }
        let about = document["info"]["description"].as_str().unwrap();
        for bound in [BODY_BYTES_MAX, HEADER_BYTES_MAX, HEADER_FIELDS_MAX] {
            assert!(about.contains(&bound.to_string()), "{bound} is not in the description");
        }
    }
}
