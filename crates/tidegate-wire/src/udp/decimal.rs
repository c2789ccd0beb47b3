//! Numbers as decimal text, without allocation and without the formatting machinery, which would be
//! a good part of a reply's cost.

/// Most digits of a whole number.
pub(super) const DIGITS_MAX: usize = 20;
/// Most bytes of a rate: 2^64 in digits, a point and a tenth.
pub(super) const TENTHS_MAX: usize = DIGITS_MAX + 2;
/// Rates are shown up to this; more is shown as this.
pub(super) const RATE_MAX: f64 = 1e18;

/// The digits of a number, at the end of the buffer.
pub(super) fn whole(mut number: u64, buffer: &mut [u8; DIGITS_MAX]) -> &[u8] {
    let mut at = DIGITS_MAX;
    loop {
        at -= 1;
        buffer[at] = digit(number % 10);
        number /= 10;
        if number == 0 {
            return &buffer[at..];
        }
    }
}

/// A rate with one decimal, rounded as C's `%.1f` does: the exact binary value, ties to even.
pub(super) fn tenths(rate: f64, buffer: &mut [u8; TENTHS_MAX]) -> &[u8] {
    let tenths = rounded_tenths(rate.clamp(0.0, RATE_MAX));
    buffer[TENTHS_MAX - 2] = b'.';
    buffer[TENTHS_MAX - 1] = digit(tenths % 10);
    let mut digits = [0; DIGITS_MAX];
    let whole = whole(tenths / 10, &mut digits);
    let start = TENTHS_MAX - 2 - whole.len();
    buffer[start..TENTHS_MAX - 2].copy_from_slice(whole);
    &buffer[start..]
}

/// Ten times the rate as a whole number. A float is a whole number times a power of two, so this
/// is a shift of an exact product.
fn rounded_tenths(rate: f64) -> u64 {
    const MANTISSA_BITS: u32 = 52;
    let bits = rate.to_bits();
    let exponent = (bits >> MANTISSA_BITS) & 0x7FF;
    let mantissa = bits & ((1 << MANTISSA_BITS) - 1);
    if exponent < 1_023 - 8 || rate.is_nan() {
        // Below 2^-8, zero included.
        return 0;
    }
    let ten_times = u128::from(mantissa | 1 << MANTISSA_BITS) * 10;
    // The rate is `mantissa × 2^(exponent - 1075)`; up to 10^18 the exponent is below 1083.
    let Ok(down) = u32::try_from(1_075_i64 - i64::try_from(exponent).unwrap_or(0)) else {
        let up = u32::try_from(exponent - 1_075).unwrap_or(0);
        return u64::try_from(ten_times << up.min(64)).unwrap_or(u64::MAX);
    };
    let (floor, rest) = (ten_times >> down, ten_times & ((1 << down) - 1));
    let half = if down == 0 { 1 } else { 1_u128 << (down - 1) };
    let up = rest > half || (rest == half && floor % 2 == 1);
    u64::try_from(floor + u128::from(up)).unwrap_or(u64::MAX)
}

fn digit(value: u64) -> u8 {
    b'0' + u8::try_from(value % 10).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_the_formatting_machinerys() {
        for number in [0, 9, 10, 12_345, u64::MAX] {
            assert_eq!(whole(number, &mut [0; DIGITS_MAX]), number.to_string().as_bytes());
        }
        let edges = [0.0, 0.04999999, 0.05, 0.25, 0.35, 0.75, 0.95, 1.0, 21.95, 2034.25, 9.96, 1e15, 1e18, 4.5e17];
        let mut seed = 1_u64;
        let random = std::iter::repeat_with(|| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            // Quarters and eighths are the ties; the rest are anything up to a million.
            let number = f64::from(u32::try_from(seed >> 33).unwrap());
            if seed.is_multiple_of(2) { number / 8.0 } else { number / 2_147.483_647 * 1.000_001 }
        });
        for rate in edges.into_iter().chain(random.take(200_000)) {
            let text = String::from_utf8(tenths(rate, &mut [0; TENTHS_MAX]).to_vec()).unwrap();
            assert_eq!(text, format!("{rate:.1}"));
        }
        for odd in [f64::NAN, -1.0, -0.0, f64::MIN_POSITIVE] {
            assert_eq!(tenths(odd, &mut [0; TENTHS_MAX]), b"0.0");
        }
        assert_eq!(tenths(f64::INFINITY, &mut [0; TENTHS_MAX]), b"1000000000000000000.0");
    }
}
