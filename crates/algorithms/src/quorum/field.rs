//! Finite fields GF(q) for any prime power q.
//!
//! Let q = p^m. An element is a polynomial over GF(p) of degree below m, stored as a number in base p. The
//! code searches for a polynomial of degree m modulo which the powers of x are all q-1 elements other than
//! zero. Then every element but zero has an inverse, so the structure is a field. A product is a sum of
//! logarithms.

use alloc::vec;
use alloc::vec::Vec;

/// The finite field GF(q).
#[derive(Clone, Debug)]
pub(super) struct Field {
    order: u32,
    prime: u32,
    /// The powers of x: `powers[i]` is x^i, for i below q-1.
    powers: Vec<u32>,
    /// The logarithm of every element but zero.
    logs: Vec<u32>,
}

impl Field {
    /// Creates the field of that order. `None` if the order is not a prime power.
    pub(super) fn new(order: u32) -> Option<Self> {
        let (prime, degree) = prime_power(order)?;
        // x^m = `low`: tries every polynomial of degree below m, in order, until x generates all elements but
        // zero.
        (1..order).find_map(|low| Self::generated(order, prime, degree, low))
    }

    /// Returns q.
    pub(super) fn order(&self) -> u32 {
        self.order
    }

    /// Adds two elements: digit by digit, without carry.
    pub(super) fn add(&self, a: u32, b: u32) -> u32 {
        add(self.prime, a, b)
    }

    /// Multiplies two elements.
    pub(super) fn multiply(&self, a: u32, b: u32) -> u32 {
        if a == 0 || b == 0 {
            return 0;
        }
        let log = self.logs[a as usize] + self.logs[b as usize];
        self.powers[(log % (self.order - 1)) as usize]
    }

    fn generated(order: u32, prime: u32, degree: u32, low: u32) -> Option<Self> {
        let top = prime.pow(degree - 1);
        let mut field = Self { order, prime, powers: Vec::new(), logs: vec![0; order as usize] };
        let mut power = 1;
        for log in 0..order - 1 {
            if log > 0 && power == 1 || power == 0 {
                return None; // x has a smaller order, or is a zero divisor
            }
            field.logs[power as usize] = log;
            field.powers.push(power);
            // Multiplies by x: all digits move up by one place, and the digit beyond the top place is
            // replaced by multiples of x^m.
            let (fallen, rest) = (power / top, power % top);
            let shifted = if degree == 1 { 0 } else { rest * prime };
            power = (0..fallen).fold(shifted, |sum, _| add(prime, sum, low));
        }
        (power == 1).then_some(field)
    }
}

/// Returns p and m if the number is p^m with m at least 1.
pub(super) fn prime_power(number: u32) -> Option<(u32, u32)> {
    let prime = (2..=number).take_while(|d| d * d <= number).find(|d| number.is_multiple_of(*d));
    let prime = prime.or((number > 1).then_some(number))?;
    let (mut rest, mut exponent) = (number, 0);
    while rest.is_multiple_of(prime) {
        rest /= prime;
        exponent += 1;
    }
    (rest == 1).then_some((prime, exponent))
}

fn add(prime: u32, mut a: u32, mut b: u32) -> u32 {
    let (mut sum, mut place) = (0, 1);
    while a > 0 || b > 0 {
        sum += (a % prime + b % prime) % prime * place;
        place *= prime;
        a /= prime;
        b /= prime;
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prime_powers_are_recognised() {
        let found: Vec<u32> = (0..50).filter(|q| prime_power(*q).is_some()).collect();
        let expected = [2, 3, 4, 5, 7, 8, 9, 11, 13, 16, 17, 19, 23, 25, 27, 29, 31, 32, 37, 41, 43, 47, 49];
        assert_eq!(found, expected);
        assert_eq!(prime_power(81), Some((3, 4)));
    }

    #[test]
    fn the_axioms_of_a_field_hold() {
        for order in [2, 3, 4, 5, 8, 9, 16, 25, 27] {
            let field = Field::new(order).unwrap();
            let (add, mul) = (|a, b| field.add(a, b), |a, b| field.multiply(a, b));
            for a in 0..order {
                assert_eq!((add(a, 0), mul(a, 1), mul(a, 0)), (a, a, 0));
                assert_eq!((0..order).filter(|b| add(a, *b) == 0).count(), 1, "{a} has one negative");
                assert_eq!((0..order).filter(|b| mul(a, *b) == 1).count(), usize::from(a != 0));
                for b in 0..order {
                    assert_eq!((add(a, b), mul(a, b)), (add(b, a), mul(b, a)));
                    for c in 0..order {
                        assert_eq!(add(add(a, b), c), add(a, add(b, c)));
                        assert_eq!(mul(mul(a, b), c), mul(a, mul(b, c)));
                        assert_eq!(mul(a, add(b, c)), add(mul(a, b), mul(a, c)));
                    }
                }
            }
        }
    }

    #[test]
    fn four_is_not_arithmetic_modulo_four() {
        let field = Field::new(4).unwrap();
        assert_eq!((field.add(2, 2), field.multiply(2, 2)), (0, 3));
        assert!(Field::new(6).is_none());
    }
}
