//! A list of numbers that takes one byte each while all of them are small, then two, then four.

/// The list. A number that does not fit widens the whole list.
#[derive(Debug)]
pub(crate) enum Column {
    Bytes(Vec<u8>),
    Halves(Vec<u16>),
    Words(Vec<u32>),
}

impl Default for Column {
    fn default() -> Self {
        Self::Bytes(Vec::new())
    }
}

impl Column {
    #[inline]
    pub(crate) fn get(&self, index: usize) -> u32 {
        match self {
            Self::Bytes(list) => u32::from(list[index]),
            Self::Halves(list) => u32::from(list[index]),
            Self::Words(list) => list[index],
        }
    }

    #[inline]
    pub(crate) fn push(&mut self, number: u32) {
        match self {
            Self::Bytes(list) if number <= u32::from(u8::MAX) => list.push(number as u8),
            Self::Halves(list) if number <= u32::from(u16::MAX) => list.push(number as u16),
            Self::Words(list) => list.push(number),
            Self::Bytes(_) | Self::Halves(_) => self.widen(number),
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Bytes(list) => size_of_val(&list[..]),
            Self::Halves(list) => size_of_val(&list[..]),
            Self::Words(list) => size_of_val(&list[..]),
        }
    }

    #[cold]
    fn widen(&mut self, number: u32) {
        *self = match std::mem::take(self) {
            Self::Bytes(list) => Self::Halves(list.into_iter().map(u16::from).collect()),
            Self::Halves(list) => Self::Words(list.into_iter().map(u32::from).collect()),
            words @ Self::Words(_) => words,
        };
        self.push(number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stay_as_they_are_while_the_list_is_widened() {
        let numbers = [0, 255, 7, 256, 65_535, 1, 65_536, u32::MAX, 3];
        let mut column = Column::default();
        let mut sizes = Vec::new();
        for number in numbers {
            column.push(number);
            sizes.push(column.bytes());
        }
        assert_eq!((0..numbers.len()).map(|index| column.get(index)).collect::<Vec<_>>(), numbers);
        assert_eq!(sizes, [1, 2, 3, 8, 10, 12, 28, 32, 36]);
    }
}
