//! Decides from the histories of all subscribers whether several hubs behaved as one.

use std::collections::{HashMap, HashSet};

/// An update that a publisher sent.
#[derive(Clone, Debug)]
pub(super) struct Attempt {
    /// The identifier of the update, which its publisher chose and used once.
    pub(super) id: String,
    /// Whether a hub confirmed the update. An update that was not confirmed may or may not reach
    /// subscribers.
    pub(super) is_acknowledged: bool,
}

/// The updates that a subscriber received, in the order of arrival, over all of its connections.
pub(super) type Arrivals = Vec<String>;

/// The reason why the hubs did not behave as one.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// A subscriber received an update that no publisher sent.
    Invented(String),
    /// An update reached a subscriber twice.
    Duplicated(String),
    /// An acknowledged update did not reach a subscriber.
    Lost(String),
    /// Two updates reached two subscribers in different orders, or in another order than the one in
    /// which their publisher sent them.
    Reordered(String, String),
}

/// Checks the arrivals of every subscriber against the updates of each publisher, in the order of
/// sending.
///
/// # Errors
/// The first fault that was found.
pub(super) fn check(publishers: &[Vec<Attempt>], subscribers: &[Arrivals]) -> Result<(), Fault> {
    let known: HashSet<&str> = publishers.iter().flatten().map(|sent| &*sent.id).collect();
    let acknowledged = publishers.iter().flatten().filter(|sent| sent.is_acknowledged);
    let acknowledged: Vec<&str> = acknowledged.map(|sent| &*sent.id).collect();
    let mut reference: Option<HashMap<&str, usize>> = None;
    for arrivals in subscribers {
        let mut positions = HashMap::new();
        for (position, id) in arrivals.iter().enumerate() {
            if !known.contains(id.as_str()) {
                return Err(Fault::Invented(id.clone()));
            }
            if positions.insert(id.as_str(), position).is_some() {
                return Err(Fault::Duplicated(id.clone()));
            }
        }
        if let Some(lost) = acknowledged.iter().find(|id| !positions.contains_key(**id)) {
            return Err(Fault::Lost((*lost).to_owned()));
        }
        for sent in publishers {
            let order = sent.iter().filter(|sent| sent.is_acknowledged).map(|sent| &*sent.id);
            in_order(order, &positions)?;
        }
        let reference = reference.get_or_insert_with(|| positions.clone());
        in_order(arrivals.iter().map(String::as_str), reference)?;
    }
    Ok(())
}

/// Checks that the positions of these updates ascend; updates without a position are skipped.
fn in_order<'a>(
    ids: impl Iterator<Item = &'a str>,
    positions: &HashMap<&str, usize>,
) -> Result<(), Fault> {
    let mut last: Option<(&str, usize)> = None;
    for id in ids {
        let Some(&position) = positions.get(id) else { continue };
        if let Some((before, at)) = last
            && position < at
        {
            return Err(Fault::Reordered(before.to_owned(), id.to_owned()));
        }
        last = Some((id, position));
    }
    Ok(())
}

/// Plants each kind of fault into correct arrivals, and checks that it is found. A checker that
/// accepts everything would pass every run.
pub(super) fn check_the_checker(publishers: &[Vec<Attempt>], right: &[Arrivals]) {
    assert_eq!(check(publishers, right), Ok(()));
    let acknowledged = |id: &String| {
        publishers.iter().flatten().any(|sent| sent.is_acknowledged && sent.id == *id)
    };
    for subscriber in 0..right.len() {
        let planted = |plant: &dyn Fn(&mut Arrivals)| {
            let mut wrong = right.to_vec();
            plant(&mut wrong[subscriber]);
            check(publishers, &wrong).expect_err("a planted fault is found")
        };
        let middle = right[subscriber].len() / 2;
        let at = middle + right[subscriber][middle..].iter().position(acknowledged).unwrap();
        let fault = planted(&|arrivals| drop(arrivals.remove(at)));
        assert!(matches!(fault, Fault::Lost(_)), "{fault:?}");
        let fault = planted(&|arrivals| arrivals.push(arrivals[at].clone()));
        assert!(matches!(fault, Fault::Duplicated(_)), "{fault:?}");
        let fault = planted(&|arrivals| arrivals.swap(at - 1, at));
        assert!(matches!(fault, Fault::Reordered(..)), "{fault:?}");
        let fault = planted(&|arrivals| arrivals.push("nobody's".into()));
        assert!(matches!(fault, Fault::Invented(_)), "{fault:?}");
    }
}

#[test]
fn the_checker_finds_what_is_wrong_and_nothing_else() {
    let sent = |id: &str, is_acknowledged| Attempt { id: id.into(), is_acknowledged };
    let publishers = [
        vec![sent("a1", true), sent("a2", false), sent("a3", true)],
        vec![sent("b1", true), sent("b2", true)],
    ];
    let arrivals = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
    // An update that was not acknowledged may have been accepted.
    let one = [arrivals("a1 b1 b2 a3"), arrivals("a1 b1 b2 a3")];
    assert_eq!(check(&publishers, &one), Ok(()));
    check_the_checker(&publishers, &[arrivals("a1 b1 a2 b2 a3"), arrivals("a1 b1 a2 b2 a3")]);
    let wrong = [arrivals("a3 b1 b2 a1")];
    assert_eq!(check(&publishers, &wrong), Err(Fault::Reordered("a1".into(), "a3".into())));
}
