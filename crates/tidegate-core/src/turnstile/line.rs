//! Lines of waiting requests: doubly linked lists through the elements of one vector.
//!
//! An element that leaves is taken out of the middle at once, in constant time; nothing stale stays behind. The
//! elements live in a vector that belongs to the caller, so that one vector can hold many lines.
//! Invariant: an element stands in at most one line of its kind at a time.

/// No element.
pub(super) const NONE: u32 = u32::MAX;

/// An element's neighbours.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Links {
    before: u32,
    after: u32,
}

impl Links {
    pub(super) const ALONE: Links = Links { before: NONE, after: NONE };
}

/// What can stand in a line.
pub(super) trait Linked {
    fn links(&mut self) -> &mut Links;
}

/// One line: its two ends, and how many stand in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Line {
    first: u32,
    last: u32,
    len: u32,
}

impl Line {
    pub(super) const EMPTY: Line = Line { first: NONE, last: NONE, len: 0 };

    pub(super) const fn is_empty(&self) -> bool {
        self.first == NONE
    }

    pub(super) const fn len(&self) -> u32 {
        self.len
    }

    /// The first element, if there is one.
    pub(super) const fn first(&self) -> Option<u32> {
        if self.first == NONE { None } else { Some(self.first) }
    }

    pub(super) fn push_back<T: Linked>(&mut self, all: &mut [T], element: u32) {
        *all[at(element)].links() = Links { before: self.last, after: NONE };
        match self.last {
            NONE => self.first = element,
            last => all[at(last)].links().after = element,
        }
        self.last = element;
        self.len += 1;
    }

    pub(super) fn pop_front<T: Linked>(&mut self, all: &mut [T]) -> Option<u32> {
        let first = self.first()?;
        self.remove(all, first);
        Some(first)
    }

    /// Takes one out, wherever it stands.
    pub(super) fn remove<T: Linked>(&mut self, all: &mut [T], element: u32) {
        let Links { before, after } = std::mem::replace(all[at(element)].links(), Links::ALONE);
        match before {
            NONE => self.first = after,
            before => all[at(before)].links().after = after,
        }
        match after {
            NONE => self.last = before,
            after => all[at(after)].links().before = before,
        }
        self.len -= 1;
    }

    /// All elements, from the first on.
    pub(super) fn next_of<T: Linked>(&self, all: &mut [T], element: Option<u32>) -> Option<u32> {
        let next = element.map_or(self.first, |element| all[at(element)].links().after);
        (next != NONE).then_some(next)
    }

    /// Puts one in front of the first that `stands_behind` says yes to, or last.
    pub(super) fn insert_before<T: Linked>(&mut self, all: &mut [T], element: u32, stands_behind: impl Fn(&T) -> bool) {
        let mut after = self.first;
        while after != NONE && !stands_behind(&all[at(after)]) {
            after = all[at(after)].links().after;
        }
        if after == NONE {
            return self.push_back(all, element);
        }
        let before = all[at(after)].links().before;
        all[at(after)].links().before = element;
        *all[at(element)].links() = Links { before, after };
        match before {
            NONE => self.first = element,
            before => all[at(before)].links().after = element,
        }
        self.len += 1;
    }
}

/// A number as an index; what we number is far below 2^32.
pub(super) const fn at(number: u32) -> usize {
    number as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Person(Links);

    impl Linked for Person {
        fn links(&mut self) -> &mut Links {
            &mut self.0
        }
    }

    /// `+3` joins, `-3` leaves, `!3` goes in front of the first with a higher number, `.` is the next one's turn.
    #[track_caller]
    fn check(steps: &str, turns: &[u32], left: &[u32]) {
        let mut all: Vec<Person> = (0..10).map(|_| Person(Links::ALONE)).collect();
        let (mut line, mut went) = (Line::EMPTY, Vec::new());
        for step in steps.split_whitespace() {
            let element = step[1..].parse().unwrap_or(NONE);
            match &step[..1] {
                "+" => line.push_back(&mut all, element),
                "-" => line.remove(&mut all, element),
                "!" => line.insert_before(&mut all, element, |_| true),
                _ => went.extend(line.pop_front(&mut all)),
            }
        }
        assert_eq!(line.len() as usize, left.len(), "{steps}");
        let rest: Vec<u32> = std::iter::from_fn(|| line.pop_front(&mut all)).collect();
        assert_eq!((went.as_slice(), rest.as_slice()), (turns, left), "{steps}");
        assert_eq!(line, Line::EMPTY, "{steps}");
    }

    #[test]
    fn first_come_first_served_and_leaving_from_anywhere() {
        check("", &[], &[]);
        check(".", &[], &[]);
        check("+1 +2 +3 . .", &[1, 2], &[3]);
        check("+1 +2 +3 -2 .", &[1], &[3]);
        check("+1 +2 +3 -1 -3", &[], &[2]);
        check("+1 -1 +1 .", &[1], &[]);
        check("+1 +2 !3 .", &[3], &[1, 2]);
        check("!3 +4 .", &[3], &[4]);
    }
}
