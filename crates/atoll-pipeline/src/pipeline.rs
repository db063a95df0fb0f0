//! Items in order, from their admission to their results: those that wait to be sent, then the groups in flight.
//!
//! The order never changes. If the outcome of a group is in doubt, its items go back to the front, in their old order, and are sent again
//! as they are; the names that they carry let the receiver recognise a second copy (contracts X15).

use std::collections::VecDeque;
use std::task::{Context, Poll, ready};

/// What happens to the first waiting item when a group is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// It joins the group.
    Take,
    /// It leaves the pipeline without being sent.
    Drop,
    /// It stays, and the group ends before it.
    Stop,
}

/// See the module documentation. `T` is an item, `F` a group in flight. A group that may have to be sent again holds its items.
#[derive(Debug)]
pub struct Pipeline<T, F> {
    waiting: VecDeque<T>,
    flights: VecDeque<F>,
}

impl<T, F> Default for Pipeline<T, F> {
    fn default() -> Self {
        Pipeline { waiting: VecDeque::new(), flights: VecDeque::new() }
    }
}

impl<T, F> Pipeline<T, F> {
    /// Returns whether nothing waits and nothing is in flight.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.flights.is_empty()
    }

    /// The waiting items, the oldest first.
    pub fn waiting(&self) -> &VecDeque<T> {
        &self.waiting
    }

    /// The same, to be changed or removed. Whoever adds an item must add it where its order demands.
    pub fn waiting_mut(&mut self) -> &mut VecDeque<T> {
        &mut self.waiting
    }

    /// The groups in flight, the oldest first.
    pub fn flights(&self) -> &VecDeque<F> {
        &self.flights
    }

    /// The same, to be changed or removed.
    pub fn flights_mut(&mut self) -> &mut VecDeque<F> {
        &mut self.flights
    }

    /// Adds an item at the end.
    pub fn push(&mut self, item: T) {
        self.waiting.push_back(item);
    }

    /// Removes a group from the front. `judge` decides about each item, and sees the group that has been cut so far. `drop` gets the items
    /// that leave.
    pub fn cut(&mut self, mut judge: impl FnMut(&T, &[T]) -> Cut, mut drop: impl FnMut(T)) -> Vec<T> {
        let mut group = Vec::new();
        while let Some(first) = self.waiting.front() {
            match judge(first, &group) {
                Cut::Take => group.extend(self.waiting.pop_front()),
                Cut::Drop => self.waiting.pop_front().into_iter().for_each(&mut drop),
                Cut::Stop => break,
            }
        }
        group
    }

    /// Records that a group was sent, after all others.
    pub fn sent(&mut self, flight: F) {
        self.flights.push_back(flight);
    }

    /// Removes the oldest group in flight, which has its result.
    pub fn land(&mut self) -> Option<F> {
        self.flights.pop_front()
    }

    /// Polls the oldest group in flight with `poll`, and removes it once it has its result. Ready with None if nothing is in flight.
    /// Results are therefore returned in the order of the groups.
    pub fn poll_first<R>(
        &mut self,
        cx: &mut Context<'_>,
        poll: impl FnOnce(&mut F, &mut Context<'_>) -> Poll<R>,
    ) -> Poll<Option<(F, R)>> {
        let Some(first) = self.flights.front_mut() else { return Poll::Ready(None) };
        let result = ready!(poll(first, cx));
        Poll::Ready(self.flights.pop_front().map(|flight| (flight, result)))
    }

    /// Ends all flights: what `unsettled` returns of each goes back to the front of the waiting items, in the old order.
    pub fn take_back<I: IntoIterator<Item = T>>(&mut self, unsettled: impl FnMut(F) -> I) {
        if self.flights.is_empty() {
            return;
        }
        let mut all: VecDeque<T> = self.flights.drain(..).flat_map(unsettled).collect();
        all.append(&mut self.waiting);
        self.waiting = all;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::Waker;

    /// Returns a pipeline with the items 1 to 9: two groups of three in flight, and three items that wait.
    fn busy() -> Pipeline<u32, Vec<u32>> {
        let mut pipeline = Pipeline::default();
        (1..=9).for_each(|n| pipeline.push(n));
        for _ in 0..2 {
            let group = pipeline.cut(|_, group| if group.len() < 3 { Cut::Take } else { Cut::Stop }, |_| ());
            pipeline.sent(group);
        }
        pipeline
    }

    #[test]
    fn what_is_in_doubt_goes_back_in_order() {
        let mut pipeline = busy();
        pipeline.take_back(|group| group.into_iter().filter(|n| *n != 2 && *n != 6));
        assert_eq!(*pipeline.waiting(), [1, 3, 4, 5, 7, 8, 9]);
        assert!(pipeline.flights().is_empty());
    }

    #[test]
    fn a_cut_takes_drops_and_stops() {
        let mut pipeline = busy();
        let mut dropped = Vec::new();
        let judge = |n: &u32, _: &[u32]| match n {
            7 => Cut::Drop,
            8 => Cut::Take,
            _ => Cut::Stop,
        };
        assert_eq!(pipeline.cut(judge, |n| dropped.push(n)), [8]);
        assert_eq!((dropped, pipeline.waiting().len()), (vec![7], 1));
    }

    #[test]
    fn results_come_in_the_order_of_the_groups() {
        let cx = &mut Context::from_waker(Waker::noop());
        let mut pipeline = busy();
        let second_is_done = |group: &mut Vec<u32>, _: &mut Context<'_>| match group[0] {
            4 => Poll::Ready("done"),
            _ => Poll::Pending,
        };
        assert!(pipeline.poll_first(cx, second_is_done).is_pending(), "the first has no result");
        assert_eq!(pipeline.poll_first(cx, |_, _| Poll::Ready(7)), Poll::Ready(Some((vec![1, 2, 3], 7))));
        assert_eq!(pipeline.poll_first(cx, second_is_done), Poll::Ready(Some((vec![4, 5, 6], "done"))));
        pipeline.sent(vec![7]);
        pipeline.sent(vec![8]);
        assert_eq!((pipeline.land(), pipeline.land(), pipeline.land()), (Some(vec![7]), Some(vec![8]), None));
        assert_eq!(pipeline.poll_first(cx, second_is_done), Poll::Ready(None));
        assert!(!pipeline.is_idle());
        pipeline.waiting_mut().clear();
        assert!(pipeline.is_idle());
    }
}
