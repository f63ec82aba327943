//! Selects the origins for a request by its path.

use crate::settings::FrontendConfig;
use pollux_http::{path::SafePath, request::Target};
use std::{path::Path, sync::Arc};

/// All routes, those with the longest prefixes first.
#[derive(Debug)]
pub(super) struct Routes(Vec<Route>);

/// The origins of one prefix, or the process that receives its clients.
#[derive(Debug)]
struct Route {
    prefix: Option<Box<[u8]>>,
    receiver: Option<Arc<Path>>,
    origins: Vec<u32>,
    /// The index of the origin that has the next turn.
    next: usize,
}

/// The number of a route.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RouteId(u32);

impl Routes {
    /// Creates the routes of `config`. The number of an origin is its index there.
    pub(super) fn new(config: &FrontendConfig) -> Self {
        let mut routes: Vec<Route> = Vec::new();
        for (index, route) in config.routes.iter().enumerate() {
            let prefix = route.prefix.as_ref().map(|prefix| prefix.as_bytes().into());
            let index = index as u32;
            match routes.iter_mut().find(|known| known.prefix == prefix) {
                Some(known) => known.origins.push(index),
                None => {
                    routes.push(Route { prefix, receiver: None, origins: vec![index], next: 0 });
                }
            }
        }
        for handover in &config.handovers {
            let prefix = handover.prefix.as_ref().map(|prefix| prefix.as_bytes().into());
            let receiver = Some(Arc::from(&*handover.path));
            routes.push(Route { prefix, receiver, origins: Vec::new(), next: 0 });
        }
        // The route without a prefix is the last: it gets the requests that match no other route.
        routes.sort_by_key(|route| {
            std::cmp::Reverse(route.prefix.as_ref().map(|prefix| prefix.len()))
        });
        Self(routes)
    }

    /// Returns the route of a request, if it has one. Paths are compared after decoding and resolving dot
    /// segments: `/%61pi` and `/x/../api` are `/api`. A path that is not safe is compared as it was received.
    pub(super) fn find(&self, target: &Target<'_>) -> Option<RouteId> {
        let path = match target {
            Target::Path { path, .. } => *path,
            Target::Asterisk => b"*",
            Target::Authority(_) => return None,
        };
        let mut scratch = Vec::new();
        let safe = match self.0.first() {
            Some(Route { prefix: Some(_), .. }) => SafePath::new(path, &mut scratch).ok(),
            // If no route has a prefix, there is nothing to compare.
            _ => None,
        };
        let path = safe.as_ref().map_or(path, |safe| safe.as_bytes());
        let found = self.0.iter().position(|route| match &route.prefix {
            None => true,
            // `/` is the whole server, and so is the target `*` (RFC 9112 §3.2.4).
            Some(prefix) if prefix.is_empty() => true,
            Some(prefix) => {
                path.strip_prefix(&**prefix).is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
            }
        });
        found.map(|index| RouteId(index as u32))
    }

    /// Returns whether files have precedence over the origins.
    pub(super) fn is_behind_files(&self, route: RouteId) -> bool {
        self.0[route.0 as usize].prefix.is_none()
    }

    /// Returns the path at which the process that receives the clients of a route listens, if the route has
    /// one instead of origins.
    pub(super) fn receiver(&self, route: RouteId) -> Option<&Arc<Path>> {
        self.0[route.0 as usize].receiver.as_ref()
    }

    /// Returns the origins of a route, beginning with the one that has the next turn.
    pub(super) fn take_turn(&mut self, route: RouteId) -> impl Iterator<Item = u32> + Clone + '_ {
        let route = &mut self.0[route.0 as usize];
        let first = route.next;
        route.next = (first + 1) % route.origins.len();
        let origins = &route.origins;
        (0..origins.len()).map(move |offset| origins[(first + offset) % origins.len()])
    }

    /// Returns the number of origins of a route.
    pub(super) fn count(&self, route: RouteId) -> usize {
        self.0[route.0 as usize].origins.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn routes(all: &[&str]) -> Routes {
        Routes::new(&FrontendConfig::new(all.iter().map(|one| one.parse().unwrap()).collect()))
    }

    fn origin(routes: &mut Routes, path: &str) -> Option<u32> {
        let target = Target::Path { path: path.as_bytes(), query: None };
        let route = routes.find(&target)?;
        routes.take_turn(route).next()
    }

    #[test]
    fn the_longest_prefix_has_it_and_whole_segments_count() {
        let mut all =
            routes(&["http://a", "/api=http://b", "/api/v2/=http://c", "/static=http://d"]);
        for (path, index) in [
            ("/", 0),
            ("/apix", 0),
            ("/api", 1),
            ("/api/", 1),
            ("/api/v1/x", 1),
            ("/api/v2", 2),
            ("/api/v2/x", 2),
            ("/%61pi/x", 1),
            ("/x/../api/y", 1),
            ("//api//v2", 2),
            // These paths are ambiguous, so they are compared as they were received.
            ("/api/a%2Fb", 1),
            ("/static/../../x", 3),
        ] {
            assert_eq!(origin(&mut all, path), Some(index), "{path}");
        }
        let mut some = routes(&["/api=http://b"]);
        assert_eq!((origin(&mut some, "/api/x"), origin(&mut some, "/x")), (Some(0), None));
        let mut everything = routes(&["/=http://b"]);
        let route = everything.find(&Target::Path { path: b"/x", query: None }).unwrap();
        assert!(!everything.is_behind_files(route));
        assert_eq!(origin(&mut everything, "/x"), Some(0));
        assert_eq!(everything.find(&Target::Asterisk), Some(route));
        assert_eq!(some.find(&Target::Asterisk), None);
    }

    #[test]
    fn origins_of_one_route_have_their_turns() {
        let mut all = routes(&["http://a", "http://b", "/x=http://c", "http://d"]);
        let turns: Vec<_> = (0..6).map(|_| origin(&mut all, "/").unwrap()).collect();
        assert_eq!(turns, [0, 1, 3, 0, 1, 3]);
        let route = all.find(&Target::Asterisk).unwrap();
        assert_eq!((all.count(route), all.is_behind_files(route)), (3, true));
        assert_eq!(all.take_turn(route).collect::<Vec<_>>(), [0, 1, 3]);
        assert_eq!(all.take_turn(route).collect::<Vec<_>>(), [1, 3, 0]);
    }
}
