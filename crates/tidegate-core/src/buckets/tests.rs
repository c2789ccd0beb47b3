//! What is written down, and what is held. The arithmetic is tested in `all_or_nothing`, by use.

use super::*;

#[test]
fn a_history_survives_being_written_down() {
    let grid = Grid::new(Micros::from_secs(1), Micros::from_secs(100)).unwrap();
    let mut state = State::default();
    let mut seed = 1_u64;
    for step in 0..2_000_u64 {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let now = Micros::from_secs(1_000 + step / 3);
        let at = now.saturating_sub(Micros::from_secs(seed >> 33 & 127));
        state.settle(&grid, Micros::from_secs(1), now);
        let _ = state.add(&grid, Micros::from_secs(1), now, at, (seed >> 50 & 7) as u32 + 1);
        assert!(state.blocks.len() <= 100 && state.blocks.is_sorted_by_key(|block| block.start));
        assert!(state.heap_bytes() <= 100 * 16, "{}", state.heap_bytes());
        let mut bytes = Vec::new();
        state.encode(&mut bytes);
        assert_eq!(State::decode(&bytes).as_ref(), Some(&state));
    }
    let mut bytes = Vec::new();
    state.encode(&mut bytes);
    assert_eq!(State::decode(&bytes[1..]), None);
    bytes.copy_within(12..24, 0);
    assert_eq!(State::decode(&bytes), None, "one start twice");
}

#[test]
fn a_busy_day_takes_the_memory_that_is_documented() {
    let (grid, hour) = (Grid::default(), Micros::from_secs(3_600));
    let mut state = State::default();
    for minute in 0..3 * 24 * 60 {
        let now = Micros::from_secs(minute * 60);
        state.settle(&grid, hour, now);
        assert!(state.add(&grid, hour, now, now, 1));
    }
    assert_eq!(state.blocks.len(), 144);
    assert_eq!(state.heap_bytes(), 144 * 16);
    state.settle(&grid, hour, Micros::from_secs(10 * 86_400));
    assert_eq!(state.heap_bytes(), 0);
}
