//! `dynamic_metadata`: the request, and the words of the limiters that let it pass, in the shape that envoyproxy/ratelimit gives them.

use serde_json::Value as Json;
use std::collections::BTreeMap;
use tidegate::Answer;
use tidegate_wire::grpc::ratelimit::{
    Entry, Kind, ListValue, RateLimitDescriptor, RateLimitOverride, RateLimitRequest, Struct, Unit, Value,
};

/// `domain`, `descriptors`, `hitsAddend` where the request has one, and `metadata` where a descriptor that passes has some.
pub(super) fn of(request: &RateLimitRequest, answers: &[Answer]) -> Struct {
    let mut fields = vec![
        ("domain", text(request.domain.clone())),
        ("descriptors", list(request.descriptors.iter().map(descriptor))),
    ];
    if request.hits_addend != 0 {
        fields.push(("hitsAddend", Kind::Number(f64::from(request.hits_addend)).into()));
    }
    let words = words(answers);
    if !words.fields.is_empty() {
        fields.push(("metadata", Kind::Object(words).into()));
    }
    object(fields)
}

fn descriptor(descriptor: &RateLimitDescriptor) -> Value {
    let entry = |entry: &Entry| text(format!("{}={}", entry.key, String::from_utf8_lossy(&entry.value)));
    let mut fields = vec![("entries", list(descriptor.entries.iter().map(entry)))];
    if let Some(limit) = &descriptor.limit {
        fields.push(("limit", text(shown(limit))));
    }
    if let Some(hits) = descriptor.hits_addend {
        #[expect(clippy::cast_precision_loss, reason = "numbers of JSON are floats")]
        fields.push(("hitsAddend", Kind::Number(hits as f64).into()));
    }
    Kind::Object(object(fields)).into()
}

/// A limit as protobuf writes messages for people.
fn shown(limit: &RateLimitOverride) -> String {
    let unit = Unit::try_from(limit.unit).unwrap_or(Unit::Unknown);
    let mut shown =
        format!("requests_per_unit:{} unit:{}", limit.requests_per_unit, format!("{unit:?}").to_uppercase());
    if let Some(times) = limit.unit_multiplier {
        shown += &format!(" unit_multiplier:{{value:{times}}}");
    }
    shown
}

/// The words of all limiters that let a descriptor pass, as one object. Of two for one name the first descriptor's stay, unless both are objects, which are merged.
fn words(answers: &[Answer]) -> Struct {
    let mut all = Struct::default();
    let passed = answers.iter().filter(|answer| answer.allowed && answer.limit.is_some());
    for text in passed.filter_map(|answer| answer.limiter.as_ref()?.metadata.as_deref()) {
        if let Ok(Json::Object(members)) = serde_json::from_str(text) {
            merge(&mut all, object(members.into_iter().map(|(name, value)| (name, of_json(value)))));
        }
    }
    all
}

/// As deep as JSON is read, 128 levels.
fn merge(all: &mut Struct, more: Struct) {
    for (name, value) in more.fields {
        match (all.fields.get_mut(&name).map(|known| &mut known.kind), value.kind) {
            (None, kind) => _ = all.fields.insert(name, Value { kind }),
            (Some(Some(Kind::Object(known))), Some(Kind::Object(more))) => merge(known, more),
            (Some(_), _) => {}
        }
    }
}

fn of_json(value: Json) -> Value {
    match value {
        Json::Null => Kind::Null(0).into(),
        Json::Bool(is) => Kind::Bool(is).into(),
        Json::Number(number) => Kind::Number(number.as_f64().unwrap_or(0.0)).into(),
        Json::String(words) => text(words),
        Json::Array(values) => list(values.into_iter().map(of_json)),
        Json::Object(members) => {
            Kind::Object(object(members.into_iter().map(|(name, value)| (name, of_json(value))))).into()
        }
    }
}

fn text(text: String) -> Value {
    Kind::Text(text).into()
}

fn list(values: impl Iterator<Item = Value>) -> Value {
    Kind::List(ListValue { values: values.collect() }).into()
}

fn object(fields: impl IntoIterator<Item = (impl Into<String>, Value)>) -> Struct {
    Struct { fields: fields.into_iter().map(|(name, value)| (name.into(), value)).collect::<BTreeMap<_, _>>() }
}
