//! The services of Pollux: files, a guestbook, a reverse proxy, a push hub. They do not depend on each other.

mod acme;
mod generations;
pub(crate) mod guestbook;
mod hosts;
pub(crate) mod hub;
pub(crate) mod proxy;
mod redirect;
mod routes;
pub(crate) mod site;

pub(crate) use generations::Generations;
pub(crate) use hosts::Hosts;
pub(crate) use routes::Routes;
