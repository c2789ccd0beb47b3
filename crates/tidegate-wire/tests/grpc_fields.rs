//! The messages' fields against the numbers in `proto/`, which were written down from the services' own definitions.
//!
//! A message is written by the definition with a value in every field, read and written again by our types, and must come back whole. Each
//! text has its field's name and each number its field's, so that two fields of one type which are swapped are seen as well.
#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

use prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage, FieldDescriptor, Kind, MapKey, MessageDescriptor, Value};
use std::collections::HashMap;
use std::fmt::Debug;
use tidegate_wire::grpc::{health, ratelimit};

fn pool() -> DescriptorPool {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/proto");
    let files = protox::compile(["health.proto", "ratelimit.proto"], [folder]).unwrap();
    DescriptorPool::from_file_descriptor_set(files).unwrap()
}

/// Most messages inside of one another: JSON's objects have no bottom.
const DEPTH_MAX: u32 = 5;

fn filled(of: &MessageDescriptor, depth: u32) -> DynamicMessage {
    let mut message = DynamicMessage::new(of.clone());
    for field in of.fields() {
        if let Some(value) = value(&field, depth) {
            message.set_field(&field, value);
        }
    }
    message
}

fn value(field: &FieldDescriptor, depth: u32) -> Option<Value> {
    if field.is_map() {
        let entry = field.kind().as_message()?.map_entry_value_field();
        return Some(Value::Map(HashMap::from([(MapKey::String("name".to_owned()), single(&entry, depth)?)])));
    }
    let one = single(field, depth)?;
    Some(if field.is_list() { Value::List(vec![one.clone(), one]) } else { one })
}

fn single(field: &FieldDescriptor, depth: u32) -> Option<Value> {
    let number = 10 * depth + field.number();
    Some(match field.kind() {
        Kind::String => Value::String(field.name().to_owned()),
        Kind::Bytes => Value::Bytes(field.name().to_owned().into()),
        Kind::Bool => Value::Bool(true),
        Kind::Uint32 => Value::U32(number),
        Kind::Uint64 => Value::U64(number.into()),
        Kind::Int64 => Value::I64(number.into()),
        Kind::Double => Value::F64(number.into()),
        Kind::Enum(of) => Value::EnumNumber(of.values().last()?.number()),
        Kind::Message(of) if depth < DEPTH_MAX => Value::Message(filled(&of, depth + 1)),
        _ => return None,
    })
}

/// `names`: how our type tells some of its fields.
#[track_caller]
fn check<M: Message + Default + Debug>(name: &str, names: &[&str]) {
    let of = pool().get_message_by_name(name).unwrap();
    let by_definition = filled(&of, 0);
    let bytes = by_definition.encode_to_vec();
    let ours = M::decode(&bytes[..]).unwrap();
    let told = format!("{ours:?}");
    names.iter().for_each(|field| assert!(told.contains(field), "{name}: no {field} in {told}"));
    let again = DynamicMessage::decode(of, &ours.encode_to_vec()[..]).unwrap();
    assert_eq!(again, by_definition, "{name} lost something: {told}");
}

#[test]
fn fields_have_the_numbers_of_their_definitions() {
    check::<health::HealthCheckRequest>("grpc.health.v1.HealthCheckRequest", &["service: \"service\""]);
    check::<health::HealthCheckResponse>("grpc.health.v1.HealthCheckResponse", &["status: ServiceUnknown"]);
    check::<ratelimit::RateLimitRequest>(
        "tidegate.ratelimit.RateLimitRequest",
        &[
            "domain: \"domain\"",
            "hits_addend: 3",
            "key: \"key\", value: b\"value\"",
            "requests_per_unit: 21, unit: Week, unit_multiplier: Some(31)",
            "hits_addend: Some(21), is_negative_hits: true",
        ],
    );
    check::<ratelimit::RateLimitResponse>(
        "tidegate.ratelimit.RateLimitResponse",
        &[
            "overall_code: OverLimit",
            "requests_per_unit: 21, unit: Week, name: \"name\", unit_multiplier: Some(31)",
            "limit_remaining: 13, duration_until_reset: Some(Duration { seconds: 21 })",
            "key: \"key\", value: \"value\"",
        ],
    );
}

#[test]
fn names_of_codes_and_units_have_the_numbers_of_their_definitions() {
    let pool = pool();
    let numbers = |name: &str| {
        let of = pool.get_enum_by_name(name).unwrap();
        let mut all: Vec<(String, i32)> = of.values().map(|v| (v.name().replace('_', ""), v.number())).collect();
        all.sort_by_key(|(_, number)| *number);
        all
    };
    let ours = |tell: &dyn Fn(i32) -> Option<String>| -> Vec<(String, i32)> {
        (0..20).filter_map(|n| Some((tell(n)?.to_uppercase(), n))).collect()
    };
    let units = ours(&|n| ratelimit::Unit::try_from(n).ok().map(|unit| format!("{unit:?}")));
    assert_eq!(units, numbers("tidegate.ratelimit.Unit"));
    let serving = ours(&|n| health::ServingStatus::try_from(n).ok().map(|status| format!("{status:?}")));
    assert_eq!(serving, numbers("grpc.health.v1.ServingStatus"));
}
