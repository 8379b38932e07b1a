//! The decision whether a caller writes its requests itself or leaves them to the task.
//!
//! **Intuition.** Programs repeat themselves. A program that sent three requests at once will probably send
//! three again. So the caller writes when a burst is as large as the last one. Another request is then
//! unlikely, and waking the task costs time.
//!
//! **Rules.** A *burst* begins with a request while all earlier ones have their answers. It contains all
//! requests until that is so again. A caller writes a burst that reaches the size of the last one. The task
//! writes a smaller burst, and the rest of a larger one.

/// The sizes of the present burst and of the last one.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct WritePolicy {
    burst: usize,
    last_burst: usize,
}

impl WritePolicy {
    /// Counts a submitted request. `begins_burst` is true if no other request is without an answer.
    pub(super) fn on_submitted(&mut self, begins_burst: bool) {
        if begins_burst {
            self.last_burst = std::mem::take(&mut self.burst);
        }
        self.burst += 1;
    }

    /// Returns whether the caller should write now.
    pub(super) fn caller_should_write(self) -> bool {
        self.burst == self.last_burst
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the sizes of the writes that the caller makes in a burst of `size` requests.
    fn writes(policy: &mut WritePolicy, size: usize) -> Vec<usize> {
        let mut queued = 0;
        let submit = |at| {
            policy.on_submitted(at == 0);
            queued += 1;
            policy.caller_should_write().then(|| std::mem::take(&mut queued))
        };
        (0..size).filter_map(submit).collect()
    }

    #[test]
    fn the_first_burst_is_left_to_the_task() {
        assert_eq!(writes(&mut WritePolicy::default(), 5), [0; 0]);
    }

    #[test]
    fn a_burst_as_large_as_the_last_one_is_one_write() {
        let mut policy = WritePolicy::default();
        for size in [1, 2, 15, 64] {
            writes(&mut policy, size);
            assert_eq!(writes(&mut policy, size), [size]);
        }
    }

    #[test]
    fn a_smaller_burst_is_left_to_the_task_and_so_is_the_end_of_a_larger_one() {
        let mut policy = WritePolicy::default();
        writes(&mut policy, 5);
        assert_eq!(writes(&mut policy, 3), [0; 0]);
        assert_eq!(writes(&mut policy, 7), [3]);
    }
}
