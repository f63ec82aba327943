//! The order in which idle connections are evicted: first those of the client that holds most of
//! them.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
};

/// In a sample, a client with fewer connections than this may have them by chance, so none of
/// them is selected.
const NOTICEABLE: usize = 4;

/// An idle connection of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SampledConnection<T> {
    /// The [`client_key`](crate::clients::client_key) of its client.
    pub(crate) client: u64,
    /// The connection. Values order by idle time: the connection that has been idle longest is the
    /// smallest.
    pub(crate) connection: T,
}

/// Returns the first `limit` connections to evict. Each is the longest idle connection of the
/// client that holds most connections at that point. If several clients hold the same number, the
/// client whose connection has been idle longest comes first. Each connection without an address
/// counts as a separate client.
///
/// `is_whole` says whether `sample` contains all idle connections. Otherwise the order ends when no
/// client in the sample holds at least `NOTICEABLE` connections.
pub(crate) fn most_held_first<T: Ord + Copy>(
    mut sample: Vec<SampledConnection<T>>,
    is_whole: bool,
    limit: usize,
) -> Vec<T> {
    let least = if is_whole { 1 } else { NOTICEABLE };
    sample.sort_unstable();
    let of_clients = sample.chunk_by(|one, next| one.client == next.client && one.client != 0);
    let mut heap: BinaryHeap<(usize, Reverse<VecDeque<T>>)> = of_clients
        .filter(|held| held.len() >= least)
        .map(|held| (held.len(), Reverse(held.iter().map(|held| held.connection).collect())))
        .collect();
    let mut order = Vec::with_capacity(limit.min(sample.len()));
    while order.len() < limit
        && let Some((count, Reverse(mut held))) = heap.pop()
    {
        order.extend(held.pop_front());
        if count > least {
            heap.push((count - 1, Reverse(held)));
        }
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn order(clients: &[u64], is_whole: bool, limit: usize) -> Vec<usize> {
        let held = clients.iter().enumerate();
        let held = held.map(|(connection, &client)| SampledConnection { client, connection });
        most_held_first(held.collect(), is_whole, limit)
    }

    #[test]
    fn who_holds_most_gives_way_until_others_hold_as_many() {
        assert_eq!(order(&[1, 1, 2, 2, 2, 2], true, 3), [2, 3, 0]);
        assert_eq!(order(&[3, 1, 2], true, 9), [0, 1, 2], "as many: the longest idle first");
        assert_eq!(order(&[0, 0, 0, 5, 5], true, 2), [3, 0], "without an address");
        assert!(order(&[], true, 4).is_empty());
    }

    #[test]
    fn few_of_a_sample_are_chance() {
        assert!(order(&[1, 1, 1, 2, 3], false, 9).is_empty());
        assert_eq!(order(&[2, 1, 1, 1, 1, 1], false, 9), [1, 2], "down to what is chance");
    }

    proptest! {
        /// Compares with a search of all remaining connections at each step.
        #[test]
        fn it_agrees_with_a_search(clients in proptest::collection::vec(1_u64..6, 0..40)) {
            let mut left: Vec<usize> = (0..clients.len()).collect();
            let mut expected = Vec::new();
            while let Some(&next) = left.iter().min_by_key(|&&connection| {
                let count = left.iter().filter(|&&o| clients[o] == clients[connection]).count();
                (Reverse(count), connection)
            }) {
                left.retain(|&connection| connection != next);
                expected.push(next);
            }
            prop_assert_eq!(order(&clients, true, usize::MAX), expected);
        }
    }
}
