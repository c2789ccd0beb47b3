//! JSON: flat objects in.
//!
//! Requests are small objects of scalars, and one of them has an object of scalars inside. They are
//! read without recursion into values that borrow from the body; what a value must be is the
//! caller's business, so that every refusal can name the field, the value and the bound.

use super::bounds::SHOWN_VALUE_MAX;
use super::problem::Problem;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use std::borrow::Cow;
use std::fmt;

pub(crate) use tidegate_wire::json::push_string;

/// Writes an array of texts.
pub(crate) fn push_list(body: &mut String, texts: impl Iterator<Item = impl AsRef<str>>) {
    body.push('[');
    for (index, text) in texts.enumerate() {
        if index > 0 {
            body.push(',');
        }
        push_string(body, text.as_ref());
    }
    body.push(']');
}

/// A member's value.
pub(crate) enum Value<'a> {
    Scalar(Scalar<'a>),
    /// An array's first elements, up to [`LIST_MAX`], and how many it has.
    List(Vec<Scalar<'a>>, usize),
    Members(Vec<(Cow<'a, str>, Scalar<'a>)>),
}

/// So many elements of an array are read; no array that means something has more.
pub(crate) const LIST_MAX: usize = 16;

/// A value without parts; parts of arrays and inner objects are skipped.
pub(crate) enum Scalar<'a> {
    Text(Cow<'a, str>),
    Whole(u64),
    Negative(i64),
    Fraction(f64),
    Truth(bool),
    Null,
    Array,
    Object,
}

impl Scalar<'_> {
    /// The value as it is shown in a refusal.
    pub(crate) fn shown(&self) -> String {
        match self {
            Scalar::Text(text) => shorten(text),
            Scalar::Whole(number) => number.to_string(),
            Scalar::Negative(number) => number.to_string(),
            Scalar::Fraction(number) if number.is_infinite() => "out of range".to_owned(),
            Scalar::Fraction(number) => number.to_string(),
            Scalar::Truth(truth) => truth.to_string(),
            Scalar::Null => "null".to_owned(),
            Scalar::Array => "an array".to_owned(),
            Scalar::Object => "an object".to_owned(),
        }
    }
}

impl<'a> Value<'a> {
    /// The value, if it has no parts.
    pub(crate) fn scalar(self) -> Scalar<'a> {
        match self {
            Value::Scalar(scalar) => scalar,
            Value::List(..) => Scalar::Array,
            Value::Members(_) => Scalar::Object,
        }
    }
}

/// Reads an object whose members are among `names`, each at most once, and hands each to `take`
/// with its name's index. The first refusal is returned, unless the text is no JSON at all.
pub(crate) fn read<'a>(
    body: &'a [u8],
    names: &[&'static str],
    mut take: impl FnMut(usize, Value<'a>) -> Result<(), Problem>,
) -> Result<(), Problem> {
    if body.is_empty() {
        return Err(Problem::new(400, "bad_json", "the body is empty; send a JSON object").field("body"));
    }
    let mut reading = None;
    let members = Members { names, take: &mut take, reading: &mut reading };
    // Checked as a whole, its texts need no check each. What is no UTF-8 may still be JSON where nobody looks at it.
    let outcome = match std::str::from_utf8(body) {
        Ok(body) => members.read(serde_json::Deserializer::from_str(body)),
        Err(_) => members.read(serde_json::Deserializer::from_slice(body)),
    };
    outcome.unwrap_or_else(|error| {
        // The parser stops at a number such as 1e400, which is JSON all the same: whose it is knows the bound.
        let beyond = error.to_string().starts_with("number out of range");
        if let Some(index) = reading.filter(|_| beyond) {
            take(index, Value::Scalar(Scalar::Fraction(f64::INFINITY)))?;
        }
        Err(broken(&error))
    })
}

fn broken(error: &serde_json::Error) -> Problem {
    let detail =
        format!("the body is not a JSON object: {error}; send one such as {{\"limiter\":\"api\",\"key\":\"u1\"}}");
    Problem::new(400, "bad_json", detail).field("body")
}

/// Reads an object with a list of objects, whose members are among `names`, and a truth value beside it. `take` gets each member
/// with the place of its object in the list and its name's index; more than `most` objects are too many.
pub(crate) fn read_list<'a>(
    body: &'a [u8],
    (list, truth): (&'static str, &'static str),
    names: &[&'static str],
    most: usize,
    mut take: impl FnMut(usize, usize, Value<'a>) -> Result<(), Problem>,
) -> Result<(usize, Option<Scalar<'a>>), Problem> {
    let mut reader = serde_json::Deserializer::from_slice(body);
    let mut outcome = Ok(());
    let whole = Whole { list, truth, names, most, take: &mut take, outcome: &mut outcome };
    let read = reader.deserialize_map(whole).and_then(|read| reader.end().map(|()| read));
    let read = read.map_err(|error| {
        let detail = format!(
            "the body is not a JSON object with a list: {error}; send one such as \
             {{\"{list}\":[{{\"limiter\":\"api\",\"key\":\"u1\"}}]}}"
        );
        Problem::new(400, "bad_json", detail).field("body")
    });
    let read = read?;
    outcome?;
    let missing = || {
        let detail =
            format!("the body has no \"{list}\"; send {{\"{list}\":[{{\"limiter\":\"api\",\"key\":\"u1\"}}]}}");
        Problem::new(400, "missing_field", detail).field(list)
    };
    let (count, truth) = read;
    Ok((count.ok_or_else(missing)?, truth))
}

/// The object around a list.
struct Whole<'n, F> {
    list: &'static str,
    truth: &'static str,
    names: &'n [&'static str],
    most: usize,
    take: &'n mut F,
    /// The first refusal; what comes after it is read all the same, as broken JSON is the graver fault.
    outcome: &'n mut Result<(), Problem>,
}

impl<'a, F: FnMut(usize, usize, Value<'a>) -> Result<(), Problem>> Visitor<'a> for Whole<'_, F> {
    /// How many objects the list has, and the truth value.
    type Value = (Option<usize>, Option<Scalar<'a>>);

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'a>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let (mut count, mut truth) = (None, None);
        let Whole { list, truth: truth_name, names, most, take, outcome } = self;
        while let Some(Name(name)) = map.next_key_seed(NameSeed)? {
            let refusal = if name == list && count.is_none() {
                count = Some(map.next_value_seed(List { names, most, take: &mut *take, outcome: &mut *outcome })?);
                continue;
            } else if name == truth_name && truth.is_none() {
                truth = Some(map.next_value_seed(ScalarSeed)?);
                continue;
            } else if name == list || name == truth_name {
                duplicate_field(&name)
            } else {
                unknown_field(&name, &[list, truth_name])
            };
            map.next_value::<IgnoredAny>()?;
            if outcome.is_ok() {
                *outcome = Err(refusal);
            }
        }
        Ok((count, truth))
    }
}

/// The list; how many objects it has.
struct List<'n, F> {
    names: &'n [&'static str],
    most: usize,
    take: &'n mut F,
    outcome: &'n mut Result<(), Problem>,
}

impl<'a, F: FnMut(usize, usize, Value<'a>) -> Result<(), Problem>> DeserializeSeed<'a> for List<'_, F> {
    type Value = usize;

    fn deserialize<D: Deserializer<'a>>(self, reader: D) -> Result<usize, D::Error> {
        reader.deserialize_seq(self)
    }
}

impl<'a, F: FnMut(usize, usize, Value<'a>) -> Result<(), Problem>> Visitor<'a> for List<'_, F> {
    type Value = usize;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of objects")
    }

    fn visit_seq<A: SeqAccess<'a>>(self, mut seq: A) -> Result<usize, A::Error> {
        let (mut place, most) = (0, self.most);
        loop {
            if place == most {
                // Skipped without being looked at, however many there are.
                if seq.next_element::<IgnoredAny>()?.is_none() {
                    return Ok(place);
                }
                while seq.next_element::<IgnoredAny>()?.is_some() {}
                return Ok(most + 1);
            }
            let take = &mut *self.take;
            let mut of_place = |index: usize, value: Value<'a>| take(place, index, value);
            let mut reading = None;
            let members = Members { names: self.names, take: &mut of_place, reading: &mut reading };
            match seq.next_element_seed(ObjectSeed(members))? {
                None => return Ok(place),
                Some(Err(problem)) if self.outcome.is_ok() => *self.outcome = Err(problem.within(place)),
                Some(_) => {}
            }
            place += 1;
        }
    }
}

/// One object of a list.
struct ObjectSeed<'n, F>(Members<'n, F>);

impl<'a, F: FnMut(usize, Value<'a>) -> Result<(), Problem>> DeserializeSeed<'a> for ObjectSeed<'_, F> {
    type Value = Result<(), Problem>;

    fn deserialize<D: Deserializer<'a>>(self, reader: D) -> Result<Self::Value, D::Error> {
        reader.deserialize_map(self.0)
    }
}

struct Members<'n, F> {
    names: &'n [&'static str],
    take: &'n mut F,
    /// The member whose value is being read, if it is one of ours.
    reading: &'n mut Option<usize>,
}

impl<'a, F: FnMut(usize, Value<'a>) -> Result<(), Problem>> Members<'_, F> {
    /// The members of the one object that there is to read.
    fn read<R: serde_json::de::Read<'a>>(
        self,
        mut reader: serde_json::Deserializer<R>,
    ) -> serde_json::Result<Result<(), Problem>> {
        let outcome = reader.deserialize_map(self)?;
        reader.end().map(|()| outcome)
    }
}

impl<'a, F: FnMut(usize, Value<'a>) -> Result<(), Problem>> Visitor<'a> for Members<'_, F> {
    type Value = Result<(), Problem>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    /// Goes on to the end after a refusal: broken JSON further on is the graver fault.
    fn visit_map<A: MapAccess<'a>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut outcome = Ok(());
        let mut seen = 0_u32;
        while let Some(Name(name)) = map.next_key_seed(NameSeed)? {
            *self.reading = self.names.iter().position(|known| *known == name);
            let value = map.next_value_seed(ValueSeed)?;
            if outcome.is_ok() {
                outcome = match *self.reading {
                    None => Err(unknown_field(&name, self.names)),
                    Some(index) if seen & 1 << index != 0 => Err(duplicate_field(self.names[index])),
                    Some(index) => {
                        seen |= 1 << index;
                        (self.take)(index, value)
                    }
                };
            }
        }
        Ok(outcome)
    }
}

fn unknown_field(name: &str, names: &[&'static str]) -> Problem {
    let detail = format!("there is no field \"{}\"; the fields are {}", shorten(name), names.join(", "));
    Problem::new(400, "unknown_field", detail).field(shorten(name))
}

pub(crate) fn duplicate_field(name: &str) -> Problem {
    let detail = format!("the field \"{}\" is there twice; send it once", shorten(name));
    Problem::new(400, "duplicate_field", detail).field(shorten(name))
}

struct Name<'a>(Cow<'a, str>);
struct NameSeed;

impl<'a> DeserializeSeed<'a> for NameSeed {
    type Value = Name<'a>;

    fn deserialize<D: Deserializer<'a>>(self, reader: D) -> Result<Name<'a>, D::Error> {
        reader.deserialize_str(self)
    }
}

impl<'a> Visitor<'a> for NameSeed {
    type Value = Name<'a>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_borrowed_str<E>(self, name: &'a str) -> Result<Name<'a>, E> {
        Ok(Name(Cow::Borrowed(name)))
    }

    fn visit_str<E>(self, name: &str) -> Result<Name<'a>, E> {
        Ok(Name(Cow::Owned(name.to_owned())))
    }
}

/// The visits that a [`Scalar`] and a [`Value`] share.
macro_rules! scalars {
    ($wrap:expr) => {
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a value")
        }

        fn visit_borrowed_str<E>(self, text: &'a str) -> Result<Self::Value, E> {
            Ok($wrap(Scalar::Text(Cow::Borrowed(text))))
        }

        fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
            Ok($wrap(Scalar::Text(Cow::Owned(text.to_owned()))))
        }

        fn visit_u64<E>(self, number: u64) -> Result<Self::Value, E> {
            Ok($wrap(Scalar::Whole(number)))
        }

        fn visit_i64<E>(self, number: i64) -> Result<Self::Value, E> {
            Ok($wrap(Scalar::Negative(number)))
        }

        fn visit_f64<E>(self, number: f64) -> Result<Self::Value, E> {
            Ok($wrap(Scalar::Fraction(number)))
        }

        fn visit_bool<E>(self, truth: bool) -> Result<Self::Value, E> {
            Ok($wrap(Scalar::Truth(truth)))
        }

        fn visit_unit<E>(self) -> Result<Self::Value, E> {
            Ok($wrap(Scalar::Null))
        }
    };
}

struct ScalarSeed;

impl<'a> DeserializeSeed<'a> for ScalarSeed {
    type Value = Scalar<'a>;

    fn deserialize<D: Deserializer<'a>>(self, reader: D) -> Result<Scalar<'a>, D::Error> {
        reader.deserialize_any(self)
    }
}

impl<'a> Visitor<'a> for ScalarSeed {
    type Value = Scalar<'a>;

    scalars!(std::convert::identity);

    fn visit_seq<A: SeqAccess<'a>>(self, mut seq: A) -> Result<Scalar<'a>, A::Error> {
        // `IgnoredAny` skips without recursion, however deep.
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Scalar::Array)
    }

    fn visit_map<A: MapAccess<'a>>(self, mut map: A) -> Result<Scalar<'a>, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Scalar::Object)
    }
}

struct ValueSeed;

impl<'a> DeserializeSeed<'a> for ValueSeed {
    type Value = Value<'a>;

    fn deserialize<D: Deserializer<'a>>(self, reader: D) -> Result<Value<'a>, D::Error> {
        reader.deserialize_any(self)
    }
}

impl<'a> Visitor<'a> for ValueSeed {
    type Value = Value<'a>;

    scalars!(Value::Scalar);

    fn visit_seq<A: SeqAccess<'a>>(self, mut seq: A) -> Result<Value<'a>, A::Error> {
        let mut list = Vec::new();
        while list.len() < LIST_MAX
            && let Some(element) = seq.next_element_seed(ScalarSeed)?
        {
            list.push(element);
        }
        let mut len = list.len();
        while seq.next_element::<IgnoredAny>()?.is_some() {
            len += 1;
        }
        Ok(Value::List(list, len))
    }

    fn visit_map<A: MapAccess<'a>>(self, mut map: A) -> Result<Value<'a>, A::Error> {
        let mut members = Vec::new();
        while let Some(Name(name)) = map.next_key_seed(NameSeed)? {
            members.push((name, map.next_value_seed(ScalarSeed)?));
        }
        Ok(Value::Members(members))
    }
}

/// The beginning of a text, with its length when it is longer.
pub(crate) fn shorten(text: &str) -> String {
    if text.len() <= SHOWN_VALUE_MAX {
        return text.to_owned();
    }
    let end = (0..=SHOWN_VALUE_MAX).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    format!("{}… ({} bytes)", &text[..end], text.len())
}
